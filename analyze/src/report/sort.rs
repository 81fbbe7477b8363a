//! Sorts stacks by a key.

use crate::Analysis;
use crate::heap::Group;
use serde::Serialize;
use std::cmp::Reverse;

/// The key that groups are sorted by, the largest value first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum SortKey {
    /// Live bytes
    #[default]
    #[cfg_attr(feature = "clap", value(alias = "leaked"))]
    Size,
    /// Live allocations
    #[cfg_attr(feature = "clap", value(alias = "leaked-count"))]
    Count,
    /// Greatest number of bytes live at any time
    #[cfg_attr(feature = "clap", value(alias = "peak"))]
    PeakSize,
    /// Greatest number of allocations live at any time
    PeakCount,
    /// Bytes ever allocated
    Allocated,
    /// Number of allocations ever
    #[cfg_attr(feature = "clap", value(alias = "allocated-count"))]
    Allocations,
    /// Age of the oldest live allocation
    Age,
    /// Allocations that were freed by the next allocation event of their thread
    Temporary,
    /// Time of the first allocation, latest first
    #[cfg_attr(feature = "clap", value(alias = "min-timestamp"))]
    First,
    /// Time of the last allocation, latest first
    #[cfg_attr(feature = "clap", value(alias = "max-timestamp"))]
    Last,
    /// Time from the first allocation to the last
    Interval,
    /// Time of the peak of live bytes, latest first
    #[cfg_attr(feature = "clap", value(alias = "max-total-usage-first-seen-at"))]
    PeakAt,
    /// Live bytes including those of all called functions (--group-by function, file, module)
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

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|k| k.0 == self).map_or("", |k| k.1)
    }

    /// Returns the value of a group; 0 if it has none.
    pub fn of(self, analysis: &Analysis, group: &Group) -> u64 {
        let (f, clock) = (&group.figures, &analysis.meta().clock);
        match self {
            SortKey::Size | SortKey::Total => f.live_bytes,
            SortKey::Count => f.live_count,
            SortKey::PeakSize => f.peak_bytes,
            SortKey::PeakCount => f.peak_count,
            SortKey::Allocated => f.allocated_bytes,
            SortKey::Allocations => f.allocations,
            // Add 1, as 0 means that there is no live block.
            SortKey::Age => analysis.oldest_age_ns(group).map_or(0, |a| a.saturating_add(1)),
            SortKey::Temporary => f.temporary,
            // Add 1, as for the age.
            SortKey::First => clock.ns(group.first).saturating_add(1),
            SortKey::Last => clock.ns(group.last).saturating_add(1),
            SortKey::Interval => clock.between(group.first, group.last).saturating_add(1),
            SortKey::PeakAt => clock.ns(group.peak_ticks).saturating_add(1),
        }
    }

    /// Returns whether a group has a value.
    pub fn has(self, analysis: &Analysis, group: &Group) -> bool {
        let again = self == SortKey::Allocations && group.figures.reallocations > 0;
        again || self.of(analysis, group) > 0
    }
}

/// A sort key and a direction.
#[derive(Clone, Copy)]
pub(super) struct Order<'a> {
    pub analysis: &'a Analysis,
    pub sort: SortKey,
    /// Reverses the order: the smallest first.
    pub reverse: bool,
}

impl Order<'_> {
    /// Sorts all groups, and returns how many of them to show: `top` at most, unless that is 0, and only groups that
    /// have a value, unless `empty` is set. Equal groups are sorted by their live, peak and allocated bytes, and then
    /// by number, so that the order is deterministic.
    pub(super) fn top(&self, groups: &[Group], top: usize, empty: bool) -> (Vec<Group>, usize) {
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
