//! Rows: what is shown one after the other, each with its figures, the largest first.

use super::SortKey;
use super::figures::{Adder, FiguresData, SumData};
use super::head::FilterData;
use crate::Index;
use crate::diff::{Change, Side};
use crate::index::Damaged;
use crate::model::{Analysis, Figures, Group};
use crate::query::Query;
use serde::Serialize;
use std::cmp::Reverse;

/// What a view shows, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewOptions {
    /// How many rows; 0: all.
    pub top: usize,
    /// What they are ordered by.
    pub sort: SortKey,
    /// The smallest first.
    pub reverse: bool,
    /// Also rows that have nothing of what is sorted by; they come last.
    pub empty: bool,
    /// Ticks of the moment that the figures are of; `None`: the end.
    pub at: Option<u64>,
    /// Ticks of an earlier moment, the change since which is asked for.
    pub base: Option<u64>,
    /// How many stacks are shown of a location, and how many children of a node; 0: all.
    pub paths: usize,
    /// How many levels of a tree are shown; 0: all.
    pub depth: usize,
    /// A tree begins with those who ask for memory, not with where threads begin.
    pub bottom_up: bool,
    /// The filter; only to be named.
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

/// What a view is of.
pub struct Ask<'a> {
    /// The recording.
    pub index: &'a Index,
    /// Which blocks.
    pub query: &'a Query<'a>,
    /// Their figures, at the moment that is asked for.
    pub analysis: Analysis,
    /// The figures at the earlier moment.
    pub before: Option<Analysis>,
    /// What is shown.
    pub options: ViewOptions,
}

impl<'a> Ask<'a> {
    /// Of the blocks that are meant.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(
        index: &'a Index,
        query: &'a Query<'a>,
        options: ViewOptions,
    ) -> Result<Self, Damaged> {
        let analysis = query.analysis(options.at)?;
        let before = options.base.map(|at| query.analysis(Some(at))).transpose()?;
        Ok(Self { index, query, analysis, before, options })
    }

    pub(super) fn row(&self, group: Group, before: Option<Group>) -> Row {
        let before = self.before.as_ref().map(|_| before.unwrap_or_default());
        Row { group, before, total: None }
    }
}

/// A row in the making.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub group: Group,
    /// Its figures at the earlier moment, if there is one.
    pub before: Option<Group>,
    /// The figures with those of all that it called.
    pub total: Option<Adder>,
}

pub(super) fn side(f: &Figures) -> Side {
    let mut side = Side::default();
    side.add(f);
    side
}

impl Row {
    pub fn change(&self) -> Option<Change> {
        let before = side(&self.before.as_ref()?.figures);
        Some(before.to(&side(&self.group.figures)))
    }

    /// What it is ordered by.
    pub fn value(&self, ask: &Ask<'_>) -> u64 {
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

    pub fn is_empty(&self) -> bool {
        let f = &self.group.figures;
        f.allocations + f.reallocations == 0
    }
}

/// Puts rows in order; returns how many of them are to be shown, of no more than `top`.
pub(super) fn order(ask: &Ask<'_>, rows: &mut [Row], top: usize) -> usize {
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

/// The figures of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RowData {
    /// The figures of its blocks.
    #[serde(flatten)]
    pub figures: FiguresData,
    /// Age of its oldest live block, if it has one.
    pub oldest_live_age_ns: Option<u64>,
    /// When its first block was handed out, in nanoseconds since the start.
    pub first_ns: Option<u64>,
    /// When its last block was handed out.
    pub last_ns: Option<u64>,
    /// When the most of its bytes were first live.
    pub peak_at_ns: Option<u64>,
    /// The figures with those of everything that was called from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<SumData>,
    /// What it was at the earlier moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Side>,
    /// What has changed since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

impl RowData {
    pub(super) fn new(ask: &Ask<'_>, row: &Row) -> Self {
        let (analysis, g) = (&ask.analysis, &row.group);
        let (clock, capture) = (&analysis.meta().clock, analysis.capture());
        let time = |t: u64| (!row.is_empty()).then(|| clock.ns(t));
        Self {
            figures: FiguresData::new(capture, g),
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

/// The rows that are not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RestRowsData {
    /// How many.
    pub rows: u64,
    /// Their figures.
    #[serde(flatten)]
    pub sums: SumData,
    /// What has changed in them since the earlier moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

impl RestRowsData {
    pub(super) fn new(ask: &Ask<'_>, rows: &[Row]) -> Self {
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

/// Groups by class, whose number is their node.
pub(super) fn by_class(groups: Vec<Group>, count: usize) -> Vec<Option<Group>> {
    let mut all = vec![None; count];
    for g in groups {
        if let Some(slot) = all.get_mut(g.node as usize) {
            *slot = Some(g);
        }
    }
    all
}

/// What a class of an index is made of: rows by class, with those of the earlier moment.
pub(super) fn rows(
    ask: &Ask<'_>,
    by: crate::query::By<'_>,
    count: usize,
) -> Result<Vec<Row>, Damaged> {
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
