//! Heaps that are made up in this process: sound ones, and such as no allocator makes.

use super::extent::HEAD;
use super::tree::{SHAPES, Shape};
use super::*;
use crate::fake::Words;
use prof_os::Pid;
use prof_os::maps;
use prof_os::memory::Reader;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const LEAF: usize = 1 << 18;
/// Distance of the node of a tree of three levels from its leaf.
const NODE: usize = 1 << 16;
/// Address of the first block of these heaps. Nothing reads the blocks.
const BLOCKS: u64 = 5 << 30;
/// Words of a cache in front of its bins.
const BINS: usize = 40;
/// Alignment of these heaps.
const ALIGN: usize = 128;
/// Words of an extent.
const EXTENT: usize = 16;

struct Fake {
    root: Words,
    leaf: Words,
    extents: Words,
    n: usize,
    layout: Layout,
    shape: Shape,
}

impl Fake {
    fn new(layout: Layout, shape: Shape) -> Self {
        let mut fake = Self {
            root: Words::new(LEAF + 64, ALIGN),
            leaf: Words::new(LEAF, ALIGN),
            extents: Words::new(1 << 17, ALIGN),
            n: 0,
            layout,
            shape,
        };
        let leaf = fake.leaf.at(0);
        if shape.levels == 2 {
            fake.root.set((BLOCKS >> 30) as usize, &[leaf]);
            return fake;
        }
        // A leaf stands for 128 MiB, and has two words for each page.
        let node = fake.leaf.at(NODE);
        fake.leaf.set(NODE + (BLOCKS >> 27) as usize, &[leaf]);
        fake.root.set((BLOCKS >> 42) as usize, &[node]);
        fake
    }

    /// Has a page lead to an entry.
    fn lead(&mut self, page: usize, entry: u64) {
        match self.shape.levels {
            2 => self.leaf.set(page, &[entry | 3 << 48 | 1]),
            _ => self.leaf.set(2 * page, &[entry, 0x103]),
        }
    }

    fn bits(&self, state: u64, class: u64, slab: bool, free: u64) -> u64 {
        let (at, class_at) = match self.layout.minor {
            3 => (17, 20),
            2 => (16, 18),
            _ => (15, 17),
        };
        state << at | class << class_at | free << (class_at + 8) | u64::from(slab) << 12 | 1
    }

    /// Adds an extent of so many pages from a page on; returns the index of its first word.
    fn add(&mut self, page: usize, pages: u64, bits: u64, bitmap: &[u64]) -> usize {
        let i = self.n * EXTENT;
        self.n += 1;
        // The low bits are a number of the extent, and no part of the size.
        self.extents.set(i, &[bits, BLOCKS + page as u64 * PAGE, (pages * PAGE) | 7]);
        self.extents.set(i + HEAD as usize, bitmap);
        let entry = self.extents.at(i);
        for k in [page, page + pages as usize - 1] {
            self.lead(k, entry);
        }
        i
    }

    /// A sound heap: two slabs, three large blocks, free pages.
    fn sound(layout: Layout) -> Self {
        Self::of(layout, SHAPES[0])
    }

    fn of(layout: Layout, shape: Shape) -> Self {
        let mut fake = Self::new(layout, shape);
        // 256 regions of 16 bytes, of which 3 are free; 512 of 8 bytes, of which 500 are.
        let slab = fake.bits(0, 1, true, 3);
        fake.add(0, 1, slab, &[7, 0, 0, 0]);
        let slab = fake.bits(0, 0, true, 500);
        let mut free = [u64::MAX; 8];
        free[7] >>= 12;
        fake.add(1, 1, slab, &free);
        for k in 0..3 {
            let large = fake.bits(0, 36, false, 0);
            fake.add(10 + 8 * k, 5, large, &[]);
        }
        let dirty = fake.bits(1, 232, false, 0);
        fake.add(100, 4, dirty, &[]);
        let retained = fake.bits(3, 232, false, 0);
        fake.add(104, 8, retained, &[]);
        fake
    }

    fn tree(&self) -> Tree {
        let start = self.root.at(0);
        Tree { root: start, shape: self.shape, data: start..self.root.at(LEAF + 64) }
    }

    fn walk(&self) -> Heap {
        let reader = Reader::open(Pid::this()).expect("this process");
        let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
        let maps = maps::of(Pid::this()).expect("its mappings");
        Heap::walk(&mut view, &maps, &self.tree())
    }
}

fn check_order(heap: &Heap) {
    let mut end = 0;
    for p in heap.places() {
        assert!(p.address >= end, "{p:?} overlaps another");
        end = p.address + p.size;
    }
}

#[test]
fn a_sound_heap_is_counted_with_any_layout() {
    let shapes = [SHAPES[0], SHAPES[3]];
    for (layout, shape) in LAYOUTS.into_iter().flat_map(|l| shapes.map(|s| (l, s))) {
        let fake = Fake::of(layout, shape);
        let heap = fake.walk();
        let stats = heap.stats();
        assert_eq!(
            (stats.version, heap.links, &heap.lost[..]),
            (Some((5, layout.minor)), 0, &[][..])
        );
        let [a] = stats.arenas[..] else { panic!("{stats:?}") };
        assert_eq!((a.number, a.in_use.blocks, a.free.blocks), (1, 253 + 12 + 3, 3 + 500));
        assert_eq!(a.in_use.bytes, 253 * 16 + 12 * 8 + 3 * 16384);
        assert_eq!((a.active, a.dirty, a.muzzy, a.retained), (17 * PAGE, 4 * PAGE, 0, 8 * PAGE));
        assert!(!heap.has_caches());
        let first = heap.blocks().next().expect("a block");
        assert_eq!((first.address, first.size), (BLOCKS + 3 * 16, 16));
        check_order(&heap);
    }
}

#[test]
fn the_root_is_found_by_what_it_leads_to() {
    let reader = Reader::open(Pid::this()).expect("this process");
    let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
    let wide = Fake::of(LAYOUTS[0], SHAPES[3]);
    let fake = Fake::sound(LAYOUTS[0]);
    let maps = maps::of(Pid::this()).expect("its mappings");
    let found = tree::in_data(&mut view, &maps, &wide.tree().data);
    assert_eq!(found, [wide.tree()]);
    let data = fake.tree().data;
    let found = tree::in_data(&mut view, &maps, &data);
    assert_eq!(found, [fake.tree()]);
    // An array of pointers looks like a part of a root whose pages are full; it is not looked behind.
    let mut full = Fake::sound(LAYOUTS[0]);
    let entry = full.leaf.at(0);
    let first = (full.root.at(0).next_multiple_of(PAGE) - full.root.at(0)) / WORD;
    full.root.set((BLOCKS >> 30) as usize, &[0]);
    full.root.set(first as usize + 512, &[entry; 300]);
    assert_eq!(tree::in_data(&mut view, &maps, &full.tree().data), []);
    // A root whose beginning would lie in front of the data is none.
    let later = data.start + 8..data.end;
    assert_eq!(tree::in_data(&mut view, &maps, &later), []);
}

#[test]
fn extents_that_lie_are_lost_and_counted() {
    let size = |pages: u64| pages * PAGE;
    let mut fake = Fake::sound(LAYOUTS[0]);
    let large = fake.bits(0, 36, false, 0);
    // Most of a heap makes sense, or its layout would not be known.
    for k in 0..100 {
        fake.add(1000 + 8 * k, 5, large, &[]);
    }
    let base = fake.walk().stats();
    // It begins within a large block, and the slab at 200 has one more region than fits.
    fake.add(12, 5, large, &[]);
    let slab = fake.bits(0, 3, true, 1);
    fake.add(200, 1, slab, &[0, 1 << 21]);
    // A size that is beyond all addresses, one that is too small for the block, and a class that is none.
    let far = fake.add(300, 1, large, &[]);
    fake.extents.set(far + 2, &[u64::MAX << 12]);
    let small = fake.bits(0, 60, false, 0);
    fake.add(400, 1, small, &[]);
    let none = fake.bits(0, 233, false, 0);
    fake.add(500, 1, none, &[]);
    // An entry that leads nowhere, and a slab whose number of free regions is wrong.
    fake.leaf.set(600, &[0x7000_0000_0000 | 1]);
    let wrong = fake.bits(0, 1, true, 9);
    fake.add(700, 1, wrong, &[0, 0, 0, 1]);
    let heap = fake.walk();
    assert_eq!(heap.links, 2, "an entry and a number");
    let mut lost: Vec<u64> = heap.lost.iter().map(|r| r.start).collect();
    lost.sort_unstable();
    assert_eq!(lost, [12, 200, 300, 400].map(|page| BLOCKS + size(page)));
    let found = heap.stats();
    assert_eq!(found.arenas[0].in_use.blocks, base.arenas[0].in_use.blocks + 255);
    check_order(&heap);
}

#[test]
fn leaves_that_are_used_twice_do_not_multiply_the_work() {
    let mut fake = Fake::sound(LAYOUTS[0]);
    let leaf = fake.leaf.at(0);
    fake.root.set(6, &vec![leaf; LEAF - 6]);
    let heap = fake.walk();
    assert_eq!(heap.links, LEAF as u64 - 6);
    assert!(heap.places().count() < 1000);
}

#[test]
fn damage_of_any_kind_ends_the_walk_with_what_is_known() {
    let mut seed = 7u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 20
    };
    for _ in 0..150 {
        let mut fake =
            Fake::of(LAYOUTS[(next() % 3) as usize], SHAPES[(3 * (next() % 2)) as usize]);
        for _ in 0..1 + next() % 20 {
            let values = [next(), next() << 30, u64::MAX, fake.extents.at((next() % 128) as usize)];
            let value = values[(next() % 4) as usize];
            match next() % 4 {
                0 => fake.root.set((next() % 16) as usize, &[value]),
                1 => fake.leaf.set((next() % 128) as usize, &[value]),
                _ => fake.extents.set((next() % 128) as usize, &[value]),
            }
        }
        let heap = fake.walk();
        check_order(&heap);
        // An extent has room for 512 blocks.
        assert!(heap.places().count() <= 512 * (LEAF + 1));
        heap.stats();
        heap.ranges();
    }
}

/// An arena with two caches in memory of this process; returns it with the first words of both.
fn caches(fake: &mut Fake) -> (Words, [usize; 2]) {
    let mut own = Words::new(1 << 17, ALIGN);
    let (arena, at) = (own.at(0), [1024, 2048]);
    for (k, cache) in at.into_iter().enumerate() {
        let other = at[1 - k];
        let bins = own.at(cache + BINS);
        let (link, descriptor) = (own.at(other), own.at(other + 2));
        let this = own.at(cache);
        own.set(cache, &[link, link, descriptor, descriptor, bins, arena]);
        own.set(cache + BINS - 1, &[this]);
    }
    // In the middle of the arena's figures: both rings begin with the first cache.
    let heads = [own.at(at[0]), own.at(at[0] + 2)];
    own.set(100, &heads);
    fake.root.set(LEAF + 8, &[arena]);
    (own, at)
}

/// Fills a bin with blocks.
fn fill(own: &mut Words, cache: usize, class: usize, blocks: &[u64]) {
    let list = cache + 512 + 32 * class;
    own.set(list, blocks);
    let (head, empty) = (own.at(list), own.at(list + blocks.len()));
    own.set(cache + BINS + 3 * class, &[head, 0, (empty & 0xffff) << 32]);
}

#[test]
fn blocks_in_caches_are_free() {
    let mut fake = Fake::sound(LAYOUTS[0]);
    let (mut own, [first, second]) = caches(&mut fake);
    fill(&mut own, first, 1, &[BLOCKS + 64, BLOCKS + 80]);
    fill(&mut own, second, 36, &[BLOCKS + 10 * PAGE]);
    let heap = fake.walk();
    let [a] = heap.stats().arenas[..] else { panic!("one arena") };
    assert_eq!((heap.links, heap.caches), (0, 2));
    assert_eq!((a.cached.blocks, a.cached.bytes), (3, 32 + 16384));
    assert_eq!(a.in_use.blocks, 253 + 12 + 3 - 3);
}

/// The data of two threads, as they lie in their thread-local storage: the link, then the slow part of the cache, then the
/// part with the bins.
#[test]
fn caches_are_found_by_the_threads_where_arenas_know_of_none() {
    let damages: [fn(&mut Words, [usize; 2]); 4] = [
        |_, _| (),
        // The data of a thread that has ended lead to themselves.
        |own, [a, _]| {
            let this = own.at(a);
            own.set(a + 5, &[this, this]);
            own.set(a + 25, &[0]);
        },
        |own, [a, b]| own.set(a + 5, &[own.at(b) + 8]),
        |own, [_, b]| own.set(b + 5, &[own.at(b)]),
    ];
    // A first link that leads to no thread is none, so that no thread is known.
    for (damage, (caches, links)) in damages.into_iter().zip([(2, 0), (0, 0), (0, 0), (2, 1)]) {
        let mut fake = Fake::sound(LAYOUTS[0]);
        let mut own = Words::new(1 << 17, ALIGN);
        let at = [1000, 40_000];
        for (k, this) in at.into_iter().enumerate() {
            let (slow, bins) = (own.at(this + 20), own.at(this + 70));
            let other = own.at(at[1 - k]);
            own.set(this + 5, &[other, other]);
            own.set(this + 20 + 5, &[8]);
            own.set(this + 20 + 21, &[bins]);
            own.set(this + 70, &[slow]);
        }
        // The second bin of each.
        for (k, this) in at.into_iter().enumerate() {
            own.set(this + 400, &[BLOCKS + 64 + 16 * k as u64]);
            let (head, empty) = (own.at(this + 400), own.at(this + 401));
            own.set(this + 71 + 3, &[head, 0, (empty & 0xffff) << 32]);
        }
        damage(&mut own, at);
        fake.root.set(LEAF + 8, &[own.at(at[0])]);
        let heap = fake.walk();
        assert_eq!((heap.caches, heap.links), (caches, links));
        let [a] = heap.stats().arenas[..] else { panic!("one arena") };
        assert_eq!(a.cached.blocks, caches);
    }
}

/// Up to 5.2 a cache begins with two words, and has the bins of small blocks and a link. What follows differs: in 5.0 the
/// arena, in 5.1 the descriptor with the arena behind it, in 5.2 another link and a flag in front of that.
#[test]
fn caches_of_older_layouts_have_bins_of_two_kinds() {
    for (layout, minor, between) in [(1, 2, 5), (1, 1, 2), (2, 0, 0)] {
        let mut fake = Fake::sound(LAYOUTS[layout]);
        let mut own = Words::new(1 << 17, ALIGN);
        let (arena, cache, list) = (own.at(0), 1024, 3072);
        let link = cache + 2 + 3 * 36;
        let [this, bins] = [own.at(cache), own.at(cache + 2)];
        let large = if minor == 0 {
            own.set(link, &[this, this, arena]);
            own.set(100, &[this]);
            // Behind the arena are four bytes, and one for each of the bins.
            link + 3 + 5
        } else {
            let descriptor = own.at(link + between);
            own.set(link + between, &[descriptor, descriptor, bins, own.at(2048), arena]);
            own.set(100, &[this, descriptor]);
            2048
        };
        // The stacks grow down from where the bins point to: blocks of 16 bytes, and a large one of the class behind.
        own.set(list - 2, &[BLOCKS + 64, BLOCKS + 80]);
        own.set(cache + 2 + 3, &[2 << 32, 5, own.at(list)]);
        own.set(list + 9, &[BLOCKS + 10 * PAGE]);
        own.set(large, &[1 << 32, 5, own.at(list + 10)]);
        // An empty bin in the midst of being asked.
        own.set(large + 3, &[u64::MAX, 0, own.at(list + 20)]);
        fake.root.set(LEAF + 8, &[arena]);
        let heap = fake.walk();
        let stats = heap.stats();
        let [a] = stats.arenas[..] else { panic!("one arena") };
        assert_eq!((stats.version, heap.links, heap.caches), (Some((5, minor)), 0, 1));
        assert_eq!((a.cached.blocks, a.cached.bytes), (3, 32 + 16384));
        // A descriptor elsewhere is none, so that no bin is taken for another.
        own.set(link + between + 2, &[bins + 8, own.at(2048), 0]);
        assert_eq!(fake.walk().caches, 0);
    }
}

/// From 5.3.1 on a large block has as many pages as it needs, and a cache says how many bins it has.
#[test]
fn large_blocks_of_any_number_of_pages_are_counted_by_their_extents() {
    let mut fake = Fake::sound(LAYOUTS[0]);
    // 18 pages and one to shift the block in, of the class of 20.
    let class = classes(4).iter().position(|size| *size == 20 * PAGE).expect("a class") as u64;
    let large = fake.bits(0, class, false, 0);
    let i = fake.add(40, 19, large, &[]);
    fake.extents.set(i + 1, &[BLOCKS + 40 * PAGE + 128]);
    // A page less would be of another class.
    let short = fake.add(80, 17, large, &[]);
    let (mut own, [first, _]) = caches(&mut fake);
    // Behind the bins that it has lie other things.
    fill(&mut own, first, 1, &[BLOCKS + 64]);
    fill(&mut own, first, 41, &[1, 2, 3]);
    let other = fake.walk();
    assert_eq!((other.links, other.lost.len()), (3, 1));
    assert_eq!(other.lost[0].start, BLOCKS + 80 * PAGE);
    fake.extents.set(short, &[fake.bits(3, 232, false, 0)]);
    let tcache = own.at(first + BINS - 1);
    own.set(first + 6, &[41]);
    own.set(first + 29, &[tcache]);
    let heap = fake.walk();
    assert_eq!((heap.links, heap.lost.len()), (0, 0));
    let block = heap.blocks().find(|p| p.address == BLOCKS + 40 * PAGE + 128);
    assert_eq!(block.map(|p| p.size), Some(18 * PAGE));
    let sizes = heap.stats().arenas[0].in_use.bytes;
    assert_eq!(sizes, 252 * 16 + 12 * 8 + 3 * 16384 + 18 * PAGE);
}

/// Free address space of 5.0 looks like blocks of 5.3's.
#[test]
fn a_leaf_without_blocks_does_not_tell_the_layout() {
    let mut fake = Fake::new(LAYOUTS[2], SHAPES[0]);
    let retained = fake.bits(3, 232, false, 0);
    (0..8).for_each(|k| {
        fake.add(100 + 16 * k, 8, retained, &[]);
    });
    let heap = fake.walk();
    assert!(!heap.is_known(), "{:?}", heap.stats());
    let large = fake.bits(0, 36, false, 0);
    fake.add(10, 5, large, &[]);
    let stats = fake.walk().stats();
    assert_eq!((stats.version, stats.arenas[0].retained), (Some((5, 0)), 64 * PAGE));
}

#[test]
fn caches_that_lie_are_counted() {
    let links = |damage: fn(&mut Words, [usize; 2])| {
        let mut fake = Fake::sound(LAYOUTS[0]);
        let (mut own, at) = caches(&mut fake);
        damage(&mut own, at);
        let heap = fake.walk();
        check_order(&heap);
        heap.links
    };
    assert_eq!(links(|_, _| ()), 0);
    // Of another size, within a block, free, twice, and of no heap.
    assert_eq!(links(|own, [a, _]| fill(own, a, 0, &[BLOCKS + 64])), 1);
    assert_eq!(links(|own, [a, _]| fill(own, a, 1, &[BLOCKS + 65, BLOCKS])), 2);
    assert_eq!(links(|own, all| all.into_iter().for_each(|c| fill(own, c, 1, &[BLOCKS + 64]))), 1);
    assert_eq!(links(|own, [a, _]| fill(own, a, 1, &[1, u64::MAX])), 2);
    // A list that can't be read.
    assert_eq!(links(|own, [a, _]| own.set(a + BINS, &[0x1000, 0, 0x1ff8 << 32])), 1);
    // A ring that leads to its midst, and one that leads nowhere.
    assert_eq!(
        links(|own, [_, b]| {
            let own_descriptor = own.at(b + 2);
            own.set(b + 2, &[own_descriptor]);
        }),
        1
    );
    assert_eq!(links(|own, [_, b]| own.set(b + 2, &[8])), 1);
}
