//! A set of numbers.

/// A bit for each number.
#[derive(Clone, Debug, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Creates an empty set of numbers below `n`.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self(vec![0; n.div_ceil(64)])
    }

    /// Returns whether there is room for no number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the set has a number.
    #[inline]
    #[must_use]
    pub fn has(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 != 0)
    }

    /// Adds a number, which must be below the limit.
    #[inline]
    pub fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }
}
