//! Tells anonymous memory that certainly belongs to an allocator from memory of unknown origin.

use crate::arenas::{Look, Range, Walk};
use crate::clock::Clock;
use crate::pages::Pages;
use prof_os::maps::Map;
use prof_trace::records::{Memory, part_kind};
use std::fs::File;

/// Greatest number of parts that are listed.
const MOST: usize = 1 << 16;

/// Size and alignment of the pieces in which memory of unknown origin is counted: allocators take memory in such
/// pieces, and other memory may lie in the same mapping.
pub(crate) const PIECE: u64 = prof_trace::records::PIECE;

/// A mapping that allocators may have taken memory from.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub map: Map,
    /// The heap that `brk` grows.
    pub brk: bool,
    /// Resident bytes of the mapping.
    pub rss: u64,
}

/// Divides the mappings into parts, and adds these to a record. Returns the reading of glibc's arenas, if there are any. `pieces`: allocators other than glibc's are recorded.
pub(crate) fn apart(
    all: &[Candidate],
    mem: Option<&File>,
    pages: Option<&Pages>,
    maps: &[Map],
    pieces: bool,
    clock: Clock,
    to: &mut Memory,
) -> Option<Walk> {
    let mut look = mem.map(|mem| Look::new(mem, pages));
    let walk = look.as_mut().and_then(|l| l.walks(maps, || clock.now()));
    let walk = walk.filter(|w| w.arenas.system > 0);
    to.ticks = clock.now();
    // The middle of the reading is the moment of the look: blocks that the events show as live then are compared
    // with it.
    if let Some(Walk { time: (from, end), arenas: a, unsure }) = &walk {
        to.ticks = *from + end.since(*from) / 2;
        to.arenas = vec![a.system, a.free, a.free_resident];
        to.walks = vec![from.0, end.0, a.system, a.free, *unsure];
    }
    look.iter_mut().for_each(Look::again);
    let heaps = walk.as_ref().map(|w| w.arenas.heaps.as_slice()).unwrap_or_default();
    let mut out = Parts { all: &mut to.parts, pages };
    for c in all {
        if c.brk {
            out.put(c.map.start.0, c.map.end.0, c.rss, part_kind::HEAP);
            continue;
        }
        let within = |h: &&Range| h.start < c.map.end.0 && c.map.start.0 < h.end;
        let mut known: Vec<Range> = heaps.iter().filter(within).copied().collect();
        if known.is_empty() {
            known = look.as_ref().map(|l| l.blocks(&c.map)).unwrap_or_default();
        }
        out.mapping(c, &known, pieces);
    }
    walk
}

/// The list of parts, and the page tables to count pages of mappings with several parts.
struct Parts<'a> {
    all: &'a mut Vec<u64>,
    pages: Option<&'a Pages>,
}

impl Parts<'_> {
    fn put(&mut self, start: u64, end: u64, rss: u64, kind: u64) {
        let full = |from: u64, to: u64, rss: u64| rss == 0 || rss == to - from;
        if start >= end {
            return;
        }
        // Join parts if both are fully resident, or not at all.
        let joins = |&[from, to, was, k]: &[u64; 4]| {
            let alike = (was == 0) == (rss == 0) && full(from, to, was) && full(start, end, rss);
            to == start && k == kind && alike
        };
        let last = self.all.as_chunks_mut::<4>().0.last_mut().filter(|l| joins(l));
        if let Some([_, to, was, _]) = last {
            (*to, *was) = (end, was.saturating_add(rss));
        } else if self.all.len() < 4 * MOST {
            self.all.extend([start, end, rss, kind]);
        }
    }

    fn count(&self, start: u64, end: u64) -> u64 {
        self.pages.map_or(0, |p| p.count_as(start, end, false).resident)
    }

    /// Adds a mapping, in which some ranges are known.
    fn mapping(&mut self, c: &Candidate, known: &[Range], pieces: bool) {
        let (start, end) = (c.map.start.0, c.map.end.0);
        let mut at = start;
        let mut left = c.rss;
        for r in known {
            let (from, to) = (r.start.max(at), r.end.min(end));
            self.unknown(at, from, &mut left, pieces, false);
            let rss = if from == start && to == end { left } else { self.count(from, to) };
            let rss = rss.min(left);
            left -= rss;
            self.put(from, to, rss, if r.block { part_kind::BLOCK } else { part_kind::HEAP });
            at = to.max(at);
        }
        self.unknown(at, end, &mut left, pieces, true);
    }

    /// Adds a range of unknown origin; `last`: it contains all that is left of the mapping's resident memory.
    fn unknown(&mut self, mut at: u64, end: u64, left: &mut u64, pieces: bool, last: bool) {
        let pages = self.pages.filter(|p| pieces && end - at.min(end) <= p.most());
        while at < end {
            let Some(pages) = pages else {
                let rss = if last { *left } else { self.count(at, end).min(*left) };
                *left -= rss;
                return self.put(at, end, rss, part_kind::UNKNOWN);
            };
            if pages.is_over() {
                return;
            }
            // Nothing else may be there for terabytes (the shadow memory of sanitizers), so the kernel finds the next
            // page.
            let first = if *left == 0 { None } else { pages.first(at, end) };
            let first = first.unwrap_or(if last && *left != 0 { end - 1 } else { end });
            let piece = if first == end { end } else { (first / PIECE * PIECE).max(at) };
            self.put(at, piece, 0, part_kind::UNKNOWN);
            at = piece;
            let next = (at / PIECE + 1).saturating_mul(PIECE).min(end);
            let rss = if last && next == end { *left } else { self.count(at, next).min(*left) };
            *left -= rss;
            self.put(at, next, rss, part_kind::UNKNOWN);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn mappings_are_taken_apart_by_whom_they_belong_to() {
        let page = Pages::new(File::open("/proc/self/pagemap").expect("pagemap")).page();
        let len = 64 * page;
        let at = crate::pages::tests::map(len as usize, libc::MAP_PRIVATE) as u64;
        // SAFETY: the 64 pages that are written to lie inside of the mapping.
        (0..64).for_each(|n| unsafe { (at as *mut u8).add(n * page as usize).write_volatile(1) });
        let pages = Pages::new(File::open("/proc/self/pagemap").expect("pagemap"));
        let map =
            Map::parse(format!("{at:x}-{:x} rw-p 0 00:00 0", at + len).as_bytes()).expect("line");
        let c = Candidate { map, brk: false, rss: len };
        let mut all = Vec::new();
        let known = [(8, 16, false), (16, 24, true)].map(|(a, b, block)| Range {
            start: at + a * page,
            end: at + b * page,
            block,
        });
        Parts { all: &mut all, pages: Some(&pages) }.mapping(&c, &known, false);
        let of = |a: u64, b: u64, kind| [at + a * page, at + b * page, (b - a) * page, kind];
        let expected = [
            of(0, 8, part_kind::UNKNOWN),
            of(8, 16, part_kind::HEAP),
            of(16, 24, part_kind::BLOCK),
            of(24, 64, part_kind::UNKNOWN),
        ];
        assert_eq!(all, expected.concat());
        // The kernel skips what is empty.
        if size_of::<usize>() == 8 {
            let (len, asked) = (1u64 << 37, &pages.calls);
            let far = crate::pages::tests::map(len as usize, libc::MAP_PRIVATE) as u64;
            let middle = far + len / 2;
            // SAFETY: the address lies inside of the mapping.
            unsafe { (middle as *mut u8).write_volatile(1) };
            let map = Map::parse(format!("{far:x}-{:x} rw-p 0 00:00 0", far + len).as_bytes());
            let c = Candidate { map: map.expect("line"), brk: false, rss: page };
            all.clear();
            let before = asked.load(Relaxed);
            Parts { all: &mut all, pages: Some(&pages) }.mapping(&c, &[], true);
            let full = all.as_chunks::<4>().0.iter().filter(|p| p[2] != 0);
            let full: Vec<_> = full.map(|p| (p[0] <= middle && middle < p[1], p[2])).collect();
            assert_eq!(full, [(true, page)]);
            assert_eq!((all[0], all[all.len() - 3]), (far, far + len));
            assert!(asked.load(Relaxed) - before < 200, "{} queries", asked.load(Relaxed));
            // SAFETY: the mapping has this length, and is not used any more.
            unsafe { libc::munmap(far as *mut libc::c_void, len as usize) };
        }
        // Pieces that are equally full are joined.
        all.clear();
        Parts { all: &mut all, pages: Some(&pages) }.mapping(&c, &[], true);
        assert_eq!(all, of(0, 64, part_kind::UNKNOWN));
        // SAFETY: the mapping has this length, and is not used any more.
        unsafe { libc::munmap(at as *mut libc::c_void, len as usize) };
    }
}
