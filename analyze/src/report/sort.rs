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
    /// When the first block was handed out.
    First,
    /// When the last block was handed out.
    Last,
    /// Time between the first block and the last.
    Interval,
    /// When the most bytes were first live.
    PeakAt,
    /// Live bytes with those of all that it called, for functions, files and modules; else as
    /// [`Size`](Self::Size).
    Total,
}

impl SortKey {
    /// All keys with their names on the command line.
    pub const ALL: [(SortKey, &'static str); 13] = [
        (SortKey::Size, "size"),
        (SortKey::Count, "count"),
        (SortKey::PeakSize, "peak-size"),
        (SortKey::PeakCount, "peak-count"),
        (SortKey::Allocated, "allocated"),
        (SortKey::Allocations, "allocations"),
        (SortKey::Age, "age"),
        (SortKey::Temporary, "temporary"),
        (SortKey::First, "first"),
        (SortKey::Last, "last"),
        (SortKey::Interval, "interval"),
        (SortKey::PeakAt, "peak-at"),
        (SortKey::Total, "total"),
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|k| k.0 == self).map_or("", |k| k.1)
    }

    /// The value of a group; 0 if it has nothing of it.
    pub fn of(self, analysis: &Analysis, group: &Group) -> u64 {
        let (f, clock) = (&group.figures, &analysis.meta().clock);
        match self {
            SortKey::Size | SortKey::Total => f.live_bytes,
            SortKey::Count => f.live_count,
            SortKey::PeakSize => f.peak_bytes,
            SortKey::PeakCount => f.peak_count,
            SortKey::Allocated => f.allocated_bytes,
            SortKey::Allocations => f.allocations,
            // Even a block that is no nanosecond old is older than none.
            SortKey::Age => analysis.oldest_age_ns(group).map_or(0, |a| a.saturating_add(1)),
            SortKey::Temporary => f.temporary,
            // As for the age.
            SortKey::First => clock.ns(group.first).saturating_add(1),
            SortKey::Last => clock.ns(group.last).saturating_add(1),
            SortKey::Interval => clock.between(group.first, group.last).saturating_add(1),
            SortKey::PeakAt => clock.ns(group.peak_ticks).saturating_add(1),
        }
    }

    /// Whether a group has anything of it.
    pub fn has(self, analysis: &Analysis, group: &Group) -> bool {
        let again = self == SortKey::Allocations && group.figures.reallocations > 0;
        again || self.of(analysis, group) > 0
    }
}

/// What groups are ordered by, and from which end.
#[derive(Clone, Copy)]
pub(super) struct Order<'a> {
    pub analysis: &'a Analysis,
    pub sort: SortKey,
    /// The smallest first.
    pub reverse: bool,
}

impl Order<'_> {
    /// All groups in order, and how many of them are to be shown: no more than `top`, unless that is
    /// 0, and only those that have anything of the key, or `empty` ones as well. Equals are ordered
    /// by their live, peak and allocated bytes, and then by number, so that the order is always the
    /// same.
    pub fn top(&self, groups: &[Group], top: usize, empty: bool) -> (Vec<Group>, usize) {
        let sort = self.sort;
        let mut groups: Vec<_> = groups.iter().map(|g| (sort.of(self.analysis, g), *g)).collect();
        groups.sort_by_key(|(v, g)| {
            let f = &g.figures;
            let again = if sort == SortKey::Allocations { f.reallocations } else { 0 };
            let rest = (f.live_bytes, f.peak_bytes, f.allocated_bytes, f.allocations);
            (Reverse((*v, again, rest)), g.node)
        });
        let mut groups: Vec<_> = groups.into_iter().map(|g| g.1).collect();
        let most = match empty {
            true => groups.len(),
            false => groups.partition_point(|g| sort.has(self.analysis, g)),
        };
        if self.reverse {
            groups[..most].reverse();
        }
        (groups, if top == 0 { most } else { top.min(most) })
    }
}
