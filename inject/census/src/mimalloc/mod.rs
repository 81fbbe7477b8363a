//! mimalloc 2 and 3: their blocks by their own data, walked from outside, without symbols.
//!
//! Segments of version 2 (`segment.rs`) begin at multiples of 32 MiB with a secret number, which stands in the allocator's
//! variables as well (`context.rs`). A segment describes its pages, each of which has places of one size: those that are on
//! none of three lists of free ones hold blocks. Blocks that other threads have freed may also be on a list of the heap that
//! they belong to. Version 3 has a map that leads to its pages instead (`map.rs`), and no lists of heaps. Layouts of other
//! versions than those of `form.rs` and `map.rs` are noticed, and nothing is counted.
//!
//! A block that is aligned to more than its place may begin later than that, and nothing says where: its page says only
//! that there is such a block. Of these the whole place counts.

mod context;
mod form;
mod map;
mod page;
mod segment;
mod stats;
#[cfg(all(test, target_pointer_width = "64", target_endian = "little"))]
mod tests;

use crate::bits::{has, take_out};
use crate::sums::Block;
use crate::view::{Memory as _, View};
pub(crate) use context::{Context, find};
use form::Layout;
use map::PageMap;
use page::{Described, Page, read_page};
use prof_os::maps::Map;
use segment::{Head, PageHead, SLICE, with_secret};
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
    /// `None`: it is laid out in a way that is not known.
    version: Option<(u32, u32)>,
    /// In the order of their addresses.
    segments: Vec<Segment>,
    /// Memory of pages in no segment, and the number of those whose threads have ended.
    areas: Vec<Range<u64>>,
    abandoned: u64,
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
    /// Walks the heap that a context leads to.
    pub(crate) fn walk(view: &mut View<'_>, maps: &[Map], context: &Context) -> Self {
        match context {
            Context::Segments(secret, Some(layout)) => {
                Self::of_segments(view, maps, *secret, *layout)
            }
            Context::Map(map) if map.version.is_some() => Self::of_map(view, maps, map),
            _ => Self::default(),
        }
    }

    /// Walks the segments that have a secret number.
    fn of_segments(view: &mut View<'_>, maps: &[Map], secret: u64, layout: Layout) -> Self {
        let mut heap = Self { version: Some(layout.form.version), ..Self::default() };
        let (heads, bad, whole) = with_secret(view, maps, layout, secret);
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
            heap.add(view, maps, layout, &head, &mut heaps);
        }
        // A debug build has longer heaps, and blocks with padding.
        let is_heap = |view: &mut View<'_>, at: u64| context::delayed(view, at, layout).is_some();
        if !heaps.is_empty() && !heaps.iter().any(|at| is_heap(view, *at)) {
            return Self::default();
        }
        for at in heaps {
            heap.take_delayed(view, layout, at);
        }
        heap
    }

    /// Walks the pages that a map leads to.
    fn of_map(view: &mut View<'_>, maps: &[Map], map: &PageMap) -> Self {
        let found = map.read(view, maps);
        let (lost, links) = (found.lost, found.links);
        let (areas, abandoned) = (found.areas, found.abandoned);
        let mut heap =
            Self { version: map.version, areas, abandoned, lost, links, ..Self::default() };
        for (page, used) in found.all {
            heap.put(page, used);
        }
        heap
    }

    /// Puts a page behind the others, with the bits of its places.
    fn put(&mut self, mut page: Page, used: Vec<u64>) {
        let Ok(first) = u32::try_from(self.used.len()) else {
            self.lost.push(page.range());
            return;
        };
        page.bits = first;
        self.used.extend(used);
        self.pages.push(page);
    }

    /// Adds a segment.
    fn add(
        &mut self,
        view: &mut View<'_>,
        maps: &[Map],
        layout: Layout,
        head: &Head,
        heaps: &mut BTreeSet<u64>,
    ) {
        let mut found = Found::default();
        for _ in 0..TRIES {
            found = match head.used {
                0 => Found::default(),
                _ => Found::read(view, maps, layout, head),
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
        for (page, used) in found.pages {
            self.put(page, used);
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
    fn take_delayed(&mut self, view: &mut View<'_>, layout: Layout, heap: u64) {
        let Some(list) = context::delayed(view, heap, layout) else {
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
            at = layout.links.decode(link, list.keys, heap);
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
        self.version.is_some()
    }

    /// Returns the bytes of pages with places for blocks.
    pub(crate) fn active(&self) -> u64 {
        let in_segments = self.segments.iter().map(|s| s.in_pages * SLICE);
        let others = self.areas.iter().map(|area| area.end - area.start);
        in_segments.chain(others).fold(0, u64::saturating_add)
    }

    /// Returns the memory of segments, and of pages in none, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let in_segments = self.segments.iter().map(|s| s.at..s.at + s.slices * SLICE);
        in_segments.chain(self.areas.iter().cloned())
    }
}

impl Found {
    /// Reads the pages of a segment.
    fn read(view: &mut View<'_>, maps: &[Map], layout: Layout, head: &Head) -> Self {
        let mut found = Self::default();
        let Some(bytes) = head.descriptions(view, layout) else {
            found.lost.push(head.range());
            return found;
        };
        let (mut slice, mut pages) = (0, 0);
        while slice < head.entries {
            let from = (slice * layout.described()) as usize;
            let page = PageHead::of(&bytes[from..], layout);
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
                let described = page.places(start, layout).map(|places| Described {
                    head: &page,
                    places,
                    links: layout.links,
                    about: head.description(slice, layout),
                    is_huge: head.is_huge,
                    alignment: head.alignment,
                });
                match described.and_then(|described| read_page(view, maps, &described)) {
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
