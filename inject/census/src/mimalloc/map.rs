//! The pages of mimalloc 3: a map of two levels (`_mi_page_map` in src/page-map.c) leads from each slice of 64 KiB to the
//! description of the page that it belongs to (`mi_page_t` in include/mimalloc/types.h).
//!
//! No symbol is needed to find the map: a variable leads to its first level, whose first entry leads to what lies right
//! behind that level. Pages say where their places begin, which must be where the map has them, and name a heap, whose
//! queues tell the version.

use super::context::{Queues, has_queues};
use super::form::Links;
use super::page::{Described, Page, read_page};
use super::segment::{ADDRESS, Fields, PageHead, SLICE};
use crate::data::{each_word, is_own, segments};
use crate::view::{Memory as _, View, WORD};
use prof_os::maps::Map;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// Bytes of a part of the map, which has an entry for each of 8,192 slices.
const PART: u64 = SLICES * WORD;
const SLICES: u64 = 1 << 13;
/// Bytes that the first level may have: a power of two, by the width of addresses.
const LEVEL: Range<u64> = 4096..(4 << 20) + 1;
/// Alignment of the map.
const ALIGN: u64 = 4096;
/// Words of a description that are read, and the flag of one of whose page a block begins later than its place.
const DESCRIPTION: usize = 9;
const SHIFTED: u64 = 2;
/// Threads up to this number are none: the page's has ended.
const NO_THREAD: u64 = 4;
const FLAGS: u64 = 3;
/// Greatest number of pages, of heaps that are looked at, and of maps.
const MOST_PAGES: usize = 1 << 24;
const MOST_HEAPS: usize = 64;
const MOST: usize = 4;
/// Greatest length of a segment of data that is searched, and number of words whose memory is looked at.
const DATA: u64 = 1 << 30;
const MOST_WORDS: u32 = 1 << 16;
/// Attempts to read a page that makes no sense: the target may be about to change it.
const TRIES: usize = 4;

/// The map of one mimalloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageMap {
    /// Address of the first level, and its bytes.
    root: u64,
    len: u64,
    /// `None`: no heap is laid out in a way that is known.
    pub version: Option<(u32, u32)>,
}

/// The versions that are known: the word of a description that leads to the heap, and where that has its queues.
const VERSIONS: [((u32, u32), usize, Queues); 2] =
    [((3, 1), 8, Queues { at: 1264, words: 4 }), ((3, 3), 7, Queues { at: 1304, words: 4 })];

/// Slices in a row that belong to a page, and where that is described.
type Run = (Range<u64>, u64);

/// The pages that a walk has found.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Each with a bit for each place, in the order of their addresses.
    pub all: Vec<(Page, Vec<u64>)>,
    /// Memory of the pages.
    pub areas: Vec<Range<u64>>,
    /// Number of pages whose threads have ended.
    pub abandoned: u64,
    pub lost: Vec<Range<u64>>,
    pub links: u64,
}

/// Finds the maps of a process, mostly none or one.
pub(super) fn find(view: &mut View<'_>, maps: &[Map]) -> Vec<PageMap> {
    let (mut found, mut seen): (Vec<PageMap>, _) = (Vec::new(), HashSet::new());
    let mut left = MOST_WORDS;
    for data in segments(maps).into_iter().filter(|s| s.end - s.start < DATA) {
        each_word(view, data, |view, _, root| {
            let may_be = root.is_multiple_of(ALIGN)
                && root >> ADDRESS == 0
                && is_own(maps, &(root..root + WORD))
                && seen.insert(root);
            if may_be {
                left -= 1;
                found.extend(PageMap::at(view, maps, root));
            }
            found.len() < MOST && left > 0
        });
    }
    found
}

impl PageMap {
    /// Returns the map whose first level lies at an address, if one does.
    fn at(view: &mut View<'_>, maps: &[Map], root: u64) -> Option<Self> {
        let [first] = view.words(root)?;
        let len = first.checked_sub(root).filter(|n| n.is_power_of_two() && LEVEL.contains(n))?;
        let mut map = Self { root, len, version: None };
        if !is_own(maps, &(root..first.checked_add(PART)?)) {
            return None;
        }
        let (runs, _) = map.runs(view, maps);
        let (mut tried, mut fit, mut heaps) = (0, 0, BTreeSet::new());
        for (area, at) in runs {
            tried += 1;
            let Some(words) = view.words(at) else { continue };
            if area_of(&head(&words), &area).is_none() {
                continue;
            }
            fit += 1;
            for (version, word, queues) in VERSIONS {
                if heaps.len() < MOST_HEAPS && words[word] != 0 {
                    heaps.insert((words[word], version, queues));
                }
            }
        }
        let is_map = fit > 0 && fit * 2 > tried;
        let of_heap = |(heap, version, queues): &(u64, (u32, u32), Queues)| {
            has_queues(view, *heap, *queues).then_some(*version)
        };
        map.version = heaps.iter().find_map(of_heap);
        is_map.then_some(map)
    }

    /// Returns the runs of slices that the map has, in the order of their addresses, and the number of entries that make
    /// no sense.
    fn runs(&self, view: &mut View<'_>, maps: &[Map]) -> (Vec<Run>, u64) {
        let (mut all, mut bad): (Vec<Run>, u64) = (Vec::new(), 0);
        let mut parts = Vec::new();
        let mut read = each_word(view, self.root..self.root + self.len, |_, at, part| {
            let key = (at - self.root) / WORD * SLICES;
            let is_part = part.is_multiple_of(ALIGN)
                && part.checked_add(PART).is_some_and(|end| is_own(maps, &(part..end)));
            match is_part {
                true => parts.push((part, key)),
                false => bad += 1,
            }
            true
        });
        // Parts that overlap others would have all their pages several times.
        parts.sort_unstable();
        let mut end = 0;
        parts.retain(|(part, _)| {
            let fits = *part >= end;
            bad += u64::from(!fits);
            end = end.max(part + PART);
            fits
        });
        parts.sort_unstable_by_key(|(_, key)| *key);
        for (part, key) in parts {
            read &= each_word(view, part..part + PART, |_, at, page| {
                let start = (key + (at - part) / WORD) * SLICE;
                match all.last_mut() {
                    Some((area, of)) if *of == page && area.end == start => area.end += SLICE,
                    _ => all.push((start..start + SLICE, page)),
                }
                all.len() < MOST_PAGES
            });
            read &= all.len() < MOST_PAGES;
        }
        (all, bad + u64::from(!read))
    }

    /// Reads all pages.
    pub(super) fn read(&self, view: &mut View<'_>, maps: &[Map]) -> Pages {
        let (runs, links) = self.runs(view, maps);
        let mut pages = Pages { links, ..Pages::default() };
        let mut end = 0;
        for (area, at) in runs {
            let found = (0..TRIES).find_map(|i| {
                let found = page(view, maps, &area, at);
                let is_last = i + 1 == TRIES;
                if found.as_ref().is_some_and(|found| found.agrees || is_last) {
                    return found;
                }
                view.forget();
                None
            });
            let Some(found) = found.filter(|found| found.area.start >= end) else {
                pages.lost.push(area);
                continue;
            };
            end = found.area.end;
            pages.abandoned += u64::from(found.is_abandoned);
            pages.links += u64::from(!found.agrees);
            pages.all.push((found.page, found.used));
            pages.areas.push(found.area);
        }
        pages
    }
}

/// Reads the words of a page's description.
fn head(words: &[u64; DESCRIPTION]) -> PageHead {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    let fields = Fields(&bytes);
    PageHead {
        is_shifted: words[0] & SHIFTED != 0,
        free: words[1],
        used: fields.half(16),
        capacity: fields.half(18),
        reserved: fields.half(20),
        local: words[3],
        // The low bits say whether it has a thread.
        others: words[4] & !FLAGS,
        size: words[5],
        start: words[6],
        ..PageHead::default()
    }
}

/// Returns the memory of a page that the map has at `area`; `None` if its description makes no sense.
fn area_of(page: &PageHead, area: &Range<u64>) -> Option<Range<u64>> {
    let end = page.start.checked_add(page.reserved.checked_mul(page.size)?)?;
    // The map has the slices that the places would need if nothing stood in front of them, and of a single large block only
    // the beginning.
    let has_room = end - page.start <= area.end - area.start;
    let fits = area.contains(&page.start)
        && page.size >= WORD
        && page.used <= page.capacity
        && page.capacity <= page.reserved
        && page.reserved > 0
        && (has_room || page.reserved == 1)
        && end >> ADDRESS == 0;
    fits.then(|| area.start..area.end.max(end.next_multiple_of(SLICE)))
}

/// A page, and what its description says.
struct Read {
    page: Page,
    /// A bit for each place that holds a block.
    used: Vec<u64>,
    /// Memory of the page.
    area: Range<u64>,
    /// Whether its thread has ended.
    is_abandoned: bool,
    /// Whether its numbers agree.
    agrees: bool,
}

/// Reads a page; `None` if it makes no sense.
fn page(view: &mut View<'_>, maps: &[Map], area: &Range<u64>, at: u64) -> Option<Read> {
    let words = view.words(at)?;
    let head = head(&words);
    let area = area_of(&head, area)?;
    let is_abandoned = words[0] & !FLAGS <= NO_THREAD;
    let described = Described {
        head: &head,
        places: (head.start, head.size),
        links: Links::Plain,
        about: at,
        is_huge: head.reserved == 1,
        alignment: None,
    };
    let (page, used, agrees) = read_page(view, maps, &described)?;
    Some(Read { page, used, area, is_abandoned, agrees })
}

#[cfg(all(test, target_pointer_width = "64", target_endian = "little"))]
mod tests {
    use super::*;
    use crate::fake::Words;
    use prof_os::Pid;
    use prof_os::maps;
    use prof_os::memory::Reader;
    use std::time::{Duration, Instant};

    /// Words of the first level for addresses of 47 bits, and in front of a part of the map that stands for some GiB.
    const LEVEL: usize = 1 << 18;
    const SLICE_WORDS: usize = (SLICE / WORD) as usize;
    const PART_WORDS: usize = (PART / WORD) as usize;

    /// Addresses behind the first page, and sizes.
    type Blocks = Vec<(u64, u64)>;

    /// A map with a page of places of 64 bytes in one slice, and a large block in the third.
    struct Fake {
        map: Words,
        pages: Words,
        descriptions: Words,
        heap: Words,
        /// The first entry of the map for the pages, in a part of its own.
        entry: usize,
    }

    impl Fake {
        fn new(version: usize) -> Self {
            let mut fake = Self {
                // Pages may lie on both sides of the end of a part.
                map: Words::new(LEVEL + 3 * PART_WORDS, SLICE as usize),
                pages: Words::new(1 << 18, SLICE as usize),
                descriptions: Words::new(1 << 17, SLICE as usize),
                heap: Words::new(1 << 17, SLICE as usize),
                entry: 0,
            };
            let slice = (fake.pages.at(0) / SLICE) as usize;
            let (number, index) = (slice / PART_WORDS, slice % PART_WORDS);
            fake.entry = LEVEL + PART_WORDS + index;
            let parts = [0, 1, 2].map(|n| fake.map.at(LEVEL + n * PART_WORDS));
            fake.map.set(0, &parts[..1]);
            fake.map.set(number, &parts[1..]);
            let (_, word, queues) = VERSIONS[version];
            let first = (queues.at / WORD) as usize;
            (0..75).for_each(|i| fake.heap.set(first + 4 * i + 3, &[8 * i.max(1) as u64]));
            let heap = fake.heap.at(0);
            // 1,020 places, of which 10 were used.
            let of = 1020 << 32 | 10 << 16;
            fake.page(0, 0, [77, 0, of | 8, 0, 1, 64, fake.pages.at(32)]);
            fake.page(
                1,
                2,
                [4, 0, 1 << 32 | 1 << 16 | 1, 0, 0, 200_000, fake.pages.at(2 * SLICE_WORDS)],
            );
            fake.descriptions.set(word, &[heap]);
            fake.link(1, &[3, 4]);
            fake
        }

        /// Describes a page, and has the map lead to it.
        fn page(&mut self, n: usize, slice: usize, words: [u64; 7]) {
            self.descriptions.set(16 * n, &words);
            let at = self.descriptions.at(16 * n);
            self.map.set(self.entry + slice, &[at]);
        }

        /// Links places of the first page by the list whose first block a word of its description has.
        fn link(&mut self, word: usize, places: &[usize]) {
            let mut next = 0;
            for n in places.iter().rev() {
                self.pages.set(32 + 8 * n, &[next]);
                next = self.pages.at(32 + 8 * n);
            }
            self.descriptions.set(word, &[next]);
        }

        /// Returns the map that is found, and what it leads to: blocks, lost places, and links that make no sense.
        fn walk(&self) -> Option<(PageMap, Blocks, [u64; 2])> {
            let reader = Reader::open(Pid::this()).expect("this process");
            let mut view = View::new(&reader, Instant::now() + Duration::from_secs(60));
            let maps = maps::of(Pid::this()).expect("its mappings");
            let map = PageMap::at(&mut view, &maps, self.map.at(0))?;
            let pages = map.read(&mut view, &maps);
            let blocks = pages.all.iter().flat_map(|(page, used)| {
                let used = (0..page.places()).filter(|n| crate::bits::has(used, *n));
                used.map(|n| page.block(n)).map(|b| (b.address - self.pages.at(0), b.size))
            });
            Some((map, blocks.collect(), [pages.lost.len() as u64, pages.links]))
        }
    }

    #[test]
    fn the_map_leads_to_all_pages() {
        for (i, (version, ..)) in VERSIONS.into_iter().enumerate() {
            let (map, blocks, lost) = Fake::new(i).walk().expect("a map");
            let small = [0, 1, 2, 5, 6, 7, 8, 9].map(|n| (256 + 64 * n, 64));
            let all = [&small[..], &[(2 * SLICE, 200_000)]].concat();
            assert_eq!((map.version, blocks, lost), (Some(version), all, [0, 0]));
        }
        // A heap with other queues is of a version that is not known.
        let mut fake = Fake::new(0);
        fake.heap.set(1264 / 8 + 7, &[9]);
        assert_eq!(fake.walk().expect("a map").0.version, None);
        // The first part of the map must lie right behind the first level.
        let mut none = Fake::new(0);
        let other = none.map.at(LEVEL + 1);
        none.map.set(0, &[other]);
        assert!(none.walk().is_none());
    }

    #[test]
    fn pages_that_make_no_sense_are_counted() {
        let with = |change: &dyn Fn(&mut Fake)| {
            let mut fake = Fake::new(1);
            change(&mut fake);
            fake.walk().map(|(_, blocks, lost)| (blocks.len(), lost))
        };
        assert_eq!(with(&|_| ()), Some((9, [0, 0])));
        // Lists that lead nowhere, and numbers that don't agree.
        assert_eq!(with(&|f| f.link(1, &[3, 11])), Some((10, [0, 1])));
        assert_eq!(with(&|f| f.link(3, &[5])), Some((8, [0, 1])));
        // Places that end behind the last slice that the map has, by what stands in front of them.
        let full = |f: &mut Fake| f.descriptions.set(2, &[1024 << 32 | 10 << 16 | 8]);
        assert_eq!(with(&full), Some((9, [0, 0])));
        // An entry that leads nowhere, and one of a page that lies elsewhere.
        assert_eq!(with(&|f| f.map.set(f.entry + 1, &[8])), Some((9, [1, 0])));
        let first = |f: &mut Fake| f.map.set(f.entry + 5, &[f.descriptions.at(0)]);
        assert_eq!(with(&first), Some((9, [1, 0])));
        // A part that stands for two places.
        let twice = |f: &mut Fake| {
            let behind = f.pages.at(0) / SLICE / SLICES + 2;
            f.map.set(behind as usize, &[f.map.at(LEVEL + PART_WORDS)]);
        };
        assert_eq!(with(&twice).map(|(_, [_, links])| links), Some(1));
        // Places that are more than there is room for.
        let long = |f: &mut Fake| f.descriptions.set(5, &[640]);
        assert_eq!(with(&long).map(|(blocks, _)| blocks), None, "half of the pages are no map");
    }
}
