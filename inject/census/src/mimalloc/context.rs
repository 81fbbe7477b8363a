//! The variables of mimalloc: the first thread's heap (`_mi_heap_main`), whose secret number its segments have, and the
//! heaps of all threads (`mi_heap_t` in include/mimalloc-types.h of 2.0.9).
//!
//! No symbol is needed to find them: what begins like a segment leads to a number, and that stands in the heap, behind a
//! table of sizes.

use super::segment::{Links, each_secret};
use crate::data::{each_word, segments};
use crate::view::{Memory as _, View, WORD};
use prof_os::maps::Map;
use std::collections::BTreeMap;

/// Bytes of a heap in front of its queues of pages, one of three words for each size; of the list of blocks that
/// other threads have freed; of the secret number, which of other heaps than the first is of no use; and of the keys of
/// that list.
const QUEUES: u64 = 130 * WORD;
const DELAYED: u64 = QUEUES + 75 * 3 * WORD;
const SECRET: u64 = DELAYED + 3 * WORD;
const KEYS: u64 = SECRET + WORD;
/// Number of queues whose sizes are looked at.
const LOOK: usize = 9;
/// Greatest length of a segment of data that is searched, and numbers of secrets and of mimallocs that are looked at.
const DATA: u64 = 1 << 30;
const MOST_SECRETS: usize = 1 << 12;
const MOST: usize = 4;

/// The variables of one mimalloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(super) secret: u64,
    /// `None`: it is laid out in a way that is not known.
    pub(super) links: Option<Links>,
}

/// The list of blocks that other threads have given back to a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delayed {
    pub first: u64,
    pub keys: [u64; 2],
}

/// Finds the mimallocs of a process: mostly none or one.
pub(crate) fn find(view: &mut View<'_>, maps: &[Map]) -> Vec<Context> {
    // Pointers of another width have other segments, and other orders of bytes other flags.
    if cfg!(not(all(target_pointer_width = "64", target_endian = "little"))) {
        return Vec::new();
    }
    let mut secrets = BTreeMap::new();
    each_secret(view, maps, |secret, links| {
        if secrets.len() < MOST_SECRETS {
            secrets.entry(secret).or_insert(links);
        }
    });
    let mut found: Vec<Context> = Vec::new();
    if secrets.is_empty() {
        return found;
    }
    for data in segments(maps).into_iter().filter(|s| s.end - s.start < DATA) {
        each_word(view, data, |view, at, word| {
            if let Some(links) = secrets.get(&word) {
                let is_heap = at.checked_sub(SECRET).is_some_and(|heap| is_heap(view, heap));
                add(&mut found, Context { secret: word, links: is_heap.then_some(*links) });
            }
            true
        });
    }
    found.truncate(MOST);
    found
}

/// Adds a context, unless the same one is there already and as much is known of it.
fn add(found: &mut Vec<Context>, new: Context) {
    match found.iter_mut().find(|c| c.secret == new.secret) {
        Some(c) => c.links = c.links.or(new.links),
        None => found.push(new),
    }
}

/// Returns whether a heap lies at an address, by the sizes of its queues: 8 bytes twice, and then 8 more each.
fn is_heap(view: &mut View<'_>, heap: u64) -> bool {
    let Some(queues) = heap.checked_add(QUEUES) else { return false };
    let Some(words) = view.words::<{ 3 * LOOK }>(queues) else { return false };
    let sizes = words.as_chunks::<3>().0.iter().map(|queue| queue[2]);
    sizes.eq((0..LOOK as u64).map(|i| WORD * i.max(1)))
}

/// Reads the list of blocks that other threads have given back to a heap; `None` if there is no heap.
pub(super) fn delayed(view: &mut View<'_>, heap: u64) -> Option<Delayed> {
    if !is_heap(view, heap) {
        return None;
    }
    let [first] = view.words(heap.checked_add(DELAYED)?)?;
    let keys = view.words(heap.checked_add(KEYS)?)?;
    Some(Delayed { first, keys })
}
