//! Blocks from before the attach, by a census: their allocations are not recorded, but their frees are.

pub(crate) use prof_analyze::holds::{BEFORE, LABEL, is_before};

/// The blocks from before the attach. Each takes 16 bytes and a bit.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// Addresses and sizes, in order.
    blocks: Vec<(u64, u64)>,
    /// A bit for each that was freed since.
    freed: Vec<u64>,
}

impl Before {
    /// Takes addresses and sizes, in any order.
    pub(crate) fn of(mut blocks: Vec<(u64, u64)>) -> Self {
        blocks.sort_unstable();
        let freed = vec![0; blocks.len().div_ceil(64)];
        Self { blocks, freed }
    }

    fn live(&self, address: u64) -> Option<usize> {
        let i = self.blocks.binary_search_by_key(&address, |b| b.0).ok()?;
        (self.freed[i / 64] >> (i % 64) & 1 == 0).then_some(i)
    }

    /// Returns the size of the block at an address, if it was not freed since.
    pub(crate) fn get(&self, address: u64) -> Option<u64> {
        self.live(address).map(|i| self.blocks[i].1)
    }

    /// Counts the block in which an address lies as freed, as aligned ones may begin later than their place. Returns its
    /// address and its size if it was there.
    pub(crate) fn free(&mut self, address: u64) -> Option<(u64, u64)> {
        let i = self.blocks.partition_point(|b| b.0 <= address).checked_sub(1)?;
        let (start, size) = self.blocks[i];
        let is_inside = address == start || address - start < size;
        let i = self.live(start).filter(|_| is_inside)?;
        self.freed[i / 64] |= 1 << (i % 64);
        Some((start, size))
    }

    /// Returns the address and the size of each that was not freed since.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u64, u64)> {
        let live = |i: usize| self.freed[i / 64] >> (i % 64) & 1 == 0;
        self.blocks.iter().enumerate().filter(move |(i, _)| live(*i)).map(|(_, b)| *b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_there_until_they_are_freed() {
        let mut b = Before::of((0..200).rev().map(|i| (i * 16, i)).collect());
        assert_eq!(
            (b.get(160), b.get(161), b.free(160), b.free(160)),
            (Some(10), None, Some((160, 10)), None)
        );
        // An aligned block begins inside of its place; what lies behind it is in none.
        assert_eq!((b.free(181), b.free(187), b.get(176)), (Some((176, 11)), None, None));
        assert_eq!((b.free(15), b.free(0)), (None, Some((0, 0))));
        assert_eq!((b.get(160), b.get(192)), (None, Some(12)));
        assert_eq!(b.each().count(), 197);
        assert!(b.each().is_sorted() && !b.each().any(|(at, _)| at == 160));
        assert_eq!(Before::default().get(0), None);
    }
}
