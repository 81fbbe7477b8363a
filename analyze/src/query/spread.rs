//! Computes distributions of blocks: by lifetime, by size, and by the thread that freed them.

use super::plan::{Query, Selection};
use crate::heap::{WeightedSum, probability};
use crate::index::{Block, Column, ScanError, flags};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

/// Number and bytes of blocks; estimates if the recording is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Number of blocks.
    pub count: u64,
    /// Standard error of `count`, if it is an estimate.
    pub count_error: Option<u64>,
    /// Bytes.
    pub bytes: u64,
    /// Standard error of `bytes`, if it is an estimate.
    pub bytes_error: Option<u64>,
}

/// A tally while it is counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    count: u64,
    bytes: u64,
    /// Estimates of number and bytes, if the recording is sampled.
    estimates: [WeightedSum; 2],
}

impl Counter {
    #[inline(always)]
    fn add(&mut self, size: u64, p: Option<f64>) {
        self.count += 1;
        self.bytes = self.bytes.wrapping_add(size);
        if let Some(p) = p {
            self.estimates[0].add(1.0, p);
            self.estimates[1].add(size as f64, p);
        }
    }

    /// Subtracts the estimate of a block that must not count; its variance is added.
    fn less(&mut self, size: u64, p: f64) {
        self.estimates[0].correct(1.0, p);
        self.estimates[1].correct(size as f64, p);
    }

    fn join(&mut self, o: &Self) {
        self.count += o.count;
        self.bytes = self.bytes.wrapping_add(o.bytes);
        for (a, b) in self.estimates.iter_mut().zip(&o.estimates) {
            a.join(b);
        }
    }

    fn tally(&self, sampled: bool) -> Tally {
        if !sampled {
            return Tally { count: self.count, bytes: self.bytes, ..Tally::default() };
        }
        let [count, bytes] = &self.estimates;
        Tally {
            count: count.rounded(),
            count_error: Some(count.error()),
            bytes: bytes.rounded(),
            bytes_error: Some(bytes.error()),
        }
    }
}

/// Upper limits of the classes of lifetimes, in nanoseconds: bytehound's, and smaller ones.
pub const LIFETIMES: [u64; 14] = [
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
    300_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
];

/// Distributions of blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Blocks by lifetime: below each of [`LIFETIMES`] and not below the one before, then longer than all of them, then
    /// live blocks.
    pub lifetimes: [Tally; LIFETIMES.len() + 2],
    /// Blocks by size. The sizes with the most blocks and those with the most bytes are included.
    pub sizes: Vec<(u64, Tally)>,
    /// Blocks of sizes that were not counted separately, as there were too many.
    pub other_sizes: Tally,
}

/// Greatest number of sizes that are counted separately: a made-up recording may have another for each block.
const SIZES: usize = 1 << 18;

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 6],
    lifetimes: [Counter; LIFETIMES.len() + 2],
    sizes: HashMap<u64, Counter>,
    others: Counter,
    frees: Vec<Counter>,
}

/// Returns the index of a lifetime's class.
fn lifetime_class(ns: u64) -> usize {
    LIFETIMES.partition_point(|limit| *limit <= ns)
}

impl Query<'_> {
    /// Computes the distributions of the selected blocks at the ticks `at`.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn spread(&self, at: Option<Ticks>) -> Result<Spread, ScanError> {
        let capture = self.index.analysis().capture();
        let until = at.unwrap_or(Ticks::LAST).min(Ticks::LAST);
        if self.is_aggregated() {
            return self.aggregated_spread(until);
        }
        let states = self.index.scan(State::default, |s, block| self.spread_of(s, block, until))?;
        let mut all = State::default();
        for s in states {
            all.lifetimes.iter_mut().zip(&s.lifetimes).for_each(|(a, b)| a.join(b));
            all.others.join(&s.others);
            for (size, c) in s.sizes {
                all.sizes.entry(size).or_default().join(&c);
            }
        }
        let sampled = capture.is_sampled();
        let mut sizes: Vec<_> = all.sizes.into_iter().map(|(s, c)| (s, c.tally(sampled))).collect();
        sizes.sort_by_key(|(size, _)| *size);
        Ok(Spread {
            lifetimes: all.lifetimes.map(|c| c.tally(sampled)),
            sizes,
            other_sizes: all.others.tally(sampled),
        })
    }

    fn spread_of(&self, s: &mut State, block: &mut Block<'_>, until: Ticks) -> Option<()> {
        const READ: [Column; 4] = [Column::Begin, Column::End, Column::Size, Column::Rate];
        if !self.columns(s, block, &READ)? {
            return Some(());
        }
        let analysis = self.index.analysis();
        let (clock, capture) = (&analysis.meta().clock, analysis.capture());
        let State { selection, columns, lifetimes, sizes, others, .. } = s;
        for &i in &selection.rows {
            let i = i as usize;
            let (begin, end, size) = (columns[0][i], columns[1][i], columns[2][i]);
            if begin > until.0 {
                continue;
            }
            let rate = columns[3][i] as u8;
            let p = capture.is_sampled().then(|| probability(&capture, size, rate));
            let class = match end > until.0 {
                true => LIFETIMES.len() + 1,
                false => lifetime_class(clock.between(Ticks(begin), Ticks(end))),
            };
            lifetimes[class].add(size, p);
            let full = sizes.len() >= SIZES && !sizes.contains_key(&size);
            let counter = if full { &mut *others } else { sizes.entry(size).or_default() };
            counter.add(size, p);
        }
        Some(())
    }

    /// Reads columns of a block of rows; returns whether any of its rows is selected.
    fn columns(&self, s: &mut State, block: &mut Block<'_>, read: &[Column]) -> Option<bool> {
        self.select(block, &mut s.selection)?;
        if s.selection.rows.is_empty() {
            return Some(false);
        }
        for (c, values) in read.iter().zip(&mut s.columns) {
            block.read(*c, values)?;
        }
        Some(true)
    }

    /// Computes for each thread index the selected blocks that the thread freed, other than by reallocation, up to the
    /// ticks `at`.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn frees_by_thread(&self, at: Option<Ticks>) -> Result<Vec<Tally>, ScanError> {
        let sampled = self.index.analysis().capture().is_sampled();
        let until = at.unwrap_or(Ticks::LAST).min(Ticks::LAST);
        let threads = self.index.thread_numbers().len();
        let state = || State { frees: vec![Counter::default(); threads], ..State::default() };
        let states = self.index.scan(state, |s, block| self.frees_of(s, block, until))?;
        let mut all = vec![Counter::default(); threads];
        for s in states {
            all.iter_mut().zip(&s.frees).for_each(|(a, b)| a.join(b));
        }
        Ok(all.iter().map(|c| c.tally(sampled)).collect())
    }

    fn frees_of(&self, s: &mut State, block: &mut Block<'_>, until: Ticks) -> Option<()> {
        const READ: [Column; 6] = [
            Column::End,
            Column::EndThreadIndex,
            Column::Flags,
            Column::Size,
            Column::ThreadIndex,
            Column::Rate,
        ];
        if !self.columns(s, block, &READ)? {
            return Some(());
        }
        let capture = self.index.analysis().capture();
        let sampled = capture.is_sampled();
        let mut begins = Vec::new();
        if sampled {
            block.read(Column::Begin, &mut begins)?;
        }
        let State { selection, columns, frees, .. } = s;
        let [ends, end_thread_indexes, flag, sizes, thread_indexes, rates] = columns;
        for &i in &selection.rows {
            let i = i as usize;
            let p = sampled.then(|| probability(&capture, sizes[i], rates[i] as u8));
            // A reallocation of which only the old block is recorded looks like a free, so ends less reallocations are
            // estimated, see `Estimates`.
            if let Some(p) = p.filter(|_| flag[i] & flags::REALLOCATED != 0 && begins[i] <= until.0)
            {
                frees.get_mut(thread_indexes[i] as usize)?.less(sizes[i], p);
            }
            let passed_on = if sampled { 0 } else { flags::CONTINUED };
            if ends[i] <= until.0 && flag[i] & (flags::IMPLIED | passed_on) == 0 {
                frees.get_mut(end_thread_indexes[i] as usize)?.add(sizes[i], p);
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_fall_between_their_limits() {
        assert_eq!(lifetime_class(0), 0);
        assert_eq!(lifetime_class(999), 0);
        assert_eq!(lifetime_class(1_000), 1);
        assert_eq!(lifetime_class(999_999_999), 6);
        assert_eq!(lifetime_class(1_000_000_000), 7);
        assert_eq!(lifetime_class(u64::MAX), LIFETIMES.len());
    }
}
