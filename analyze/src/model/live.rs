//! The blocks that are live: a hash table made for this one purpose.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Bytes asked for.
    pub size: u64,
    /// Ticks when it was handed out.
    pub time: u64,
    /// Index of its group.
    pub group: u32,
    /// Lane of the thread that got it.
    pub lane: u32,
}

/// One place of the table; address 0: free.
#[derive(Clone, Copy, Default)]
struct Place {
    addr: u64,
    block: Block,
}

const SMALLEST: usize = 1 << 10;

/// Address to block: open addressing with linear probing, at most 7/8 full. Removal moves the
/// blocks behind it up, so that there are no tombstones and no rehash under churn.
pub struct Live {
    places: Vec<Place>,
    len: usize,
    shift: u32,
    seed: u64,
}

impl Default for Live {
    fn default() -> Self {
        // The seed keeps a made-up recording from choosing addresses that collide.
        let seed = RandomState::new().hash_one(0u8);
        let places = vec![Place::default(); SMALLEST];
        Self { places, len: 0, shift: 64 - SMALLEST.trailing_zeros(), seed }
    }
}

impl Live {
    /// Blocks in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All blocks, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block)> {
        self.places.iter().filter(|p| p.addr != 0).map(|p| (p.addr, p.block))
    }

    #[inline(always)]
    fn home(&self, addr: u64) -> usize {
        let m = (addr ^ self.seed) as u128 * 0x9e37_79b9_7f4a_7c15;
        (((m >> 64) as u64 ^ m as u64) >> self.shift) as usize
    }

    /// Reads where the block of `addr` would be. Called for some addresses in advance, it lets the
    /// processor wait for all of them at once instead of one after the other.
    #[inline(always)]
    pub fn touch(&self, addr: u64) -> u64 {
        self.places[self.home(addr)].addr
    }

    /// Adds a block; returns the one that was live at that address. `addr` must not be 0.
    #[inline]
    pub fn insert(&mut self, addr: u64, block: Block) -> Option<Block> {
        debug_assert_ne!(addr, 0);
        let mask = self.places.len() - 1;
        let mut at = self.home(addr);
        loop {
            let p = &mut self.places[at & mask];
            if p.addr == addr {
                return Some(std::mem::replace(&mut p.block, block));
            }
            if p.addr == 0 {
                *p = Place { addr, block };
                break;
            }
            at += 1;
        }
        self.len += 1;
        if self.len * 8 > self.places.len() * 7 {
            self.grow();
        }
        None
    }

    #[inline(always)]
    fn find(&self, addr: u64) -> Option<usize> {
        let mask = self.places.len() - 1;
        let mut at = self.home(addr);
        loop {
            let p = self.places[at & mask].addr;
            if p == 0 {
                return None;
            }
            if p == addr {
                return Some(at & mask);
            }
            at += 1;
        }
    }

    /// Removes the block at that address.
    #[inline]
    pub fn remove(&mut self, addr: u64) -> Option<Block> {
        if addr == 0 {
            return None;
        }
        let mut hole = self.find(addr)?;
        let block = self.places[hole].block;
        let mask = self.places.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let p = self.places[at];
            if p.addr == 0 {
                break;
            }
            // It may move into the hole if its home does not lie between the hole and itself.
            let from_home = at.wrapping_sub(self.home(p.addr)) & mask;
            if from_home >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = p;
                hole = at;
            }
        }
        self.places[hole] = Place::default();
        self.len -= 1;
        Some(block)
    }

    #[cold]
    fn grow(&mut self) {
        let bigger = vec![Place::default(); self.places.len() * 2];
        let old = std::mem::replace(&mut self.places, bigger);
        self.shift -= 1;
        let mask = self.places.len() - 1;
        for p in old.into_iter().filter(|p| p.addr != 0) {
            let mut at = self.home(p.addr);
            while self.places[at & mask].addr != 0 {
                at += 1;
            }
            self.places[at & mask] = p;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn does_what_a_hash_map_does() {
        let mut live = Live::default();
        let mut plain: HashMap<u64, Block> = HashMap::new();
        let mut x = 88172645463325252u64;
        for i in 0..300_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // Grows for a while, then shrinks.
            let addr = (x >> 20) % 20_000 * 16 + 16;
            let b = Block { size: i, time: i, group: i as u32, lane: 0 };
            if x % 100 < if i < 100_000 { 70 } else { 40 } {
                assert_eq!(live.insert(addr, b), plain.insert(addr, b));
            } else {
                assert_eq!(live.find(addr).is_some(), plain.contains_key(&addr));
                assert_eq!(live.remove(addr), plain.remove(&addr));
            }
            assert_eq!(live.len(), plain.len());
        }
        let all: HashMap<u64, Block> = live.iter().collect();
        assert_eq!(all, plain);
        assert_eq!(live.remove(0), None);
    }
}
