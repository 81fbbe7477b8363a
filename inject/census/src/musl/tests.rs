//! Heaps that are made up in this process: sound ones, and such as no allocator makes.

use super::*;
use prof_os::Pid;
use prof_os::maps;
use prof_os::memory::Reader;
use std::time::{Duration, Instant};

const PAGE: usize = AREA as usize;
const SECRET: u64 = 0x1234_5678_9abc_def1;
const W: usize = WORD as usize;
/// Pages of the fake heap: the variables, two areas, and the groups.
const PAGES: usize = 64;

/// Memory with the variables in its first page, an area in its second one, and room for groups from the third on.
struct Fake {
    bytes: Vec<u8>,
    skip: usize,
    metas: usize,
}

impl Fake {
    fn new() -> Self {
        let bytes = vec![0; (PAGES + 1) * PAGE];
        let skip = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
        let mut fake = Self { bytes, skip, metas: 0 };
        fake.area(1, 0);
        let first = fake.at(PAGE);
        fake.set(0, &SECRET.to_ne_bytes());
        fake.set_word(16 + 5 * W, first);
        fake
    }

    fn at(&self, offset: usize) -> u64 {
        (self.bytes.as_ptr().addr() + self.skip + offset) as u64
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        let from = self.skip + offset;
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn set_word(&mut self, offset: usize, word: u64) {
        self.set(offset, &(word as usize).to_ne_bytes());
    }

    /// Makes a page an area that leads to another one.
    fn area(&mut self, page: usize, next: u64) {
        let number = ((AREA - HEAD) / META) as u32;
        self.set(page * PAGE, &SECRET.to_ne_bytes());
        self.set_word(page * PAGE + 8, next);
        self.set(page * PAGE + 8 + W, &number.to_ne_bytes());
    }

    /// Describes a group at an offset; bits 0 to 4 of the last word are its last slot, from 6 on its class, from 12 on
    /// the pages of its mapping.
    fn group(&mut self, offset: usize, [avail, freed]: [u32; 2], [last, class, pages]: [u64; 3]) {
        let meta = PAGE + HEAD as usize + self.metas * META as usize;
        self.metas += 1;
        let at = self.at(offset);
        self.set_word(meta + 2 * W, at);
        self.set(meta + 3 * W, &avail.to_ne_bytes());
        self.set(meta + 3 * W + 4, &freed.to_ne_bytes());
        self.set_word(meta + 3 * W + 8, last | class << 6 | pages << 12);
        let back = self.at(meta);
        self.set_word(offset, back);
    }

    /// Writes the header of a block of a group's slot.
    fn block(&mut self, group: usize, offset: usize, slot: u8, end: usize, rest: u32) {
        let units = ((offset - group - 16) / 16) as u16;
        let few = rest.min(5) as u8;
        self.set(offset - 4, &[0, slot | few << 5]);
        self.set(offset - 2, &units.to_ne_bytes());
        if few == 5 {
            self.set(end - 4, &rest.to_ne_bytes());
        }
    }

    fn walk(&self) -> Heap {
        let reader = Reader::open(Pid::from_raw(std::process::id().cast_signed())).expect("memory");
        let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
        let maps = maps::of(Pid::from_raw(std::process::id().cast_signed())).expect("maps");
        let context = Context::new(SECRET.to_ne_bytes(), self.at(16 + 5 * W));
        Heap::walk(&mut view, &maps, &context)
    }

    fn found(&self) -> Vec<(u64, u64)> {
        self.walk().blocks().map(|b| (b.address - self.at(0), b.size)).collect()
    }
}

const GROUP: usize = 2 * PAGE;

#[test]
fn blocks_begin_and_end_where_their_headers_say() {
    let mut fake = Fake::new();
    // Five slots of 48 bytes: one is free, one was never given out, one begins later, one has 20 bytes less.
    fake.group(GROUP, [1 << 4, 1 << 1], [4, 2, 1]);
    let slot = |i: usize| GROUP + 16 + 48 * i;
    fake.block(GROUP, slot(0), 0, slot(0) + 44, 0);
    fake.set(slot(2) - 3, &[7 << 5, 1, 0]);
    fake.block(GROUP, slot(2) + 16, 2, slot(2) + 44, 3);
    fake.block(GROUP, slot(3), 3, slot(3) + 44, 20);
    // A block with a mapping of its own, whose header has the low bits of its place only.
    let own = GROUP + PAGE;
    fake.group(own, [0, 0], [0, OWN_MAPPING, 4]);
    fake.block(own, own + 16, 0, own + 4 * PAGE - 4, 1000);
    let expected =
        [(slot(0), 44), (slot(2) + 16, 25), (slot(3), 24), (own + 16, 4 * PAGE - 20 - 1000)];
    assert_eq!(fake.found(), expected.map(|(at, size)| (at as u64, size as u64)));
    let heap = fake.walk();
    assert_eq!(heap.lost, []);
    let stats = heap.stats();
    assert_eq!(
        (stats.groups, stats.system, stats.free.blocks, stats.free.bytes),
        (2, 5 * AREA, 2, 88)
    );
    assert_eq!((stats.in_use.blocks, stats.mapped.blocks), (4, 1));
    assert_eq!(heap.ranges().map(|r| r.end - r.start).sum::<u64>(), 6 * AREA);
}

#[test]
fn a_group_in_a_slot_is_no_block() {
    let mut fake = Fake::new();
    // Two slots of 2032 bytes, the first of which has a group of three slots of 16 bytes.
    fake.group(GROUP, [0, 0], [1, 23, 1]);
    fake.group(GROUP + 16, [0, 0b101], [2, 0, 0]);
    fake.block(GROUP + 16, GROUP + 48, 1, GROUP + 60, 2);
    // The marker of the slot makes no sense as that of a block, and is not looked at.
    fake.set(GROUP + 13, &[6 << 5]);
    let second = GROUP + 16 + 127 * 16;
    fake.block(GROUP, second, 1, second + 127 * 16 - 4, 0);
    assert_eq!(fake.walk().lost, []);
    assert_eq!(fake.found(), [(second as u64, 2028), (GROUP as u64 + 48, 10)]);
}

#[test]
fn an_extreme_alignment_is_found_by_trying() {
    let mut fake = Fake::new();
    // Two units of 2^16 behind what the slot's header has room for can't be made here, but the far offset can.
    fake.group(GROUP, [0, 0], [0, OWN_MAPPING, 40]);
    let at = GROUP + 16 + 0x8000;
    fake.set(GROUP + 16 - 3, &[7 << 5, 0, 8]);
    fake.set(at - 8, &0x800u32.to_ne_bytes());
    fake.set(at - 4, &[1, 0, 0, 0]);
    assert_eq!(fake.found(), [(at as u64, 40 * AREA - 16 - 4 - 0x8000)]);
}

#[test]
fn what_makes_no_sense_is_counted_and_ends() {
    // Areas that lead back to themselves.
    let mut ring = Fake::new();
    ring.area(1, 0);
    let first = ring.at(PAGE);
    ring.set_word(PAGE + 8, first);
    assert_eq!((ring.walk().lost.len(), ring.found()), (1, vec![]));
    // An area with another secret.
    let mut other = Fake::new();
    other.set(PAGE, &[1]);
    assert_eq!(other.walk().lost.len(), 1);
    let with = |avail: [u32; 2], bits: [u64; 3]| {
        let mut fake = Fake::new();
        fake.group(GROUP, avail, bits);
        let heap = fake.walk();
        (heap.lost.len(), heap.blocks().count())
    };
    // Classes that there are none of, slots beyond the mapping, and a mapping of the whole address space.
    assert_eq!(with([0, 0], [0, 48, 1]), (1, 0));
    assert_eq!(with([0, 0], [3, OWN_MAPPING, 1]), (1, 0));
    assert_eq!(with([0, 0], [31, 40, 1]), (1, 0));
    assert_eq!(with([0, 0], [0, 3, (1 << (8 * W - 13)) - 1]), (1, 0));
    // Headers without sense.
    assert_eq!(with([0, 0], [3, 0, 1]), (3, 1));
    // A group that its memory does not know.
    let mut gone = Fake::new();
    gone.group(GROUP, [0, 0], [3, 0, 1]);
    gone.set_word(GROUP, 0);
    assert_eq!(gone.walk().lost.first(), Some(&(gone.at(GROUP)..gone.at(GROUP + 80))));
    // Groups that overlap, and groups in groups in groups.
    let mut overlap = Fake::new();
    overlap.group(GROUP, [0, 0], [3, 31, 8]);
    overlap.group(GROUP + 7 * PAGE, [0, 0], [0, OWN_MAPPING, 9]);
    assert!(!overlap.walk().lost.is_empty());
    let mut deep = Fake::new();
    (0..20).for_each(|i| deep.group(GROUP + 16 * i, [0, 0], [0, 40 - i as u64, 0]));
    assert!(deep.walk().lost.len() >= 20 - DEEP);
}

#[test]
fn the_variables_are_found_without_symbols() {
    let fake = Fake::new();
    let reader = Reader::open(Pid::from_raw(std::process::id().cast_signed())).expect("memory");
    let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
    // The variables of this process's data are searched: glibc's has none.
    let maps = crate::data::maps_of_files_alone();
    let data = fake.at(0)..fake.at(PAGE);
    assert_eq!(
        context::in_data(&mut view, &data),
        [Context::new(SECRET.to_ne_bytes(), fake.at(16 + 5 * W))]
    );
    assert_eq!(find(&mut view, &maps), []);
}

#[test]
fn a_damaged_first_area_is_not_passed_over() {
    let mut fake = Fake::new();
    let (first, last) = (fake.at(PAGE), fake.at(2 * PAGE));
    fake.area(1, last);
    fake.area(2, 0);
    fake.set_word(16 + 5 * W, first);
    fake.set_word(16 + 6 * W, last);
    fake.set(PAGE, &[1]);
    let reader = Reader::open(Pid::from_raw(std::process::id().cast_signed())).expect("memory");
    let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
    let data = fake.at(0)..fake.at(PAGE);
    let found = context::in_data(&mut view, &data);
    assert_eq!(found, [Context::new(SECRET.to_ne_bytes(), fake.at(16 + 5 * W))]);
    assert_eq!(fake.walk().lost.len(), 1);
}
