//! Keeps the frees of blocks from before the recording, or from a time when recording was off.
use prof_trace::ticks::Ticks;

/// Greatest number of frees that are kept.
const MOST: usize = 1 << 18;

/// Time and address of frees of older blocks. Of very many frees only those at addresses chosen by a hash are kept, so
/// that all frees at an address are kept, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    frees: Vec<(Ticks, u64)>,
    /// Number of frees that each kept one stands for: a power of two.
    each: u64,
}

impl Default for Before {
    fn default() -> Self {
        Self { frees: Vec::new(), each: 1 }
    }
}

impl Before {
    /// Creates the list from kept frees, each of which stands for `each`; `None` if `each` is not a power of two.
    pub(super) fn of(frees: Vec<(Ticks, u64)>, each: u64) -> Option<Self> {
        each.is_power_of_two().then_some(Self { frees, each })
    }

    pub(super) fn push(&mut self, time: Ticks, addr: u64) {
        if !self.keeps(addr) {
            return;
        }
        self.frees.push((time, addr));
        while self.frees.len() > MOST && self.each < 1 << 32 {
            self.each *= 2;
            let frees = std::mem::take(&mut self.frees);
            self.frees = frees.into_iter().filter(|f| self.keeps(f.1)).collect();
        }
    }

    /// Returns whether frees at this address are kept.
    fn keeps(&self, addr: u64) -> bool {
        let hash = (addr >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash & (self.each - 1) == 0
    }

    /// Returns ticks and address of each free that is kept.
    #[must_use]
    pub fn frees(&self) -> &[(Ticks, u64)] {
        &self.frees
    }

    /// Returns the number of frees that each kept one stands for.
    #[must_use]
    pub fn each(&self) -> u64 {
        self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_some_addresses_are_kept() {
        let mut b = Before::default();
        for i in 0..1_000_000u64 {
            b.push(Ticks(i), i * 16);
        }
        assert!(b.frees.len() <= MOST && b.each >= 4, "{} {}", b.frees.len(), b.each);
        let about = b.frees.len() as u64 * b.each;
        assert!((950_000..1_050_000).contains(&about), "{about}");
        // Addresses are sampled as a whole: either all frees at an address are kept, or none.
        let addr = b.frees[7].1;
        b.push(Ticks(2_000_000), addr);
        assert_eq!(b.frees.last(), Some(&(Ticks(2_000_000), addr)));
        assert_eq!(Before::of(Vec::new(), 3), None);
    }
}
