//! Blocks by stack, function, file, module, thread or size: sorted, and a part of the rows.

use crate::Index;
use crate::heap::{Group, Totals};
use crate::index::ScanError;
use crate::query::{By, Query, SIZE_CLASSES, Span};
use crate::report::{
    Adder, Ask, RestRowsData, Row, RowData, SortKey, SumData, ViewOptions, by_class, order,
};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::collections::HashMap;

/// The criterion by which blocks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupKey {
    /// By stack.
    Stack,
    /// By the function that asked for them: the innermost that is not an allocator.
    Function,
    /// By the source file of that function, or its module if the file is not known.
    File,
    /// By the module of that function.
    Module,
    /// By the thread that allocated them.
    Thread,
    /// By size: up to 8 bytes, up to 16, up to 32, and so on.
    Size,
}

/// A question for groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupsAsk {
    /// The criterion.
    pub by: GroupKey,
    /// The key that rows are sorted by. A peak needs `peaks`, else rows without a known peak are equal.
    pub sort: SortKey,
    /// Reverses the order: the smallest first.
    pub reverse: bool,
    /// Number of rows to leave out in front.
    pub skip: usize,
    /// Greatest number of rows.
    pub count: usize,
    /// Nanoseconds since the start of the moment that the figures describe; `None`: the end.
    pub at_ns: Option<u64>,
    /// Also computes peaks, where they are not known, which takes seconds for a long recording.
    pub peaks: bool,
    /// Number of columns of each row's timeline; 0: none.
    pub spark: usize,
}

impl Default for GroupsAsk {
    fn default() -> Self {
        Self {
            by: GroupKey::Stack,
            sort: SortKey::Size,
            reverse: false,
            skip: 0,
            count: 20,
            at_ns: None,
            peaks: false,
            spark: 0,
        }
    }
}

/// Groups of blocks. Rows and rest add up to the totals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Groups {
    /// The rows that were asked for.
    pub rows: Vec<GroupRow>,
    /// Number of all rows, of which those with `skip` in front and `rest` behind are not shown.
    pub total_rows: u64,
    /// The sums of all other rows.
    pub rest: RestRowsData,
    /// The sums of all rows.
    pub totals: SumData,
    /// Peaks are known; otherwise they are 0.
    pub peaks: bool,
}

/// A row of [`Groups`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupRow {
    /// Number of the row's class: of a stack the index of its group, of a size its [class](crate::query::size_class),
    /// of a thread its index.
    pub id: u32,
    /// Stack node, for `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
    /// The function, the file, the module, or the name of the thread; of a stack the function that asked. `None` if it
    /// is not known.
    pub name: Option<String>,
    /// Path of the module, where that is not the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Source file and line of the place that asked, of a stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<(String, Option<u32>)>,
    /// ID of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Greatest size of the class in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u64>,
    /// Number of stacks; 0 for threads and sizes.
    pub stacks: u64,
    /// The figures.
    #[serde(flatten)]
    pub figures: RowData,
    /// Live bytes at the end of each column of the whole recording's time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spark: Vec<u64>,
}

/// The classes of a criterion.
struct Classes {
    rows: Vec<Row>,
    /// For each group its class, if the classes are of stacks.
    of: Option<Vec<u32>>,
    count: usize,
    stacks: Vec<u64>,
    peaks: bool,
}

/// Groups the selected blocks.
///
/// # Errors
/// If the index can't be read, or the job of this thread is cancelled.
pub fn groups(index: &Index, query: &Query<'_>, ask: &GroupsAsk) -> Result<Groups, ScanError> {
    let analysis = index.analysis();
    let at = ask.at_ns.map(|ns| analysis.ticks_at(ns));
    let mut classes = match ask.by {
        GroupKey::Thread => plain(query, By::Threads, index.thread_numbers().len(), at, ask.peaks)?,
        GroupKey::Size => plain(query, By::Sizes, SIZE_CLASSES, at, ask.peaks)?,
        _ => of_stacks(index, query, ask, at)?,
    };
    let options =
        ViewOptions { sort: ask.sort, reverse: ask.reverse, at, ..ViewOptions::default() };
    let shown = analysis.with_figures(Totals::default(), Vec::new(), at);
    let view = Ask { index, query, analysis: shown, before: None, options };
    sort(&view, &mut classes.rows);
    let all = &classes.rows;
    let from = ask.skip.min(all.len());
    let to = from.saturating_add(ask.count).min(all.len());
    let mut rows: Vec<GroupRow> = all[from..to]
        .iter()
        .map(|r| {
            let id = r.group.node;
            let mut row = GroupRow { id, figures: RowData::new(&view, r), ..GroupRow::default() };
            row.stacks = classes.stacks.get(id as usize).copied().unwrap_or(0);
            name(index, ask.by, &classes, &mut row);
            row
        })
        .collect();
    if ask.spark > 0 {
        put_sparks(index, query, ask, &classes, &mut rows)?;
    }
    let others: Vec<Row> = all[..from].iter().chain(&all[to..]).cloned().collect();
    Ok(Groups {
        rows,
        total_rows: all.len() as u64,
        rest: RestRowsData::new(&view, &others),
        totals: SumData::of(analysis.capture(), all.iter().map(|r| &r.group)),
        peaks: classes.peaks,
    })
}

/// Sorts the rows; those without a value of the sort key come last. Unless a peak is the key, rows are in the same
/// order with and without peaks, so that these can be filled in.
fn sort(view: &Ask<'_>, rows: &mut [Row]) {
    if matches!(view.options.sort, SortKey::PeakSize | SortKey::PeakCount | SortKey::PeakAt) {
        order(view, rows, 0);
        return;
    }
    let mut peaks = HashMap::new();
    for r in rows.iter_mut() {
        let (g, f) = (r.group.node, &mut r.group.figures);
        peaks.insert(g, (std::mem::take(&mut f.peak_count), std::mem::take(&mut f.peak_bytes)));
    }
    order(view, rows, 0);
    for r in rows {
        let peak = peaks.get(&r.group.node).copied().unwrap_or_default();
        (r.group.figures.peak_count, r.group.figures.peak_bytes) = peak;
    }
}

fn sums(
    query: &Query<'_>,
    by: By<'_>,
    count: usize,
    at: Option<Ticks>,
    peaks: bool,
) -> Result<(Vec<Group>, bool), ScanError> {
    let (groups, known) = query.sums(by, count, at)?;
    if known || !peaks {
        return Ok((groups, known));
    }
    Ok((query.by(by, count, at)?, true))
}

fn plain(
    query: &Query<'_>,
    by: By<'_>,
    count: usize,
    at: Option<Ticks>,
    peaks: bool,
) -> Result<Classes, ScanError> {
    let (groups, peaks) = sums(query, by, count, at, peaks)?;
    let rows = groups.into_iter().map(|group| Row { group, before: None, total: None });
    Ok(Classes { rows: rows.collect(), of: None, count, stacks: Vec::new(), peaks })
}

/// Computes the classes of stacks: the sums of a class are those of its stacks.
fn of_stacks(
    index: &Index,
    query: &Query<'_>,
    ask: &GroupsAsk,
    at: Option<Ticks>,
) -> Result<Classes, ScanError> {
    let count = index.analysis().groups().len();
    if ask.by == GroupKey::Stack {
        let mut classes = plain(query, By::Stacks, count, at, ask.peaks)?;
        classes.stacks = vec![1; count];
        return Ok(classes);
    }
    let stacks = index.stacks();
    let mut ids: HashMap<(Option<&str>, Option<&str>), u32> = HashMap::new();
    let (groups, _) = query.sums(By::Stacks, count, at)?;
    let mut of_place: HashMap<u32, u32> = HashMap::new();
    let mut of = vec![u32::MAX; count];
    let mut totals: Vec<Adder> = Vec::new();
    let mut in_class: Vec<u64> = Vec::new();
    for g in &groups {
        let at = g.node as usize;
        let stack = stacks.stack(at);
        let mut id = |key| {
            let next = ids.len() as u32;
            *ids.entry(key).or_insert(next)
        };
        let mut classes: Vec<u32> = stack
            .iter()
            .map(|p| *of_place.entry(*p).or_insert_with(|| id(key(stacks.place(*p), ask.by))))
            .collect();
        let asker = classes.get(stacks.asker(at)).copied();
        of[at] = asker.unwrap_or_else(|| id((None, None)));
        classes.push(of[at]);
        totals.resize(ids.len(), Adder::default());
        in_class.resize(ids.len(), 0);
        in_class[of[at] as usize] += 1;
        // A function that occurs in a stack several times, by recursion, counts once.
        classes.sort_unstable();
        classes.dedup();
        classes.iter().for_each(|c| totals[*c as usize].add(g));
    }
    let count = ids.len();
    let (groups, peaks) = match ask.peaks || index.analysis().capture().is_sampled() {
        true => {
            let (groups, known) = sums(query, By::Classes(&of), count, at, true)?;
            let empty = |node| Group { node, ..Group::default() };
            let all = by_class(groups, count).into_iter().zip(0..);
            (all.map(|(g, node)| g.unwrap_or(empty(node))).collect(), known)
        }
        false => (joined(&groups, &of, count), false),
    };
    let row = |group: Group| {
        let total = totals.get(group.node as usize).copied();
        Row { group, before: None, total }
    };
    let rows = groups.into_iter().map(row).collect();
    Ok(Classes { rows, of: Some(of), count, stacks: in_class, peaks })
}

/// Adds up the groups of each class.
fn joined(groups: &[Group], of: &[u32], count: usize) -> Vec<Group> {
    let mut all: Vec<Group> =
        (0..count as u32).map(|node| Group { node, ..Group::default() }).collect();
    for g in groups {
        let class = of[g.node as usize];
        crate::query::join(&mut all[class as usize], g, class);
    }
    all
}

/// Returns the key that all blocks of a place have in common: name and module.
fn key(p: &crate::report::PlaceData, by: GroupKey) -> (Option<&str>, Option<&str>) {
    let module = p.module.as_deref();
    match by {
        GroupKey::Function => (p.function.as_deref().or(p.offset.as_deref()), module),
        GroupKey::File if p.file.is_some() => (p.file.as_deref(), None),
        GroupKey::File => (None, module),
        _ => (module, None),
    }
}

fn name(index: &Index, by: GroupKey, classes: &Classes, row: &mut GroupRow) {
    let analysis = index.analysis();
    let id = row.id as usize;
    let group = match (by, &classes.of) {
        (GroupKey::Stack, _) => Some(id),
        (_, Some(of)) => of.iter().position(|c| *c == row.id),
        _ => None,
    };
    if let Some(group) = group {
        let stacks = index.stacks();
        let place = stacks.stack(group).get(stacks.asker(group)).map(|p| stacks.place(*p));
        if by == GroupKey::Stack {
            row.stack = analysis.groups().get(id).map(|g| g.node);
            row.source = place.and_then(|p| Some((p.file.clone()?, p.line)));
        }
        let by = if by == GroupKey::Stack { GroupKey::Function } else { by };
        let key = place.map_or((None, None), |p| key(p, by));
        (row.name, row.module) = (key.0.map(str::to_owned), key.1.map(str::to_owned));
    } else if by == GroupKey::Thread {
        let thread = index.thread_numbers().get(id).and_then(|n| analysis.meta().threads.get(n));
        row.tid = thread.map(|t| t.tid);
        row.name = thread.map(|t| crate::style::printable(&t.name)).filter(|n| !n.is_empty());
    } else {
        row.max_size = Some(8u64.checked_shl(row.id).filter(|s| *s > 0).unwrap_or(u64::MAX));
    }
}

/// Adds the timelines of the rows.
fn put_sparks(
    index: &Index,
    query: &Query<'_>,
    ask: &GroupsAsk,
    classes: &Classes,
    rows: &mut [GroupRow],
) -> Result<(), ScanError> {
    let span = Span::whole(index, ask.spark);
    let lines = match (ask.by, &classes.of) {
        (GroupKey::Thread, _) => query.timelines(&span, By::Threads, classes.count)?,
        (GroupKey::Size, _) => query.timelines(&span, By::Sizes, classes.count)?,
        (_, of) => {
            let mut shown = vec![u32::MAX; classes.count];
            rows.iter().enumerate().for_each(|(i, r)| shown[r.id as usize] = i as u32);
            let class = |c: &u32| shown.get(*c as usize).copied().unwrap_or(u32::MAX);
            let of: Vec<u32> = match of {
                Some(of) => of.iter().map(class).collect(),
                None => shown,
            };
            let lines = query.timelines(&span, By::Classes(&of), rows.len())?;
            rows.iter_mut().zip(lines).for_each(|(r, line)| r.spark = line);
            return Ok(());
        }
    };
    for r in rows {
        r.spark = lines.get(r.id as usize).cloned().unwrap_or_default();
    }
    Ok(())
}
