//! Lists the beginnings and ends of blocks in the order of time.
//!
//! The rows of an index are in the order of the blocks' ends. So time is cut into windows, each with no more beginnings
//! and ends than can be sorted in memory.

use super::plan::{Query, Selection};
use crate::index::{Block, Column, Index, ScanError, flags};
use crate::progress::Step;
use prof_trace::ticks::Ticks;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The beginning or end of a block, with what a reader needs to know of the block.
pub(crate) trait Entry: Copy + Send + Sync {
    /// Columns that an entry is made of, besides [`Column::Begin`] and [`Column::End`].
    const COLUMNS: &'static [Column];

    /// Makes the entry for the beginning of the block in row `row`, given the values of [`Self::COLUMNS`].
    fn begin(key: Key, columns: &[Vec<u64>], row: usize) -> Self;

    /// Makes the entry for the end of the block, given the one for its beginning.
    fn end(self, key: Key, columns: &[Vec<u64>], row: usize) -> Self;

    /// Returns the sort key.
    fn key(&self) -> Key;

    /// Returns the address of the block. It decides where keys are equal.
    fn addr(&self) -> u64;
}

/// The moment of a beginning or end: four times the ticks, plus the kind. At the same moment ends precede beginnings,
/// and blocks that begin and end at once come last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

const BEGIN: u64 = 1;
/// The latest time possible, as keys have two bits more.
const LATEST: Ticks = Ticks(u64::MAX >> 2);

impl Key {
    fn of_begin(ticks: Ticks) -> Self {
        Self(ticks.0 << 2 | BEGIN)
    }

    fn of_end(ticks: Ticks, begin: Ticks) -> Self {
        Self(ticks.0 << 2 | if ticks == begin { 2 } else { 0 })
    }

    /// Returns the time in ticks.
    pub(crate) fn time(self) -> Ticks {
        Ticks(self.0 >> 2)
    }

    /// Returns whether the block begins here; otherwise it ends.
    pub(crate) fn begins(self) -> bool {
        self.0 & 3 == BEGIN
    }
}

/// Selects rows of a block of rows; returns `None` if that can't be read.
pub(crate) trait Select: Fn(&mut Block<'_>, &mut Selection) -> Option<()> + Sync {}

impl<F: Fn(&mut Block<'_>, &mut Selection) -> Option<()> + Sync> Select for F {}

/// Number of entries that are sorted at a time.
const MOST: u64 = 2 << 20;
/// Number of equal parts of time for which entries are counted.
const BUCKETS: usize = 1 << 14;
/// Greatest number of sorted lists that are merged as they are passed on.
const LISTS: usize = 16;

/// Entries that one thread has collected.
struct State<E> {
    selection: Selection,
    /// Values of [`Column::Begin`], [`Column::End`] and [`Entry::COLUMNS`].
    columns: Vec<Vec<u64>>,
    /// Beginnings and ends apart: rows are in the order of ends, so these are in long sorted runs.
    entries: [Vec<E>; 2],
}

impl<E: Entry> State<E> {
    fn new() -> Self {
        let columns = vec![Vec::new(); 2 + E::COLUMNS.len()];
        Self { selection: Selection::default(), columns, entries: [Vec::new(), Vec::new()] }
    }
}

#[inline(always)]
fn place<E: Entry>(e: &E) -> (Key, u64) {
    (e.key(), e.addr())
}

/// Calls `take` for each beginning and end, up to the ticks `until`, of the blocks of an index that `select` selects.
///
/// # Errors
/// If the index can't be read, or `take` fails.
pub(crate) fn in_order<E: Entry, F: From<ScanError>>(
    index: &Index,
    select: impl Select,
    until: Ticks,
    take: impl FnMut(&E) -> Result<(), F>,
) -> Result<(), F> {
    in_order_of(index, select, until, MOST, take)
}

/// Does the same as [`in_order`], but sorts about `most` entries at a time.
fn in_order_of<E: Entry, F: From<ScanError>>(
    index: &Index,
    select: impl Select,
    until: Ticks,
    most: u64,
    mut take: impl FnMut(&E) -> Result<(), F>,
) -> Result<(), F> {
    let windows = windows(index, &select, until.min(LATEST), most)?;
    let step = Step::begin("putting events in order", windows.len() as u64);
    for window in windows {
        let states = index.scan(State::<E>::new, |s, block| {
            let outside = |c| {
                let (min, max) = block.range(c);
                max < window.0.0 || min > window.1.0
            };
            if outside(Column::Begin) && outside(Column::End) {
                return Some(());
            }
            collect(s, block, &select, window)
        })?;
        merge(sorted(states), &mut take)?;
        step.add(1);
    }
    Ok(())
}

/// Collects the entries of a window, both ends of which belong to it.
fn collect<E: Entry>(
    s: &mut State<E>,
    block: &mut Block<'_>,
    select: &impl Select,
    (from, to): (Ticks, Ticks),
) -> Option<()> {
    select(block, &mut s.selection)?;
    if s.selection.rows.is_empty() {
        return Some(());
    }
    let both = [Column::Begin, Column::End];
    for (c, values) in both.iter().chain(E::COLUMNS).zip(&mut s.columns) {
        block.read(*c, values)?;
    }
    let [begins, ends, columns @ ..] = &*s.columns else { return None };
    for &i in &s.selection.rows {
        let i = i as usize;
        let begin = Ticks(begins[i]).min(LATEST);
        let entry = E::begin(Key::of_begin(begin), columns, i);
        if (from..=to).contains(&begin) {
            s.entries[0].push(entry);
        }
        let end = Ticks(ends[i]).min(LATEST);
        if ends[i] != u64::MAX && (from..=to).contains(&end) {
            s.entries[1].push(entry.end(Key::of_end(end, begin), columns, i));
        }
    }
    Some(())
}

/// Returns windows of time up to `until`, each with about `most` entries at most.
fn windows(
    index: &Index,
    select: &impl Select,
    until: Ticks,
    most: u64,
) -> Result<Vec<(Ticks, Ticks)>, ScanError> {
    if index.rows() <= most / 2 {
        return Ok(vec![(Ticks::ZERO, until)]);
    }
    let analysis = index.analysis();
    let start = analysis.meta().target.start_ticks.min(until);
    let end = analysis.end_ticks().clamp(start, until);
    let width = ((end - start) / BUCKETS as u64 + 1).max(1);
    let bucket = |t: u64| ((Ticks(t).since(start) / width) as usize).min(BUCKETS - 1);
    let state = || (Selection::default(), Vec::new(), vec![0u64; BUCKETS]);
    let states = index.scan(state, |(selection, times, counts), block| {
        select(block, selection)?;
        for column in [Column::Begin, Column::End] {
            block.read(column, times)?;
            for &i in &selection.rows {
                let t = times[i as usize];
                counts[bucket(t)] += u64::from(t <= until.0);
            }
        }
        Some(())
    })?;
    let mut windows = Vec::new();
    let (mut from, mut used) = (Ticks::ZERO, 0);
    for i in 0..BUCKETS {
        let n: u64 = states.iter().map(|s| s.2[i]).sum();
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

/// Sorts the entries that each thread has collected, on as many threads as the system permits; returns the sorted lists.
fn sorted<E: Entry>(states: Vec<State<E>>) -> Vec<Vec<E>> {
    let sort = |mut entries: [Vec<E>; 2]| {
        let [begins, ends] = &mut entries;
        begins.sort_unstable_by_key(place);
        // This sort makes use of runs.
        ends.sort_by_key(place);
        entries
    };
    let waiting: Vec<_> = states.into_iter().map(|s| Mutex::new(Some(s.entries))).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        let mut lists = Vec::new();
        while let Some(entries) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
            let entries = entries.lock().unwrap_or_else(PoisonError::into_inner).take();
            lists.extend(entries.map(sort).into_iter().flatten());
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

/// Passes the entries of sorted lists to `take`, in the order of time.
fn merge<E: Entry, F>(
    mut lists: Vec<Vec<E>>,
    mut take: impl FnMut(&E) -> Result<(), F>,
) -> Result<(), F> {
    if lists.len() > LISTS {
        let mut all = lists.concat();
        all.sort_by_key(place);
        lists = vec![all];
    }
    let mut rest: Vec<&[E]> = lists.iter().map(Vec::as_slice).collect();
    loop {
        let firsts = rest.iter().enumerate().filter_map(|(i, l)| Some((place(l.first()?), i)));
        let Some((_, least)) = firsts.min() else { return Ok(()) };
        // Up to the next entry of another list, this one needs no comparison with all.
        let others = rest.iter().enumerate().filter(|(i, _)| *i != least);
        let until = others.filter_map(|(_, l)| Some(place(l.first()?))).min();
        let list = &mut rest[least];
        while let Some((first, behind)) = list.split_first()
            && until.is_none_or(|until| place(first) <= until)
        {
            take(first)?;
            *list = behind;
        }
    }
}

/// The beginning or end of a block, as most readers need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    key: Key,
    /// Address of the block.
    pub addr: u64,
    /// Size of the block in bytes.
    pub size: u64,
    /// Index of its group.
    pub group: u32,
    /// Thread index of the thread that caused the event.
    pub thread_index: u32,
    /// Thread index of the thread that allocated the block.
    pub owner: u32,
    /// The block was returned by `realloc`.
    pub again: bool,
    /// [`Column::Rate`] of the block.
    pub rate: u8,
}

impl Event {
    /// Returns the time in ticks.
    pub fn time(&self) -> Ticks {
        self.key.time()
    }

    /// Returns whether the block begins here; otherwise it ends.
    pub fn begins(&self) -> bool {
        self.key.begins()
    }
}

impl Entry for Event {
    const COLUMNS: &'static [Column] = &[
        Column::Addr,
        Column::Size,
        Column::Group,
        Column::ThreadIndex,
        Column::Flags,
        Column::Rate,
        Column::EndThreadIndex,
    ];

    #[inline(always)]
    fn begin(key: Key, columns: &[Vec<u64>], row: usize) -> Self {
        let value = |i: usize| columns[i][row];
        Self {
            key,
            addr: value(0),
            size: value(1),
            group: value(2) as u32,
            thread_index: value(3) as u32,
            owner: value(3) as u32,
            again: value(4) & flags::REALLOCATED != 0,
            rate: value(5) as u8,
        }
    }

    #[inline(always)]
    fn end(self, key: Key, columns: &[Vec<u64>], row: usize) -> Self {
        Self { key, thread_index: columns[6][row] as u32, ..self }
    }

    #[inline(always)]
    fn key(&self) -> Key {
        self.key
    }

    #[inline(always)]
    fn addr(&self) -> u64 {
        self.addr
    }
}

impl Query<'_> {
    /// Calls `take` for each beginning and end of the selected blocks, up to the ticks `until`.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn in_order(&self, until: Ticks, take: impl FnMut(&Event)) -> Result<(), ScanError> {
        self.in_order_of(until, MOST, take)
    }

    /// Does the same as [`Self::in_order`], but sorts about `most` events at a time.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn in_order_of(
        &self,
        until: Ticks,
        most: u64,
        mut take: impl FnMut(&Event),
    ) -> Result<(), ScanError> {
        let select = |block: &mut Block<'_>, s: &mut Selection| self.select(block, s);
        in_order_of(self.index, select, until, most, |e| {
            take(e);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_one_in_the_order_of_time() {
        let event = |key: u64, addr: u64| Event {
            key: Key(key),
            addr,
            size: 0,
            group: 0,
            thread_index: 0,
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
                let mut s = State::<Event>::new();
                for list in &mut s.entries {
                    *list = (0..i * 37 % 200).map(|_| event(random(500), random(9))).collect();
                    all.extend(list.iter().map(place));
                }
                states.push(s);
            }
            all.sort_unstable();
            let mut merged = Vec::new();
            let merging: Result<(), ()> = merge(sorted(states), |e| {
                merged.push(place(e));
                Ok(())
            });
            assert_eq!(merging, Ok(()));
            assert_eq!(merged, all, "{threads} threads");
        }
    }
}
