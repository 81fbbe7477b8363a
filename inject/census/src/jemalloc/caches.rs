//! jemalloc's caches of threads (`tcache_t`): blocks in them are free, though their slabs have them as allocated.
//!
//! Each arena has a ring of the descriptors of caches that belong to it; a descriptor names the cache's bins and, right
//! behind itself, the arena. The arenas are named by a variable beside the tree's root.

use super::tree::{ALIGN, Tree};
use crate::data::{each_word, is_own};
use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use std::collections::BTreeSet;
use std::ops::Range;

/// Words of a bin.
const BIN: usize = 3;
/// Greatest block that any cache holds.
pub(super) const MOST: u64 = 8 << 20;
/// Bytes of an arena in which its rings begin.
const ARENA: u64 = 64 << 10;
/// Greatest number of places that are looked at as arenas, of caches, and of blocks in a bin.
const MOST_ARENAS: usize = 1 << 14;
const MOST_CACHES: usize = 1 << 18;
const MOST_CACHED: u64 = 1 << 16;
/// Greatest number of bins for slabs.
const MOST_BINS: u64 = 64;
/// Bytes of a link of a ring, with which a cache of 5.3 begins.
const FRONT: u64 = 2 * WORD;
/// Bytes from the end of the bins for slabs to the descriptor in 5.2.
const BETWEEN: u64 = 5 * WORD;

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cache {
    /// Address of the first bin.
    pub bins: u64,
    /// In 5.2: how many bins there are for slabs, and the address of the first one for large blocks.
    pub large: Option<(usize, u64)>,
}

/// A bin: where the addresses of its blocks stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bin {
    pub first: u64,
    pub blocks: u64,
    /// An address in the block that holds the lists of the cache.
    pub lists: u64,
}

impl Bin {
    /// Reads a bin of jemalloc 5.`minor`.
    fn of([a, _, c]: [u64; BIN], minor: u32) -> Self {
        // Fields of two and of four bytes, in the machine's order.
        let (a_bytes, c_bytes) = (a.to_ne_bytes(), c.to_ne_bytes());
        if minor >= 3 {
            // The stack grows down; where it is when empty is known by the low bits.
            let (head, empty) = (a, u16::from_ne_bytes([c_bytes[4], c_bytes[5]]));
            let bytes = empty.wrapping_sub(head as u16);
            return Self { first: head, blocks: u64::from(bytes) / WORD, lists: head };
        }
        // It is -1 for a moment when an empty one is asked.
        let blocks = i32::from_ne_bytes([a_bytes[4], a_bytes[5], a_bytes[6], a_bytes[7]]);
        let blocks = u64::try_from(blocks).unwrap_or(0);
        let first = c.wrapping_sub(blocks.wrapping_mul(WORD));
        Self { first, blocks, lists: c.wrapping_sub(WORD) }
    }
}

/// Finds the caches of all arenas, which lie outside of `extents`, ranges in order. Also returns the number of links that
/// make no sense.
pub(super) fn find(
    view: &mut View<'_>,
    maps: &[Map],
    tree: &Tree,
    extents: &[Range<u64>],
    minor: u32,
) -> (Vec<Cache>, u64) {
    let mut places = BTreeSet::new();
    each_word(view, tree.data.clone(), |_, _, word| {
        let next = extents.partition_point(|r| r.end <= word);
        let is_outside = extents.get(next).is_none_or(|r| word < r.start);
        let may_be = word.is_multiple_of(ALIGN)
            && is_outside
            && is_own(maps, &(word..word.saturating_add(WORD)));
        if may_be {
            places.insert(word);
        }
        places.len() < MOST_ARENAS
    });
    let (mut all, mut links) = (BTreeSet::new(), 0);
    for arena in places {
        let bytes = view.all(arena..arena.saturating_add(ARENA));
        let head: Vec<u64> = words(&bytes).collect();
        for pair in head.windows(2) {
            // Both rings begin with the same cache.
            let (cache, descriptor) = (pair[0], pair[1]);
            let distance = descriptor.wrapping_sub(cache);
            let fits = if minor >= 3 { distance == FRONT } else { distance < 1 << 12 };
            if cache != 0 && distance.is_multiple_of(WORD) && fits {
                links += ring(view, arena, descriptor, minor, &mut all);
            }
        }
    }
    (all.into_iter().collect(), links)
}

/// Reads a descriptor of jemalloc 5.`minor`: the next one, and the cache.
fn descriptor(view: &mut View<'_>, at: u64, arena: u64, minor: u32) -> Option<(u64, Cache)> {
    let [next, _, bins, a, b] = view.words(at)?;
    if minor >= 3 {
        // In front of the bins stands the address of the cache, which has the descriptor behind its link.
        let cache = at.checked_sub(FRONT)?;
        let is_one = a == arena && view.words(bins.checked_sub(WORD)?) == Some([cache]);
        return is_one.then_some((next, Cache { bins, large: None }));
    }
    // The bins for slabs stand in front of two links, a flag and the descriptor.
    let len = at.checked_sub(BETWEEN)?.checked_sub(bins)?;
    let bytes = BIN as u64 * WORD;
    let is_one =
        b == arena && len.is_multiple_of(bytes) && (1..=MOST_BINS).contains(&(len / bytes));
    is_one.then_some((next, Cache { bins, large: Some(((len / bytes) as usize, a)) }))
}

/// Follows a ring of descriptors. Returns 1 if it ends at a link that makes no sense.
fn ring(view: &mut View<'_>, arena: u64, first: u64, minor: u32, all: &mut BTreeSet<Cache>) -> u64 {
    let Some((mut next, cache)) = descriptor(view, first, arena, minor) else { return 0 };
    if !all.insert(cache) {
        return 0;
    }
    while next != first {
        let Some((behind, cache)) = descriptor(view, next, arena, minor) else { return 1 };
        // A ring that leads back to its midst would never end.
        if all.len() >= MOST_CACHES || !all.insert(cache) {
            return 1;
        }
        next = behind;
    }
    0
}

impl Cache {
    /// Reads the bins, at most so many.
    pub(super) fn bins(&self, view: &mut View<'_>, minor: u32, most: usize) -> Vec<Bin> {
        let mut of = |at: u64, n: usize| -> Vec<Bin> {
            let len = (n * BIN) as u64 * WORD;
            let bytes = view.all(at..at.saturating_add(len));
            let all: Vec<u64> = words(&bytes).collect();
            all.as_chunks::<BIN>().0.iter().map(|w| Bin::of(*w, minor)).collect()
        };
        let Some((small, large)) = self.large else { return of(self.bins, most) };
        let mut all = of(self.bins, small.min(most));
        if all.len() == small {
            all.extend(of(large, most - small));
        }
        all
    }
}

impl Bin {
    /// Reads the addresses of the blocks; `None` if they can't be read.
    pub(super) fn read(&self, view: &mut View<'_>) -> Option<Vec<u64>> {
        if self.blocks > MOST_CACHED {
            return None;
        }
        let end = self.first.checked_add(self.blocks * WORD)?;
        let bytes = view.all(self.first..end);
        let all: Vec<u64> = words(&bytes).collect();
        (all.len() as u64 == self.blocks).then_some(all)
    }
}

#[cfg(all(test, target_pointer_width = "64", target_endian = "little"))]
mod tests {
    use super::*;

    #[test]
    fn bins_tell_how_many_blocks_they_have() {
        let head = 0x7f00_0001_0ff0;
        let bin = Bin::of([head, 77, 0x1010 << 32 | 0xffff], 3);
        assert_eq!(bin, Bin { first: head, blocks: 4, lists: head });
        let across = Bin::of([0x7f00_0001_fff8, 0, 0x0008 << 32], 3);
        assert_eq!(across.blocks, 2, "the low bits have gone round");
        let older = Bin::of([3 << 32 | 1, 9, 0x1000], 2);
        assert_eq!(older, Bin { first: 0x1000 - 24, blocks: 3, lists: 0xff8 });
    }
}
