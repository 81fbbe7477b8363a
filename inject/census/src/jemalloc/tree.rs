//! jemalloc's map from pages to extents: a radix tree of two levels (`rtree_t`), whose root is a variable.
//!
//! No symbol is needed to find it. An entry of the root leads to a leaf, an entry of a leaf to an extent, and the extent
//! has the address that both entries stand for: so the root's place follows from any entry that leads to an extent.

use super::ADDRESS;
use crate::data::{each_word, is_own, segments};
use crate::view::{Memory as _, View, WORD};
use prof_os::maps::Map;
use std::ops::Range;

/// Binary logarithms of the pages that jemalloc may be built for.
const SHIFTS: [u32; 3] = [12, 14, 16];
/// Bits of a leaf's entry that are not of the extent's address.
const FLAGS: u64 = 63;
/// Alignment of what jemalloc allocates for itself.
pub(super) const ALIGN: u64 = 64;
/// Bytes of a piece of data, and the number of its words from which on it is no part of a root: its 512 entries of 1 GiB
/// each would stand for 256 GiB of memory and more. Programs have long arrays of pointers, and to look behind each takes
/// long.
const PAGE: u64 = 4096;
const FULL: usize = 256;
/// Entries of a leaf that are looked at to recognise it.
const LOOK: usize = 64;
/// Words of a leaf, most of which lead to the same extent as the one before, that are looked at.
const WORDS: usize = 1 << 12;
/// Number of them that may make no sense beside as many that do: the target may be changing them, or they begin in front
/// of the leaf.
const MISSES: usize = 3;
/// Width of the number of a size class in an entry.
const CLASS: u32 = 8;
/// Greatest length of a segment of data, and number of trees, that are looked at.
const SEGMENT: u64 = 1 << 30;
const MOST_TREES: usize = 8;

/// The map of one jemalloc; a process may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Address of the root's first entry.
    pub root: u64,
    /// Binary logarithm of jemalloc's pages.
    pub shift: u32,
    /// The segment of data in which the root lies.
    pub data: Range<u64>,
}

/// Returns the address of the extent that an entry of a leaf leads to.
fn extent_of(entry: u64) -> u64 {
    let address = entry & ((1 << ADDRESS) - 1);
    address & !FLAGS
}

/// Returns the number of entries of the root and of a leaf, as a binary logarithm.
fn entries(shift: u32) -> u32 {
    (ADDRESS - shift) / 2
}

/// Finds the trees of a process.
pub(crate) fn find(view: &mut View<'_>, maps: &[Map]) -> Vec<Tree> {
    // Pointers of another width have another tree.
    if WORD != 8 {
        return Vec::new();
    }
    let least = WORD << entries(SHIFTS[SHIFTS.len() - 1]);
    let large =
        segments(maps).into_iter().filter(|s| (least..SEGMENT).contains(&(s.end - s.start)));
    large.flat_map(|data| in_data(view, maps, &data)).take(MOST_TREES).collect()
}

/// Finds the trees whose roots lie in a segment of data.
pub(super) fn in_data(view: &mut View<'_>, maps: &[Map], data: &Range<u64>) -> Vec<Tree> {
    let mut found: Vec<Tree> = Vec::new();
    let mut page = Vec::new();
    let read = each_word(view, data.clone(), |view, at, leaf| {
        let begins = page.last().is_some_and(|(last, _)| last / PAGE != at / PAGE);
        if begins {
            look_at(view, maps, data, &page, &mut found);
            page.clear();
        }
        page.push((at, leaf));
        found.len() < MOST_TREES
    });
    if read {
        look_at(view, maps, data, &page, &mut found);
    }
    found
}

/// Adds the trees of whose roots words are entries, given the words of a page and where they stand.
fn look_at(
    view: &mut View<'_>,
    maps: &[Map],
    data: &Range<u64>,
    page: &[(u64, u64)],
    found: &mut Vec<Tree>,
) {
    if page.len() > FULL {
        return;
    }
    for (at, leaf) in page.iter().copied().filter(|(_, leaf)| leaf.is_multiple_of(ALIGN)) {
        let known = |t: &Tree| (t.root..t.end()).contains(&at);
        if found.len() < MOST_TREES && !found.iter().any(known) {
            let tree = |shift: &u32| of_entry(view, maps, data, at, leaf, *shift);
            found.extend(SHIFTS.iter().find_map(tree));
        }
    }
}

/// Returns the tree of which a word is an entry of the root, if it is one.
fn of_entry(
    view: &mut View<'_>,
    maps: &[Map],
    data: &Range<u64>,
    at: u64,
    leaf: u64,
    shift: u32,
) -> Option<Tree> {
    let bits = entries(shift);
    let len = WORD << bits;
    if data.end - data.start < len || !is_own(maps, &(leaf..leaf.checked_add(len)?)) {
        return None;
    }
    let (mut tried, mut fit, mut number) = (0, 0, None);
    let (mut seen, mut words) = (0, 0);
    each_word(view, leaf..leaf + len, |view, entry_at, entry| {
        words += 1;
        let extent = extent_of(entry);
        if extent == seen && words < WORDS {
            return true;
        }
        // Nearly all words that are no tree's end here.
        if tried >= LOOK || tried - fit > MISSES + fit || words >= WORDS {
            return false;
        }
        (tried, seen) = (tried + 1, extent);
        let is_entry = entry >> (ADDRESS + CLASS) == 0
            && is_own(maps, &(extent..extent.saturating_add(3 * WORD)));
        let Some([_, address, size]) = is_entry.then(|| view.words(extent)).flatten() else {
            return true;
        };
        // tcmalloc has a tree of the same form. Its spans have a number of pages and a link there, and memory is never longer
        // than its address is large.
        if size > address {
            return true;
        }
        let (page, index) = (address >> shift, (entry_at - leaf) / WORD);
        let of_root = page >> bits;
        let key = of_root << bits | index;
        let is_inside = (page..page.saturating_add(size >> shift)).contains(&key);
        if size >> shift != 0
            && is_inside
            && of_root >> bits == 0
            && *number.get_or_insert(of_root) == of_root
        {
            fit += 1;
        }
        true
    });
    let root = at.checked_sub(number? * WORD)?;
    let fits = fit * 2 > tried && root >= data.start && root.checked_add(len)? <= data.end;
    fits.then(|| Tree { root, shift, data: data.clone() })
}

impl Tree {
    /// Returns the address behind the root.
    fn end(&self) -> u64 {
        self.root + (WORD << entries(self.shift))
    }

    /// Returns the leaves: the address that each begins to stand for, and where it lies. Leaves that overlap others are
    /// none; their number is returned as well.
    pub(crate) fn leaves(
        &self,
        view: &mut View<'_>,
        maps: &[Map],
    ) -> (Vec<(u64, Range<u64>)>, u64) {
        let bits = entries(self.shift);
        let (mut all, mut bad) = (Vec::new(), 0);
        let read = each_word(view, self.root..self.end(), |_, at, leaf| {
            let key = ((at - self.root) / WORD) << (bits + self.shift);
            let place = leaf..leaf.saturating_add(WORD << bits);
            match leaf.is_multiple_of(ALIGN) && is_own(maps, &place) {
                true => all.push((key, place)),
                false => bad += 1,
            }
            true
        });
        bad += u64::from(!read);
        all.sort_by_key(|(_, place)| place.start);
        let mut end = 0;
        all.retain(|(_, place)| {
            let fits = place.start >= end;
            bad += u64::from(!fits);
            end = end.max(place.end);
            fits
        });
        all.sort_by_key(|(key, _)| *key);
        (all, bad)
    }

    /// Returns the extents that a leaf leads to: where the data of each lies, and the page that it is found by. Of
    /// neighbours that lead to the same one, the first counts.
    pub(crate) fn entries_of(
        &self,
        view: &mut View<'_>,
        key: u64,
        leaf: &Range<u64>,
    ) -> (Vec<(u64, u64)>, bool) {
        let (mut all, mut last) = (Vec::new(), (0, 0));
        let read = each_word(view, leaf.clone(), |_, at, entry| {
            let extent = extent_of(entry);
            let page = key + (((at - leaf.start) / WORD) << self.shift);
            if extent != 0 && last != (extent, page - (1 << self.shift).min(page)) {
                all.push((extent, page));
            }
            last = (extent, page);
            true
        });
        all.sort_unstable();
        (all, read)
    }
}
