//! Which stacks come first.

use crate::Analysis;
use crate::model::Group;
use serde::Serialize;
use std::cmp::Reverse;

/// What groups are ordered by: the largest comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SortKey {
    /// Live bytes.
    #[default]
    Size,
    /// Live blocks.
    Count,
    /// The most bytes that were live at a time.
    PeakSize,
    /// The most blocks that were live at a time.
    PeakCount,
    /// Bytes ever handed out.
    Allocated,
    /// Blocks ever handed out; reallocations decide between equals.
    Allocations,
    /// Age of the oldest live block.
    Age,
    /// Temporary blocks.
    Temporary,
}

impl SortKey {
    /// All keys with their names on the command line.
    pub const ALL: [(SortKey, &'static str); 8] = [
        (SortKey::Size, "size"),
        (SortKey::Count, "count"),
        (SortKey::PeakSize, "peak-size"),
        (SortKey::PeakCount, "peak-count"),
        (SortKey::Allocated, "allocated"),
        (SortKey::Allocations, "allocations"),
        (SortKey::Age, "age"),
        (SortKey::Temporary, "temporary"),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|k| k.0 == self).map_or("", |k| k.1)
    }

    /// The value of a group; 0 if it has nothing of it.
    pub fn of(self, analysis: &Analysis, group: &Group) -> u64 {
        let f = &group.figures;
        match self {
            SortKey::Size => f.live_bytes,
            SortKey::Count => f.live_count,
            SortKey::PeakSize => f.peak_bytes,
            SortKey::PeakCount => f.peak_count,
            SortKey::Allocated => f.allocated_bytes,
            SortKey::Allocations => f.allocations,
            // Even a block that is no nanosecond old is older than none.
            SortKey::Age => analysis.oldest_age_ns(group).map_or(0, |a| a.saturating_add(1)),
            SortKey::Temporary => f.temporary,
        }
    }

    /// Whether a group has anything of it.
    pub fn has(self, analysis: &Analysis, group: &Group) -> bool {
        let again = self == SortKey::Allocations && group.figures.reallocations > 0;
        again || self.of(analysis, group) > 0
    }

    /// All groups in order; equals by their live, peak and allocated
    /// bytes, and then as their stacks were numbered, so that the order is always the same.
    pub fn sorted(self, analysis: &Analysis) -> Vec<Group> {
        let mut groups: Vec<_> =
            analysis.groups().iter().map(|g| (self.of(analysis, g), *g)).collect();
        groups.sort_by_key(|(v, g)| {
            let f = &g.figures;
            let again = if self == SortKey::Allocations { f.reallocations } else { 0 };
            let rest = (f.live_bytes, f.peak_bytes, f.allocated_bytes, f.allocations);
            (Reverse((*v, again, rest)), g.node)
        });
        groups.into_iter().map(|g| g.1).collect()
    }
}
