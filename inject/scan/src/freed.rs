//! Memory that the program has freed, and words of its allocator's own: they are no pointers of the program.

use std::sync::Arc;

/// Bytes for each bit.
const GRAIN: u64 = 8;
/// Greatest number of bytes, from the beginning on, for which bits are kept.
const MOST: u64 = 64 << 30;

/// The freed memory of the heap that grows by `brk`.
///
/// Elsewhere an allocator may give memory back, and other code may get it without a notice to the scan.
#[derive(Clone, Debug, Default)]
pub struct Freed {
    start: u64,
    most: u64,
    bits: Vec<u64>,
    own: Arc<[(u64, u64)]>,
}

impl Freed {
    /// Creates an account of a heap that begins here, and has no memory yet.
    #[must_use]
    pub fn from(start: u64) -> Self {
        Self { start: start / GRAIN * GRAIN, ..Self::default() }
    }

    /// Notes where the heap ends at present. What lies behind that may be other memory by now: nothing of it is freed.
    pub fn end_at(&mut self, end: u64) {
        self.most = end.saturating_sub(self.start).min(MOST) / GRAIN;
        let kept = self.most.min(self.bits.len() as u64 * 64);
        self.set(kept, self.bits.len() as u64 * 64, false);
    }

    /// Returns whether the word at an address is freed.
    #[must_use]
    pub fn has(&self, address: u64) -> bool {
        let bit = address.wrapping_sub(self.start) / GRAIN;
        let word = usize::try_from(bit / 64).ok().and_then(|i| self.bits.get(i));
        word.is_some_and(|w| w >> (bit % 64) & 1 != 0)
    }

    /// Returns the same account, which also knows words of an allocator's own data: where each stands, and the address of
    /// a block that it is, in order.
    #[must_use]
    pub fn with_own(self, own: Arc<[(u64, u64)]>) -> Self {
        Self { own, ..self }
    }

    /// Returns whether a word at an address is one of an allocator's own. A word that was changed since is none.
    #[must_use]
    pub fn is_own(&self, address: u64, word: u64) -> bool {
        self.own.binary_search(&(address, word)).is_ok()
    }

    /// Counts a block as freed: the words that lie wholly inside.
    pub fn add(&mut self, address: u64, size: u64) {
        let Some(from) = address.checked_sub(self.start) else { return };
        let (from, to) = (from.div_ceil(GRAIN), from.saturating_add(size) / GRAIN);
        if from >= to || to > self.most {
            return;
        }
        let words = (to.div_ceil(64)) as usize;
        if self.bits.len() < words {
            self.bits.resize(words.next_multiple_of(512), 0);
        }
        self.set(from, to, true);
    }

    /// Counts a block as in use.
    pub fn remove(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size.max(1)).saturating_sub(self.start).div_ceil(GRAIN);
        let from = address.saturating_sub(self.start) / GRAIN;
        self.set(from, end.min(self.bits.len() as u64 * 64), false);
    }

    fn set(&mut self, mut from: u64, to: u64, on: bool) {
        while from < to {
            let n = (64 - from % 64).min(to - from);
            let mask = (u64::MAX >> (64 - n)) << (from % 64);
            let word = &mut self.bits[(from / 64) as usize];
            *word = if on { *word | mask } else { *word & !mask };
            from += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_the_allocators_is_one_until_it_changes() {
        let f = Freed::from(0).with_own([(0x100, 7), (0x108, 9)].into());
        assert!(f.is_own(0x100, 7) && f.is_own(0x108, 9) && !f.is_own(0x100, 9) && !f.is_own(0, 7));
        assert!(!f.has(0x100) && !Freed::default().is_own(0x100, 7));
    }

    #[test]
    fn only_whole_words_of_freed_blocks_count() {
        let mut f = Freed::from(0x1000);
        f.add(0x1010, 24);
        assert!(!f.has(0x1010));
        f.end_at(u64::MAX);
        f.add(0x1010, 24);
        f.add(0x1100, 12);
        f.add(0x2004, 1000);
        f.add(0x10, 8);
        f.add(u64::MAX - 8, 64);
        f.add(0x1000, 1 << 60);
        let has = |f: &Freed, a: u64| f.has(a);
        assert!(!has(&f, 0x1008) && has(&f, 0x1010) && has(&f, 0x1020) && !has(&f, 0x1028));
        assert!(has(&f, 0x1100) && !has(&f, 0x1108));
        assert!(!has(&f, 0x2000) && has(&f, 0x2008) && has(&f, 0x23e0) && !has(&f, 0x23e8));
        assert!(!has(&f, 0) && !has(&f, 0x10) && !has(&f, u64::MAX - 8));
        f.remove(0x1014, 1);
        f.remove(0x2100, 256);
        f.remove(0, 4);
        f.remove(u64::MAX - 3, 9);
        assert!(!has(&f, 0x1010) && has(&f, 0x1018));
        assert!(has(&f, 0x20f8) && !has(&f, 0x2100) && !has(&f, 0x21f8) && has(&f, 0x2200));
    }

    #[test]
    fn only_memory_of_the_heap_counts() {
        let mut f = Freed::from(0x1000);
        f.end_at(0x3000);
        f.add(0x2000, 0x100);
        f.add(0x2ff0, 0x20);
        f.add(0x3000, 0x100);
        assert!(f.has(0x2000) && f.has(0x20f8));
        assert!(!f.has(0x2ff0) && !f.has(0x3000));
        // The heap shrinks, and grows again: what was freed there is new memory.
        f.end_at(0x2080);
        assert!(f.has(0x2078) && !f.has(0x2080) && !f.has(0x20f8));
        f.end_at(0x9000);
        assert!(f.has(0x2000) && !f.has(0x2080));
        f.add(0x4000, 8);
        assert!(f.has(0x4000));
        f.end_at(0);
        assert!(!f.has(0x2000) && !f.has(0x4000));
    }
}
