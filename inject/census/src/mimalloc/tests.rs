//! Heaps that are made up in this process: sound ones, and such as no allocator makes.

use super::*;
use prof_os::maps;
use prof_os::memory::Reader;
use prof_os::{Pid, RemoteAddr};
use std::time::{Duration, Instant};

const SECRET: u64 = 0x1234_5678_9abc_def0;
const SEGMENT: usize = segment::SEGMENT as usize;
const SLICE_LEN: usize = SLICE as usize;
/// Segments that there is room for.
const SEGMENTS: usize = 2;
const KEYS: [u64; 2] = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];

/// Memory for segments. Only what is written to takes memory.
struct Fake {
    bytes: Vec<u8>,
    skip: usize,
    links: Links,
    heap: Vec<u64>,
}

impl Fake {
    fn new(links: Links) -> Self {
        let bytes = vec![0; (SEGMENTS + 1) * SEGMENT];
        let start = bytes.as_ptr().addr();
        let skip = start.next_multiple_of(SEGMENT) - start;
        // The heap's queues say their sizes.
        let mut heap = vec![0; 400];
        (0..75).for_each(|i| heap[130 + 3 * i + 2] = 8 * i.max(1) as u64);
        heap[359..361].copy_from_slice(&KEYS);
        heap[358] = SECRET;
        let mut fake = Self { bytes, skip, links, heap };
        fake.segment(0, [512, 512, 1, 0]);
        fake
    }

    fn at(&self, offset: usize) -> u64 {
        (self.bytes.as_ptr().addr() + self.skip + offset) as u64
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        let from = self.skip + offset;
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, offset: usize, word: u64) {
        self.set(offset, &word.to_ne_bytes());
    }

    /// Makes a segment with numbers of slices and of described ones, of those of its own data, and its kind. All of it is
    /// free.
    fn segment(&mut self, offset: usize, [slices, entries, info, kind]: [u64; 4]) {
        self.word(offset + 216, self.at(offset) ^ SECRET);
        for (i, n) in [slices, info, kind, entries, 77].into_iter().enumerate() {
            self.word(offset + 224 + 8 * i, n);
        }
        self.describe(offset, 0, info as u32, SLICE as u32);
        self.describe(offset, info as usize, (entries - info) as u32, 0);
    }

    fn description(&self, offset: usize, slice: usize) -> usize {
        offset + 264 + slice * self.links.described() as usize
    }

    /// Describes slices: their number, and the size of their blocks.
    fn describe(&mut self, offset: usize, slice: usize, slices: u32, size: u32) {
        let at = self.description(offset, slice);
        self.set(at, &slices.to_ne_bytes());
        self.set(at + 28, &size.to_ne_bytes());
    }

    /// Makes a page of slices from one on, and what is behind it free.
    fn page(&mut self, slice: usize, slices: u32, size: u32, [capacity, reserved]: [u16; 2]) {
        self.describe(0, slice, slices, size);
        let at = self.description(0, slice);
        self.set(at + 10, &capacity.to_ne_bytes());
        self.set(at + 12, &reserved.to_ne_bytes());
        self.used(slice, u32::from(capacity));
        let keys = if self.links == Links::Encoded { 16 } else { 0 };
        if keys > 0 {
            self.word(at + 40, KEYS[0]);
            self.word(at + 48, KEYS[1]);
        }
        let heap = self.heap.as_ptr().addr() as u64;
        self.word(at + 48 + keys, heap);
        let next = slice + slices as usize;
        self.describe(0, next, 512 - next as u32, 0);
        let before = self.bytes[self.skip + 208];
        self.word(208, u64::from(before) + 1);
    }

    fn used(&mut self, slice: usize, used: u32) {
        let at = self.description(0, slice);
        self.set(at + 24, &used.to_ne_bytes());
    }

    fn encode(&self, at: u64, none: u64) -> u64 {
        match self.links {
            Links::Plain => at,
            Links::Encoded => {
                let at = if at == 0 { none } else { at };
                (at ^ KEYS[1]).rotate_left((KEYS[0] % 64) as u32).wrapping_add(KEYS[0])
            }
        }
    }

    /// Links places, given by offsets, and returns the first address.
    fn link(&mut self, places: &[usize], none: u64) -> u64 {
        // The first link of a place that comes twice stays.
        for (i, at) in places.iter().enumerate().rev() {
            let next = places.get(i + 1).map_or(0, |next| self.at(*next));
            self.word(*at, self.encode(next, none));
        }
        places.first().map_or(0, |at| self.at(*at))
    }

    /// Makes one of a page's lists: 0 and 1 are the owner's, 2 that of others.
    fn list(&mut self, slice: usize, list: usize, places: &[usize]) {
        let at = self.description(0, slice);
        let first = self.link(places, self.at(at));
        let keys = if self.links == Links::Encoded { 16 } else { 0 };
        match list {
            0 => self.word(at + 16, first),
            1 => self.word(at + 32, first),
            // The low bits are flags.
            _ => self.word(at + 40 + keys, first | 2),
        }
    }

    fn delayed(&mut self, places: &[usize]) {
        let none = self.heap.as_ptr().addr() as u64;
        self.heap[355] = self.link(places, none);
    }

    fn maps() -> Vec<Map> {
        maps::of(Pid::from_raw(std::process::id().cast_signed())).expect("maps")
    }

    fn walk(&self) -> Heap {
        let reader = Reader::open(Pid::from_raw(std::process::id().cast_signed())).expect("memory");
        let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
        // Other tests have heaps with the same secret.
        let (from, to) = (self.at(0), self.at(SEGMENTS * SEGMENT));
        let mut maps = Self::maps();
        maps.retain(|m| m.start.0 < to && from < m.end.0);
        for m in &mut maps {
            m.start = RemoteAddr(m.start.0.max(from));
            m.end = RemoteAddr(m.end.0.min(to));
        }
        let context = Context { secret: SECRET, links: Some(self.links) };
        Heap::walk(&mut view, &maps, &context)
    }

    fn found(&self) -> Vec<(u64, u64)> {
        self.walk().blocks().map(|b| (b.address - self.at(0), b.size)).collect()
    }

    /// Returns what a walk loses: places and links.
    fn lost(&self) -> (usize, u64) {
        let heap = self.walk();
        (heap.lost.len(), heap.links)
    }
}

/// Returns where a place of the second slice begins, whose blocks have up to 1,024 bytes.
fn place(size: usize, n: usize) -> usize {
    SLICE_LEN + 384 + size * n
}

#[test]
fn places_on_no_list_hold_blocks() {
    for links in [Links::Plain, Links::Encoded] {
        let mut fake = Fake::new(links);
        fake.page(1, 1, 48, [9, 1350]);
        fake.list(1, 0, &[place(48, 8), place(48, 7)]);
        fake.list(1, 1, &[place(48, 2)]);
        fake.list(1, 2, &[place(48, 0), place(48, 4)]);
        fake.used(1, 6);
        fake.delayed(&[place(48, 3), 2 * SLICE_LEN + 8192]);
        // A page of blocks that begin with their slices, the second of which was freed by another thread.
        fake.page(2, 8, 8192, [3, 64]);
        let expected = [1, 5, 6].map(|n| (place(48, n) as u64, 48));
        let large = [0, 2].map(|n| (2 * SLICE + n * 8192, 8192));
        assert_eq!(fake.found(), [&expected[..], &large].concat(), "{links:?}");
        let heap = fake.walk();
        assert_eq!((&heap.lost, heap.links), (&vec![], 0), "{links:?}");
        let stats = heap.stats();
        assert_eq!((stats.segments, stats.abandoned, stats.kept), (1, 0, 0));
        assert_eq!((stats.system, stats.pages), (segment::SEGMENT, 9 * SLICE));
        assert_eq!((stats.in_use.blocks, stats.in_use.bytes), (5, 3 * 48 + 2 * 8192));
        assert_eq!((stats.free.blocks, stats.free.bytes), (7, 6 * 48 + 8192));
        assert!(heap.ranges().eq(std::iter::once(fake.at(0)..fake.at(SEGMENT))));
    }
}

#[test]
fn the_variables_are_found_by_what_segments_have_in_common() {
    // This process has no mimalloc, though its memory may have a segment of one: no data have its secret in a heap.
    let mut fake = Fake::new(Links::Plain);
    fake.page(1, 1, 48, [9, 1350]);
    let reader = Reader::open(Pid::from_raw(std::process::id().cast_signed())).expect("memory");
    let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
    let heap = fake.heap.as_ptr().addr() as u64;
    assert!(context::delayed(&mut view, heap).is_some());
    assert!(context::delayed(&mut view, heap + 8).is_none());
    assert_eq!(find(&mut view, &Fake::maps()), []);
    let mut found = Vec::new();
    segment::each_secret(&mut view, &Fake::maps(), |secret, links| found.push((secret, links)));
    assert!(found.contains(&(SECRET, Links::Plain)), "{found:?}");
}

#[test]
fn an_aligned_block_with_a_segment_begins_where_it_must() {
    let mut fake = Fake::new(Links::Plain);
    fake.segment(0, [2 * 512, 512, 1, 1]);
    // An alignment of 32 MiB, which the block does not begin with.
    fake.word(16, segment::SEGMENT);
    fake.word(24, segment::SEGMENT);
    fake.describe(0, 1, 1023, (1023 * SLICE) as u32);
    let at = fake.description(0, 1);
    fake.set(at + 10, &[1, 0, 1, 0, 2]);
    fake.used(1, 1);
    fake.word(208, 1);
    assert_eq!(fake.found(), [(segment::SEGMENT, segment::SEGMENT)]);
    let stats = fake.walk().stats();
    assert_eq!(
        (stats.huge.blocks, stats.huge.bytes, stats.shifted.blocks),
        (1, segment::SEGMENT, 0)
    );
    assert_eq!(fake.lost(), (0, 0));
    // Without it, nothing says where.
    fake.word(24, 0);
    assert_eq!(fake.found(), [(SLICE, 1023 * SLICE)]);
    assert_eq!(fake.walk().stats().shifted.blocks, 1);
}

#[test]
fn a_segment_without_pages_is_kept_for_later() {
    let mut fake = Fake::new(Links::Plain);
    assert_eq!((fake.walk().stats().kept, fake.lost()), (1, (0, 0)));
    // Remains of one in the block of another do not count, a whole one does.
    fake.segment(0, [2 * 512, 512, 1, 1]);
    fake.describe(0, 1, 1023, (1023 * SLICE) as u32);
    fake.word(208, 1);
    fake.set(fake.description(0, 1) + 10, &[1, 0, 1, 0]);
    fake.used(1, 1);
    fake.segment(SEGMENT, [512, 512, 1, 0]);
    assert_eq!(fake.lost(), (0, 0));
    fake.word(SEGMENT + 208, 1);
    assert_eq!(fake.lost(), (1, 0));
}

#[test]
fn lists_that_make_no_sense_end() {
    let with = |lists: &[&[usize]], used: u32| {
        let mut fake = Fake::new(Links::Plain);
        fake.page(1, 1, 48, [9, 1350]);
        for (i, list) in lists.iter().enumerate() {
            fake.list(1, i, list);
        }
        fake.used(1, used);
        (fake.lost(), fake.found().len())
    };
    let [one, two] = [place(48, 1), place(48, 2)];
    assert_eq!(with(&[&[one, two]], 7), ((0, 0), 7));
    // A place on two lists, one that leads back, one beside a place, one that was never used, one elsewhere.
    assert_eq!(with(&[&[one], &[one]], 7), ((0, 1), 8));
    assert_eq!(with(&[&[one, two, one]], 7).0, (0, 1));
    assert_eq!(with(&[&[one + 8]], 8), ((0, 1), 9));
    assert_eq!(with(&[&[place(48, 9)]], 8), ((0, 1), 9));
    assert_eq!(with(&[&[SEGMENT + 4096]], 8), ((0, 1), 9));
    // Numbers that don't agree.
    assert_eq!(with(&[&[one, two]], 8), ((0, 1), 7));
    assert_eq!(with(&[&[], &[], &[one, two]], 9), ((0, 0), 7));
    let mut delayed = Fake::new(Links::Plain);
    delayed.page(1, 1, 48, [9, 1350]);
    delayed.delayed(&[one, two, one]);
    assert_eq!((delayed.lost(), delayed.found().len()), ((0, 1), 7));
    delayed.heap[132] = 99;
    let heap = delayed.walk();
    assert!(!heap.is_known() && heap.blocks().count() == 0, "what has such a queue is no heap");
}

#[test]
fn segments_that_make_no_sense_are_counted() {
    let with = |change: &dyn Fn(&mut Fake)| {
        let mut fake = Fake::new(Links::Plain);
        fake.page(1, 1, 48, [9, 1350]);
        fake.page(2, 1, 64, [3, 100]);
        change(&mut fake);
        (fake.lost(), fake.found().len())
    };
    assert_eq!(with(&|_| ()), ((0, 0), 12));
    // Slices that lead nowhere, back, and out; more blocks than there is room for; more pages than said.
    assert_eq!(with(&|f| f.describe(0, 2, 0, 64)), ((1, 0), 9));
    assert_eq!(with(&|f| f.set(f.description(0, 2) + 4, &[80])), ((1, 0), 9));
    assert_eq!(with(&|f| f.describe(0, 2, u32::MAX, 64)), ((1, 0), 9));
    assert_eq!(with(&|f| f.describe(0, 0, 2, 64)), ((1, 0), 0));
    assert_eq!(with(&|f| f.set(f.description(0, 2) + 10, &[0xff; 4])), ((1, 0), 9));
    assert_eq!(with(&|f| f.set(f.description(0, 2) + 28, &[0xff; 4])), ((1, 0), 9));
    assert_eq!(with(&|f| f.word(208, 9)), ((0, 1), 12));
    // A segment that is longer than the address space, and one of an unknown kind.
    assert_eq!(with(&|f| f.word(224, u64::MAX / 7)), ((1, 0), 0));
    assert_eq!(with(&|f| f.word(240, 2)), ((1, 0), 0));
}
