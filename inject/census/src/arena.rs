//! glibc's arenas, and the regions in which their chunks lie.

use crate::chunk::{ALIGN, SizeField};
use crate::pieces;
use crate::view::{Memory as _, View, WORD};
use prof_glibc::{NEXT, fast_bins, heaps, totals};
use prof_os::maps::Map;
use prof_os::page_size;
use std::ops::Range;

/// A range of addresses that chunks may lie in, without the top chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Index of its arena.
    pub arena: usize,
    /// From where on the first chunk begins.
    pub start: u64,
    /// The top chunk of the arena, or the end of the heap.
    pub end: u64,
    /// The region is of the main arena, and may have gaps.
    pub main: bool,
}

/// An arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    pub at: u64,
    /// Distance of the field `top` from the beginning.
    head: u64,
    /// The top chunk, and its size as far as its mapping reaches.
    pub top: (u64, u64),
    /// The size that the top chunk says it has.
    told: u64,
    /// Bytes from the kernel, and the most that it had.
    pub system: u64,
    pub most_system: u64,
    /// Threads that use it; `None` before glibc 2.23.
    pub threads: Option<u64>,
    /// The heads of its fast bins.
    pub fast: Vec<u64>,
    /// The heaps of an arena other than the main one.
    pub heaps: Vec<Range<u64>>,
}

/// All arenas, the main one first, with the regions in which their chunks lie.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arenas {
    pub all: Vec<Arena>,
    pub regions: Vec<Region>,
    /// Heaps whose chunks could not be found.
    pub lost_heaps: Vec<Range<u64>>,
}

impl Arenas {
    /// Finds the arenas of a process; none, if it has none or they make no sense. `start_brk`: where its heap begins.
    pub(crate) fn find(view: &mut View<'_>, maps: &[Map], start_brk: u64) -> Self {
        let mut found = Self::default();
        let Some(ring) = prof_glibc::find(view, maps, |_| true) else { return found };
        let head = ring.head;
        for (i, top_at) in ring.tops.iter().enumerate() {
            let Some(mut arena) = read(view, *top_at, head) else {
                // Without the main arena the others would be taken for it.
                if i == 0 {
                    return found;
                }
                continue;
            };
            // Nothing was asked for yet.
            let unused = arena.top.0 == *top_at;
            // The program may have written anything over the size of the top chunk: it ends with its mapping at most.
            let (top, size) = arena.top;
            let map = maps.iter().find(|m| m.start.0 <= top && top < m.end.0);
            arena.top.1 = size.min(map.map_or(0, |m| m.end.0 - top));
            let number = found.all.len();
            found.all.push(arena);
            if unused {
                continue;
            }
            if i == 0 {
                found.add_main(maps, start_brk);
            } else {
                found.add_heaps(view, number, top_at - head);
            }
        }
        found.leave_out_overlaps();
        found
    }

    /// Returns the bytes that the main arena has from the kernel and that are in no region, if they are more than a page.
    pub(crate) fn missing(&self) -> u64 {
        let Some(main) = self.all.first() else { return 0 };
        let regions = self.regions.iter().filter(|r| r.main);
        let known: u64 = regions.map(|r| r.end - r.start).sum();
        // A thread that gives memory back to the kernel notes that behind the call, and may stand still in it.
        let top = if main.told <= main.system { main.told } else { main.top.1 };
        let missing = main.system.saturating_sub(known.saturating_add(top));
        if missing > page_size() { missing } else { 0 }
    }

    /// Adds pieces of the main arena that were found before, as far as they are still there.
    pub(crate) fn add_pieces(&mut self, view: &mut View<'_>, pieces: &[Range<u64>]) {
        let Some(top) = self.all.first().map(|a| a.top.0) else { return };
        for p in pieces {
            // The top chunk may have been another one.
            let limit = p.end.max(top.saturating_add(1));
            let Some(end) = pieces::end_of(view, p.start, limit, top) else { continue };
            // The piece replaces the region that was guessed to end at the top chunk.
            self.regions.retain(|r| !(r.main && r.end == end && end == top));
            self.regions.push(Region { arena: 0, start: p.start, end, main: true });
        }
        self.leave_out_overlaps();
    }

    /// Sorts the regions, and leaves out those that overlap others, which no allocator makes.
    fn leave_out_overlaps(&mut self) {
        self.regions.sort_by_key(|r| (r.start, r.end));
        let (mut end, lost) = (0, &mut self.lost_heaps);
        self.regions.retain(|r| {
            let fits = r.start >= end;
            match fits {
                true => end = r.end,
                false => lost.push(r.start..r.end),
            }
            fits
        });
    }

    /// Adds the regions of the main arena: the heap that grows by `brk`; where that can't grow it has mappings.
    fn add_main(&mut self, maps: &[Map], start_brk: u64) {
        let top = self.all[0].top.0;
        let heap = maps.iter().filter(|m| m.name == b"[heap]");
        let end = heap.clone().map(|m| m.end.0).max().unwrap_or(0);
        let start =
            start_brk.max(heap.map(|m| m.start.0).min().unwrap_or(0)).next_multiple_of(ALIGN);
        if start > 0 && start < end {
            let end = if (start..end).contains(&top) { top } else { end };
            self.regions.push(Region { arena: 0, start, end, main: true });
        }
        let elsewhere = maps
            .iter()
            .find(|m| m.start.0 <= top && top < m.end.0 && m.name != b"[heap]" && m.is_anonymous());
        if let Some(m) = elsewhere {
            let start = m.start.0.next_multiple_of(ALIGN);
            self.regions.push(Region { arena: 0, start, end: top, main: true });
        }
    }

    /// Adds the heaps of another arena, each of which points to its arena and to the heap before.
    fn add_heaps(&mut self, view: &mut View<'_>, number: usize, arena: u64) {
        let (top, _) = self.all[number].top;
        let (heaps, _) = heaps(view, arena, top);
        let first = heaps.iter().find(|heap| heap.contains(&arena)).map(|heap| heap.start);
        let info = first.map_or(4 * WORD, |at| arena - at);
        for heap in &heaps {
            let end = if heap.contains(&top) { top } else { heap.end };
            let from = match Some(heap.start) == first {
                true => self.all[number].end(),
                false => heap.start + info,
            };
            match first_chunk(view, from, end) {
                Some(start) => {
                    self.regions.push(Region { arena: number, start, end, main: false });
                }
                None => self.lost_heaps.push(heap.clone()),
            }
        }
        self.all[number].heaps = heaps;
    }
}

impl Arena {
    /// Returns the address behind the last field.
    fn end(&self) -> u64 {
        let fields = if self.threads.is_some() { 5 } else { 4 };
        self.at + self.head + NEXT + fields * WORD
    }
}

/// Returns the first place from an address on where a chunk can begin. The first chunk has nothing before it that is free.
fn first_chunk(view: &mut View<'_>, from: u64, end: u64) -> Option<u64> {
    let from = from.next_multiple_of(ALIGN);
    let near = (0..8).map(|k| from + k * ALIGN).take_while(|at| *at <= end);
    near.into_iter().find(|at| {
        // An empty heap begins with its top chunk.
        if *at == end {
            return true;
        }
        let Some([_, size]) = view.words(*at) else { return false };
        let size = SizeField(size);
        let next = at.saturating_add(size.size());
        size.is_sane() && size.before_in_use() && next <= end
    })
}

/// Reads the fields of an arena.
fn read(view: &mut View<'_>, top_at: u64, head: u64) -> Option<Arena> {
    let [top] = view.words(top_at)?;
    let size = match top == top_at {
        true => 0,
        false => view.words(top.checked_add(WORD)?).map(|[size]| SizeField(size).size())?,
    };
    let all = totals(view, top_at)?;
    let at = top_at - head;
    Some(Arena {
        at,
        head,
        top: (top, size),
        told: size,
        system: all.system,
        most_system: all.most_system,
        threads: all.threads,
        fast: fast_bins(at, head).collect(),
        heaps: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_is_giving_back_is_not_missing() {
        let mib = 1 << 20;
        let missing = |system: u64, told: u64, mapped: u64| {
            let top = (5 * mib, mapped);
            let (fast, heaps) = (Vec::new(), Vec::new());
            let (at, head, most_system, threads) = (0x1000, 96, system, Some(1));
            let main = Arena { at, head, top, told, system, most_system, threads, fast, heaps };
            let region = Region { arena: 0, start: mib, end: 5 * mib, main: true };
            let regions = vec![region];
            Arenas { all: vec![main], regions, ..Arenas::default() }.missing()
        };
        assert_eq!(missing(5 * mib, mib, mib), 0);
        assert_eq!(missing(5 * mib, mib, mib / 2), 0, "the kernel has half of the top chunk");
        assert_eq!(missing(7 * mib, mib, mib), 2 * mib, "a piece somewhere else");
        assert_eq!(missing(7 * mib, u64::MAX, mib), 2 * mib, "the top chunk lies");
    }
}
