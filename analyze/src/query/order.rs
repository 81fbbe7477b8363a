//! Lists the beginnings and ends of blocks in the order of time.
//!
//! The rows of an index are in the order of the blocks' ends. So time is cut into windows, each with no more beginnings
//! and ends than can be sorted in memory.

use super::plan::{Query, Selection};
use crate::index::{Column, ScanError, flags};
use crate::progress::Step;

/// The beginning or end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Sort key: four times the ticks, plus the kind. At the same moment ends precede beginnings, and blocks that begin
    /// and end at once come last.
    key: u64,
    /// Address of the block.
    pub addr: u64,
    /// Size of the block in bytes.
    pub size: u64,
    /// Index of its group.
    pub group: u32,
    /// Thread index of the thread that caused the event.
    pub lane: u32,
    /// Thread index of the thread that allocated the block.
    pub owner: u32,
    /// The block was returned by `realloc`.
    pub again: bool,
    /// [`Column::Rate`] of the block.
    pub rate: u8,
}

const BEGIN: u64 = 1;

impl Event {
    /// Returns the time in ticks.
    pub fn time(&self) -> u64 {
        self.key >> 2
    }

    /// Returns whether the block begins here; otherwise it ends.
    pub fn begins(&self) -> bool {
        self.key & 3 == BEGIN
    }
}

/// Number of events that are sorted at a time.
const MOST: u64 = 2 << 20;
/// Number of equal parts of time for which events are counted.
const BUCKETS: usize = 1 << 14;
/// The latest time possible, as keys have two bits more.
const LATEST: u64 = u64::MAX >> 2;

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 9],
    events: Vec<Event>,
}

impl Query<'_> {
    /// Calls `take` for each beginning and end of the selected blocks, up to the ticks `until`.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn in_order(&self, until: u64, take: impl FnMut(&Event)) -> Result<(), ScanError> {
        self.in_order_of(until, MOST, take)
    }

    /// As [`Self::in_order`], but sorts about `most` events at a time.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn in_order_of(
        &self,
        until: u64,
        most: u64,
        mut take: impl FnMut(&Event),
    ) -> Result<(), ScanError> {
        let until = until.min(LATEST);
        let windows = self.windows(until, most)?;
        let step = Step::begin("putting events in order", windows.len() as u64);
        for window in windows {
            let states = self.index.scan(State::default, |s, block| {
                let outside = |c| {
                    let (min, max) = block.range(c);
                    max < window.0 || min > window.1
                };
                if outside(Column::Begin) && outside(Column::End) {
                    return Some(());
                }
                self.collect(s, block, window)
            })?;
            let mut events: Vec<Event> = Vec::new();
            for mut s in states {
                if events.is_empty() {
                    events = s.events;
                } else {
                    events.append(&mut s.events);
                }
            }
            events.sort_by_key(|e| (e.key, e.addr));
            events.iter().for_each(&mut take);
            step.add(1);
        }
        Ok(())
    }

    /// Collects the events of a window, both ends of which belong to it.
    fn collect(
        &self,
        s: &mut State,
        block: &mut crate::index::Block<'_>,
        (from, to): (u64, u64),
    ) -> Option<()> {
        self.select(block, &mut s.selection)?;
        if s.selection.rows.is_empty() {
            return Some(());
        }
        const READ: [Column; 9] = [
            Column::Begin,
            Column::End,
            Column::Addr,
            Column::Size,
            Column::Group,
            Column::Lane,
            Column::EndLane,
            Column::Flags,
            Column::Rate,
        ];
        for (c, values) in READ.into_iter().zip(&mut s.columns) {
            block.read(c, values)?;
        }
        let [begins, ends, addrs, sizes, groups, lanes, end_lanes, flag, rates] = &s.columns;
        for &i in &s.selection.rows {
            let i = i as usize;
            let begin = begins[i].min(LATEST);
            let event = Event {
                key: begin << 2 | BEGIN,
                addr: addrs[i],
                size: sizes[i],
                group: groups[i] as u32,
                lane: lanes[i] as u32,
                owner: lanes[i] as u32,
                again: flag[i] & flags::REALLOCATED != 0,
                rate: rates[i] as u8,
            };
            if (from..=to).contains(&begin) {
                s.events.push(event);
            }
            if ends[i] == u64::MAX {
                continue;
            }
            let end = ends[i].min(LATEST);
            if (from..=to).contains(&end) {
                let kind = if end == begin { 2 } else { 0 };
                s.events.push(Event { key: end << 2 | kind, lane: end_lanes[i] as u32, ..event });
            }
        }
        Some(())
    }

    /// Returns windows of time up to `until`, each with about `most` events at most.
    fn windows(&self, until: u64, most: u64) -> Result<Vec<(u64, u64)>, ScanError> {
        if self.index.rows() <= most / 2 {
            return Ok(vec![(0, until)]);
        }
        let analysis = self.index.analysis();
        let start = analysis.meta().target.start_ticks.min(until);
        let end = analysis.end_ticks().clamp(start, until);
        let width = ((end - start) / BUCKETS as u64 + 1).max(1);
        let bucket = |t: u64| ((t.saturating_sub(start) / width) as usize).min(BUCKETS - 1);
        let count = |s: &mut (State, Vec<u64>), block: &mut crate::index::Block<'_>| {
            self.select(block, &mut s.0.selection)?;
            for column in [Column::Begin, Column::End] {
                block.read(column, &mut s.0.columns[0])?;
                for &i in &s.0.selection.rows {
                    let t = s.0.columns[0][i as usize];
                    s.1[bucket(t)] += u64::from(t <= until);
                }
            }
            Some(())
        };
        let states = self.index.scan(|| (State::default(), vec![0u64; BUCKETS]), count)?;
        let mut windows = Vec::new();
        let (mut from, mut used) = (0, 0);
        for i in 0..BUCKETS {
            let n: u64 = states.iter().map(|s| s.1[i]).sum();
            let begin = start + i as u64 * width;
            if used > 0 && used + n > most && begin > from {
                windows.push((from, begin - 1));
                (from, used) = (begin, 0);
            }
            used += n;
        }
        windows.push((from, until));
        Ok(windows)
    }
}
