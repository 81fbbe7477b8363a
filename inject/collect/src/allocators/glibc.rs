//! Reads glibc's settings that hold now: its structure `malloc_par`, which no symbol names.
//!
//! The structure has a pointer to where the heap begins, and around it numbers that depend on each other; all together
//! they are found nowhere else in libc's data.

use super::not;
use prof_os::maps::Map;
use prof_trace::records::{Allocators, allocator, setting};
use std::fs::File;
use std::os::unix::fs::FileExt;

const WORD: usize = size_of::<usize>();
/// Greatest length of a segment that is searched.
const MAX_SEGMENT: u64 = 16 << 20;
/// The heap begins at most so many bytes behind the start of its mapping: a static program has its thread-local storage
/// in front.
const MAX_FRONT: u64 = 1 << 20;
/// Minor version from which on the structure has fields for huge pages.
const WITH_HUGE: u32 = 35;
/// Greatest number of size classes of threads' caches, and of bytes of a block in one.
const MAX_BINS: u64 = 128;
const MAX_CACHED: u64 = 8 << 20;

/// The settings, in bytes or numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Settings {
    trim_threshold: u64,
    top_pad: u64,
    mmap_threshold: u64,
    arena_test: u64,
    arena_max: u64,
    huge_page: u64,
    blocks: u64,
    most_blocks: u64,
    max_blocks: u64,
    fixed: bool,
    mapped: u64,
    most_mapped: u64,
    /// Size classes, greatest block and length of lists of threads' caches.
    cache: Option<[u64; 3]>,
}

/// Adds the settings, and the figures that stand among them.
pub(super) fn add(mem: &File, maps: &[Map], version: u32, all: &mut Allocators) {
    let Some(s) = read(mem, maps, version) else {
        let what = "its settings were not found in its memory, as the heap has not begun or they are laid out in another way";
        return not(all, allocator::GLIBC, what);
    };
    let mut set = |name: &str, value: u64| all.set(setting::MEMORY, name, value.to_string());
    set("mmap_threshold", s.mmap_threshold);
    set("trim_threshold", s.trim_threshold);
    set("dynamic_thresholds", u64::from(!s.fixed));
    set("top_pad", s.top_pad);
    set("mmap_max", s.max_blocks);
    set("arena_max", s.arena_max);
    set("arena_test", s.arena_test);
    if version >= WITH_HUGE {
        set("huge_page", s.huge_page);
    }
    if let Some([_, max, count]) = s.cache {
        set("tcache_max", max);
        set("tcache_count", count);
    }
    all.note(allocator::GLIBC, "mapped_blocks", s.blocks);
    all.note(allocator::GLIBC, "mapped_bytes", s.mapped);
    all.note(allocator::GLIBC, "most_mapped_blocks", s.most_blocks);
    all.note(allocator::GLIBC, "most_mapped_bytes", s.most_mapped);
}

fn read(mem: &File, maps: &[Map], version: u32) -> Option<Settings> {
    let heap = maps.iter().find(|m| m.name == b"[heap]")?.start.0;
    let program = maps.first().map_or(&[][..], |m| &m.name);
    let is_data = |m: &&Map| m.inode != 0 && m.write && m.len() <= MAX_SEGMENT;
    let (libc, others): (Vec<&Map>, Vec<&Map>) =
        maps.iter().filter(is_data).partition(|m| super::recognise::is_libc(&m.text()));
    // A program has the structure in its own data if it is linked statically. In that of another, something may look like it.
    let own = others.into_iter().filter(|m| libc.is_empty() && m.name == program).collect();
    let searched: Vec<&Map> = if libc.is_empty() { own } else { libc };
    searched.into_iter().find_map(|m| {
        let mut bytes = vec![0; usize::try_from(m.len()).ok()?];
        let n = mem.read_at(&mut bytes, m.start.0).ok()?;
        find(&bytes[..n], heap, version)
    })
}

/// Searches a segment, given where the heap's mapping begins.
fn find(bytes: &[u8], heap: u64, version: u32) -> Option<Settings> {
    (0..bytes.len() / WORD).map(|i| i * WORD).find_map(|at| {
        let base = word(bytes, at)?;
        if base.wrapping_sub(heap) >= MAX_FRONT {
            return None;
        }
        let huge = version >= WITH_HUGE || version == 0;
        let found = huge.then(|| parse(bytes, at, true)).flatten();
        found.or_else(|| if version < WITH_HUGE { parse(bytes, at, false) } else { None })
    })
}

/// Reads the structure around the pointer at `at`; `None` if the numbers do not fit each other.
fn parse(bytes: &[u8], at: usize, huge: bool) -> Option<Settings> {
    let back = |words: usize| word(bytes, at.checked_sub(words * WORD)?);
    let (most_mapped, mapped) = (back(1)?, back(2)?);
    // The integers in front: with huge pages five, which are padded to a word, else four.
    let ints = if huge { 20usize.next_multiple_of(WORD) } else { 16 };
    let first = at.checked_sub(2 * WORD + ints)?;
    let int = |i: usize| {
        let from = first + 4 * i + if huge { 4 } else { 0 };
        Some(u32::from_ne_bytes(bytes.get(from..from + 4)?.try_into().ok()?))
    };
    let (blocks, max_blocks, most_blocks, fixed) = (int(0)?, int(1)?, int(2)?, int(3)?);
    let before = |words: usize| word(bytes, first.checked_sub(words * WORD)?);
    let skip = if huge { 2 } else { 0 };
    let s = Settings {
        arena_max: before(1 + skip)?,
        arena_test: before(2 + skip)?,
        mmap_threshold: before(3 + skip)?,
        top_pad: before(4 + skip)?,
        trim_threshold: before(5 + skip)?,
        huge_page: if huge { before(2)? } else { 0 },
        blocks: blocks.into(),
        most_blocks: most_blocks.into(),
        max_blocks: max_blocks.into(),
        fixed: fixed == 1,
        mapped,
        most_mapped,
        cache: cache(bytes, at),
    };
    let page = |n: u64| n.is_multiple_of(4096);
    let fits = fixed <= 1
        && blocks <= most_blocks
        && i32::try_from(most_blocks).is_ok()
        && mapped <= most_mapped
        && page(mapped)
        && page(most_mapped)
        && (blocks == 0) == (mapped == 0)
        && (most_blocks == 0) == (most_mapped == 0)
        // It is 2 or 8 unless a tunable says otherwise, and never 0.
        && (1..=1 << 16).contains(&s.arena_test)
        && s.arena_max <= 1 << 20
        && (s.huge_page == 0 || s.huge_page.is_power_of_two());
    fits.then_some(s)
}

/// Reads the settings of threads' caches behind the pointer at `at` (since 2.26).
fn cache(bytes: &[u8], at: usize) -> Option<[u64; 3]> {
    let next = |words: usize| word(bytes, at + words * WORD);
    let (bins, max, count) = (next(1)?, next(2)?, next(3)?);
    let fits = (1..=MAX_BINS).contains(&bins) && (1..=MAX_CACHED).contains(&max);
    (fits && count <= u64::from(u16::MAX)).then_some([bins, max, count])
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let w = bytes.get(at..)?.first_chunk::<WORD>()?;
    Some(usize::from_ne_bytes(*w) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a segment with the structure in it, as glibc lays it out.
    fn segment(huge: bool, heap: usize) -> Vec<u8> {
        let mut all: Vec<u8> = Vec::new();
        let words = |all: &mut Vec<u8>, list: &[usize]| {
            list.iter().for_each(|w| all.extend(w.to_ne_bytes()));
        };
        // A pointer to the heap among other numbers, or among zeroes, looks like the structure at first.
        words(&mut all, &[5; 12]);
        words(&mut all, &[heap, 9]);
        words(&mut all, &[0; 12]);
        words(&mut all, &[heap, 0]);
        words(&mut all, &[128 << 10, 64 << 10, 32 << 20, 8, 2]);
        if huge {
            words(&mut all, &[2 << 20, 0]);
            all.extend(0u32.to_ne_bytes());
        }
        for int in [3u32, 65536, 7, 1] {
            all.extend(int.to_ne_bytes());
        }
        all.resize(all.len().next_multiple_of(WORD), 0);
        words(&mut all, &[3 << 20, 9 << 20, heap + 0x290, 64, 1032, 7, 0]);
        all
    }

    #[test]
    fn the_structure_is_found_in_both_layouts() {
        let heap = 0x5555_0000usize;
        for (huge, version) in [(false, 31), (true, 36), (true, 0)] {
            let s = find(&segment(huge, heap), heap as u64, version).expect("settings");
            assert_eq!(
                (s.trim_threshold, s.top_pad, s.mmap_threshold),
                (128 << 10, 64 << 10, 32 << 20)
            );
            assert_eq!((s.arena_test, s.arena_max), (8, 2));
            assert_eq!((s.blocks, s.max_blocks, s.most_blocks, s.fixed), (3, 65536, 7, true));
            assert_eq!((s.mapped, s.most_mapped), (3 << 20, 9 << 20));
            assert_eq!(s.cache, Some([64, 1032, 7]));
            assert_eq!(s.huge_page, if huge { 2 << 20 } else { 0 });
            assert_eq!(find(&segment(huge, heap), heap as u64 + (64 << 20), version), None);
        }
        assert_eq!(find(&[1; 100], 0, 36), None);
    }
}
