//! The variables of mimalloc: of version 2 the first thread's heap (`_mi_heap_main`), whose secret number its segments have,
//! and the heaps of all threads; of version 3 the map of pages.
//!
//! No symbol is needed to find them: what begins like a segment leads to a number, and that stands in the heap, as far
//! from a table of sizes as the version has it.

use super::form::Layout;
use super::map::{self, PageMap};
use super::segment::each_secret;
use crate::data::{each_word, segments};
use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use std::collections::BTreeMap;

/// Number of queues whose sizes are looked at.
const LOOK: u64 = 9;
/// Greatest length of a segment of data that is searched, and numbers of secrets and of mimallocs that are looked at.
const DATA: u64 = 1 << 30;
const MOST_SECRETS: usize = 1 << 12;
const MOST: usize = 4;

/// The variables of one mimalloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// The secret number of its segments, and how they are laid out; `None`: in a way that is not known.
    Segments(u64, Option<Layout>),
    Map(PageMap),
}

/// The queues of a heap: where they begin, and how many words each has, of which the last one is the size of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Queues {
    pub at: u64,
    pub words: usize,
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
    let mut secrets: BTreeMap<u64, Vec<(Layout, u64)>> = BTreeMap::new();
    each_secret(view, maps, |secret, layout, fit| {
        if secrets.len() < MOST_SECRETS {
            let layouts = secrets.entry(secret).or_default();
            match layouts.iter_mut().find(|(of, _)| *of == layout) {
                Some((_, all)) => *all += fit,
                None => layouts.push((layout, fit)),
            }
        }
    });
    let mut found: Vec<(u64, Vec<(Layout, u64)>)> = Vec::new();
    let data = segments(maps).into_iter().filter(|s| !secrets.is_empty() && s.end - s.start < DATA);
    for data in data {
        each_word(view, data, |view, at, word| {
            if let Some(layouts) = secrets.get(&word) {
                let of_heap = layouts.iter().filter(|(layout, _)| {
                    let heap = at.checked_sub(layout.form.heap.secret);
                    heap.is_some_and(|heap| is_heap(view, heap, *layout))
                });
                let known: Vec<_> = of_heap.copied().collect();
                add(&mut found, word, known);
            }
            true
        });
    }
    found.truncate(MOST);
    let segments = found.into_iter().map(|(secret, known)| {
        // Versions that differ only in where places begin are told by how many there are.
        let most = known.iter().map(|(_, fit)| *fit).max();
        let best = known.into_iter().find(|(_, fit)| Some(*fit) == most);
        Context::Segments(secret, best.map(|(layout, _)| layout))
    });
    let mut all: Vec<Context> = segments.collect();
    all.extend(map::find(view, maps).into_iter().map(Context::Map));
    all
}

/// Adds the layouts that fit a secret number's heap, unless there are some already.
fn add(found: &mut Vec<(u64, Vec<(Layout, u64)>)>, secret: u64, known: Vec<(Layout, u64)>) {
    match found.iter_mut().find(|(of, _)| *of == secret) {
        Some((_, layouts)) if layouts.is_empty() => *layouts = known,
        Some(_) => {}
        None => found.push((secret, known)),
    }
}

/// Returns whether a heap lies at an address.
fn is_heap(view: &mut View<'_>, heap: u64, layout: Layout) -> bool {
    has_queues(view, heap, Queues { at: layout.form.heap.queues, words: 3 })
}

/// Returns whether a heap with such queues lies at an address, by their sizes: 8 bytes twice, and then 8 more each.
pub(super) fn has_queues(view: &mut View<'_>, heap: u64, queues: Queues) -> bool {
    let len = LOOK * queues.words as u64 * WORD;
    let Some(start) = heap.checked_add(queues.at) else { return false };
    let Some(end) = start.checked_add(len) else { return false };
    let all: Vec<u64> = words(&view.all(start..end)).collect();
    let sizes = all.chunks(queues.words).filter_map(|queue| queue.last().copied());
    sizes.eq((0..LOOK).map(|i| WORD * i.max(1)))
}

/// Reads the list of blocks that other threads have given back to a heap; `None` if there is no heap.
pub(super) fn delayed(view: &mut View<'_>, heap: u64, layout: Layout) -> Option<Delayed> {
    if !is_heap(view, heap, layout) {
        return None;
    }
    let form = &layout.form.heap;
    let [first] = view.words(heap.checked_add(form.delayed)?)?;
    let keys = view.words(heap.checked_add(form.keys())?)?;
    Some(Delayed { first, keys })
}
