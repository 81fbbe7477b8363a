//! jemalloc's map from pages to extents: a radix tree of two levels (`rtree_t`), or of three if it was built for addresses of
//! 57 bits, as on a machine that has such. Its root is a variable.
//!
//! No symbol is needed to find it. An entry of the root leads to a leaf or to a node that leads to some, an entry of a leaf
//! to an extent, and the extent has the address that these entries stand for: so the root's place follows from any entry that
//! leads to an extent.

use super::ADDRESS;
use crate::data::{each_word, is_own, segments};
use crate::view::{Memory as _, View, WORD};
use prof_os::maps::Map;
use std::ops::Range;

/// The trees that jemalloc may be built with: for pages of 4, 16 and 64 KiB and addresses of 48 bits, and of 57.
pub(super) const SHAPES: [Shape; 4] = [
    Shape { shift: 12, bits: 18, levels: 2 },
    Shape { shift: 14, bits: 17, levels: 2 },
    Shape { shift: 16, bits: 16, levels: 2 },
    Shape { shift: 12, bits: 15, levels: 3 },
];
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
/// Entries of a node whose leaves are looked at to recognise it.
const NODE: usize = 4;
/// Least length of a segment of data that may have a root, greatest length of one that is searched, and number of trees, that are looked at.
const LEAST: u64 = WORD << 15;
const SEGMENT: u64 = 1 << 30;
const MOST_TREES: usize = 8;

/// The map of one jemalloc; a process may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Address of the root's first entry.
    pub root: u64,
    pub shape: Shape,
    /// The segment of data in which the root lies.
    pub data: Range<u64>,
}

/// The form of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Binary logarithm of jemalloc's pages.
    pub shift: u32,
    /// Binary logarithm of the number of entries of the root, and of each node and leaf.
    pub bits: u32,
    /// Number of levels.
    pub levels: u32,
}

impl Shape {
    /// Returns the bytes of the root and of a node.
    fn len(self) -> u64 {
        WORD << self.bits
    }

    /// Returns the bytes of an entry of a leaf. With wide addresses, what else it says does not fit into the same word.
    fn entry(self) -> u64 {
        if self.levels > 2 { 2 * WORD } else { WORD }
    }

    /// Returns the bytes of a leaf.
    fn leaf(self) -> u64 {
        self.entry() << self.bits
    }
}

/// Returns the address of the extent that an entry of a leaf leads to.
fn extent_of(entry: u64) -> u64 {
    let address = entry & ((1 << ADDRESS) - 1);
    address & !FLAGS
}

/// Finds the trees of a process.
pub(crate) fn find(view: &mut View<'_>, maps: &[Map]) -> Vec<Tree> {
    // Pointers of another width have another tree.
    if WORD != 8 {
        return Vec::new();
    }
    let large =
        segments(maps).into_iter().filter(|s| (LEAST..SEGMENT).contains(&(s.end - s.start)));
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
            let tree = |shape: Shape| of_entry(view, maps, data, (at, leaf), shape);
            found.extend(SHAPES.into_iter().find_map(tree));
        }
    }
}

/// Returns the tree of which a word is an entry of the root, if it is one.
fn of_entry(
    view: &mut View<'_>,
    maps: &[Map],
    data: &Range<u64>,
    (at, below): (u64, u64),
    shape: Shape,
) -> Option<Tree> {
    let len = shape.len();
    if data.end - data.start < len {
        return None;
    }
    let number = match shape.levels {
        2 => number_of(view, maps, below, shape)?,
        _ => {
            let node = below..below.checked_add(len)?;
            if !is_own(maps, &node) {
                return None;
            }
            let (mut tried, mut number) = (0, None);
            each_word(view, node, |view, at, leaf| {
                tried += 1;
                let found = number_of(view, maps, leaf, shape);
                let index = (at - below) / WORD;
                number = found.filter(|n| n % (1 << shape.bits) == index).map(|n| n >> shape.bits);
                number.is_none() && tried < NODE
            });
            number?
        }
    };
    let root = at.checked_sub(number.checked_mul(WORD)?)?;
    let fits = number >> shape.bits == 0
        && root >= data.start
        && root.checked_add(len).is_some_and(|end| end <= data.end);
    fits.then(|| Tree { root, shape, data: data.clone() })
}

/// Returns the number of a leaf, counted from address 0 on, if one lies at an address.
fn number_of(view: &mut View<'_>, maps: &[Map], leaf: u64, shape: Shape) -> Option<u64> {
    let end = leaf.checked_add(shape.leaf())?;
    if !leaf.is_multiple_of(ALIGN) || !is_own(maps, &(leaf..end)) {
        return None;
    }
    let (mut tried, mut fit, mut number) = (0, 0, None);
    let (mut seen, mut words) = (0, 0);
    each_word(view, leaf..end, |view, entry_at, entry| {
        words += 1;
        let extent = extent_of(entry);
        let is_other = !(entry_at - leaf).is_multiple_of(shape.entry());
        if (is_other || extent == seen) && words < WORDS {
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
        let (page, index) = (address >> shape.shift, (entry_at - leaf) / shape.entry());
        let of_leaf = page >> shape.bits;
        let key = of_leaf << shape.bits | index;
        let is_inside = (page..page.saturating_add(size >> shape.shift)).contains(&key);
        if size >> shape.shift != 0
            && is_inside
            && address >> ADDRESS == 0
            && *number.get_or_insert(of_leaf) == of_leaf
        {
            fit += 1;
        }
        true
    });
    number.filter(|_| fit * 2 > tried)
}

impl Tree {
    /// Returns the address behind the root.
    fn end(&self) -> u64 {
        self.root + self.shape.len()
    }

    /// Returns the leaves: the address that each begins to stand for, and where it lies. Nodes and leaves that overlap others
    /// are none; their number is returned as well.
    pub(crate) fn leaves(
        &self,
        view: &mut View<'_>,
        maps: &[Map],
    ) -> (Vec<(u64, Range<u64>)>, u64) {
        let shape = self.shape;
        let (mut above, mut bad) = (vec![(0, self.root..self.end())], 0);
        for level in 1..shape.levels {
            let len = if level + 1 == shape.levels { shape.leaf() } else { shape.len() };
            let mut below = Vec::new();
            for (first, node) in above {
                let read = each_word(view, node.clone(), |_, at, start| {
                    let index = (at - node.start) / WORD;
                    let number = first << shape.bits | index;
                    let place = start..start.saturating_add(len);
                    match start.is_multiple_of(ALIGN) && is_own(maps, &place) {
                        true => below.push((number, place)),
                        false => bad += 1,
                    }
                    true
                });
                bad += u64::from(!read);
            }
            below.sort_by_key(|(_, place)| place.start);
            let mut end = 0;
            below.retain(|(_, place)| {
                let fits = place.start >= end;
                bad += u64::from(!fits);
                end = end.max(place.end);
                fits
            });
            above = below;
        }
        let mut all = above;
        all.iter_mut().for_each(|(number, _)| *number <<= shape.bits + shape.shift);
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
            if !(at - leaf.start).is_multiple_of(self.shape.entry()) {
                return true;
            }
            let extent = extent_of(entry);
            let page = key + (((at - leaf.start) / self.shape.entry()) << self.shape.shift);
            if extent != 0 && last != (extent, page - (1 << self.shape.shift).min(page)) {
                all.push((extent, page));
            }
            last = (extent, page);
            true
        });
        all.sort_unstable();
        (all, read)
    }
}
