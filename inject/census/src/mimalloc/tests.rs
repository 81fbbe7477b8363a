//! Heaps that are made up in this process: sound ones, and such as no allocator makes.

use super::form::{Links, More, PageForm, SIZE, Starts};
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
    layout: Layout,
    heap: Vec<u64>,
}

/// Returns the layout of 2.0.9 without encoded links.
fn plain() -> Layout {
    Layout::all().next().expect("a layout")
}

impl Fake {
    fn new(layout: Layout) -> Self {
        let bytes = vec![0; (SEGMENTS + 1) * SEGMENT];
        let start = bytes.as_ptr().addr();
        let skip = start.next_multiple_of(SEGMENT) - start;
        // The heap's queues say their sizes.
        let mut heap = vec![0; 400];
        let form = &layout.form.heap;
        let [queues, secret, keys] = [form.queues, form.secret, form.keys()].map(word);
        (0..75).for_each(|i| heap[queues + 3 * i + 2] = 8 * i.max(1) as u64);
        heap[keys..keys + 2].copy_from_slice(&KEYS);
        heap[secret] = SECRET;
        let mut fake = Self { bytes, skip, layout, heap };
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
        let form = &self.layout.form.segment;
        self.word(offset + 8 * form.cookie, self.at(offset) ^ SECRET);
        let places = [form.slices, form.entries, form.info, form.kind, form.thread];
        for (at, n) in places.into_iter().zip([slices, entries, info, kind, 77]) {
            self.word(offset + 8 * at, n);
        }
        if matches!(form.more, More::Size(_)) {
            self.word(offset + 8 * SIZE, slices * SLICE);
        }
        self.describe(offset, 0, info as u32, SLICE as u32);
        self.describe(offset, info as usize, (entries - info) as u32, 0);
    }

    fn description(&self, offset: usize, slice: usize) -> usize {
        let head = self.layout.form.segment.len as usize * 8;
        offset + head + slice * self.layout.described() as usize
    }

    fn is_late(&self) -> bool {
        self.layout.form.page == PageForm::Late
    }

    /// Returns how far behind the beginning of a page its places begin. A page that says so may have any distance.
    fn behind(&self, size: u32) -> usize {
        match self.layout.form.starts {
            Starts::Said if size <= 1024 => 320,
            starts => starts.behind(u64::from(size)) as usize,
        }
    }

    /// Returns where a place of the second slice begins.
    fn place(&self, size: usize, n: usize) -> usize {
        SLICE_LEN + self.behind(size as u32) + size * n
    }

    /// Describes slices: their number, and the size of their blocks.
    fn describe(&mut self, offset: usize, slice: usize, slices: u32, size: u32) {
        let at = self.description(offset, slice);
        self.set(at, &slices.to_ne_bytes());
        if self.is_late() {
            self.word(at + 40, u64::from(size));
            self.word(at + 48, self.at(offset + slice * SLICE_LEN + self.behind(size)));
        } else {
            self.set(at + 28, &size.to_ne_bytes());
        }
    }

    /// Makes a page of slices from one on with so many places that were ever used, and what is behind it free.
    fn page(&mut self, slice: usize, slices: u32, size: u32, capacity: u16) {
        self.describe(0, slice, slices, size);
        let at = self.description(0, slice);
        let room = (slices as usize * SLICE_LEN - self.behind(size)) / size as usize;
        self.set(at + 10, &capacity.to_ne_bytes());
        self.set(at + 12, &(room as u16).to_ne_bytes());
        self.used(slice, u32::from(capacity));
        let [keys, heap] = if self.is_late() { [56, 64] } else { [40, 48] };
        let heap_at = self.heap.as_ptr().addr() as u64;
        if self.layout.links == Links::Encoded {
            self.word(at + keys, KEYS[0]);
            self.word(at + keys + 8, KEYS[1]);
            self.word(at + heap + 16, heap_at);
        } else {
            self.word(at + heap, heap_at);
        }
        let next = slice + slices as usize;
        self.describe(0, next, 512 - next as u32, 0);
        let used = 8 * self.layout.form.segment.used;
        let before = self.bytes[self.skip + used];
        self.word(used, u64::from(before) + 1);
    }

    fn used(&mut self, slice: usize, used: u32) {
        let at = self.description(0, slice);
        if self.is_late() {
            self.set(at + 32, &(used as u16).to_ne_bytes());
        } else {
            self.set(at + 24, &used.to_ne_bytes());
        }
    }

    fn encode(&self, at: u64, none: u64) -> u64 {
        match self.layout.links {
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
        let keys = if self.layout.links == Links::Encoded { 16 } else { 0 };
        let [local, others] = if self.is_late() { [24, 56] } else { [32, 40] };
        match list {
            0 => self.word(at + 16, first),
            1 => self.word(at + local, first),
            // The low bits are flags.
            _ => self.word(at + others + keys, first | 2),
        }
    }

    fn delayed(&mut self, places: &[usize]) {
        let none = self.heap.as_ptr().addr() as u64;
        let at = word(self.layout.form.heap.delayed);
        self.heap[at] = self.link(places, none);
    }

    fn maps() -> Vec<Map> {
        maps::of(Pid::from_raw(std::process::id().cast_signed())).expect("maps")
    }

    /// Returns the mappings of the segments. Other tests have heaps with the same secret.
    fn maps_of(&self) -> Vec<Map> {
        let (from, to) = (self.at(0), self.at(SEGMENTS * SEGMENT));
        let mut maps = Self::maps();
        maps.retain(|m| m.start.0 < to && from < m.end.0);
        for m in &mut maps {
            m.start = RemoteAddr(m.start.0.max(from));
            m.end = RemoteAddr(m.end.0.min(to));
        }
        maps
    }

    fn walk(&self) -> Heap {
        let reader = reader();
        let context = Context::Segments(SECRET, Some(self.layout));
        Heap::walk(&mut view_of(&reader), &self.maps_of(), &context)
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

fn reader() -> Reader {
    Reader::open(Pid::from_raw(std::process::id().cast_signed())).expect("memory")
}

fn view_of(reader: &Reader) -> View<'_> {
    View::new(reader, Instant::now() + Duration::from_secs(60))
}

/// Returns the number of a word by its bytes.
fn word(bytes: u64) -> usize {
    (bytes / 8) as usize
}

#[test]
fn places_on_no_list_hold_blocks() {
    for layout in Layout::all() {
        let mut fake = Fake::new(layout);
        let place = |n: usize| Fake::place(&Fake::new(layout), 48, n);
        let [p0, p2, p3, p4, p7, p8] = [0, 2, 3, 4, 7, 8].map(place);
        fake.page(1, 1, 48, 9);
        fake.list(1, 0, &[p8, p7]);
        fake.list(1, 1, &[p2]);
        fake.list(1, 2, &[p0, p4]);
        fake.used(1, 6);
        fake.delayed(&[p3, 2 * SLICE_LEN + 8192]);
        // A page of blocks that begin with their slices, the second of which was freed by another thread.
        fake.page(2, 8, 8192, 3);
        let expected = [1, 5, 6].map(|n| (fake.place(48, n) as u64, 48));
        let large = [0, 2].map(|n| (2 * SLICE + n * 8192, 8192));
        assert_eq!(fake.found(), [&expected[..], &large].concat(), "{layout:?}");
        let heap = fake.walk();
        assert_eq!((&heap.lost, heap.links), (&vec![], 0), "{layout:?}");
        let stats = heap.stats();
        assert_eq!(stats.version, Some(layout.form.version));
        assert_eq!((stats.segments, stats.abandoned, stats.kept), (1, 0, 0));
        assert_eq!((stats.system, stats.pages), (segment::SEGMENT, 9 * SLICE));
        assert_eq!((stats.in_use.blocks, stats.in_use.bytes), (5, 3 * 48 + 2 * 8192));
        assert_eq!((stats.free.blocks, stats.free.bytes), (7, 6 * 48 + 8192));
        assert!(heap.ranges().eq(std::iter::once(fake.at(0)..fake.at(SEGMENT))));
    }
}

#[test]
fn a_layout_makes_no_sense_of_another_versions_heap() {
    for made in Layout::all() {
        let mut fake = Fake::new(made);
        // Blocks of up to 1,024 bytes, by which versions are told that differ in nothing else.
        fake.page(1, 1, 48, 9);
        fake.page(2, 1, 640, 9);
        let reader = reader();
        let mut view = view_of(&reader);
        let mut best = Vec::new();
        segment::each_secret(&mut view, &fake.maps_of(), |secret, layout, fit| {
            let heap = fake.heap.as_ptr().addr() as u64;
            if secret == SECRET && context::delayed(&mut view_of(&reader), heap, layout).is_some() {
                best.push((fit, layout));
            }
        });
        let fits: Vec<_> = best.iter().filter(|(fit, _)| *fit == 2).map(|(_, l)| *l).collect();
        assert_eq!(fits, [made], "{best:?}");
    }
}

#[test]
fn the_variables_are_found_by_what_segments_have_in_common() {
    // This process has no mimalloc, though its memory may have a segment of one: no data have its secret in a heap.
    let mut fake = Fake::new(plain());
    fake.page(1, 1, 48, 9);
    let reader = reader();
    let mut view = view_of(&reader);
    let heap = fake.heap.as_ptr().addr() as u64;
    assert!(context::delayed(&mut view, heap, plain()).is_some());
    assert!(context::delayed(&mut view, heap + 8, plain()).is_none());
    assert_eq!(find(&mut view, &crate::data::maps_of_files_alone()), []);
    let mut found = Vec::new();
    segment::each_secret(&mut view, &Fake::maps(), |secret, layout, fit| {
        found.push((secret, layout, fit));
    });
    assert!(found.contains(&(SECRET, plain(), 1)), "{found:?}");
}

#[test]
fn an_aligned_block_with_a_segment_begins_where_it_must() {
    let mut fake = Fake::new(plain());
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
    let mut fake = Fake::new(plain());
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
        let mut fake = Fake::new(plain());
        fake.page(1, 1, 48, 9);
        for (i, list) in lists.iter().enumerate() {
            fake.list(1, i, list);
        }
        fake.used(1, used);
        (fake.lost(), fake.found().len())
    };
    let [one, two, behind] = [1, 2, 9].map(|n| Fake::new(plain()).place(48, n));
    assert_eq!(with(&[&[one, two]], 7), ((0, 0), 7));
    // A place on two lists, one that leads back, one beside a place, one that was never used, one elsewhere.
    assert_eq!(with(&[&[one], &[one]], 7), ((0, 1), 8));
    assert_eq!(with(&[&[one, two, one]], 7).0, (0, 1));
    assert_eq!(with(&[&[one + 8]], 8), ((0, 1), 9));
    assert_eq!(with(&[&[behind]], 8), ((0, 1), 9));
    assert_eq!(with(&[&[SEGMENT + 4096]], 8), ((0, 1), 9));
    // Numbers that don't agree.
    assert_eq!(with(&[&[one, two]], 8), ((0, 1), 7));
    assert_eq!(with(&[&[], &[], &[one, two]], 9), ((0, 0), 7));
    let mut delayed = Fake::new(plain());
    delayed.page(1, 1, 48, 9);
    delayed.delayed(&[one, two, one]);
    assert_eq!((delayed.lost(), delayed.found().len()), ((0, 1), 7));
    delayed.heap[132] = 99;
    let heap = delayed.walk();
    assert!(!heap.is_known() && heap.blocks().count() == 0, "what has such a queue is no heap");
}

#[test]
fn segments_that_make_no_sense_are_counted() {
    let with = |change: &dyn Fn(&mut Fake)| {
        let mut fake = Fake::new(plain());
        fake.page(1, 1, 48, 9);
        fake.page(2, 1, 64, 3);
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
