//! The rows of the reports, with their figures and their order.

use super::SortKey;
use super::block_stats::{Adder, BlockStatsData, SumData};
use super::head::FilterData;
use crate::Index;
use crate::analysis::Analysis;
use crate::change::{Change, Side};
use crate::heap::{BlockStats, Group};
use crate::index::ScanError;
use crate::query::Query;
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::cmp::Reverse;

/// Options of a report with rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewOptions {
    /// Number of rows to show; 0: all.
    pub top: usize,
    /// The key that rows are sorted by.
    pub sort: SortKey,
    /// Reverses the order: the smallest first.
    pub reverse: bool,
    /// Also shows rows whose sort key is 0; they come last.
    pub empty: bool,
    /// Ticks of the moment that the figures describe; `None`: the end.
    pub at: Option<Ticks>,
    /// Ticks of an earlier moment to compare with.
    pub base: Option<Ticks>,
    /// Number of stacks of a place, or of children of a tree's node, to show; 0: all.
    pub paths: usize,
    /// Number of levels of a tree to show; 0: all.
    pub depth: usize,
    /// The root of the tree is the function that asks for memory, not the start of the thread.
    pub bottom_up: bool,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self {
            top: 10,
            sort: SortKey::Size,
            reverse: false,
            empty: false,
            at: None,
            base: None,
            paths: 5,
            depth: 0,
            bottom_up: false,
            filter: Vec::new(),
        }
    }
}

/// The input of a report with rows.
pub struct Ask<'a> {
    /// The recording.
    pub index: &'a Index,
    /// Selects the blocks.
    pub query: &'a Query<'a>,
    /// The figures of the selected blocks, at the moment that the options ask for.
    pub analysis: Analysis,
    /// The figures at the earlier moment.
    pub before: Option<Analysis>,
    /// The options of the report.
    pub options: ViewOptions,
}

impl<'a> Ask<'a> {
    /// Computes the figures of the selected blocks.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(
        index: &'a Index,
        query: &'a Query<'a>,
        options: ViewOptions,
    ) -> Result<Self, ScanError> {
        let analysis = query.analysis(options.at)?;
        let before = options.base.map(|at| query.analysis(Some(at))).transpose()?;
        Ok(Self { index, query, analysis, before, options })
    }

    pub(super) fn row(&self, group: Group, before: Option<Group>) -> Row {
        let before = self.before.as_ref().map(|_| before.unwrap_or_default());
        Row { group, before, total: None }
    }
}

/// A row before it is formatted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub group: Group,
    /// Figures at the earlier moment, if the group had blocks by then.
    pub before: Option<Group>,
    /// Figures including those of all functions that the row's function called.
    pub total: Option<Adder>,
}

pub(super) fn side(f: &BlockStats) -> Side {
    let mut side = Side::default();
    side.add(f);
    side
}

impl Row {
    pub(crate) fn change(&self) -> Option<Change> {
        let before = side(&self.before.as_ref()?.figures);
        Some(before.to(&side(&self.group.figures)))
    }

    /// Returns the value of the sort key.
    pub(crate) fn value(&self, ask: &Ask<'_>) -> u64 {
        let sort = ask.options.sort;
        if let Some(c) = self.change() {
            let value = match sort {
                SortKey::Count => c.live_count,
                SortKey::Allocated => c.allocated_bytes,
                SortKey::Allocations => c.allocations,
                SortKey::Temporary => c.temporary,
                _ => c.live_bytes,
            };
            return value.unsigned_abs();
        }
        match (&self.total, sort) {
            (Some(total), SortKey::Total) => total.figures().live_bytes,
            _ if self.is_empty() => 0,
            _ => sort.of(&ask.analysis, &self.group),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let f = &self.group.figures;
        f.begun() == 0
    }
}

/// Sorts rows; returns the number of rows to show, `top` at most.
pub(crate) fn order(ask: &Ask<'_>, rows: &mut [Row], top: usize) -> usize {
    let options = &ask.options;
    let again = |r: &Row| match (options.sort, options.base) {
        (SortKey::Allocations, None) => r.group.figures.reallocations,
        _ => 0,
    };
    rows.sort_by_cached_key(|r| {
        let f = &r.group.figures;
        let rest = (f.live_bytes, f.peak_bytes, f.allocated_bytes, f.allocations);
        (Reverse((r.value(ask), again(r), rest)), r.group.node)
    });
    let most = match options.empty {
        true => rows.len(),
        false => rows.partition_point(|r| r.value(ask) > 0 || again(r) > 0),
    };
    if options.reverse {
        rows[..most].reverse();
    }
    if top == 0 { most } else { top.min(most) }
}

/// Figures of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowData {
    /// Figures of its blocks.
    #[serde(flatten)]
    pub figures: BlockStatsData,
    /// Age of its oldest live block in nanoseconds, if it has one.
    pub oldest_live_age_ns: Option<u64>,
    /// Time when its first block was allocated, in nanoseconds since the start.
    pub first_ns: Option<u64>,
    /// Time when its last block was allocated, in nanoseconds since the start.
    pub last_ns: Option<u64>,
    /// Time of its peak of live bytes, in nanoseconds since the start.
    pub peak_at_ns: Option<u64>,
    /// Figures including those of all functions that it called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<SumData>,
    /// Figures at the earlier moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Side>,
    /// Change since the earlier moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

impl RowData {
    pub(crate) fn new(ask: &Ask<'_>, row: &Row) -> Self {
        let (analysis, g) = (&ask.analysis, &row.group);
        let (clock, capture) = (&analysis.meta().clock, analysis.capture());
        let time = |t: Ticks| (!row.is_empty()).then(|| clock.ns(t));
        Self {
            figures: BlockStatsData::new(capture, g),
            oldest_live_age_ns: analysis.oldest_age_ns(g),
            first_ns: time(g.first),
            last_ns: time(g.last),
            peak_at_ns: time(g.peak_ticks),
            total: row.total.map(|t| t.data(capture)),
            before: row.before.map(|b| side(&b.figures)),
            change: row.change(),
        }
    }
}

/// The sums of the rows that are not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RestRowsData {
    /// Number of these rows.
    pub rows: u64,
    /// Sums of their figures.
    #[serde(flatten)]
    pub sums: SumData,
    /// Change of their sums since the earlier moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

impl RestRowsData {
    pub(crate) fn new(ask: &Ask<'_>, rows: &[Row]) -> Self {
        let change = ask.before.as_ref().map(|_| {
            let mut sum = Change::default();
            rows.iter().filter_map(Row::change).for_each(|c| sum.add(&c));
            sum
        });
        Self {
            rows: rows.len() as u64,
            sums: SumData::of(ask.analysis.capture(), rows.iter().map(|r| &r.group)),
            change,
        }
    }
}

/// Returns groups at the index that is their node: the number of their class.
pub(crate) fn by_class(groups: Vec<Group>, count: usize) -> Vec<Option<Group>> {
    let mut all = vec![None; count];
    for g in groups {
        if let Some(slot) = all.get_mut(g.node as usize) {
            *slot = Some(g);
        }
    }
    all
}

/// Computes the rows of `count` classes, with their figures at the earlier moment.
pub(super) fn rows(
    ask: &Ask<'_>,
    by: crate::query::By<'_>,
    count: usize,
) -> Result<Vec<Row>, ScanError> {
    let after = by_class(ask.query.by(by, count, ask.options.at)?, count);
    let before = match ask.options.base {
        Some(at) => by_class(ask.query.by(by, count, Some(at))?, count),
        None => vec![None; count],
    };
    let row = |(i, (after, before)): (usize, (Option<Group>, Option<Group>))| {
        let empty = Group { node: i as u32, ..Group::default() };
        ask.row(after.unwrap_or(empty), before)
    };
    Ok(after.into_iter().zip(before).enumerate().map(row).collect())
}
