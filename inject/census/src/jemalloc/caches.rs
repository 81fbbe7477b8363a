//! jemalloc's caches of threads (`tcache_t`): blocks in them are free, though their slabs have them as allocated.
//!
//! Each arena has a ring of the descriptors of caches that belong to it; a descriptor names the cache's bins and, right
//! behind itself, the arena. 5.0 has no descriptors, and a ring of the caches themselves. The arenas are named by a variable
//! beside the tree's root.

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
/// Bytes of a link of a ring, with which a cache of 5.3 begins.
const FRONT: u64 = 2 * WORD;
/// Bytes from the end of the bins for slabs to the descriptor: of 5.1 those of a link, of 5.2 those of two and a flag.
const BETWEEN: [(u32, u64); 2] = [(1, 2 * WORD), (2, 5 * WORD)];
/// Bytes of a cache of 5.0 in front of its bins, and those from the end of its bins for slabs to a byte for each of these
/// bins, behind which are the others: a link, the arena, and a number.
const HEAD: u64 = 2 * WORD;
const BEHIND: u64 = 3 * WORD + 4;

/// Bytes of the slow part of a cache of 5.3.1 in front of its number of bins, and in front of the four bytes that it has for
/// each bin for slabs.
const LEN: u64 = 6 * WORD;
const NUMBERS: u64 = 9 * WORD + 4;
const EACH: u64 = 4;

/// The version of jemalloc 5, as far as the layout of extents tells it, and the number of its bins for slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub minor: u32,
    pub small: usize,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cache {
    /// Address of the first bin.
    pub bins: u64,
    /// Up to 5.2: how many bins there are for slabs, and the address of the first one for large blocks.
    pub large: Option<(usize, u64)>,
    /// Number of bins, where the cache says it.
    pub len: Option<usize>,
    /// Minor number of the versions that have such a cache.
    pub minor: u32,
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
    kind: Kind,
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
    // Offset of the rings in an arena of 5.0, once one is found.
    let mut offset = None;
    for arena in places {
        let bytes = view.all(arena..arena.saturating_add(ARENA));
        let head: Vec<u64> = words(&bytes).collect();
        if kind.minor == 0 {
            let may_be =
                |at: u64| at.is_multiple_of(WORD) && is_own(maps, &(at..at.saturating_add(WORD)));
            let places = offset.map_or(0..head.len(), |i| i..(i + 1).min(head.len()));
            for i in places.filter(|i| may_be(head[*i])) {
                let before = all.len();
                links += ring(view, arena, head[i], kind, &mut all);
                if all.len() > before {
                    offset = Some(i);
                    break;
                }
            }
            continue;
        }
        for pair in head.windows(2) {
            // Both rings begin with the same cache.
            let (cache, descriptor) = (pair[0], pair[1]);
            let distance = descriptor.wrapping_sub(cache);
            let fits = if kind.minor >= 3 { distance == FRONT } else { distance < 1 << 12 };
            if cache != 0 && distance.is_multiple_of(WORD) && fits {
                links += ring(view, arena, descriptor, kind, &mut all);
            }
        }
    }
    (all.into_iter().collect(), links)
}

/// Reads a descriptor: the next one, and the cache.
fn descriptor(view: &mut View<'_>, at: u64, arena: u64, kind: Kind) -> Option<(u64, Cache)> {
    let len = (kind.small * BIN) as u64 * WORD;
    if kind.minor == 0 {
        let bins = at.checked_add(HEAD)?;
        let link = bins.checked_add(len)?;
        let [next, _, of] = view.words(link)?;
        let large = link.checked_add(BEHIND + kind.small as u64)?.next_multiple_of(WORD);
        let cache = Cache { bins, large: Some((kind.small, large)), len: None, minor: 0 };
        return (of == arena).then_some((next, cache));
    }
    let [next, _, bins, a, b] = view.words(at)?;
    if kind.minor >= 3 {
        // In front of the bins stands the address of the cache, which has the descriptor behind its link.
        let cache = at.checked_sub(FRONT)?;
        let is_one = a == arena && view.words(bins.checked_sub(WORD)?) == Some([cache]);
        return is_one.then(|| (next, Cache::of_parts(view, cache, bins, kind)));
    }
    // In front of the descriptor stand the bins for slabs.
    let between = at.checked_sub(bins)?.checked_sub(len)?;
    let (minor, _) = BETWEEN.into_iter().find(|(_, n)| *n == between)?;
    let cache = Cache { bins, large: Some((kind.small, a)), len: None, minor };
    (b == arena).then_some((next, cache))
}

/// Follows a ring of descriptors. Returns 1 if it ends at a link that makes no sense.
fn ring(view: &mut View<'_>, arena: u64, first: u64, kind: Kind, all: &mut BTreeSet<Cache>) -> u64 {
    let Some((mut next, cache)) = descriptor(view, first, arena, kind) else { return 0 };
    if !all.insert(cache) {
        return 0;
    }
    while next != first {
        let Some((behind, cache)) = descriptor(view, next, arena, kind) else { return 1 };
        // A ring that leads back to its midst would never end.
        if all.len() >= MOST_CACHES || !all.insert(cache) {
            return 1;
        }
        next = behind;
    }
    0
}

impl Cache {
    /// Returns the cache of 5.3 that has its bins at one address and its slow part at another. 5.3.1 keeps no bins for more
    /// than eight pages, and is known by how far the address of the part with the bins stands behind what it has of each bin.
    pub(super) fn of_parts(view: &mut View<'_>, slow: u64, bins: u64, kind: Kind) -> Self {
        let back = (NUMBERS + kind.small as u64 * EACH).next_multiple_of(WORD) + WORD;
        let is_newer = slow
            .checked_add(back)
            .and_then(|at| view.words(at))
            .is_some_and(|[first]: [u64; 1]| first.checked_add(WORD) == Some(bins));
        let number = slow.checked_add(LEN).filter(|_| is_newer).and_then(|at| view.words(at));
        let len = number.map(|[word]: [u64; 1]| {
            let [a, b, c, d, ..] = word.to_ne_bytes();
            u32::from_ne_bytes([a, b, c, d]) as usize
        });
        Self { bins, large: None, len, minor: 3 }
    }

    /// Reads the bins, at most so many.
    pub(super) fn bins(&self, view: &mut View<'_>, most: usize) -> Vec<Bin> {
        let mut of = |at: u64, n: usize| -> Vec<Bin> {
            let len = (n * BIN) as u64 * WORD;
            let bytes = view.all(at..at.saturating_add(len));
            let all: Vec<u64> = words(&bytes).collect();
            all.as_chunks::<BIN>().0.iter().map(|w| Bin::of(*w, self.minor)).collect()
        };
        let Some((small, large)) = self.large else {
            return of(self.bins, self.len.unwrap_or(most).min(most));
        };
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
