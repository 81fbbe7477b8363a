//! The places of a page, and the lists of those that are free.

use super::form::Links;
use super::segment::PageHead;
use crate::bits::{all_set, take_out};
use crate::data::is_own;
use crate::sums::Block;
use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use std::ops::Range;

/// Size of blocks up to which a page is read as a whole, to follow its lists.
const TOGETHER: u64 = 2048;
/// The flags of a page, beside the number of its places.
const SHIFTED: u32 = 1 << 31;
const HUGE: u32 = 1 << 30;

/// A page with places for blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// Address of its first place.
    pub start: u64,
    /// Bytes of a place.
    size: u64,
    /// Number of places that were ever used, and flags.
    places: u32,
    /// The first word of its bits among those of all pages.
    pub bits: u32,
    /// Bytes of its places in front of their blocks, where that is known.
    later: u64,
}

impl Page {
    pub(super) fn places(&self) -> u64 {
        u64::from(self.places & !(SHIFTED | HUGE))
    }

    /// Returns the bytes that a program can use of a place.
    pub(super) fn size(&self) -> u64 {
        self.size - self.later
    }

    /// Returns whether one of its blocks may begin later than its place.
    pub(super) fn is_shifted(&self) -> bool {
        self.places & SHIFTED != 0
    }

    /// Returns whether it has a segment of its own.
    pub(super) fn is_huge(&self) -> bool {
        self.places & HUGE != 0
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start + self.places() * self.size
    }

    pub(super) fn place(&self, n: u64) -> u64 {
        self.start + n * self.size
    }

    pub(super) fn block(&self, n: u64) -> Block {
        Block { address: self.place(n) + self.later, size: self.size() }
    }

    /// Returns the number of the place that an address lies in.
    pub(super) fn number(&self, at: u64) -> Option<u64> {
        let n = at.checked_sub(self.start)? / self.size;
        (n < self.places()).then_some(n)
    }
}

/// A page as its description has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Described<'a> {
    pub head: &'a PageHead,
    /// Address of the first place, and bytes of each.
    pub places: (u64, u64),
    pub links: Links,
    /// Address of the description.
    pub about: u64,
    /// Whether its memory is only for the one block that it has.
    pub is_huge: bool,
    /// Alignment of that block, if that is why.
    pub alignment: Option<u64>,
}

/// Reads the lists of a page. Returns the page, a bit for each place that holds a block, and whether all numbers agree;
/// `None` if the page makes no sense.
pub(super) fn read_page(
    view: &mut View<'_>,
    maps: &[Map],
    described: &Described<'_>,
) -> Option<(Page, Vec<u64>, bool)> {
    let Described { head, places: (start, size), is_huge, .. } = *described;
    let places = head.capacity;
    let flags = if head.is_shifted { SHIFTED } else { 0 };
    let huge = if is_huge { HUGE } else { 0 };
    let mut page = Page { start, size, places: places as u32 | flags | huge, bits: 0, later: 0 };
    if places > 0 && !is_own(maps, &page.range()) {
        return None;
    }
    let mut lists = Lists { view, page, read: Vec::new(), described };
    let mut used = all_set(places);
    let mut counts = [0; 3];
    let mut agrees = true;
    for (n, first) in counts.iter_mut().zip([head.free, head.local, head.others]) {
        agrees &= lists.take_out(first, &mut used, n);
    }
    // Blocks that others have freed count as used until the owner looks at them.
    let [free, local, others] = counts;
    agrees &= free + local + head.used == places && others <= head.used;
    // The alignment of a block that has a segment for it says where it begins.
    if let Some(alignment) = described.alignment.filter(|_| is_huge && places == 1) {
        let later = start.checked_next_multiple_of(alignment).map(|at| at - start);
        if let Some(later) = later.filter(|later| *later < size && head.is_shifted) {
            (page.later, page.places) = (later, 1 | huge);
        }
    }
    Some((page, used, agrees))
}

/// The lists of a page.
struct Lists<'a, 'b> {
    view: &'a mut View<'b>,
    page: Page,
    /// The page's memory, once it was read as a whole.
    read: Vec<u8>,
    described: &'a Described<'a>,
}

impl Lists<'_, '_> {
    /// Takes the places of a list out, and counts them. Returns `false` if a link makes no sense: each place can be taken
    /// out once, so every list ends.
    fn take_out(&mut self, first: u64, used: &mut [u64], n: &mut u64) -> bool {
        let mut at = first;
        while at != 0 {
            let number = self.page.number(at).filter(|n| self.page.place(*n) == at);
            let taken = number.is_some_and(|number| take_out(used, number));
            let Some(link) = self.link(at).filter(|_| taken) else { return false };
            *n += 1;
            let Described { head, links, about, .. } = *self.described;
            at = links.decode(link, head.keys, about);
        }
        true
    }

    /// Reads the link of a free block.
    fn link(&mut self, at: u64) -> Option<u64> {
        if self.page.size > TOGETHER {
            return self.view.words(at).map(|[link]| link);
        }
        if self.read.is_empty() {
            self.read = self.view.all(self.page.range());
        }
        let from = usize::try_from(at.checked_sub(self.page.start)?).ok()?;
        words(self.read.get(from..from + WORD as usize)?).next()
    }
}
