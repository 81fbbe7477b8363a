//! mimalloc 2.0: its blocks by its own data, walked from outside, without symbols.
//!
//! Segments (`segment.rs`) begin at multiples of 32 MiB with a secret number, which stands in the allocator's variables as
//! well (`context.rs`). A segment describes its pages, each of which has places of one size: those that are on none of three
//! lists of free ones hold blocks. Blocks that other threads have freed may also be on a list of the heap that they belong
//! to. The layout is that of 2.0.9; of others nothing is counted.
//!
//! A block that is aligned to more than its place may begin later than that, and nothing says where: its page says only
//! that there is such a block. Of these the whole place counts.

mod context;
mod page;
mod segment;
mod stats;
#[cfg(all(test, target_pointer_width = "64", target_endian = "little"))]
mod tests;

use crate::bits::{has, take_out};
use crate::sums::Block;
use crate::view::{Memory as _, View};
pub(crate) use context::{Context, find};
use page::{Page, read_page};
use prof_os::maps::Map;
use segment::{Head, Links, PageHead, SLICE, with_secret};
pub use stats::MimallocStats;
use std::collections::BTreeSet;
use std::ops::Range;

/// Attempts to read a segment that makes no sense: the target may be about to change it.
const TRIES: usize = 4;
/// Greatest number of heaps whose lists are followed.
const MOST_HEAPS: usize = 1 << 18;

/// The heap of one mimalloc.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    known: bool,
    /// In the order of their addresses.
    segments: Vec<Segment>,
    pages: Vec<Page>,
    /// A bit for each place: whether a block is there.
    used: Vec<u64>,
    /// Memory of segments and pages that make no sense.
    pub lost: Vec<Range<u64>>,
    /// Links that make no sense, and numbers of blocks and pages that don't agree.
    pub links: u64,
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    at: u64,
    slices: u64,
    /// Slices of its pages.
    in_pages: u64,
    /// Whether the thread that it belonged to has ended.
    is_abandoned: bool,
    /// Whether it has no page: it is kept for later.
    is_free: bool,
}

/// The pages and losses that one reading of a segment has found.
#[derive(Debug, Default)]
struct Found {
    pages: Vec<(Page, Vec<u64>)>,
    heaps: Vec<u64>,
    in_pages: u64,
    lost: Vec<Range<u64>>,
    links: u64,
}

impl Heap {
    /// Walks the heap that has a secret number.
    pub(crate) fn walk(view: &mut View<'_>, maps: &[Map], context: &Context) -> Self {
        let mut heap = Self::default();
        let Some(links) = context.links else { return heap };
        heap.known = true;
        let (heads, bad, whole) = with_secret(view, maps, context.secret);
        heap.links += u64::from(!whole);
        heap.lost.extend(bad.iter().map(|at| *at..at + SLICE));
        let (mut end, mut heaps) = (0, BTreeSet::new());
        for head in heads {
            // The contents of a block may be remains of a segment that had no page any more.
            if head.at < end {
                heap.lost.extend((head.used != 0).then(|| head.at..head.at + SLICE));
                continue;
            }
            end = head.range().end;
            heap.add(view, maps, links, &head, &mut heaps);
        }
        // A debug build has longer heaps, and blocks with padding.
        let is_heap = |view: &mut View<'_>, at: u64| context::delayed(view, at).is_some();
        if !heaps.is_empty() && !heaps.iter().any(|at| is_heap(view, *at)) {
            return Self::default();
        }
        for at in heaps {
            heap.take_delayed(view, links, at);
        }
        heap
    }

    /// Adds a segment.
    fn add(
        &mut self,
        view: &mut View<'_>,
        maps: &[Map],
        links: Links,
        head: &Head,
        heaps: &mut BTreeSet<u64>,
    ) {
        let mut found = Found::default();
        for _ in 0..TRIES {
            found = match head.used {
                0 => Found::default(),
                _ => Found::read(view, maps, links, head),
            };
            if found.lost.is_empty() && found.links == 0 {
                break;
            }
            view.forget();
        }
        self.segments.push(Segment {
            at: head.at,
            slices: head.slices,
            in_pages: found.in_pages,
            is_abandoned: head.thread == 0,
            is_free: head.used == 0,
        });
        for (mut page, used) in found.pages {
            let Ok(first) = u32::try_from(self.used.len()) else {
                found.lost.push(page.range());
                continue;
            };
            page.bits = first;
            self.used.extend(used);
            self.pages.push(page);
        }
        self.lost.append(&mut found.lost);
        self.links += found.links;
        for at in found.heaps {
            if heaps.len() < MOST_HEAPS {
                heaps.insert(at);
            } else {
                self.links += u64::from(!heaps.contains(&at));
            }
        }
    }

    /// Takes the blocks out that other threads have given back to a heap.
    fn take_delayed(&mut self, view: &mut View<'_>, links: Links, heap: u64) {
        let Some(list) = context::delayed(view, heap) else {
            self.links += 1;
            return;
        };
        let mut at = list.first;
        // Each turn takes a block out, or ends the loop.
        while at != 0 {
            let place = self.place_at(at).filter(|(page, n)| page.place(*n) == at);
            let taken = place.is_some_and(|(page, n)| {
                let from = page.bits as usize;
                take_out(&mut self.used[from..], n)
            });
            let next = view.words(at).filter(|_| taken);
            let Some([link]) = next else {
                self.links += 1;
                return;
            };
            at = links.decode(link, list.keys, heap);
        }
    }

    /// Returns the page of a place that an address lies in, and the number of the place.
    fn place_at(&self, at: u64) -> Option<(Page, u64)> {
        let i = self.pages.partition_point(|p| p.start <= at).checked_sub(1)?;
        let page = self.pages[i];
        page.number(at).map(|n| (page, n))
    }

    /// Returns whether a place holds a block.
    fn is_used(&self, page: &Page, n: u64) -> bool {
        has(&self.used[page.bits as usize..], n)
    }

    /// Returns the blocks that the program has, in the order of their addresses. Of those that may begin later than their
    /// places, the place is given.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.pages.iter().flat_map(move |p| {
            let used = (0..p.places()).filter(move |n| self.is_used(p, *n));
            used.map(move |n| p.block(n))
        })
    }

    /// Returns whether the layout is one that is known, and the walk therefore found blocks.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// Returns the bytes of pages with places for blocks.
    pub(crate) fn active(&self) -> u64 {
        self.segments.iter().map(|s| s.in_pages * SLICE).fold(0, u64::saturating_add)
    }

    /// Returns the memory of segments, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.segments.iter().map(|s| s.at..s.at + s.slices * SLICE)
    }
}

impl Found {
    /// Reads the pages of a segment.
    fn read(view: &mut View<'_>, maps: &[Map], links: Links, head: &Head) -> Self {
        let mut found = Self::default();
        let Some(bytes) = head.descriptions(view, links) else {
            found.lost.push(head.range());
            return found;
        };
        let (mut slice, mut pages) = (0, 0);
        while slice < head.entries {
            let from = (slice * links.described()) as usize;
            let page = PageHead::of(&bytes[from..], links);
            let (start, next) = (head.at + slice * SLICE, slice + page.slices);
            // A single block may have more slices than are described.
            let last = if head.is_huge { head.slices } else { head.entries };
            let fits = page.slices != 0 && page.offset == 0 && next <= last;
            if !fits || slice == 0 && page.slices != head.info {
                found.lost.push(start..head.range().end);
                return found;
            }
            if slice > 0 && page.size != 0 {
                pages += 1;
                found.in_pages += page.slices;
                found.heaps.extend(Some(page.heap).filter(|heap| *heap != 0));
                let about = (head.description(slice, links), start);
                match read_page(view, maps, links, (head, &page), about) {
                    Some((page, used, agrees)) => {
                        found.links += u64::from(!agrees);
                        found.pages.push((page, used));
                    }
                    None => found.lost.push(start..start + page.slices * SLICE),
                }
            }
            slice = next;
        }
        found.links += u64::from(pages != head.used);
        found.heaps.sort_unstable();
        found.heaps.dedup();
        found
    }
}
