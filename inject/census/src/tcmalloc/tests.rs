//! Heaps that are made up in this process: sound ones, and such as no allocator makes.

use super::*;
use crate::view::Memory as _;
use prof_os::Pid;
use prof_os::maps;
use prof_os::memory::Reader;
use std::time::{Duration, Instant};

const PAGES: u64 = 64;
const BYTES: u64 = 1 << PAGE;
/// Words of a central list, of a cache, and of a list in it.
const CENTRAL: usize = 152;
const CACHE: usize = 520;
const LIST: usize = 4;
/// Words of a cache behind which those of its neighbours stand.
const LINKS: usize = 518;

/// The variables, spans and pages of a tcmalloc with three classes: of 8 bytes, of 16, and of 256 KiB.
struct Fake {
    root: Vec<u64>,
    /// With room for its alignment.
    leaf: Vec<u64>,
    spans: Vec<[u64; 6]>,
    central: Vec<u64>,
    caches: Vec<u64>,
    /// Where the address of a cache stands.
    place: Box<u64>,
    memory: Vec<u64>,
    first: u64,
}

fn address<T>(of: &[T]) -> u64 {
    of.as_ptr().addr() as u64
}

impl Fake {
    fn new() -> Self {
        let memory = vec![0; ((PAGES + 1) * BYTES / WORD) as usize];
        let first = address(&memory).next_multiple_of(BYTES) >> PAGE;
        let mut fake = Self {
            root: vec![0; 1 << 17],
            leaf: vec![0; (1 << LEAF) + 512],
            spans: Vec::with_capacity(64),
            central: vec![0; 4 * CENTRAL],
            caches: vec![0; 3 * CACHE],
            place: Box::new(0),
            memory,
            first,
        };
        fake.root[(first >> LEAF) as usize] = fake.leaf();
        (0..4).for_each(|i| fake.central[i * CENTRAL + 1] = i as u64);
        for cache in 0..3 {
            let sizes = fake.context().sizes;
            for (i, size) in sizes.into_iter().enumerate() {
                fake.caches[cache * CACHE + i * LIST + 3] = size;
            }
        }
        *fake.place = address(&fake.caches);
        fake
    }

    fn context(&self) -> Context {
        Context {
            sizes: vec![0, 8, 16, 256 << 10],
            pages: vec![0, 1, 1, 32],
            root: Some(address(&self.root)),
            central: Some(address(&self.central)),
            caches: vec![std::ptr::from_ref(&*self.place).addr() as u64],
        }
    }

    /// Makes a span, given by its first page, its length, its class, how many blocks are taken, and what it is for.
    fn span(&mut self, page: u64, length: u64, class: u64, taken: u64, state: u64) {
        let bits = taken | class << 16 | state << 24;
        self.spans.push([self.first + page, length, 0, 0, 0, bits]);
        let at = std::ptr::from_ref(self.spans.last().expect("one")).addr() as u64;
        for page in [page, page + length - 1] {
            self.enter(page, at);
        }
    }

    /// Returns the address of the leaf.
    fn leaf(&self) -> u64 {
        address(&self.leaf).next_multiple_of(4096)
    }

    /// Makes an entry of the leaf, for a page.
    fn enter(&mut self, page: u64, entry: u64) {
        let skip = (self.leaf() - address(&self.leaf)) / WORD;
        let index = skip + ((self.first + page) & ((1 << LEAF) - 1));
        self.leaf[index as usize] = entry;
    }

    fn at(&self, offset: u64) -> u64 {
        (self.first << PAGE) + offset
    }

    /// Links places, given by offsets, and returns the first address.
    fn link(&mut self, places: &[u64]) -> u64 {
        // The first link of a place that comes twice stays.
        for (i, offset) in places.iter().enumerate().rev() {
            let next = places.get(i + 1).map_or(0, |next| self.at(*next));
            let word = (self.at(*offset) - address(&self.memory)) / WORD;
            self.memory[word as usize] = next;
        }
        places.first().map_or(0, |offset| self.at(*offset))
    }

    fn list(&mut self, span: usize, places: &[u64]) {
        self.spans[span][4] = self.link(places);
    }

    /// Puts blocks into a central list, as a batch.
    fn batch(&mut self, class: usize, places: &[u64]) {
        let list = class * CENTRAL;
        let n = self.central[list + 144] as usize;
        self.central[list + 16 + 2 * n] = self.link(places);
        self.central[list + 17 + 2 * n] = self.at(places[places.len() - 1]);
        self.central[list + 144] += 1;
    }

    fn cache(&mut self, cache: usize, class: usize, places: &[u64]) {
        let at = cache * CACHE + class * LIST;
        self.caches[at] = self.link(places);
        self.caches[at + 1] = places.len() as u64;
    }

    /// Makes a list of all caches.
    fn chain(&mut self) {
        for i in 0..3 {
            let at = |i: usize| address(&self.caches) + (i * CACHE) as u64 * WORD;
            let (next, before) =
                (if i < 2 { at(i + 1) } else { 0 }, if i > 0 { at(i - 1) } else { 0 });
            self.caches[i * CACHE + LINKS] = next;
            self.caches[i * CACHE + LINKS + 1] = before;
        }
    }

    fn read<T>(act: impl FnOnce(&mut View<'_>, &[Map]) -> T) -> T {
        let pid = Pid::from_raw(std::process::id().cast_signed());
        let reader = Reader::open(pid).expect("memory");
        let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
        let maps = maps::of(pid).expect("maps");
        act(&mut view, &maps)
    }

    fn walk(&self) -> Heap {
        Self::read(|view, maps| Heap::walk(view, maps, &self.context()))
    }

    fn found(&self) -> Vec<(u64, u64)> {
        self.walk().blocks().map(|b| (b.address - self.at(0), b.size)).collect()
    }

    fn lost(&self) -> (usize, u64) {
        let heap = self.walk();
        (heap.lost.len(), heap.links)
    }
}

#[test]
fn what_is_on_no_list_is_a_block() {
    let mut fake = Fake::new();
    // 512 places, of which 507 are taken.
    fake.span(0, 1, 2, 507, 0);
    let place = |n: u64| 16 * n;
    fake.list(0, &[2, 1, 500, 511, 3].map(place));
    fake.batch(2, &[10, 11, 12].map(place));
    fake.batch(2, &[13, 14, 15].map(place));
    fake.cache(0, 2, &[20, 21].map(place));
    fake.cache(2, 2, &[22].map(place));
    fake.chain();
    // A large block with stale entries inside of its span, and free spans.
    fake.span(1, 3, 0, 1, 0);
    fake.enter(2, 77);
    fake.span(4, 2, 0, 0, 1);
    fake.span(6, 5, 0, 0, 2);
    fake.span(11, 32, 3, 1, 0);
    let free = [2, 1, 500, 511, 3, 10, 11, 12, 13, 14, 15, 20, 21, 22];
    let mut expected: Vec<(u64, u64)> =
        (0..512).filter(|n| !free.contains(n)).map(|n| (16 * n, 16)).collect();
    expected.extend([(BYTES, 3 * BYTES), (11 * BYTES, 256 << 10)]);
    assert_eq!(fake.found(), expected);
    let heap = fake.walk();
    assert_eq!((&heap.lost, heap.links), (&vec![], 0));
    let s = heap.stats();
    let blocks = [s.in_use, s.large, s.central, s.transfer, s.cached].map(|sum| sum.blocks);
    assert_eq!(blocks, [expected.len() as u64, 1, 5, 6, 3]);
    assert_eq!((s.caches, s.free, s.returned), (3, 2 * BYTES, 5 * BYTES));
    assert!(heap.ranges().eq(std::iter::once(fake.at(0)..fake.at(43 * BYTES))));
}

#[test]
fn what_makes_no_sense_is_counted_and_ends() {
    let with = |change: &dyn Fn(&mut Fake)| {
        let mut fake = Fake::new();
        fake.span(0, 1, 2, 512, 0);
        fake.span(1, 1, 0, 1, 0);
        fake.chain();
        change(&mut fake);
        (fake.lost(), fake.found().len())
    };
    assert_eq!(with(&|_| ()), ((0, 0), 513));
    // Lists that lead back, beside a place, and elsewhere; more blocks than said; one that is on two lists.
    let shorter = |f: &mut Fake, list: &[u64]| {
        f.spans[0][5] -= 2;
        f.list(0, list);
    };
    assert_eq!(with(&|f| shorter(f, &[16, 32])), ((0, 0), 511));
    assert_eq!(with(&|f| shorter(f, &[16, 32, 16])).0, (0, 1));
    assert_eq!(with(&|f| shorter(f, &[16, 40])).0, (0, 1));
    assert_eq!(with(&|f| shorter(f, &[16, BYTES])).0, (0, 1));
    assert_eq!(with(&|f| shorter(f, &[16])).0, (0, 1));
    assert_eq!(with(&|f| f.batch(2, &[16, 32, 16])).0, (0, 1));
    assert_eq!(with(&|f| f.central[2 * CENTRAL + 144] = 65).0, (0, 1));
    assert_eq!(with(&|f| f.cache(1, 2, &[16, 16])).0, (0, 1));
    assert_eq!(with(&|f| f.cache(1, 1, &[16])).0, (0, 1), "a block of another class");
    assert_eq!(with(&|f| f.caches[CACHE + 2 * LIST + 1] = 3).0, (0, 1));
    // Spans of an unknown class, of a length that the class has not, of the whole address space, and of no length.
    assert_eq!(with(&|f| f.spans[0][5] |= 9 << 16), ((1, 0), 1));
    assert_eq!(with(&|f| f.spans[0][1] = 2), ((1, 0), 1));
    assert_eq!(with(&|f| f.spans[1][1] = 1 << 34).0, (1, 0));
    assert_eq!(with(&|f| f.spans[1][1] = 0).0, (1, 0));
    // Entries that lead nowhere are one place if they adjoin, and a leaf counts once.
    assert_eq!(with(&|f| f.spans.iter_mut().for_each(|s| s[0] += 7)), ((1, 0), 0));
    let twice = |f: &mut Fake| {
        let leaf = f.leaf();
        f.root[7] = leaf;
        f.root[8] = 12345;
    };
    assert_eq!(with(&twice).0.1, 2);
    // A cache that leads back to the first one.
    let ring = |f: &mut Fake| f.caches[2 * CACHE + LINKS] = address(&f.caches);
    assert_eq!(with(&ring).0, (0, 1));
    let alone = |f: &mut Fake| f.caches[CACHE + LINKS + 1] = 0;
    assert_eq!(with(&alone).0, (0, 0), "what nothing leads back from is no list");
}

#[test]
fn variables_are_found_by_their_contents() {
    let mut fake = Fake::new();
    fake.span(0, 1, 0, 1, 0);
    fake.span(1, 1, 2, 512, 0);
    // The sizes of classes from the second one on, their pages behind 128 of them, and their number.
    let mut data = vec![0u64; 64 + 129 + 8];
    data[8] = 16 << 32 | 8;
    data[9] = 256 << 10;
    let pages = 8 + 64;
    data.resize(pages + 129 + 4 * CENTRAL, 0);
    data[pages + 1..pages + 4].copy_from_slice(&[1, 1, 32]);
    data[pages + 128] = 4;
    let central = pages + 129;
    (0..4).for_each(|i| data[central + i * CENTRAL + 1] = i as u64);
    let place = data.len();
    data.push(address(&fake.caches));
    // The root is a part of the data, too.
    let root = data.len();
    data.extend(&fake.root);
    let at = |i: usize| address(&data) + i as u64 * WORD;
    let range = address(&data)..at(data.len());
    let found = Fake::read(|view, maps| context::in_data(view, maps, &range)).expect("variables");
    let expected = Context {
        root: Some(at(root)),
        central: Some(at(central)),
        caches: vec![at(place)],
        ..fake.context()
    };
    assert_eq!(found, expected);
    let heap = Fake::read(|view, maps| Heap::walk(view, maps, &found));
    assert_eq!((heap.is_known(), heap.has_caches(), heap.blocks().count()), (true, true, 513));
    // Sizes that don't ascend, and another number of classes, are no table.
    for (word, value) in [(9, 16), (pages + 128, 5), (pages + 2, 0)] {
        let was = std::mem::replace(&mut data[word], value);
        let range = address(&data)..address(&data) + (data.len() as u64) * WORD;
        assert_eq!(Fake::read(|view, maps| context::in_data(view, maps, &range)), None);
        data[word] = was;
    }
    // This process has none.
    let maps = crate::data::maps_of_files_alone();
    assert_eq!(Fake::read(|view, _| find(view, &maps)), []);
    assert!(Fake::read(|view, _| view.words::<1>(0)).is_none());
}
