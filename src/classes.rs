//! The C++ classes of a process's blocks, for reports.

use prof_analyze::symbols::class_name;
use prof_scan::Classes;
use serde::Serialize;

/// The blocks that begin with an object of a C++ class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ClassData {
    /// Name of the class.
    pub class: String,
    /// Bytes of the blocks, and their number.
    pub bytes: u64,
    pub blocks: u64,
}

/// Returns the classes of some blocks, each with its address and size, those of most bytes first.
pub(crate) fn of(
    classes: &mut Classes,
    blocks: impl Iterator<Item = (u64, u64)>,
) -> Vec<ClassData> {
    let sums = classes.sums(blocks).into_iter();
    let mut all: Vec<ClassData> = sums
        .map(|(class, s)| ClassData { class: class_name(&class), bytes: s.bytes, blocks: s.blocks })
        .collect();
    all.sort_by(|a, b| (b.bytes, &a.class).cmp(&(a.bytes, &b.class)));
    all
}
