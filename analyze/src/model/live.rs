//! The blocks that are live: a hash table made for this one purpose.

use crate::load::Op;
use prof_trace::size::{self, Header};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block<T = ()> {
    /// Bytes asked for, and its header: in one number, as there are many.
    pub(crate) sized: u64,
    /// Ticks when it was handed out.
    pub time: u64,
    /// Index of its group.
    pub group: u32,
    /// Lane of the thread that got it.
    pub lane: u32,
    /// What a [`Watch`](super::Watch) keeps with it.
    pub tag: T,
}

impl<T> Block<T> {
    /// Of a size, and with a header (see [`Op::header`]).
    #[inline(always)]
    pub fn new(op: &Op, group: u32, tag: T) -> Self {
        let sized = match op.header {
            0 => op.size,
            code => size::with_header(op.size, Header::from_code(code)),
        };
        Self { sized, time: op.time, group, lane: op.lane, tag }
    }

    /// Bytes asked for.
    #[inline(always)]
    pub fn size(&self) -> u64 {
        size::apart(self.sized).0
    }

    /// What glibc's header says of it.
    #[inline(always)]
    pub fn header(&self) -> u16 {
        size::apart(self.sized).1.map_or(0, Header::code)
    }
}

/// One place of the table; address 0: free.
#[derive(Clone, Copy, Default)]
struct Place<T> {
    addr: u64,
    block: Block<T>,
}

/// The table is made of this many, each of which grows by itself: while one is copied, the memory of
/// all others is taken once and not twice.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 5;
const SMALLEST: usize = 1 << 6;
/// Shards of fewer places double when they are half full, so that a block is where it belongs, or next to
/// that: all together they take 80 MiB at most. Larger ones grow by a quarter when they are full to 7/8, so
/// that a large table is never less than 70 % full.
const DOUBLING: usize = 1 << 16;

/// One part of the table.
struct Shard<T> {
    places: Vec<Place<T>>,
    len: usize,
}

/// Address to block: open addressing with linear probing. Removal moves the
/// blocks behind it up, so that there are no tombstones and no rehash under churn.
pub struct Live<T = ()> {
    shards: Vec<Shard<T>>,
    len: usize,
    seed: u64,
}

impl<T: Copy + Default> Default for Live<T> {
    fn default() -> Self {
        // The seed keeps a made-up recording from choosing addresses that collide.
        let seed = RandomState::new().hash_one(0u8);
        let shard = |_| Shard { places: vec![Place::default(); SMALLEST], len: 0 };
        Self { shards: (0..SHARDS).map(shard).collect(), len: 0, seed }
    }
}

/// Where a hash belongs in a table of so many places.
#[inline(always)]
fn home(hash: u64, places: usize) -> usize {
    ((u128::from(hash << SHARD_BITS) * places as u128) >> 64) as usize
}

impl<T: Copy + Default> Live<T> {
    /// Blocks in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All blocks, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block<T>)> {
        let places = self.shards.iter().flat_map(|s| &s.places);
        places.filter(|p| p.addr != 0).map(|p| (p.addr, p.block))
    }

    /// All blocks, by and by, in runs that are in the order of their times; the table is used up.
    pub fn drain(self) -> impl Iterator<Item = (u64, Block<T>)> {
        self.shards.into_iter().flat_map(|mut s| {
            s.places.retain(|p| p.addr != 0);
            s.places.sort_unstable_by_key(|p| (p.block.time, p.addr));
            s.places.into_iter().map(|p| (p.addr, p.block))
        })
    }

    #[inline(always)]
    fn hash(&self, addr: u64) -> u64 {
        hash(addr, self.seed)
    }

    #[inline(always)]
    fn shard(hash: u64) -> usize {
        (hash >> (64 - SHARD_BITS)) as usize
    }

    /// Reads where the block of `addr` would be. Called for some addresses in advance, it lets the
    /// processor wait for all of them at once instead of one after the other.
    #[inline(always)]
    pub fn touch(&self, addr: u64) -> u64 {
        let hash = self.hash(addr);
        let places = &self.shards[Self::shard(hash)].places;
        places[home(hash, places.len())].addr
    }

    /// Adds a block; returns the one that was live at that address. `addr` must not be 0.
    #[inline]
    pub fn insert(&mut self, addr: u64, block: Block<T>) -> Option<Block<T>> {
        debug_assert_ne!(addr, 0);
        let hash = self.hash(addr);
        let seed = self.seed;
        let shard = &mut self.shards[Self::shard(hash)];
        let mut at = home(hash, shard.places.len());
        loop {
            let p = &mut shard.places[at];
            if p.addr == addr {
                return Some(std::mem::replace(&mut p.block, block));
            }
            if p.addr == 0 {
                *p = Place { addr, block };
                break;
            }
            at = shard.next(at);
        }
        self.len += 1;
        shard.len += 1;
        if shard.is_full() {
            shard.grow(seed);
        }
        None
    }

    /// Removes the block at that address.
    #[inline]
    pub fn remove(&mut self, addr: u64) -> Option<Block<T>> {
        if addr == 0 {
            return None;
        }
        let hash = self.hash(addr);
        let seed = self.seed;
        let shard = &mut self.shards[Self::shard(hash)];
        let block = shard.remove(addr, hash, seed)?;
        self.len -= 1;
        Some(block)
    }
}

#[inline(always)]
fn hash(addr: u64, seed: u64) -> u64 {
    let m = (addr ^ seed) as u128 * 0x9e37_79b9_7f4a_7c15;
    (m >> 64) as u64 ^ m as u64
}

impl<T: Copy + Default> Shard<T> {
    #[inline(always)]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.places.len() { 0 } else { at + 1 }
    }

    /// How far `to` lies behind `from`, going round.
    #[inline(always)]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    #[inline(always)]
    fn find(&self, addr: u64, hash: u64) -> Option<usize> {
        let mut at = home(hash, self.places.len());
        loop {
            let p = self.places[at].addr;
            if p == 0 {
                return None;
            }
            if p == addr {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    #[inline(always)]
    fn remove(&mut self, addr: u64, hash_of: u64, seed: u64) -> Option<Block<T>> {
        let mut hole = self.find(addr, hash_of)?;
        let block = self.places[hole].block;
        let mut at = hole;
        loop {
            at = self.next(at);
            let p = self.places[at];
            if p.addr == 0 {
                break;
            }
            // It may move into the hole if its home does not lie between the hole and itself.
            let home = home(hash(p.addr, seed), self.places.len());
            if self.distance(home, at) >= self.distance(hole, at) {
                self.places[hole] = p;
                hole = at;
            }
        }
        self.places[hole] = Place::default();
        self.len -= 1;
        Some(block)
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        let places = self.places.len();
        if places < DOUBLING { self.len * 2 > places } else { self.len * 8 > places * 7 }
    }

    #[cold]
    fn grow(&mut self, seed: u64) {
        let n = self.places.len();
        let more = if n < DOUBLING { n * 2 } else { n + n / 4 };
        let old = std::mem::replace(&mut self.places, vec![Place::default(); more]);
        for p in old.into_iter().filter(|p| p.addr != 0) {
            let mut at = home(hash(p.addr, seed), more);
            while self.places[at].addr != 0 {
                at = self.next(at);
            }
            self.places[at] = p;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn does_what_a_hash_map_does() {
        let mut live: Live = Live::default();
        let mut plain: HashMap<u64, Block> = HashMap::new();
        let mut x = 88172645463325252u64;
        for i in 0..300_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // Grows for a while, then shrinks.
            let addr = (x >> 20) % 20_000 * 16 + 16;
            let b = Block { sized: i, time: i, group: i as u32, lane: 0, tag: () };
            if x % 100 < if i < 100_000 { 70 } else { 40 } {
                assert_eq!(live.insert(addr, b), plain.insert(addr, b));
            } else {
                assert_eq!(live.remove(addr), plain.remove(&addr));
            }
            assert_eq!(live.len(), plain.len());
        }
        let all: HashMap<u64, Block> = live.iter().collect();
        assert_eq!(all, plain);
        assert_eq!(live.remove(0), None);
        let drained: HashMap<u64, Block> = live.drain().collect();
        assert_eq!(drained, plain);
    }
}
