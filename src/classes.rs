//! The C++ classes of a process's blocks, for reports.

use prof_analyze::objects::{ObjectData, in_order};
use prof_analyze::symbols::class_name;
use prof_scan::Classes;

/// Returns the classes of some blocks, each with its address and size, those of most bytes first.
pub(crate) fn of(
    classes: &mut Classes,
    blocks: impl Iterator<Item = (u64, u64)>,
) -> Vec<ObjectData> {
    let sums = classes.sums(blocks).into_iter();
    in_order(
        sums.map(|(class, s)| ObjectData {
            class: class_name(&class),
            bytes: s.bytes,
            blocks: s.blocks,
        })
        .collect(),
    )
}
