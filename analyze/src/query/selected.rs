//! Finds the rows that a query selects.

use super::plan::{Query, Selection};
use super::rowset::{RowSet, words_of};
use crate::index::{Column, ScanError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

impl<'a> Query<'a> {
    /// Returns the rows of the selected blocks.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn rows(&self) -> Result<RowSet, ScanError> {
        if self.is_all() {
            return Ok(RowSet::all(self.index));
        }
        self.rows_that([], |[]| true)
    }

    /// Returns the rows of those of the selected blocks whose values in some columns meet a condition.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn rows_that<const N: usize>(
        &self,
        columns: [Column; N],
        meets: impl Fn([u64; N]) -> bool + Sync,
    ) -> Result<RowSet, ScanError> {
        let rows = self.index.rows();
        let words: Vec<AtomicU64> = (0..words_of(rows)).map(|_| AtomicU64::new(0)).collect();
        let state = || (Selection::default(), [const { Vec::new() }; N]);
        self.index.scan(state, |(selection, values), block| {
            self.select(block, selection)?;
            if !selection.rows.is_empty() {
                for (column, values) in columns.into_iter().zip(values.iter_mut()) {
                    block.read(column, values)?;
                }
            }
            // Blocks of rows begin at whole words, so no two threads write the same one.
            let first = (block.first_row() / 64) as usize;
            let (mut at, mut word) = (0, 0u64);
            for &i in &selection.rows {
                if !meets(values.each_ref().map(|v| v[i as usize])) {
                    continue;
                }
                let next = i as usize / 64;
                if next != at {
                    words.get(first + at)?.store(word, Relaxed);
                    (at, word) = (next, 0);
                }
                word |= 1 << (i % 64);
            }
            if word != 0 {
                words.get(first + at)?.store(word, Relaxed);
            }
            Some(())
        })?;
        Ok(RowSet { words: words.into_iter().map(AtomicU64::into_inner).collect(), rows })
    }

    /// Selects only those of the selected blocks whose rows are in a set, which must be of the same index.
    #[must_use]
    pub fn within(mut self, set: Arc<RowSet>) -> Query<'a> {
        self.set_of_rows = Some(match self.set_of_rows.take() {
            Some(other) => Arc::new(other.and(&set)),
            None => set,
        });
        self
    }

    /// Returns the row of the selected block that has `n` of them before it in the order of time, and of rows where
    /// times are equal; `None` if there are not so many.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn nth(&self, n: u64) -> Result<Option<u64>, ScanError> {
        let (mut from, mut to, mut before) = (0, u64::MAX, 0);
        // Each pass counts the times of 2^PARTS equal parts, and goes on with the part that has the block.
        const PARTS: u32 = 14;
        loop {
            let shift = (64 - (to - from).leading_zeros()).saturating_sub(PARTS);
            let state = || (Selection::default(), Vec::new(), vec![0u64; (1 << PARTS) + 1]);
            let states = self.index.scan(state, |(selection, begins, counts), block| {
                let (min, max) = block.range(Column::Begin);
                if max < from || min > to {
                    return Some(());
                }
                self.select(block, selection)?;
                if selection.rows.is_empty() {
                    return Some(());
                }
                block.read(Column::Begin, begins)?;
                for &i in &selection.rows {
                    let begin = begins[i as usize];
                    if (from..=to).contains(&begin) {
                        counts[((begin - from) >> shift) as usize] += 1;
                    }
                }
                Some(())
            })?;
            let counts = (0..=1usize << PARTS).map(|i| states.iter().map(|s| s.2[i]).sum::<u64>());
            let mut found = None;
            for (i, count) in counts.enumerate() {
                if n < before + count {
                    found = Some((i as u64, count));
                    break;
                }
                before += count;
            }
            let Some((part, count)) = found else { return Ok(None) };
            let first = from + (part << shift);
            let last = first.saturating_add((1 << shift) - 1).min(to);
            (from, to) = (first, last);
            if shift == 0 || count <= 1 << 16 {
                return self.nth_between((from, to), n - before);
            }
        }
    }

    /// Returns the `n`th row of those that begin between two times.
    fn nth_between(&self, (from, to): (u64, u64), n: u64) -> Result<Option<u64>, ScanError> {
        let state = || (Selection::default(), Vec::new(), Vec::new());
        let states = self.index.scan(state, |(selection, begins, found), block| {
            let (min, max) = block.range(Column::Begin);
            if max < from || min > to {
                return Some(());
            }
            self.select(block, selection)?;
            block.read(Column::Begin, begins)?;
            let first = block.first_row();
            let row = |i: &u32| (begins[*i as usize], first + u64::from(*i));
            let within = selection.rows.iter().map(row);
            found.extend(within.filter(|(begin, _)| (from..=to).contains(begin)));
            Some(())
        })?;
        let mut all: Vec<(u64, u64)> = states.into_iter().flat_map(|s| s.2).collect();
        all.sort_unstable();
        Ok(all.get(usize::try_from(n).unwrap_or(usize::MAX)).map(|r| r.1))
    }
}
