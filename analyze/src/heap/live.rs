//! A hash table of the live blocks, made for this purpose alone.

use super::huge::{HUGE, Huge};
use crate::load::Op;
use prof_arch::native::capture::prefetch;
use prof_trace::size::{CodedSize, Header};
use prof_trace::ticks::Ticks;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A live block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Bytes requested, chunk header, and [`NOTED`], packed into one number, as there are many blocks.
    sized: u64,
    /// Ticks when it was allocated.
    pub time: Ticks,
    /// Index of its group.
    pub group: u32,
    /// Thread index of the thread that allocated it.
    pub thread_index: u32,
}

/// Flag for [`Block::is_noted`]. Sizes never have this bit (see [`Op::size`]).
const NOTED: u64 = 1 << 63;

impl Block {
    /// Creates the block that `op` allocates.
    #[inline(always)]
    pub fn new(op: &Op, group: u32, noted: bool) -> Self {
        let sized = match (op.header, op.rate) {
            (0, 0) => op.size,
            (code, rate) => CodedSize::with_rate(op.size, Header::from_code(code), rate).0,
        };
        let sized = sized & !NOTED | if noted { NOTED } else { 0 };
        Self { sized, time: op.time, group, thread_index: op.thread_index }
    }

    /// Creates a block without a chunk header, sampled at a distance of 2^`rate` (see [`CodedSize::rate`]).
    #[inline(always)]
    pub fn plain(size: u64, rate: u8, time: Ticks, group: u32, thread_index: u32) -> Self {
        let sized = CodedSize::with_rate(size, Header::default(), rate).0;
        let sized = if rate == 0 { size } else { sized };
        Self { sized: sized & !NOTED, time, group, thread_index }
    }

    /// Returns the number of bytes requested.
    #[inline(always)]
    pub fn size(&self) -> u64 {
        self.sized().decode().0
    }

    /// Returns the exponent of the distance at which the block was sampled (see [`CodedSize::rate`]).
    #[inline(always)]
    pub fn rate(&self) -> u8 {
        self.sized().rate()
    }

    /// Returns size, chunk header and sampling distance.
    #[inline(always)]
    pub(crate) fn sized(&self) -> CodedSize {
        CodedSize(self.sized & !NOTED)
    }

    /// Returns whether a [`Watch`](super::Watch) keeps data about this block.
    #[inline(always)]
    pub(crate) fn is_noted(&self) -> bool {
        self.sized & NOTED != 0
    }
}

/// The type of a value in the table.
pub(crate) trait Value: Copy + Default {
    /// A type with the alignment of a slot of the table.
    type Align: Copy + Default;
}

/// With this alignment a slot of a block never crosses a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(crate) struct HalfLine;

impl Value for Block {
    type Align = HalfLine;
}

/// A slot of the table; it is free if the address is 0.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct TableSlot<V: Value> {
    align: [V::Align; 0],
    addr: u64,
    value: V,
}

const _: () = assert!(size_of::<TableSlot<Block>>() == 32);

/// The table consists of this many shards, each of which grows separately: a copy while one grows needs little
/// additional memory.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 5;
const SMALLEST: usize = 1 << 6;
/// Shards with less memory double when they are half full, so that a block is in its home slot or near it: together
/// they take 80 MiB at most. Larger ones grow by a quarter when they are 7/8 full, so that a large table is always at
/// least 70 % full.
const DOUBLING: usize = HUGE;
/// With this many bytes, a shard grows to that size at once, as it then fills a huge page.
const JUMP: usize = HUGE >> 2;

/// A part of the table, chosen by bits of the hash.
struct Shard<V: Value> {
    places: Huge<TableSlot<V>>,
    len: usize,
}

/// A map from addresses to values: open addressing with linear probing. Removal shifts the following entries back, so
/// that there are no tombstones and no rehash under churn.
pub(crate) struct Live<V: Value> {
    shards: Vec<Shard<V>>,
    len: usize,
    seed: u64,
}

impl<V: Value> Default for Live<V> {
    fn default() -> Self {
        // The random seed keeps a made-up recording from choosing addresses that collide.
        let seed = RandomState::new().hash_one(0u8);
        let shard = |_| Shard { places: Huge::new(TableSlot::default(), SMALLEST), len: 0 };
        Self { shards: (0..SHARDS).map(shard).collect(), len: 0, seed }
    }
}

/// Returns the home slot of a hash in a table of this many slots.
#[inline(always)]
fn home(hash: u64, places: usize) -> usize {
    ((u128::from(hash << SHARD_BITS) * places as u128) >> 64) as usize
}

impl<V: Value> Live<V> {
    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of places for entries.
    pub(super) fn places(&self) -> usize {
        self.shards.iter().map(|s| s.places.len()).sum()
    }

    /// Returns all entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, V)> {
        let places = self.shards.iter().flat_map(|s| s.places.iter());
        places.filter(|p| p.addr != 0).map(|p| (p.addr, p.value))
    }

    #[inline(always)]
    fn hash(&self, addr: u64) -> u64 {
        hash(addr, self.seed)
    }

    #[inline(always)]
    fn shard(hash: u64) -> usize {
        (hash >> (64 - SHARD_BITS)) as usize
    }

    /// Prefetches the slot where `addr` would be, and the next one, which a removal examines. If it is called some
    /// operations in advance, it hides the latency of memory.
    #[inline(always)]
    pub(crate) fn prefetch(&self, addr: u64) {
        let hash = self.hash(addr);
        let places = &self.shards[Self::shard(hash)].places;
        let place = &raw const places[home(hash, places.len())];
        prefetch(place);
        prefetch(place.wrapping_add(1));
    }

    /// Inserts a value; returns the previous one of that address. `addr` must not be 0.
    #[inline]
    pub(crate) fn insert(&mut self, addr: u64, value: V) -> Option<V> {
        debug_assert_ne!(addr, 0);
        let hash = self.hash(addr);
        let seed = self.seed;
        let shard = &mut self.shards[Self::shard(hash)];
        let mut at = home(hash, shard.places.len());
        loop {
            let p = &mut shard.places[at];
            if p.addr == addr {
                return Some(std::mem::replace(&mut p.value, value));
            }
            if p.addr == 0 {
                *p = TableSlot { align: [], addr, value };
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

    /// Returns the value of an address.
    pub(crate) fn get(&self, addr: u64) -> Option<V> {
        let hash = self.hash(addr);
        let shard = &self.shards[Self::shard(hash)];
        let at = if addr == 0 { None } else { shard.find(addr, hash) };
        at.map(|at| shard.places[at].value)
    }

    /// Removes and returns the value of an address.
    #[inline]
    pub(crate) fn remove(&mut self, addr: u64) -> Option<V> {
        if addr == 0 {
            return None;
        }
        let hash = self.hash(addr);
        let seed = self.seed;
        let shard = &mut self.shards[Self::shard(hash)];
        let value = shard.remove(addr, hash, seed)?;
        self.len -= 1;
        Some(value)
    }
}

impl Live<Block> {
    /// Returns all blocks, shard by shard, each shard sorted by time.
    pub(crate) fn by_time(&self) -> impl Iterator<Item = (u64, Block)> {
        self.shards.iter().flat_map(|s| {
            let mut all: Vec<_> = s.places.iter().filter(|p| p.addr != 0).copied().collect();
            all.sort_unstable_by_key(|p| (p.value.time, p.addr));
            all.into_iter().map(|p| (p.addr, p.value))
        })
    }

    /// Returns all blocks, shard by shard, each shard sorted by time; consumes the table.
    pub(crate) fn drain(self) -> impl Iterator<Item = (u64, Block)> {
        self.shards.into_iter().flat_map(|s| {
            let mut all: Vec<_> = s.places.iter().filter(|p| p.addr != 0).copied().collect();
            drop(s);
            all.sort_unstable_by_key(|p| (p.value.time, p.addr));
            all.into_iter().map(|p| (p.addr, p.value))
        })
    }
}

#[inline(always)]
fn hash(addr: u64, seed: u64) -> u64 {
    let m = (addr ^ seed) as u128 * 0x9e37_79b9_7f4a_7c15;
    (m >> 64) as u64 ^ m as u64
}

impl<V: Value> Shard<V> {
    /// Returns the number of slots that take so many bytes, or somewhat more.
    const fn slots(bytes: usize) -> usize {
        bytes.div_ceil(size_of::<TableSlot<V>>())
    }

    #[inline(always)]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.places.len() { 0 } else { at + 1 }
    }

    /// Returns the distance from `from` forward to `to`, modulo the number of slots.
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
    fn remove(&mut self, addr: u64, hash_of: u64, seed: u64) -> Option<V> {
        let mut hole = self.find(addr, hash_of)?;
        let value = self.places[hole].value;
        let mut at = hole;
        loop {
            at = self.next(at);
            let p = self.places[at];
            if p.addr == 0 {
                break;
            }
            // An entry may move into the hole unless its home slot lies behind the hole.
            let home = home(hash(p.addr, seed), self.places.len());
            if self.distance(home, at) >= self.distance(hole, at) {
                self.places[hole] = p;
                hole = at;
            }
        }
        self.places[hole] = TableSlot::default();
        self.len -= 1;
        Some(value)
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        let places = self.places.len();
        if places < Self::slots(DOUBLING) {
            self.len * 2 > places
        } else {
            self.len * 8 > places * 7
        }
    }

    #[cold]
    fn grow(&mut self, seed: u64) {
        let n = self.places.len();
        let more = match n {
            _ if n < Self::slots(JUMP) => n * 2,
            _ if n < Self::slots(DOUBLING) => Self::slots(DOUBLING),
            _ => n + n / 4,
        };
        let old = std::mem::replace(&mut self.places, Huge::new(TableSlot::default(), more));
        for &p in old.iter().filter(|p| p.addr != 0) {
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
        let mut live: Live<Block> = Live::default();
        let mut plain: HashMap<u64, Block> = HashMap::new();
        let mut x = 88172645463325252u64;
        for i in 0..300_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // The table grows for a while, then shrinks.
            let addr = (x >> 20) % 20_000 * 16 + 16;
            let b = Block::plain(i, 0, Ticks(i), i as u32, 0);
            if x % 100 < if i < 100_000 { 70 } else { 40 } {
                assert_eq!(live.insert(addr, b), plain.insert(addr, b));
            } else {
                assert_eq!(live.get(addr), plain.get(&addr).copied());
                assert_eq!(live.remove(addr), plain.remove(&addr));
            }
            assert_eq!(live.len(), plain.len());
        }
        let all: HashMap<u64, Block> = live.iter().collect();
        assert_eq!(all, plain);
        assert!(live.remove(0).is_none());
        let drained: HashMap<u64, Block> = live.drain().collect();
        assert_eq!(drained, plain);
    }
}
