//! Lists the beginnings and ends of blocks in the order of time.
//!
//! The rows of an index are in the order of the blocks' ends. So time is cut into windows, each with no more beginnings
//! and ends than can be sorted in memory.

use super::plan::{Query, Selection};
use crate::index::{Column, ScanError, flags};
use crate::progress::Step;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// Greatest number of sorted lists that are merged as they are passed on.
const LISTS: usize = 16;

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 9],
    /// Beginnings and ends apart: rows are in the order of ends, so these are in long sorted runs.
    events: [Vec<Event>; 2],
}

impl Event {
    #[inline(always)]
    fn place(&self) -> (u64, u64) {
        (self.key, self.addr)
    }
}

/// Sorts the events that each thread has collected, on as many threads as the system permits; returns the sorted lists.
fn sorted(states: Vec<State>) -> Vec<Vec<Event>> {
    let sort = |mut events: [Vec<Event>; 2]| {
        let [begins, ends] = &mut events;
        begins.sort_unstable_by_key(Event::place);
        // This sort makes use of runs.
        ends.sort_by_key(Event::place);
        events
    };
    let waiting: Vec<_> = states.into_iter().map(|s| Mutex::new(Some(s.events))).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        let mut lists = Vec::new();
        while let Some(events) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
            let events = events.lock().unwrap_or_else(PoisonError::into_inner).take();
            lists.extend(events.map(sort).into_iter().flatten());
        }
        lists
    };
    std::thread::scope(|scope| {
        let more = |_| std::thread::Builder::new().spawn_scoped(scope, run).ok();
        let others: Vec<_> = (1..waiting.len()).map_while(more).collect();
        let mut lists = run();
        for o in others {
            match o.join() {
                Ok(more) => lists.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        lists.retain(|list| !list.is_empty());
        lists
    })
}

/// Passes the events of sorted lists to `take`, in the order of time.
fn merge(mut lists: Vec<Vec<Event>>, mut take: impl FnMut(&Event)) {
    if lists.len() > LISTS {
        let mut all = lists.concat();
        all.sort_by_key(Event::place);
        lists = vec![all];
    }
    let mut rest: Vec<&[Event]> = lists.iter().map(Vec::as_slice).collect();
    loop {
        let firsts = rest.iter().enumerate().filter_map(|(i, l)| Some((l.first()?.place(), i)));
        let Some((_, least)) = firsts.min() else { return };
        // Up to the next event of another list, this one needs no comparison with all.
        let others = rest.iter().enumerate().filter(|(i, _)| *i != least);
        let until = others.filter_map(|(_, l)| Some(l.first()?.place())).min();
        let list = &mut rest[least];
        while let Some((first, behind)) = list.split_first()
            && until.is_none_or(|until| first.place() <= until)
        {
            take(first);
            *list = behind;
        }
    }
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
            merge(sorted(states), &mut take);
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
                s.events[0].push(event);
            }
            if ends[i] == u64::MAX {
                continue;
            }
            let end = ends[i].min(LATEST);
            if (from..=to).contains(&end) {
                let kind = if end == begin { 2 } else { 0 };
                s.events[1].push(Event {
                    key: end << 2 | kind,
                    lane: end_lanes[i] as u32,
                    ..event
                });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_one_in_the_order_of_time() {
        let event = |key: u64, addr: u64| Event {
            key,
            addr,
            size: 0,
            group: 0,
            lane: 0,
            owner: 0,
            again: false,
            rate: 0,
        };
        for threads in [0, 1, 2, 3, LISTS + 2] {
            let mut x = 88172645463325252u64;
            let mut random = |n: u64| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x % n
            };
            let mut states = Vec::new();
            let mut all = Vec::new();
            for i in 0..threads {
                let mut s = State::default();
                for list in &mut s.events {
                    *list = (0..i * 37 % 200).map(|_| event(random(500), random(9))).collect();
                    all.extend(list.iter().map(Event::place));
                }
                states.push(s);
            }
            all.sort_unstable();
            let mut merged = Vec::new();
            merge(sorted(states), |e| merged.push(e.place()));
            assert_eq!(merged, all, "{threads} threads");
        }
    }
}
