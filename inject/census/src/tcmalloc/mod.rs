//! tcmalloc as gperftools 2.10 has it: its blocks by its own data, walked from outside, without symbols.
//!
//! A tree leads from pages to spans (`span.rs`), each of which is one block, has blocks of one size, or is free. A block
//! is free if it is on the list of its span, in the central lists for whole batches, or in the cache of a thread
//! (`caches.rs`). The variables are found by their contents (`context.rs`).

mod caches;
mod context;
mod links;
mod span;
mod stats;
#[cfg(all(test, target_pointer_width = "64", target_endian = "little"))]
mod tests;

use crate::bits::{all_set, has, take_out};
use crate::data::{each_word, is_own};
use crate::sums::{Block, Sum};
use crate::view::{View, WORD};
pub(crate) use context::{Context, find};
use context::{LEAF, PAGE};
use links::Links;
use prof_os::maps::Map;
use span::{Span, Use};
pub use stats::TcmallocStats;
use std::ops::Range;

/// Attempts to read a span that makes no sense: the target may be about to change it.
const TRIES: usize = 4;

/// The heap of one tcmalloc.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    known: bool,
    /// The spans with blocks, in the order of their addresses.
    runs: Vec<Run>,
    /// A bit for each place: whether a block is there.
    used: Vec<u64>,
    /// Memory of all spans, joined where they adjoin, in order.
    ranges: Vec<Range<u64>>,
    /// Bytes of free spans with contents, and of those without.
    free: [u64; 2],
    /// Free blocks on lists of spans, in central lists, and in caches.
    central: Sum,
    transfer: Sum,
    cached: Sum,
    /// Number of caches of threads.
    caches: u64,
    /// Memory of pages that lead to nothing that makes sense.
    pub lost: Vec<Range<u64>>,
    /// Links that make no sense, and numbers of blocks that don't agree.
    pub links: u64,
}

/// Places for blocks of one size that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    /// Bytes of a place.
    size: u64,
    places: u32,
    /// The first word of its bits among those of all runs.
    bits: u32,
    /// Whether it is a single block, larger than any class.
    is_large: bool,
}

impl Run {
    fn places(&self) -> u64 {
        u64::from(self.places)
    }

    fn block(&self, n: u64) -> Block {
        Block { address: self.start + n * self.size, size: self.size }
    }

    /// Returns the number of the place that begins at an address.
    fn number(&self, at: u64) -> Option<u64> {
        let distance = at.checked_sub(self.start)?;
        let n = distance / self.size;
        (distance.is_multiple_of(self.size) && n < self.places()).then_some(n)
    }
}

impl Heap {
    /// Walks the heap that variables lead to.
    pub(crate) fn walk(view: &mut View<'_>, maps: &[Map], context: &Context) -> Self {
        if !context.is_whole() {
            return Self::default();
        }
        let mut heap = Self::spans(view, maps, context);
        heap.take_transfers(view, context);
        heap.take_caches(view, context);
        heap
    }

    /// Walks the spans, as if no block were in a central list or a cache.
    fn spans(view: &mut View<'_>, maps: &[Map], context: &Context) -> Self {
        let mut heap = Self { known: true, ..Self::default() };
        let (mut leaves, whole) = context.leaves(view);
        heap.links += u64::from(!whole);
        // Leaves that overlap others are none.
        leaves.sort_by_key(|(_, leaf)| *leaf);
        let (mut end, all) = (0, leaves.len());
        leaves.retain(|(_, leaf)| {
            let range = *leaf..leaf.saturating_add(WORD << LEAF);
            let fits = range.start >= end && is_own(maps, &range);
            end = end.max(if fits { range.end } else { 0 });
            fits
        });
        heap.links += (all - leaves.len()) as u64;
        leaves.sort_unstable();
        let mut next = 0;
        for (first, leaf) in leaves {
            let whole = each_word(view, leaf..leaf + (WORD << LEAF), |view, at, entry| {
                let page = first + (at - leaf) / WORD;
                // What lies inside of a span is not kept up to date.
                if page >= next {
                    next = heap.add(view, maps, context, (page, entry));
                }
                true
            });
            heap.links += u64::from(!whole);
        }
        heap
    }

    /// Adds the span that an entry of the tree leads to. Returns the number of the page behind it.
    fn add(
        &mut self,
        view: &mut View<'_>,
        maps: &[Map],
        context: &Context,
        (page, entry): (u64, u64),
    ) -> u64 {
        for i in 0..TRIES {
            let span = Span::read(view, maps, entry).filter(|s| s.start == page);
            let read = span.and_then(|s| Some((s, Places::read(view, maps, context, &s)?)));
            match read {
                Some((span, places)) if places.agrees || i + 1 == TRIES => {
                    self.take(&span, places);
                    return page + span.length;
                }
                _ => view.forget(),
            }
        }
        match self.lost.last_mut() {
            Some(last) if last.end == page << PAGE => last.end += 1 << PAGE,
            _ => self.lost.push(page << PAGE..(page + 1) << PAGE),
        }
        page + 1
    }

    /// Takes over what a span has.
    fn take(&mut self, span: &Span, places: Places) {
        let range = span.range();
        match span.state {
            Use::Blocks => {
                let Ok(bits) = u32::try_from(self.used.len()) else {
                    self.lost.push(range);
                    return;
                };
                self.links += u64::from(!places.agrees);
                self.central.blocks += places.free;
                self.central.bytes += places.free * places.size;
                self.runs.push(Run {
                    start: range.start,
                    size: places.size,
                    places: places.number as u32,
                    bits,
                    is_large: span.class == 0,
                });
                self.used.extend(places.used);
            }
            Use::Free => self.free[0] = self.free[0].saturating_add(range.end - range.start),
            Use::Returned => self.free[1] = self.free[1].saturating_add(range.end - range.start),
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// Takes out the free block at an address, of a size. Returns whether there was a block.
    fn take_out(&mut self, at: u64, size: u64) -> bool {
        let next = self.runs.partition_point(|r| r.start <= at);
        let run = next.checked_sub(1).map(|i| self.runs[i]).filter(|r| r.size == size);
        let place = run.and_then(|r| Some((r.bits, r.number(at)?)));
        place.is_some_and(|(bits, n)| take_out(&mut self.used[bits as usize..], n))
    }

    /// Returns the blocks that the program has, in the order of their addresses.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.runs.iter().flat_map(move |r| {
            let used = move |n: &u64| has(&self.used[r.bits as usize..], *n);
            (0..r.places()).filter(used).map(move |n| r.block(n))
        })
    }

    /// Returns whether all variables were found, and the walk therefore found blocks.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// Returns whether some caches of threads were found. Without them their blocks count as in use.
    pub(crate) fn has_caches(&self) -> bool {
        self.caches > 0
    }

    /// Returns the bytes of spans with blocks.
    pub(crate) fn active(&self) -> u64 {
        let all = self.runs.iter().map(|r| r.places() * r.size);
        all.fold(0, u64::saturating_add)
    }

    /// Returns the memory of spans, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().cloned()
    }
}

/// The places of a span.
#[derive(Debug)]
struct Places {
    size: u64,
    number: u64,
    /// A bit for each: it is not on the span's list.
    used: Vec<u64>,
    /// Number of those on the list.
    free: u64,
    /// Whether the list makes sense, and the numbers agree.
    agrees: bool,
}

impl Places {
    /// Reads the list of a span; `None` if the span makes no sense.
    fn read(view: &mut View<'_>, maps: &[Map], context: &Context, span: &Span) -> Option<Self> {
        let range = span.range();
        let len = range.end - range.start;
        let none = Self { size: len, number: 1, used: Vec::new(), free: 0, agrees: true };
        if span.state != Use::Blocks {
            return Some(none);
        }
        if !is_own(maps, &range) {
            return None;
        }
        if span.class == 0 {
            return Some(Self { used: all_set(1), ..none });
        }
        let size = *context.sizes.get(span.class)?;
        let number = len / size;
        if context.pages.get(span.class) != Some(&span.length) || number == 0 {
            return None;
        }
        let mut all = Self { size, number, used: all_set(number), ..none };
        let run = Run { start: range.start, size, places: number as u32, bits: 0, is_large: false };
        let (mut at, mut links) = (span.free, Links::default());
        // Each turn takes a place out, or ends the loop.
        while at != 0 {
            let taken = run.number(at).is_some_and(|n| take_out(&mut all.used, n));
            let Some(link) = links.next(view, at, size).filter(|_| taken) else {
                all.agrees = false;
                return Some(all);
            };
            (all.free, at) = (all.free + 1, link);
        }
        all.agrees = all.free + span.taken == number;
        Some(all)
    }
}
