//! Finds the arenas of glibc's allocator in the memory of a process, from 2.17 to today, without symbols: by what their
//! fields must have.
//!
//! The main arena lies in the data of libc, or of a program that is linked statically. It is recognised by its bins: an
//! empty bin points to itself, and the first chunk of another one back to the bin. All arenas form a ring, which tells how
//! far in front of the bins an arena begins.
//!
//! * [`find`] finds the ring; [`fast_bins`], [`totals`] and [`heaps`] find what belongs to one arena;
//! * [`Memory`] is how the process's memory is read.
//!
//! The process may run meanwhile, and may have written anything to its memory: nothing here follows a pointer without a
//! bound.

use prof_os::maps::Map;
use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes of a word of the process, which has the word size of prof itself.
pub const WORD: u64 = size_of::<usize>() as u64;
/// Number of bins but the fast ones.
pub const BINS: usize = 127;
/// Offset of the first bin from the field `top`.
pub const FIRST_BIN: u64 = 2 * WORD;
/// Offset of the pointer to the next arena from the field `top`.
pub const NEXT: u64 = FIRST_BIN + BYTES + BITMAP;
/// Bytes of the bins, and of the bit map behind them.
const BYTES: u64 = 2 * BINS as u64 * WORD;
const BITMAP: u64 = 16;
/// Number of bins that must be proved for an arena to be recognised, and of those that may make no sense: the process may
/// run, and change some while they are read.
const PROVED: usize = 8;
const CHANGING: usize = 8;
/// Greatest number of fast bins.
const FAST: u64 = 10;
/// Bytes in front of the fast bins: a lock, flags and, since 2.27, whether there are fast chunks.
const LEAST_HEAD: u64 = 8;
/// Greatest distance of `top` from the beginning of an arena.
const MOST_HEAD: u64 = 256;
/// Greatest number of threads of an arena; what is larger is the next field, the bytes from the kernel.
const MOST_THREADS: u64 = 0x8000;
/// Greatest length of a segment of data that is searched.
const SEGMENT: u64 = 64 << 20;
/// Greatest number of arenas, and of heaps of one arena.
const MOST_ARENAS: usize = 1 << 13;
const MOST_HEAPS: usize = 1 << 16;
/// Binary logarithms of the sizes that heaps of arenas may have: 1 MiB to 16 GiB. The tunable `glibc.malloc.hugetlb`
/// makes them four huge pages long.
const HEAPS: Range<u32> = 20..35;

/// The memory of a process.
pub trait Memory {
    /// Reads words at an address; returns `None` if not all of them can be read.
    fn words<const N: usize>(&mut self, at: u64) -> Option<[u64; N]>;

    /// Reads a range of addresses, as far as it can be read.
    fn all(&mut self, range: Range<u64>) -> Vec<u8>;
}

/// Reads `/proc/PID/mem`.
impl Memory for &File {
    fn words<const N: usize>(&mut self, at: u64) -> Option<[u64; N]> {
        let mut bytes = [[0u8; WORD as usize]; N];
        self.read_exact_at(bytes.as_flattened_mut(), at).ok()?;
        Some(bytes.map(|w| usize::from_ne_bytes(w) as u64))
    }

    fn all(&mut self, range: Range<u64>) -> Vec<u8> {
        let len = range.end.saturating_sub(range.start);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let n = self.read_at(&mut bytes, range.start).unwrap_or(0);
        bytes.truncate(n);
        bytes
    }
}

/// Returns the words of some memory.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<{ WORD as usize }>().0.iter().map(|w| usize::from_ne_bytes(*w) as u64)
}

/// The ring of all arenas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Addresses of the field `top` of the arenas, the main one's first.
    pub tops: Vec<u64>,
    /// Distance of the field `top` from the beginning of an arena, in bytes.
    pub head: u64,
}

/// Finds the arenas of a process; returns `None` if it has none, or they make no sense. Only data in mappings that
/// `may_hold` selects are searched for the main arena.
pub fn find<M: Memory>(
    memory: &mut M,
    maps: &[Map],
    may_hold: impl Fn(&Map) -> bool,
) -> Option<Ring> {
    let is_data = |i: &usize| {
        let m = &maps[*i];
        let follows =
            i.checked_sub(1).is_some_and(|k| maps[k].end == m.start && maps[k].inode != 0);
        m.read && m.write && !m.shared && m.len() <= SEGMENT && (m.inode != 0 || follows)
    };
    for m in (0..maps.len()).filter(is_data).map(|i| &maps[i]).filter(|m| may_hold(m)) {
        let all: Vec<u64> = words(&memory.all(m.start.0..m.end.0)).collect();
        let top_at = |i: usize| m.start.0 + i as u64 * WORD;
        for i in 0..all.len() {
            if are_bins(memory, all.get(i + 2..), top_at(i))
                && let Some(found) = ring(memory, top_at(i))
            {
                return Some(found);
            }
        }
    }
    None
}

/// Returns whether these words are the bins of an arena whose field `top` lies at an address.
fn are_bins<M: Memory>(memory: &mut M, bins: Option<&[u64]>, top_at: u64) -> bool {
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
    let mut leads_back = |k: usize| {
        bins[k][0].checked_add(3 * WORD).and_then(|at| memory.words(at)) == Some([own(k)])
    };
    let full = (0..BINS).filter(|k| !empty(*k) && leads_back(*k));
    (0..BINS).filter(|k| empty(*k)).chain(full).take(PROVED).count() == PROVED
}

/// Follows the ring of arenas from the main one. Memory in front of the bins may look like an arena's, so all distances are
/// tried, and the ring decides: it leads back to the beginning of the main arena.
fn ring<M: Memory>(memory: &mut M, top_at: u64) -> Option<Ring> {
    let [first] = memory.words(top_at + NEXT)?;
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
            let bins: Vec<u64> = words(&memory.all(start..end)).collect();
            if !seen.insert(top) || !are_bins(memory, Some(&bins), top) {
                break;
            }
            tops.push(top);
            let Some([next]) = memory.words(top + NEXT) else { break };
            at = next;
        }
        if at == main {
            return Some(Ring { tops, head });
        }
    }
    None
}

/// Returns the addresses of an arena's fast bins, given its address and [`Ring::head`].
pub fn fast_bins(arena: u64, head: u64) -> impl Iterator<Item = u64> {
    let first = arena.saturating_add(LEAST_HEAD);
    let from_top = (1..=FAST).rev().map(move |k| k * WORD);
    from_top.filter_map(move |k| (arena + head).checked_sub(k)).filter(move |at| *at >= first)
}

/// Totals of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Number of threads that use it; `None` before glibc 2.23.
    pub threads: Option<u64>,
    /// Bytes from the kernel.
    pub system: u64,
    /// The most bytes from the kernel that it ever had.
    pub most_system: u64,
}

/// Reads the totals of the arena whose field `top` lies at an address; returns `None` if they can't be read.
pub fn totals<M: Memory>(memory: &mut M, top_at: u64) -> Option<Totals> {
    let [_, _, a, b, c] = memory.words(top_at.checked_add(NEXT)?)?;
    let (threads, system, most) = if a < MOST_THREADS { (Some(a), b, c) } else { (None, a, b) };
    Some(Totals { threads, system, most_system: most.max(system) })
}

/// Returns the heaps of an arena other than the main one, given its top chunk: the newest one first, each of which
/// names the one before. Also returns whether these are all heaps: the list ends early where it makes no sense, as the
/// process may change it meanwhile.
pub fn heaps<M: Memory>(memory: &mut M, arena: u64, top: u64) -> (Vec<Range<u64>>, bool) {
    let mut all = Vec::new();
    let newest = HEAPS.map(|shift| top & !((1 << shift) - 1)).find(|at| {
        let heap = heap_at(memory, *at, arena);
        heap.is_some_and(|(heap, _)| heap.contains(&top))
    });
    let Some(mut at) = newest else { return (all, false) };
    while all.len() < MOST_HEAPS {
        let Some((heap, before)) = heap_at(memory, at, arena) else { break };
        all.push(heap);
        if before == 0 || before == at {
            return (all, true);
        }
        at = before;
    }
    (all, false)
}

/// Returns the heap at an address, and the address of the one before; `None` if no heap of the arena is there. A heap
/// begins at a multiple of the greatest size that it may reach. The present size of one heap is no bound for another.
fn heap_at<M: Memory>(memory: &mut M, at: u64, arena: u64) -> Option<(Range<u64>, u64)> {
    let [owner, before, size] = memory.words(at)?;
    let fits = (1..1 << HEAPS.end).contains(&size) && at.is_multiple_of(size.next_power_of_two());
    (owner == arena && fits).then(|| (at..at.saturating_add(size), before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Memory of a process, word by word.
    #[derive(Default)]
    struct Words(BTreeMap<u64, u64>);

    impl Words {
        /// Writes an arena with empty bins, but for a bin with one chunk.
        fn arena(&mut self, at: u64, head: u64, next: u64) {
            let top = at + head;
            for k in 0..BINS as u64 {
                let own = top + 2 * k * WORD;
                let first = if k == 5 { 0x5000_0000 } else { own };
                self.0.extend([(own + FIRST_BIN, first), (own + FIRST_BIN + WORD, first)]);
            }
            self.0.insert(top + NEXT, next);
        }
    }

    impl Memory for Words {
        fn words<const N: usize>(&mut self, at: u64) -> Option<[u64; N]> {
            let all: Vec<u64> =
                (0..N as u64).map_while(|k| self.0.get(&(at + k * WORD)).copied()).collect();
            all.try_into().ok()
        }

        fn all(&mut self, range: Range<u64>) -> Vec<u8> {
            let word = |at| (self.0.get(&at).copied().unwrap_or(0) as usize).to_ne_bytes();
            range.step_by(WORD as usize).flat_map(word).collect()
        }
    }

    fn data() -> Vec<Map> {
        let line = b"400000-404000 rw-p 00000000 08:01 7 /lib/libc.so.6";
        vec![Map::parse(line).expect("a mapping")]
    }

    #[test]
    fn arenas_of_any_version_are_found_by_their_ring() {
        let heads = [LEAST_HEAD + FAST * WORD, 2 * LEAST_HEAD + FAST * WORD];
        for head in heads {
            let (main, other) = (0x40_0100, 0x1000_0040);
            let mut memory = Words::default();
            memory.arena(main, head, other);
            assert_eq!(find(&mut memory, &data(), |_| true), None, "a ring that is not closed");
            memory.arena(other, head, main);
            let want = Ring { tops: vec![main + head, other + head], head };
            assert_eq!(find(&mut memory, &data(), |_| true), Some(want));
            assert_eq!(find(&mut memory, &data(), |_| false), None);
            let fast: Vec<u64> = fast_bins(main, head).collect();
            assert_eq!((fast.len() as u64, fast.last()), (FAST, Some(&(main + head - WORD))));
        }
    }

    #[test]
    fn heaps_of_any_size_are_found_by_their_owner() {
        let arena = 0x1000_0040;
        for most in [1 << 20, 8 << 20, 64 << 20] {
            // The older heap is full, the newer one has just begun.
            let (older, newer) = (0x1_0000_0000 + most, 0x2_0000_0000);
            let mut memory = Words::default();
            for (at, before, size) in [(older, 0, most), (newer, older, 0x2_1000)] {
                let words = [arena, before, size];
                (0..3).for_each(|k| _ = memory.0.insert(at + k * WORD, words[k as usize]));
            }
            let both = vec![newer..newer + 0x2_1000, older..older + most];
            assert_eq!(heaps(&mut memory, arena, newer + 0x2_0000), (both.clone(), true));
            assert_eq!(heaps(&mut memory, arena, newer + 0x2_1000), (Vec::new(), false));
            assert_eq!(heaps(&mut memory, arena + 8, newer + 0x2_0000), (Vec::new(), false));
            memory.0.insert(older + 2 * WORD, most + WORD);
            let all = heaps(&mut memory, arena, newer + 0x2_0000);
            assert_eq!(all, (both[..1].to_vec(), false), "not aligned to its size");
        }
    }

    #[test]
    fn older_arenas_have_no_number_of_threads() {
        let mut memory = Words::default();
        let mut put = |fields: [u64; 5]| {
            (0..5).for_each(|k| _ = memory.0.insert(NEXT + k * WORD, fields[k as usize]));
            totals(&mut memory, 0)
        };
        let new = Totals { threads: Some(3), system: 0x2_1000, most_system: 0x3_0000 };
        assert_eq!(put([1, 0, 3, 0x2_1000, 0x3_0000]), Some(new));
        let old = Totals { threads: None, ..new };
        assert_eq!(put([1, 0, 0x2_1000, 0x3_0000, 0]), Some(old));
    }
}
