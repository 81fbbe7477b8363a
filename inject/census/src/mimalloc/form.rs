//! The layouts of segments, of descriptions of pages, and of heaps in the versions of mimalloc 2 (`mi_segment_t`, `mi_page_t`
//! and `mi_heap_t` in include/mimalloc/types.h).
//!
//! A version is never asked for. A layout counts only if a segment, the slices that it describes, the sizes of a heap's queues
//! and the numbers of places in pages all make sense by it.

use crate::view::WORD;
use std::ops::Range;

/// Words of the longest segment's data in front of the descriptions of slices.
pub(super) const HEAD: usize = 36;
/// Bytes of a heap's queues of pages, one of three words for each size, and of the lists of pages for small blocks.
const QUEUES: u64 = 75 * 3 * WORD;
const DIRECT: u64 = 129 * WORD;

/// The layout of a version, and whether its links are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) form: &'static Form,
    pub(super) links: Links,
}

/// The layout of a version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Major and minor number of the versions that have it.
    pub version: (u32, u32),
    pub segment: SegmentForm,
    pub page: PageForm,
    pub heap: HeapForm,
    pub starts: Starts,
}

/// The words of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SegmentForm {
    /// Number of words in front of the descriptions of slices.
    pub len: u64,
    pub used: usize,
    pub cookie: usize,
    pub slices: usize,
    pub info: usize,
    pub kind: usize,
    pub entries: usize,
    pub thread: usize,
    pub more: More,
}

/// Words that only some versions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    /// The alignment of a block that has the segment for it, and from where on it counts.
    Alignment(usize, usize),
    /// The bytes of the segment.
    Size(usize),
}

/// The word that has the bytes of a segment, in the versions that have one.
pub(super) const SIZE: usize = 4;

/// The layout of a page's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageForm {
    /// Up to 2.1.2.
    Early,
    /// From 2.1.4 on: it says where the places begin, and has sizes of a word.
    Late,
}

/// Bytes from the beginning of a heap.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HeapForm {
    /// The queues of pages.
    pub queues: u64,
    /// The list of blocks that other threads have freed.
    pub delayed: u64,
    /// The secret number, which of other heaps than the first is of no use.
    pub secret: u64,
}

impl HeapForm {
    /// Returns where the keys of the list stand.
    pub(super) fn keys(&self) -> u64 {
        self.secret + WORD
    }
}

/// Distance of a page's first place from the beginning of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Starts {
    /// 384 bytes for blocks of 8 to 1,024.
    Fixed,
    /// Three places for blocks of up to 64 bytes, one for those of up to 512.
    Places,
    /// The page says it.
    Said,
}

impl Starts {
    /// Block sizes for which the versions differ.
    pub(super) const SIZES: Range<u64> = 1..1025;

    /// Returns the bytes in front of the first place of this size.
    pub(super) fn behind(self, size: u64) -> u64 {
        match self {
            Self::Fixed if (WORD..Self::SIZES.end).contains(&size) => 384,
            Self::Places if size <= 64 => 3 * size,
            Self::Places if size <= 512 => size,
            _ => 0,
        }
    }
}

/// Whether the links of free blocks are encoded, as in builds with MI_SECURE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Links {
    Plain,
    Encoded,
}

impl Links {
    /// Returns the block that a link leads to, 0 if none. Encoded, no block is the address of what has the keys.
    pub(super) fn decode(self, link: u64, keys: [u64; 2], none: u64) -> u64 {
        match self {
            Self::Plain => link,
            Self::Encoded => {
                let at = link.wrapping_sub(keys[0]).rotate_right((keys[0] % 64) as u32) ^ keys[1];
                if at == none { 0 } else { at }
            }
        }
    }
}

impl Layout {
    /// Returns the bytes of a page's description.
    pub(super) fn described(self) -> u64 {
        let plain = match self.form.page {
            PageForm::Early => 10 * WORD,
            PageForm::Late => 12 * WORD,
        };
        plain + if self.links == Links::Encoded { 2 * WORD } else { 0 }
    }

    /// Returns all layouts that are known.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let links = [Links::Plain, Links::Encoded];
        FORMS.iter().flat_map(move |form| links.map(|links| Self { form, links }))
    }
}

/// Heaps up to 2.1.2.
const EARLY: HeapForm =
    HeapForm { queues: WORD + DIRECT, delayed: DELAYED, secret: DELAYED + 3 * WORD };

const fn late(more: u64) -> HeapForm {
    let head = 29 * WORD + more;
    HeapForm { queues: head + DIRECT, delayed: WORD, secret: 4 * WORD }
}

/// Returns the form of a segment by the place of its number of pages, and the number of links behind its cookie.
const fn segment(used: usize, links: usize, more: More) -> SegmentForm {
    let slices = used + 2 + links;
    SegmentForm {
        len: slices as u64 + 5,
        used,
        cookie: used + 1,
        slices,
        info: slices + 1,
        kind: slices + 2,
        entries: slices + 3,
        thread: slices + 4,
        more,
    }
}

const DELAYED: u64 = WORD + DIRECT + QUEUES;

/// Segments up to 2.1.1, which say how a block is aligned, those up to 2.1, and those behind.
const ALIGNED: SegmentForm = segment(26, 0, More::Alignment(2, 3));
const SIZED: SegmentForm = segment(26, 0, More::Size(SIZE));
const LINKED: SegmentForm = segment(27, 2, More::Size(SIZE));

const fn form(version: (u32, u32), segment: SegmentForm, heap: HeapForm, starts: Starts) -> Form {
    // The first pages that are described in the later way say where their places begin.
    let page = if matches!(starts, Starts::Said) { PageForm::Late } else { PageForm::Early };
    Form { version, segment, page, heap, starts }
}

/// The layouts that are known: of 2.0.9, 2.1.1, 2.1.2, 2.1.4 to 2.1.7, 2.2.3 and 2.2.4, 2.3.0 to 2.3.2.
static FORMS: [Form; 6] = [
    form((2, 0), ALIGNED, EARLY, Starts::Fixed),
    form((2, 1), ALIGNED, EARLY, Starts::Places),
    form((2, 1), SIZED, EARLY, Starts::Places),
    form((2, 1), SIZED, late(0), Starts::Said),
    form((2, 2), LINKED, late(2 * WORD), Starts::Said),
    form((2, 3), LINKED, late(3 * WORD), Starts::Said),
];
