//! The variables of tcmalloc (`Static` in src/static_vars.h of gperftools 2.10, and what is declared in common.h,
//! page_heap.h, pagemap.h, central_freelist.h and thread_cache.h beside it).
//!
//! No symbol is needed to find them. The table of size classes is known by its contents; in the same segment of data lie the
//! root of a tree of two levels from pages to spans, whose place follows from any entry, the central lists, each of which
//! has its number, and addresses of caches of threads, which have the sizes of all classes.

use super::Heap;
use super::span::Span;
use crate::data::{each_word, is_own, segments};
use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use std::ops::Range;

/// Binary logarithm of tcmalloc's pages, and of the number of entries of a leaf and of the root, for addresses of 48 bits.
pub(super) const PAGE: u32 = 13;
pub(super) const LEAF: u32 = 18;
const ROOT: u32 = 17;
/// Number of size classes that there is room for, the first of which is none, and the greatest size.
const CLASSES: usize = 128;
const MOST_SIZE: u32 = 256 << 10;
/// The sizes of the first two classes, as a word.
const FIRST: u64 = 16 << 32 | 8;
/// Greatest number of pages that a class's blocks are made of at a time.
const MOST_PAGES: u64 = 1 << 10;
/// Bytes of a central list, and where in it its number stands.
pub(super) const CENTRAL: u64 = 1216;
const NUMBER: u64 = WORD;
/// Bytes of a list of a cache, and where in it the size of its blocks stands.
pub(super) const LIST: u64 = 4 * WORD;
pub(super) const LIST_SIZE: u64 = 3 * WORD;
/// Alignment of leaves: they are large, and got from the kernel one by one.
const LEAF_ALIGN: u64 = 4096;
/// Entries of a leaf that are looked at to recognise it.
const LOOK: usize = 64;
/// Greatest length of a segment of data that is searched, numbers of tcmallocs and of places that lead to caches.
const DATA: u64 = 1 << 30;
const MOST: usize = 4;
const MOST_PLACES: usize = 64;

/// The variables of one tcmalloc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Context {
    /// The sizes of the classes, of which the first is 0, and the number of pages of their spans.
    pub sizes: Vec<u64>,
    pub pages: Vec<u64>,
    /// Address of the root's first entry.
    pub root: Option<u64>,
    /// Address of the first central list.
    pub central: Option<u64>,
    /// Places of addresses of caches.
    pub caches: Vec<u64>,
}

/// Finds the tcmallocs of a process: mostly none or one.
pub(crate) fn find(view: &mut View<'_>, maps: &[Map]) -> Vec<Context> {
    // Pointers of another width have another tree, and other orders of bytes other bits.
    if cfg!(not(all(target_pointer_width = "64", target_endian = "little"))) {
        return Vec::new();
    }
    let data = segments(maps).into_iter().filter(|s| s.end - s.start < DATA);
    let found = data.filter_map(|data| in_data(view, maps, &data));
    found.take(MOST).collect()
}

/// Finds the variables in a segment of data.
pub(super) fn in_data(view: &mut View<'_>, maps: &[Map], data: &Range<u64>) -> Option<Context> {
    let mut classes = None;
    each_word(view, data.clone(), |view, at, word| {
        if word == FIRST {
            classes = size_classes(view, at);
        }
        classes.is_none()
    });
    let (sizes, pages) = classes?;
    let mut found = Context { sizes, pages, ..Context::default() };
    each_word(view, data.clone(), |view, at, word| {
        if word == 1 && found.central.is_none() {
            let first = at.checked_sub(CENTRAL + NUMBER);
            found.central = first.filter(|first| is_central(view, *first, found.sizes.len()));
        }
        if found.root.is_none() && word.is_multiple_of(LEAF_ALIGN) {
            found.root = root(view, maps, data, (at, word));
        }
        !found.is_whole()
    });
    if found.is_whole() {
        found.caches = caches(view, maps, data, &found);
    }
    Some(found)
}

/// Finds the places of addresses of caches in a segment of data.
fn caches(view: &mut View<'_>, maps: &[Map], data: &Range<u64>, context: &Context) -> Vec<u64> {
    // Programs have many addresses of blocks, and caches lie in no span.
    let spans: Vec<Range<u64>> = Heap::spans(view, maps, context).ranges().collect();
    let mut found = Vec::new();
    each_word(view, data.clone(), |view, at, word| {
        let next = spans.partition_point(|s| s.end <= word);
        let is_outside = spans.get(next).is_none_or(|s| word < s.start);
        let may_be = word.is_multiple_of(WORD)
            && is_outside
            && is_own(maps, &(word..word.saturating_add(WORD)));
        if may_be && is_cache(view, word, &context.sizes) {
            found.push(at);
        }
        found.len() < MOST_PLACES
    });
    found
}

/// Reads the table of size classes, whose second and third size lie at an address, and the numbers of pages behind it;
/// `None` if there is none.
fn size_classes(view: &mut View<'_>, at: u64) -> Option<(Vec<u64>, Vec<u64>)> {
    let len = 4 * CLASSES as u64 + WORD * (CLASSES as u64 + 1);
    let bytes = view.all(at..at.checked_add(len)?);
    let (sizes, rest) = bytes.split_at_checked(4 * CLASSES - 4)?;
    let mut all = vec![0];
    for size in sizes.as_chunks::<4>().0.iter().map(|b| u32::from_ne_bytes(*b)) {
        if u64::from(size) <= *all.last()? || size > MOST_SIZE {
            return None;
        }
        all.push(u64::from(size));
        if size == MOST_SIZE {
            break;
        }
    }
    // Behind the sizes stand the pages of each class, and the number of classes.
    let rest: Vec<u64> = words(rest.get(4..)?).collect();
    let (number, pages) = rest.split_last().filter(|(_, pages)| pages.len() == CLASSES)?;
    let fits = all.last() == Some(&u64::from(MOST_SIZE))
        && *number == all.len() as u64
        && pages.iter().take(all.len()).skip(1).all(|n| (1..=MOST_PAGES).contains(n));
    let pages = pages[..all.len()].to_vec();
    fits.then_some((all, pages))
}

/// Returns whether the central lists of all classes lie at an address: each has its number.
fn is_central(view: &mut View<'_>, first: u64, classes: usize) -> bool {
    (0..classes as u64).all(|i| {
        let at = first.checked_add(i * CENTRAL + NUMBER);
        at.and_then(|at| view.words(at)) == Some([i])
    })
}

/// Returns whether a cache of a thread lies at an address: its lists have the sizes of all classes.
pub(super) fn is_cache(view: &mut View<'_>, at: u64, sizes: &[u64]) -> bool {
    let looks = |view: &mut View<'_>, i: usize| {
        let at = at.checked_add(i as u64 * LIST + LIST_SIZE);
        let word = at.and_then(|at| view.words(at));
        word.is_some_and(|[word]| Some(&(word & u64::from(u32::MAX))) == sizes.get(i))
    };
    // Nearly all words that lead to no cache end at the first one.
    (1..sizes.len()).all(|i| looks(view, i))
}

/// Returns the root of the tree that a word is an entry of, given with its place: it leads to a leaf whose entries lead to
/// spans, which begin at the page that the entry stands for.
fn root(
    view: &mut View<'_>,
    maps: &[Map],
    data: &Range<u64>,
    (at, leaf): (u64, u64),
) -> Option<u64> {
    let range = leaf..leaf.checked_add(WORD << LEAF)?;
    if !is_own(maps, &range) {
        return None;
    }
    let (mut looked, mut found) = (0, None);
    each_word(view, range.clone(), |view, entry_at, entry| {
        looked += 1;
        let index = (entry_at - leaf) / WORD;
        let span = Span::read(view, maps, entry).filter(|s| s.start & ((1 << LEAF) - 1) == index);
        // The span's last page leads to it as well.
        let fits = span.filter(|s| {
            let last = index + (s.length - 1);
            last >> LEAF != 0 || view.words(leaf + last * WORD) == Some([entry])
        });
        found = fits.map(|s| s.start >> LEAF);
        found.is_none() && looked < LOOK
    });
    let number = found.filter(|n| n >> ROOT == 0)?;
    let root = at.checked_sub(number * WORD).filter(|root| *root >= data.start)?;
    (root.checked_add(WORD << ROOT)? <= data.end).then_some(root)
}

impl Context {
    /// Returns whether all variables were found, without which nothing is counted.
    pub(super) fn is_whole(&self) -> bool {
        self.root.is_some() && self.central.is_some()
    }

    /// Returns the entries of the root: the first page that each stands for, and its leaf.
    pub(super) fn leaves(&self, view: &mut View<'_>) -> (Vec<(u64, u64)>, bool) {
        let (mut all, root) = (Vec::new(), self.root.unwrap_or(0));
        let whole = each_word(view, root..root + (WORD << ROOT), |_, at, leaf| {
            all.push((((at - root) / WORD) << LEAF, leaf));
            true
        });
        (all, whole)
    }
}
