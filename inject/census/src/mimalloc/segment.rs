//! mimalloc's segments, and the pages that they consist of (`mi_segment_t` and `mi_page_t` in include/mimalloc-types.h of
//! 2.0.9).
//!
//! A segment is memory from the kernel that begins at a multiple of 32 MiB with a description of its slices of 64 KiB. A
//! page is one slice or several, and has blocks of one size. A block of more than 16 MiB has a segment of its own.

use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use std::ops::Range;

/// Bytes of a slice, and of a segment of pages, whose address is a multiple of it.
pub(super) const SLICE: u64 = 64 << 10;
pub(super) const SEGMENT: u64 = 32 << 20;
/// Greatest number of slices that are described.
const SLICES: u64 = SEGMENT / SLICE;
/// Words of a segment in front of the descriptions of slices, and the place of some of them.
const HEAD: usize = 33;
const ALIGNMENT: usize = 2;
const ALIGN_OFFSET: usize = 3;
const USED: usize = 26;
const COOKIE: usize = 27;
const ALL: usize = 28;
const INFO: usize = 29;
const KIND: usize = 30;
const ENTRIES: usize = 31;
const THREAD: usize = 32;
/// Greatest number of slices that a segment's own data take.
const MOST_INFO: u64 = 16;
/// Bits of an address.
const ADDRESS: u32 = 47;
/// Blocks of these sizes begin so many bytes behind the beginning of their page.
const BEHIND: (Range<u64>, u64) = (8..1025, 384);
/// The size in a page's description from which on its block takes the whole page.
const HUGE: u64 = 2 << 30;
/// Bit of a page's flags: one of its blocks begins later than its place.
const SHIFTED: u8 = 2;
/// Greatest number of places that are looked at as segments: 32 TiB of memory.
const MOST_PLACES: usize = 1 << 20;

/// Whether the links of free blocks are encoded, as in builds with MI_SECURE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Links {
    Plain,
    Encoded,
}

impl Links {
    /// Returns the bytes of a page's description.
    pub(super) fn described(self) -> u64 {
        match self {
            Self::Plain => 10 * WORD,
            Self::Encoded => 12 * WORD,
        }
    }

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

/// The data at the start of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub at: u64,
    /// Number of slices, of those that are described, and of those of the segment's own data.
    pub slices: u64,
    pub entries: u64,
    pub info: u64,
    /// Number of pages.
    pub used: u64,
    /// Whether it has a single block.
    pub is_huge: bool,
    /// Alignment of that block, if that is why it has a segment.
    pub alignment: Option<u64>,
    /// The thread that it belongs to; 0: that has ended.
    pub thread: u64,
}

/// Returns the secret number that all segments of one mimalloc have in common, if one begins with these words.
fn secret(at: u64, head: &[u64; HEAD]) -> Option<u64> {
    (head[COOKIE] != 0).then_some(head[COOKIE] ^ at)
}

impl Head {
    /// Reads what a segment begins with; `None` if it makes no sense.
    fn of(at: u64, head: &[u64; HEAD]) -> Option<Self> {
        let (slices, info, entries) = (head[ALL], head[INFO], head[ENTRIES]);
        let kind = head[KIND] & u64::from(u32::MAX);
        // The last slice is not used where a guard page ends the segment.
        let fits = (1..=MOST_INFO).contains(&info)
            && info < entries
            && entries <= slices.min(SLICES)
            && slices <= 1 << ADDRESS >> SLICE.trailing_zeros()
            && at.checked_add(slices * SLICE).is_some_and(|end| end >> ADDRESS == 0)
            && (kind == 1 || kind == 0 && slices == SLICES && entries + 1 >= SLICES);
        let aligned = head[ALIGN_OFFSET] != 0 && head[ALIGNMENT].is_power_of_two();
        fits.then_some(Self {
            at,
            slices,
            entries,
            info,
            used: head[USED],
            is_huge: kind == 1,
            alignment: aligned.then_some(head[ALIGNMENT]),
            thread: head[THREAD],
        })
    }

    /// Returns the segment's memory.
    pub(super) fn range(&self) -> Range<u64> {
        self.at..self.at + self.slices * SLICE
    }

    /// Returns the address of the description of a slice.
    pub(super) fn description(&self, slice: u64, links: Links) -> u64 {
        self.at + HEAD as u64 * WORD + slice * links.described()
    }

    /// Reads the descriptions of all slices; `None` if they can't be read.
    pub(super) fn descriptions(&self, view: &mut View<'_>, links: Links) -> Option<Vec<u8>> {
        let range = self.description(0, links)..self.description(self.entries, links);
        let bytes = view.all(range.clone());
        (bytes.len() as u64 == range.end - range.start).then_some(bytes)
    }

    /// Returns whether the descriptions of slices lead from each page to the next, up to the end.
    fn is_chain(&self, view: &mut View<'_>, links: Links) -> bool {
        let Some(bytes) = self.descriptions(view, links) else { return false };
        let mut slice = 0;
        while slice < self.entries {
            let from = (slice * links.described()) as usize;
            let page = PageHead::of(&bytes[from..], links);
            if page.slices == 0 || page.offset != 0 || slice == 0 && page.slices != self.info {
                return false;
            }
            slice += page.slices;
        }
        slice == self.entries || self.is_huge
    }

    /// Returns how links are encoded, by the length of the descriptions that makes sense.
    pub(super) fn links(&self, view: &mut View<'_>) -> Option<Links> {
        [Links::Plain, Links::Encoded].into_iter().find(|links| self.is_chain(view, *links))
    }
}

/// The description of a page, or of free slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageHead {
    /// Number of slices, and the distance to the first description of the page, which has 0.
    pub slices: u64,
    pub offset: u32,
    /// Number of places for blocks that were ever used, and that there are.
    pub capacity: u64,
    pub reserved: u64,
    /// Whether a block may begin later than its place, as it is aligned.
    pub is_shifted: bool,
    /// Bytes of a block; 0 if the slices are free.
    pub size: u64,
    /// Number of places that are on neither of the owner's two lists.
    pub used: u64,
    /// The first blocks of the lists of free ones: the owner's two, and that of blocks that other threads have freed.
    pub free: u64,
    pub local: u64,
    pub others: u64,
    pub keys: [u64; 2],
    /// The heap that it belongs to.
    pub heap: u64,
}

impl PageHead {
    /// Reads a description.
    pub(super) fn of(bytes: &[u8], links: Links) -> Self {
        let half = |at: usize| {
            let bytes = bytes.get(at..).and_then(|b| b.first_chunk::<2>());
            u64::from(bytes.map_or(0, |b| u16::from_ne_bytes(*b)))
        };
        let four = |at: usize| {
            let bytes = bytes.get(at..).and_then(|b| b.first_chunk::<4>());
            bytes.map_or(0, |b| u32::from_ne_bytes(*b))
        };
        let word = |at: usize| {
            let bytes = bytes.get(at..at + WORD as usize);
            bytes.and_then(|b| words(b).next()).unwrap_or(0)
        };
        let behind = match links {
            Links::Plain => 40,
            Links::Encoded => 56,
        };
        let keys = if links == Links::Encoded { [word(40), word(48)] } else { [0; 2] };
        Self {
            slices: u64::from(four(0)),
            offset: four(4),
            capacity: half(10),
            reserved: half(12),
            is_shifted: bytes.get(14).is_some_and(|flags| flags & SHIFTED != 0),
            free: word(16),
            used: u64::from(four(24)),
            size: u64::from(four(28)),
            local: word(32),
            keys,
            // The low bits say how other threads are to free.
            others: word(behind) & !3,
            heap: word(behind + 8),
        }
    }

    /// Returns where the places of a page begin, and the bytes of each; `None` if they do not fit into its slices.
    pub(super) fn places(&self, start: u64) -> Option<(u64, u64)> {
        let room = self.slices.checked_mul(SLICE)?;
        let behind = if BEHIND.0.contains(&self.size) { BEHIND.1 } else { 0 };
        let size = if self.size >= HUGE { room } else { self.size };
        let fits = size >= WORD
            && self.capacity <= self.reserved
            && behind + self.reserved * size <= room
            && self.used <= self.capacity;
        fits.then_some((start + behind, size))
    }
}

/// Calls `take` with each place at which a segment may lie, and the words there. Returns whether all were looked at.
pub(super) fn each_head(
    view: &mut View<'_>,
    maps: &[Map],
    mut take: impl FnMut(&mut View<'_>, u64, &[u64; HEAD]),
) -> bool {
    let mut looked = 0;
    for m in maps.iter().filter(|m| m.read && m.write && !m.shared && m.inode == 0) {
        let Some(mut at) = m.start.0.checked_next_multiple_of(SEGMENT) else { continue };
        while at < m.end.0 {
            if looked >= MOST_PLACES || view.is_late() {
                return false;
            }
            looked += 1;
            if let Some(head) = view.words::<HEAD>(at) {
                take(view, at, &head);
            }
            let Some(next) = at.checked_add(SEGMENT) else { break };
            at = next;
        }
    }
    true
}

/// Finds what looks like segments, and their secret numbers with how links are encoded.
pub(super) fn each_secret(view: &mut View<'_>, maps: &[Map], mut take: impl FnMut(u64, Links)) {
    each_head(view, maps, |view, at, words| {
        let found = secret(at, words).zip(Head::of(at, words));
        if let Some((secret, head)) = found
            && let Some(links) = head.links(view)
        {
            take(secret, links);
        }
    });
}

/// Finds the segments that have a secret number, in the order of their addresses. Also returns the addresses of those that
/// have it, and make no sense else, and whether all memory was looked at.
pub(super) fn with_secret(
    view: &mut View<'_>,
    maps: &[Map],
    wanted: u64,
) -> (Vec<Head>, Vec<u64>, bool) {
    let (mut all, mut bad) = (Vec::new(), Vec::new());
    let whole = each_head(view, maps, |_, at, words| {
        if secret(at, words) == Some(wanted) {
            match Head::of(at, words) {
                Some(head) => all.push(head),
                None => bad.push(at),
            }
        }
    });
    (all, bad, whole)
}
