//! The caches of threads by the threads' own data (`tsd_t`), which lie in their thread-local storage and form a ring.
//!
//! A jemalloc that was built without statistics keeps no lists of caches in its arenas. The data of a thread have its cache
//! in two parts that name each other; all are laid out alike, and a variable leads to the first. Only 5.3 has such parts.

use super::caches::{Cache, Kind};
use super::tree::Tree;
use crate::data::{each_word, is_own};
use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use std::collections::BTreeSet;
use std::ops::Range;

/// Greatest length of a thread's data.
const LEN: u64 = 4096;
/// Distance in words from the beginning of a cache's slow part to the address of its other part: behind two links, and
/// three bytes for each bin of a slab.
const BACK: Range<usize> = 12..64;
/// Distance in words from the beginning of a cache's slow part to the address of its arena: behind a link and a descriptor.
const ARENA: u64 = 5;
/// Greatest number of threads, and of places that are looked at.
const MOST: usize = 1 << 18;
const MOST_PLACES: usize = 1 << 14;

/// Distances of parts from the beginning of a thread's data, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// The link of the ring.
    link: u64,
    /// The part with the bins, and the slow part.
    bins: u64,
    slow: u64,
    /// The address of the first part in the second.
    back: u64,
}

/// Finds the caches of the threads, outside of `extents`, ranges in order. Also returns the number of links that make no
/// sense.
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
        if word.is_multiple_of(WORD)
            && is_outside
            && is_own(maps, &(word..word.saturating_add(WORD)))
        {
            places.insert(word);
        }
        places.len() < MOST_PLACES
    });
    for at in places {
        let bytes = view.all(at..at.saturating_add(LEN));
        let all: Vec<u64> = words(&bytes).collect();
        if let Some(shape) = shape(view, at, &all) {
            return ring(view, at, shape, kind);
        }
    }
    (Vec::new(), 0)
}

/// Returns how the data of a thread at an address are laid out, given their words; `None` if they are none.
fn shape(view: &mut View<'_>, at: u64, all: &[u64]) -> Option<Shape> {
    let address = |i: usize| at + i as u64 * WORD;
    let parts = (0..all.len()).find_map(|bins| {
        let distance = all[bins].checked_sub(at).filter(|d| d.is_multiple_of(WORD))?;
        let slow = usize::try_from(distance / WORD).ok().filter(|slow| *slow < bins)?;
        let back = BACK.map(|k| slow + k).find(|k| all.get(*k) == Some(&address(bins)))?;
        Some((bins, slow, back))
    });
    let (bins, slow, back) = parts?;
    let mut shape = Shape { link: 0, bins: bins as u64, slow: slow as u64, back: back as u64 };
    (0..all.len()).find_map(|link| {
        shape.link = link as u64;
        let next = all[link];
        let [before] = view.words(next.checked_add((shape.link + 1) * WORD)?)?;
        let fits = before == at && shape.fits(view, at) && shape.fits(view, next);
        fits.then_some(shape)
    })
}

impl Shape {
    /// Returns whether the data of a thread lie at an address.
    fn fits(self, view: &mut View<'_>, at: u64) -> bool {
        let mut word = |i: u64| view.words(at.checked_add(i * WORD)?).map(|[w]| w);
        let address = |i: u64| at.checked_add(i * WORD);
        let (slow, bins) = (address(self.slow), address(self.bins));
        // The data of a thread that has ended may still lie there, but their cache has no arena.
        let has_arena = word(self.slow + ARENA).is_some_and(|arena| arena != 0);
        slow.is_some() && has_arena && word(self.bins) == slow && word(self.back) == bins
    }
}

/// Follows the ring of threads.
fn ring(view: &mut View<'_>, first: u64, shape: Shape, kind: Kind) -> (Vec<Cache>, u64) {
    let (mut all, mut seen, mut at) = (Vec::new(), BTreeSet::new(), first);
    while seen.len() < MOST && seen.insert(at) {
        // Shape::fits has read as far as this, so the sum does not overflow.
        let (slow, bins) = (at + shape.slow * WORD, at + (shape.bins + 1) * WORD);
        all.push(Cache::of_parts(view, slow, bins, kind));
        let Some([next]) = view.words(at + shape.link * WORD) else { return (all, 1) };
        if next == first {
            return (all, 0);
        }
        if !shape.fits(view, next) {
            return (all, 1);
        }
        at = next;
    }
    (all, 1)
}
