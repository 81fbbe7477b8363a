//! Finds glibc's arenas, without symbols and for any version: by what their fields must have.
//!
//! The main arena lies in the data of libc, or of a program that is linked statically. It is recognised by its bins: an
//! empty bin points to itself, and the first chunk of another one back to the bin. All arenas form a ring, which tells how
//! far in front of the bins an arena begins.

use crate::chunk::{ALIGN, SizeField};
use crate::view::{View, WORD, words};
use prof_os::maps::Map;
use std::collections::HashSet;
use std::ops::Range;

/// Number of bins but the fast ones, and bytes of the bit map behind them.
const BINS: usize = 127;
const BITMAP: u64 = 16;
/// Bytes of these bins.
const BYTES: u64 = 2 * BINS as u64 * WORD;
/// Number of bins that must be proved for an arena to be recognised, and of those that may make no sense: the target may
/// run, and change some while they are read.
const PROVED: usize = 8;
const CHANGING: usize = 8;
/// Greatest number of fast bins.
const FAST: u64 = 10;
/// Offsets from the field `top`: of the first bin, and of the pointer to the next arena.
const FIRST_BIN: u64 = 2 * WORD;
const NEXT: u64 = FIRST_BIN + BYTES + BITMAP;
/// Bytes in front of the fast bins: a lock, flags and, since 2.27, whether there are fast chunks.
const LEAST_HEAD: u64 = 8;
/// Greatest distance of `top` from the beginning of an arena.
const MOST_HEAD: u64 = 256;
/// Greatest number of threads of an arena; what is larger is the next field, the bytes from the kernel.
const MOST_THREADS: u64 = 0x8000;
/// Greatest length of a segment of data that is searched.
const SEGMENT: u64 = 64 << 20;
/// Limits on arenas, and on heaps of one arena.
const MOST_ARENAS: usize = 1 << 13;
const MOST_HEAPS: usize = 1 << 16;
/// Binary logarithms of the sizes that heaps of arenas may have: 1 MiB to 16 GiB.
const HEAPS: Range<u32> = 20..35;

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
    /// The top chunk, and its size.
    pub top: (u64, u64),
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
        let Some((tops, head)) = main_top(view, maps) else { return found };
        for (i, top_at) in tops.iter().enumerate() {
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
        let Some(mut at) = heap_of(view, top, arena) else { return };
        let (mut heaps, mut first) = (Vec::new(), None);
        for _ in 0..MOST_HEAPS {
            let Some([owner, before, size]) = view.words(at) else { break };
            if owner != arena || size == 0 || size >= 1 << HEAPS.end {
                break;
            }
            heaps.push(at..at + size);
            if (at..at + size).contains(&arena) {
                first = Some(at);
            }
            if before == 0 || before == at {
                break;
            }
            at = before;
        }
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

/// Finds the heap that an address lies in by its owner. Returns its address. How large heaps may be does not follow from it:
/// the place near the beginning of a heap has the same address under the masks of several sizes.
fn heap_of(view: &mut View<'_>, address: u64, arena: u64) -> Option<u64> {
    HEAPS.map(|shift| 1u64 << shift).find_map(|most| {
        let at = address & !(most - 1);
        let [owner, _, size] = view.words(at)?;
        (owner == arena && size <= most && address < at + size).then_some(at)
    })
}

/// Finds the main arena. Returns the addresses of the field `top` of all arenas, the main one's first, and how far behind
/// an arena's beginning that field lies.
fn main_top(view: &mut View<'_>, maps: &[Map]) -> Option<(Vec<u64>, u64)> {
    let is_data = |i: &usize| {
        let m = &maps[*i];
        let follows =
            i.checked_sub(1).is_some_and(|k| maps[k].end == m.start && maps[k].inode != 0);
        m.read && m.write && !m.shared && m.len() <= SEGMENT && (m.inode != 0 || follows)
    };
    for i in (0..maps.len()).filter(is_data) {
        let m = &maps[i];
        let all: Vec<u64> = words(&view.all(m.start.0..m.end.0)).collect();
        for at in 0..all.len() {
            let top_at = m.start.0 + at as u64 * WORD;
            if are_bins(view, all.get(at + 2..), top_at)
                && let Some(found) = ring(view, top_at)
            {
                return Some(found);
            }
        }
    }
    None
}

/// Returns whether these words are the bins of an arena whose field `top` lies at an address.
fn are_bins(view: &mut View<'_>, bins: Option<&[u64]>, top_at: u64) -> bool {
    let Some(bins) = bins.and_then(|w| w.get(..2 * BINS)) else { return false };
    let bins = bins.as_chunks::<2>().0;
    let own = |k: usize| top_at + 2 * k as u64 * WORD;
    let empty = |k: usize| bins[k] == [own(k); 2];
    let sane = |k: usize| {
        let [next, before] = bins[k];
        next != 0 && before != 0 && (next == own(k)) == (before == own(k))
    };
    // One bin that no size belongs to, and one of sizes that are rare, first: nearly all memory fails there.
    if !(empty(BINS - 1) || empty(BINS / 2)) || (0..BINS).filter(|k| !sane(*k)).count() > CHANGING {
        return false;
    }
    // In a program that uses all sizes, no more than the bin without a size need be empty.
    let mut leads_back =
        |k: usize| bins[k][0].checked_add(3 * WORD).and_then(|at| view.words(at)) == Some([own(k)]);
    let full = (0..BINS).filter(|k| !empty(*k) && leads_back(*k));
    (0..BINS).filter(|k| empty(*k)).chain(full).take(PROVED).count() == PROVED
}

/// Follows the ring of arenas from the main one. Memory in front of the bins may look like an arena's, so all distances are
/// tried, and the ring decides: it leads back to the beginning of the main arena.
fn ring(view: &mut View<'_>, top_at: u64) -> Option<(Vec<u64>, u64)> {
    let [first] = view.words(top_at + NEXT)?;
    let heads =
        (LEAST_HEAD..=MOST_HEAD).step_by(4).filter(|head| (top_at - head).is_multiple_of(WORD));
    for head in heads {
        let main = top_at - head;
        let (mut tops, mut seen, mut at) = (vec![top_at], HashSet::from([top_at]), first);
        while at != main && tops.len() < MOST_ARENAS {
            // At a wrong distance, this word need not be an address: it may be a bit map of ones, and the sum overflow.
            let Some(top) = at.checked_add(head) else { break };
            let bins = top.checked_add(FIRST_BIN).zip(top.checked_add(FIRST_BIN + BYTES));
            let Some((start, end)) = bins else { break };
            let bins = view.all(start..end);
            let bins: Vec<u64> = words(&bins).collect();
            if !seen.insert(top) || !are_bins(view, Some(&bins), top) {
                break;
            }
            tops.push(top);
            let Some([next]) = view.words(top + NEXT) else { break };
            at = next;
        }
        if at == main {
            return Some((tops, head));
        }
    }
    None
}

/// Reads the fields of an arena.
fn read(view: &mut View<'_>, top_at: u64, head: u64) -> Option<Arena> {
    let [top] = view.words(top_at)?;
    let size = match top == top_at {
        true => 0,
        false => view.words(top.checked_add(WORD)?).map(|[size]| SizeField(size).size())?,
    };
    let [_, _, a, b, c] = view.words(top_at + NEXT)?;
    let (threads, system, most) = if a < MOST_THREADS { (Some(a), b, c) } else { (None, a, b) };
    let at = top_at - head;
    let fast = (1..=FAST).rev().map(|k| top_at - k * WORD).filter(|f| *f >= at + LEAST_HEAD);
    Some(Arena {
        at,
        head,
        top: (top, size),
        system,
        most_system: most.max(system),
        threads,
        fast: fast.collect(),
        heaps: Vec::new(),
    })
}
