//! Places for values that come and go, which stay where they are.

use crate::heap::{HUGE, Huge};
use prof_arch::native::capture::prefetch;
use std::ops::{Index, IndexMut};

/// Number of free places in advance that a place is prefetched.
const AHEAD: usize = 8;

/// A growing number of places, in huge pages, as they are accessed at random.
pub(super) struct Slab<T: Copy + Default> {
    parts: Vec<Huge<T>>,
    /// Number of places that were ever taken.
    used: u32,
    /// The free places among them: the last one is taken first, as it is likely in the processor's cache.
    free: Vec<u32>,
}

impl<T: Copy + Default> Default for Slab<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), used: 0, free: Vec::new() }
    }
}

impl<T: Copy + Default> Slab<T> {
    /// Number of places in a part.
    const PART: usize = (HUGE / size_of::<T>()).next_power_of_two();

    /// Takes a place, whose value is any; returns its index.
    #[inline(always)]
    pub(super) fn take(&mut self) -> u32 {
        let Some(at) = self.free.pop() else { return self.grow() };
        if let Some(later) = self.free.len().checked_sub(AHEAD) {
            self.prefetch(self.free[later]);
        }
        at
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let at = self.used;
        if at as usize == self.parts.len() * Self::PART {
            self.parts.push(Huge::new(T::default(), Self::PART));
        }
        self.used += 1;
        at
    }

    /// Gives a place back that was taken.
    #[inline(always)]
    pub(super) fn give_back(&mut self, at: u32) {
        self.free.push(at);
    }

    /// Prefetches a place, if there is one with this index.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: u32) {
        if let Some(part) = self.parts.get(at as usize / Self::PART) {
            prefetch(&raw const part[at as usize % Self::PART]);
        }
    }
}

impl<T: Copy + Default> Index<u32> for Slab<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, at: u32) -> &T {
        &self.parts[at as usize / Self::PART][at as usize % Self::PART]
    }
}

impl<T: Copy + Default> IndexMut<u32> for Slab<T> {
    #[inline(always)]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.parts[at as usize / Self::PART][at as usize % Self::PART]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_keep_their_values_and_are_taken_again() {
        let mut slab = Slab::<[u64; 8]>::default();
        let n = Slab::<[u64; 8]>::PART as u32 + 10;
        for i in 0..n {
            assert_eq!(slab.take(), i);
            slab[i] = [u64::from(i); 8];
        }
        // There is no such place.
        slab.prefetch(u32::MAX);
        for i in (0..n).step_by(3) {
            slab.give_back(i);
        }
        let again: std::collections::HashSet<u32> =
            (0..n).step_by(3).map(|_| slab.take()).collect();
        assert_eq!(again, (0..n).step_by(3).collect());
        assert!((0..n).all(|i| slab[i][7] == u64::from(i)));
        assert_eq!(slab.take(), n);
    }
}
