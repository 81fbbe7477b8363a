//! jemalloc 5: its blocks by its own data, walked from outside, without symbols.
//!
//! The map from pages to extents (`tree.rs`) leads to every extent. A large block is an extent of its own; a slab has a
//! bitmap of its regions (`extent.rs`). What is in the cache of a thread (`caches.rs`) is free, though its slab has it as
//! allocated. The layout is that of 5.0, of 5.1 and 5.2, or of 5.3, whichever makes sense of the extents.

mod caches;
mod classes;
mod extent;
mod stats;
#[cfg(all(test, target_pointer_width = "64", target_endian = "little"))]
mod tests;
mod tree;
mod tsd;

use crate::view::{View, WORD};
use caches::Kind;
use classes::{QUANTA, classes};
use extent::{Extent, HEAD, LAYOUTS, Layout, Use, mask, words_of};
use prof_os::maps::Map;
pub use stats::{JemallocArena, JemallocStats};
use std::ops::Range;
pub(crate) use tree::{Tree, find};

/// Bits of an address, as jemalloc is built for.
pub(super) const ADDRESS: u32 = 48;
/// Extents by which the layout is recognised, and how many of a hundred must make sense.
const TRIED: usize = 4096;
const FIT: usize = 75;
/// Attempts to read an extent that makes no sense: the target may be about to change it.
const TRIES: usize = 4;
/// Bits of a word of a bitmap.
const BITS: u64 = 64;

/// How a jemalloc lays out its data.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Form {
    layout: Layout,
    classes: Vec<u64>,
    /// Number of the classes whose blocks share slabs.
    small: usize,
    shift: u32,
    /// Bytes that the extent of a large block is longer than the block.
    pad: u64,
}

impl Form {
    fn new(layout: Layout, quantum: u32, shift: u32, pad: u64) -> Self {
        let classes = classes(quantum);
        // Large blocks have four pages and more.
        let small = classes.partition_point(|size| *size < 4 << shift);
        Self { layout, classes, small, shift, pad }
    }

    /// Returns the bytes of each of an extent's blocks; `None` if its class does not go with its length. From 5.3.1 on
    /// large blocks have any number of pages up to that of their class.
    fn size_of(&self, e: &Extent) -> Option<u64> {
        let class = usize::from(e.class);
        let most = *self.classes.get(class)?;
        if e.slab || class < self.small {
            return Some(most);
        }
        let size = e.size.checked_sub(self.pad)?;
        (size > self.classes[class - 1] && size <= most).then_some(size)
    }

    /// Returns the bytes of each block of an extent, and the number that it has room for; `None` if it makes no sense.
    fn room(&self, e: &Extent) -> Option<(u64, u64)> {
        let size = self.size_of(e)?;
        e.room(size, self.shift).map(|room| (size, room))
    }
}

/// A block or a place for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub address: u64,
    /// Bytes that a program can use.
    pub size: u64,
    pub state: PlaceState,
    /// Index of its extent.
    extent: usize,
}

/// State of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceState {
    /// The program has it, or jemalloc itself.
    InUse,
    /// It is in the cache of a thread.
    Cached,
    /// It is free in its slab.
    Free,
}

/// The heap of one jemalloc.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    form: Option<Form>,
    /// In the order of their addresses.
    extents: Vec<Extent>,
    /// A bit for each place: whether its slab has it as allocated, and whether it is in a cache.
    used: Vec<u64>,
    cached: Vec<u64>,
    /// Blocks in which the lists of caches stand, in order.
    own: Vec<u64>,
    /// Number of caches of threads that were found, and the minor number of the version that has such.
    caches: u64,
    minor: Option<u32>,
    /// Memory of extents that make no sense.
    pub lost: Vec<Range<u64>>,
    /// Links that make no sense, and slabs whose numbers don't agree.
    pub links: u64,
}

impl Heap {
    /// Walks the heap that a tree leads to.
    pub(crate) fn walk(view: &mut View<'_>, maps: &[Map], tree: &Tree) -> Self {
        let mut heap = Self::default();
        let (leaves, bad) = tree.leaves(view, maps);
        heap.links += bad;
        let mut entries = Vec::new();
        for (key, leaf) in &leaves {
            let (found, read) = tree.entries_of(view, *key, leaf);
            heap.links += u64::from(!read);
            entries.extend(found);
        }
        heap.form = recognise(view, &entries, tree.shape.shift);
        if let Some(form) = heap.form.clone() {
            for (at, page) in entries {
                heap.add(view, &form, at, page);
            }
        }
        heap.settle();
        if let Some(form) = heap.form.clone() {
            heap.mark_cached(view, maps, tree, &form);
        }
        heap
    }

    /// Adds the extent that a page leads to, if it begins with this page.
    fn add(&mut self, view: &mut View<'_>, form: &Form, at: u64, page: u64) {
        for i in 0..TRIES {
            let Some(mut e) = read(view, form, at) else {
                self.links += u64::from(i + 1 == TRIES);
                continue;
            };
            if e.base(form.shift) != page || e.size == 0 {
                return;
            }
            let is_one = e.state == Use::Active && usize::from(e.class) < form.classes.len();
            let Ok(first) = u32::try_from(self.used.len()) else {
                self.lost.push(page..page + e.size);
                return;
            };
            e.bits = first;
            if !is_one {
                e.state = if e.state == Use::Active { Use::Changing } else { e.state };
                self.extents.push(e);
                return;
            }
            let used = match form.room(&e) {
                Some(_) if !e.slab => Some((vec![1], true)),
                Some((_, room)) => slab(view, at, &e, room),
                None => None,
            };
            match used {
                Some((used, agrees)) if agrees || i + 1 == TRIES => {
                    self.links += u64::from(!agrees);
                    self.used.extend(used);
                    self.extents.push(e);
                    return;
                }
                None if i + 1 == TRIES => {
                    let end = page.saturating_add(e.size).min(1 << ADDRESS).max(page);
                    self.lost.push(page..end);
                }
                // The target may be about to change it.
                _ => view.forget(),
            }
        }
    }

    /// Puts the extents in order, and leaves out those that overlap others, which no allocator makes.
    fn settle(&mut self) {
        let Some(shift) = self.form.as_ref().map(|f| f.shift) else { return };
        self.extents.sort_by_key(|e| e.address);
        let (mut end, lost) = (0, &mut self.lost);
        self.extents.retain(|e| {
            let range = e.base(shift)..e.base(shift).saturating_add(e.size);
            let fits = range.start >= end;
            match fits {
                true => end = range.end,
                false => lost.push(range),
            }
            fits
        });
        self.cached = vec![0; self.used.len()];
    }

    /// Marks the blocks in caches of threads.
    fn mark_cached(&mut self, view: &mut View<'_>, maps: &[Map], tree: &Tree, form: &Form) {
        let extents = self.ranges();
        let kind = Kind { minor: form.layout.minor, small: form.small };
        let (mut all, mut links) = caches::find(view, maps, tree, &extents, kind);
        if all.is_empty() && form.layout.minor >= 3 {
            (all, links) = tsd::find(view, maps, tree, &extents, kind);
        }
        self.links += links;
        let most = form.classes.partition_point(|size| *size <= caches::MOST);
        let mut own = Vec::new();
        for c in &all {
            let bins = c.bins(view, most);
            for (class, bin) in bins.iter().enumerate().filter(|(_, b)| b.blocks > 0) {
                let Some(blocks) = bin.read(view) else {
                    self.links += 1;
                    continue;
                };
                for at in blocks {
                    self.links += u64::from(!self.mark(form, at, class));
                }
            }
            let lists = bins.iter().find(|b| b.lists != 0);
            own.extend(lists.and_then(|b| self.place_at(form, b.lists)).map(|p| p.address));
        }
        own.sort_unstable();
        own.dedup();
        self.own = own;
        self.caches = all.len() as u64;
        self.minor = all.first().map(|c| c.minor);
    }

    /// Marks a block as cached. Returns `false` if there is none of this class, or it is free, or was marked before.
    fn mark(&mut self, form: &Form, at: u64, class: usize) -> bool {
        let Some(p) = self.place_at(form, at).filter(|p| p.address == at) else { return false };
        let e = self.extents[p.extent];
        if usize::from(e.class) != class || p.state != PlaceState::InUse {
            return false;
        }
        let n = (at - e.address) / p.size;
        self.cached[(u64::from(e.bits) + n / BITS) as usize] |= 1 << (n % BITS);
        true
    }

    /// Returns the place that an address lies in.
    fn place_at(&self, form: &Form, at: u64) -> Option<Place> {
        let i = self.extents.partition_point(|e| e.address <= at).checked_sub(1)?;
        let e = self.extents[i];
        let (size, room) = form.room(&e).filter(|_| e.state == Use::Active)?;
        let n = (at - e.address) / size;
        (n < room).then(|| self.place(i, n, size))
    }

    fn place(&self, extent: usize, n: u64, size: u64) -> Place {
        let e = &self.extents[extent];
        let word = (u64::from(e.bits) + n / BITS) as usize;
        let has = |of: &[u64]| of[word] >> (n % BITS) & 1 != 0;
        let state = match (has(&self.used), has(&self.cached)) {
            (true, false) => PlaceState::InUse,
            (true, true) => PlaceState::Cached,
            (false, _) => PlaceState::Free,
        };
        Place { address: e.address + n * size, size, state, extent }
    }

    /// Returns all places, in the order of their addresses.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        let form = self.form.as_ref();
        let all = self.extents.iter().enumerate().filter(|(_, e)| e.state == Use::Active);
        all.flat_map(move |(i, e)| {
            let (size, room) = form.and_then(|f| f.room(e)).unwrap_or((1, 0));
            (0..room).map(move |n| self.place(i, n, size))
        })
    }

    /// Returns the blocks that the program has, without those in which jemalloc keeps the lists of caches.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Place> {
        let is_own = |p: &Place| self.own.binary_search(&p.address).is_ok();
        self.places().filter(move |p| p.state == PlaceState::InUse && !is_own(p))
    }

    /// Returns whether the layout is one that is known, and the walk therefore found blocks.
    pub(crate) fn is_known(&self) -> bool {
        self.form.is_some()
    }

    /// Returns the version whose layout fits, if one does.
    fn version(&self) -> Option<(u32, u32)> {
        self.form.as_ref().map(|f| (5, self.minor.unwrap_or(f.layout.minor)))
    }

    /// Returns whether some caches of threads were found. Without them their blocks count as in use.
    pub(crate) fn has_caches(&self) -> bool {
        self.caches > 0
    }

    /// Returns the size of an extent's places, and how many are in use, cached and free; `None` if it has none.
    fn counts(&self, i: usize) -> Option<(u64, [u64; 3])> {
        let (e, form) = (self.extents[i], self.form.as_ref()?);
        let (size, room) = form.room(&e).filter(|_| e.state == Use::Active)?;
        let from = e.bits as usize;
        let words = from..from + words_of(room) as usize;
        let used: u32 = self.used[words.clone()].iter().map(|w| w.count_ones()).sum();
        let cached: u32 = self.cached[words].iter().map(|w| w.count_ones()).sum();
        let (used, cached) = (u64::from(used), u64::from(cached));
        Some((size, [used - cached, cached, room - used]))
    }

    /// Returns the blocks in which jemalloc keeps the lists of caches: bytes and number.
    fn own(&self) -> (u64, u64) {
        let Some(form) = &self.form else { return (0, 0) };
        let sizes = self.own.iter().filter_map(|at| self.place_at(form, *at)).map(|p| p.size);
        (sizes.sum(), self.own.len() as u64)
    }

    /// Returns the words of jemalloc's own data that are addresses of blocks: where each stands, and the address.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        let active = self.extents.iter().filter(|e| e.state == Use::Active);
        active.map(|e| (e.at + WORD, e.address))
    }

    /// Returns the bytes of pages with blocks.
    pub(crate) fn active(&self) -> u64 {
        let active = self.extents.iter().filter(|e| e.state == Use::Active);
        active.map(|e| e.size).fold(0, u64::saturating_add)
    }

    /// Returns the address ranges of all extents, joined where they adjoin, in order.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = Vec::new();
        let Some(form) = &self.form else { return all };
        for e in &self.extents {
            let base = e.base(form.shift);
            let end = base.saturating_add(e.size);
            match all.last_mut() {
                Some(last) if last.end == base => last.end = end,
                _ => all.push(base..end),
            }
        }
        all
    }
}

/// Reads an extent.
fn read(view: &mut View<'_>, form: &Form, at: u64) -> Option<Extent> {
    let mut words = [0; 3];
    for (i, w) in words.iter_mut().enumerate() {
        *w = view.word(at.checked_add(i as u64 * WORD)?, u64::MAX)?;
    }
    Some(Extent::of(at, words, form.layout, form.shift))
}

/// Reads which regions of a slab are in use; also returns whether their number is the one that the slab tells. `None`: the
/// bitmap can't be read, or has bits for more regions than there are.
fn slab(view: &mut View<'_>, at: u64, e: &Extent, room: u64) -> Option<(Vec<u64>, bool)> {
    let (mut used, mut free) = (Vec::new(), 0);
    for i in 0..words_of(room) {
        let word = view.word(at.checked_add((HEAD + i) * WORD)?, u64::MAX)?;
        let mask = mask(room, i);
        if word & !mask != 0 {
            return None;
        }
        free += word.count_ones();
        used.push(!word & mask);
    }
    Some((used, free == e.free))
}

/// Returns the layout that makes sense of the extents, if one does.
fn recognise(view: &mut View<'_>, entries: &[(u64, u64)], shift: u32) -> Option<Form> {
    // A block that begins behind the beginning of its first page has room for that.
    let pads = [0, 1 << shift];
    let forms = LAYOUTS.into_iter().flat_map(|layout| {
        let forms = move |quantum| pads.map(|pad| Form::new(layout, quantum, shift, pad));
        QUANTA.into_iter().flat_map(forms)
    });
    let fit = |form: &Form, view: &mut View<'_>| {
        let (mut tried, mut fit, mut exact) = (0, 0, 0);
        for (at, page) in entries.iter().take(TRIED) {
            let Some(e) = read(view, form, *at) else { continue };
            if e.base(shift) != *page || e.size == 0 || e.state != Use::Active {
                continue;
            }
            tried += 1;
            let Some((_, room)) = form.room(&e) else { continue };
            let agrees = !e.slab || slab(view, *at, &e, room).is_some_and(|(_, agrees)| agrees);
            fit += usize::from(agrees);
            // Anything may look like a small block with an extent of its own, as profiling makes them.
            exact += usize::from(agrees && (e.slab || usize::from(e.class) >= form.small));
        }
        (tried > 0 && fit * 100 >= tried * FIT).then_some(exact)
    };
    let known: Vec<_> = forms.filter_map(|f| fit(&f, view).map(|exact| (exact, f))).collect();
    let most = known.iter().map(|(exact, _)| *exact).max().filter(|n| *n > 0)?;
    known.into_iter().find(|(exact, _)| *exact == most).map(|(_, form)| form)
}
