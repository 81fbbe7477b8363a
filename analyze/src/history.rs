//! Replays the beginnings and ends of blocks in the order of time, with all that the index knows of them.
//!
//! As [`Query::in_order`](crate::query::Query::in_order) does, this cuts time into windows of no more steps than can be
//! sorted in memory. Here a step also says how its block ended, and which chain of reallocations it belongs to, so that
//! the program's calls can be reconstructed.

use crate::index::{Block, Column, Index, ScanError, flags};
use crate::query::Selection;

/// The beginning or end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Sort key: four times the ticks, plus the kind. At the same moment ends precede beginnings, and blocks that begin
    /// and end at once come last.
    key: u64,
    pub addr: u64,
    pub size: u64,
    /// Index into [`Analysis::groups`](crate::Analysis::groups).
    pub group: u32,
    /// Thread index of the thread that did it.
    pub lane: u32,
    /// Stack that freed the block, if it is known.
    pub end_node: u32,
    /// Number of its chain of reallocations; 0: none.
    pub chain: u32,
    flags: u8,
    /// glibc's chunk header, in the code of [`Header`](prof_trace::size::Header).
    pub header: u16,
    /// [`Column::Rate`] of the block.
    pub rate: u8,
}

const BEGIN: u64 = 1;
/// The latest time possible, as keys have two bits more.
const LATEST: u64 = u64::MAX >> 2;
/// Number of steps that are sorted at a time.
const MOST: u64 = 2 << 20;
/// Number of equal parts of time for which steps are counted.
const BUCKETS: usize = 1 << 14;

impl Step {
    /// Returns the time in ticks.
    pub(crate) fn time(&self) -> u64 {
        self.key >> 2
    }

    /// Returns whether the block begins here; otherwise it ends.
    pub(crate) fn begins(&self) -> bool {
        self.key & 3 == BEGIN
    }

    fn has(&self, flag: u64) -> bool {
        u64::from(self.flags) & flag != 0
    }

    /// Returns whether the block was returned by `realloc`.
    pub(crate) fn again(&self) -> bool {
        self.has(flags::REALLOCATED)
    }

    /// Returns whether the block ends by being passed to `realloc`.
    pub(crate) fn continues(&self) -> bool {
        self.has(flags::CONTINUED)
    }

    /// Returns whether the block's free was not recorded: its end is implied by another block at its address.
    pub(crate) fn implied(&self) -> bool {
        self.has(flags::IMPLIED)
    }

    /// Returns whether the block was temporary.
    pub(crate) fn temporary(&self) -> bool {
        self.has(flags::TEMPORARY)
    }
}

/// Selects rows of a block of rows; returns `None` if that can't be read.
pub(crate) trait Select: Fn(&mut Block<'_>, &mut Selection) -> Option<()> + Sync {}

impl<F: Fn(&mut Block<'_>, &mut Selection) -> Option<()> + Sync> Select for F {}

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 12],
    steps: Vec<Step>,
    counts: Vec<u64>,
}

/// Calls `take` for each beginning and end of the selected blocks, up to the ticks `until`.
///
/// # Errors
/// If the index can't be read, or `take` fails.
pub(crate) fn steps<E: From<ScanError>>(
    index: &Index,
    select: impl Select,
    until: u64,
    mut take: impl FnMut(&Step) -> Result<(), E>,
) -> Result<(), E> {
    for window in windows(index, &select, until.min(LATEST))? {
        let states = index.scan(State::default, |s, block| {
            let outside = |c| {
                let (min, max) = block.range(c);
                max < window.0 || min > window.1
            };
            match outside(Column::Begin) && outside(Column::End) {
                true => Some(()),
                false => collect(s, block, &select, window),
            }
        })?;
        let mut steps: Vec<Step> = Vec::new();
        for mut s in states {
            match steps.is_empty() {
                true => steps = s.steps,
                false => steps.append(&mut s.steps),
            }
        }
        steps.sort_by_key(|s| (s.key, s.addr));
        steps.iter().try_for_each(&mut take)?;
    }
    Ok(())
}

/// Collects the steps of a window, both ends of which belong to it.
fn collect(
    s: &mut State,
    block: &mut Block<'_>,
    select: &impl Select,
    (from, to): (u64, u64),
) -> Option<()> {
    select(block, &mut s.selection)?;
    if s.selection.rows.is_empty() {
        return Some(());
    }
    const READ: [Column; 12] = [
        Column::Begin,
        Column::End,
        Column::Addr,
        Column::Size,
        Column::Group,
        Column::Lane,
        Column::EndLane,
        Column::EndNode,
        Column::Chain,
        Column::Flags,
        Column::Header,
        Column::Rate,
    ];
    for (c, values) in READ.into_iter().zip(&mut s.columns) {
        block.read(c, values)?;
    }
    let [begins, ends, addrs, sizes, groups, lanes, end_lanes, end_nodes, chains, flag, more @ ..] =
        &s.columns;
    let [headers, rates] = more;
    for &i in &s.selection.rows {
        let i = i as usize;
        let begin = begins[i].min(LATEST);
        let step = Step {
            key: begin << 2 | BEGIN,
            addr: addrs[i],
            size: sizes[i],
            group: groups[i] as u32,
            lane: lanes[i] as u32,
            end_node: end_nodes[i] as u32,
            chain: chains[i] as u32,
            flags: flag[i] as u8,
            header: headers[i] as u16,
            rate: rates[i] as u8,
        };
        if (from..=to).contains(&begin) {
            s.steps.push(step);
        }
        let end = ends[i].min(LATEST);
        if ends[i] != u64::MAX && (from..=to).contains(&end) {
            let kind = if end == begin { 2 } else { 0 };
            s.steps.push(Step { key: end << 2 | kind, lane: end_lanes[i] as u32, ..step });
        }
    }
    Some(())
}

/// Returns windows of time up to `until`, each with no more steps than are sorted at a time.
fn windows(index: &Index, select: &impl Select, until: u64) -> Result<Vec<(u64, u64)>, ScanError> {
    if index.rows() <= MOST / 2 {
        return Ok(vec![(0, until)]);
    }
    let analysis = index.analysis();
    let start = analysis.meta().target.start_ticks.min(until);
    let end = analysis.end_ticks().clamp(start, until);
    let width = ((end - start) / BUCKETS as u64 + 1).max(1);
    let bucket = |t: u64| ((t.saturating_sub(start) / width) as usize).min(BUCKETS - 1);
    let state = || State { counts: vec![0; BUCKETS], ..State::default() };
    let states = index.scan(state, |s, block| {
        select(block, &mut s.selection)?;
        for column in [Column::Begin, Column::End] {
            block.read(column, &mut s.columns[0])?;
            for &i in &s.selection.rows {
                let t = s.columns[0][i as usize];
                s.counts[bucket(t)] += u64::from(t <= until);
            }
        }
        Some(())
    })?;
    let mut windows = Vec::new();
    let (mut from, mut used) = (0, 0);
    for i in 0..BUCKETS {
        let n: u64 = states.iter().map(|s| s.counts[i]).sum();
        let begin = start + i as u64 * width;
        if used > 0 && used + n > MOST && begin > from {
            windows.push((from, begin - 1));
            (from, used) = (begin, 0);
        }
        used += n;
    }
    windows.push((from, until));
    Ok(windows)
}
