//! Sets of rows of an index: a bit for each.

use crate::index::Index;

/// A set of the rows of one index. It takes a bit for each row: 6.4 MB for 51 million.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSet {
    pub(super) words: Vec<u64>,
    /// Number of rows of the index.
    pub(super) rows: u64,
}

/// Returns the number of words for so many rows.
pub(super) fn words_of(rows: u64) -> usize {
    usize::try_from(rows.div_ceil(64)).unwrap_or(usize::MAX)
}

impl RowSet {
    /// Returns the set without rows.
    pub fn none(index: &Index) -> Self {
        Self { words: vec![0; words_of(index.rows())], rows: index.rows() }
    }

    /// Returns the set of all rows.
    pub fn all(index: &Index) -> Self {
        let none = Self::none(index);
        none.not()
    }

    fn with(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        debug_assert_eq!(self.rows, other.rows);
        let words = self.words.iter().zip(&other.words).map(|(a, b)| of(*a, *b));
        Self { words: words.collect(), rows: self.rows }
    }

    /// Returns the rows that are in both sets, which must be of one index.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.with(other, |a, b| a & b)
    }

    /// Returns the rows that are in either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        self.with(other, |a, b| a | b)
    }

    /// Returns the rows that are in this set and not in the other.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.with(other, |a, b| a & !b)
    }

    /// Returns the rows that are not in the set.
    #[must_use]
    #[allow(clippy::should_implement_trait)] // as its siblings, it borrows
    pub fn not(&self) -> Self {
        let mut words: Vec<u64> = self.words.iter().map(|w| !w).collect();
        if let (Some(last), rest @ 1..) = (words.last_mut(), self.rows % 64) {
            *last &= (1 << rest) - 1;
        }
        Self { words, rows: self.rows }
    }

    /// Returns the number of rows in the set.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// Returns whether the set has no rows.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// Returns whether a row is in the set.
    pub fn contains(&self, row: u64) -> bool {
        let word = usize::try_from(row / 64).ok().and_then(|at| self.words.get(at));
        word.is_some_and(|w| w >> (row % 64) & 1 != 0)
    }

    /// Returns the rows in the set, ascending: in the order of the blocks' ends.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().zip(0u64..).flat_map(|(word, at)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = u64::from(rest.trailing_zeros());
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    at * 64 + bit
                })
            })
        })
    }

    /// Returns whether a run of rows has any in the set. `first` must be divisible by 64.
    pub(super) fn has_any(&self, first: u64, rows: usize) -> bool {
        let from = (first / 64) as usize;
        let to = from + rows.div_ceil(64);
        let words = self.words.get(from..to.min(self.words.len()));
        words.is_some_and(|w| w.iter().any(|w| *w != 0))
    }
}
