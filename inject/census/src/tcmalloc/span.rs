//! tcmalloc's spans: runs of pages that are one block, have blocks of one size, or are free (`Span` in src/span.h of
//! gperftools 2.10).

use super::context::PAGE;
use crate::data::is_own;
use crate::view::{View, WORD};
use prof_os::maps::Map;
use std::ops::Range;

/// Words of a span.
const SPAN: u64 = 6;
/// Bytes that are read at a time.
const PIECE: u64 = 1024;
/// Bits of an address.
const ADDRESS: u32 = 48;

/// The purpose of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Of blocks, or one block.
    Blocks,
    /// Free, with contents.
    Free,
    /// Free; the kernel has taken the contents.
    Returned,
}

/// A span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Number of its first page, and of its pages.
    pub start: u64,
    pub length: u64,
    /// The first block of its list of free ones.
    pub free: u64,
    /// Number of its blocks that are on no such list.
    pub taken: u64,
    /// Number of the size class of its blocks; 0: it is one block.
    pub class: usize,
    pub state: Use,
}

impl Span {
    /// Reads a span; `None` if there is none.
    pub(super) fn read(view: &mut View<'_>, maps: &[Map], at: u64) -> Option<Self> {
        let range = at..at.checked_add(SPAN * WORD)?;
        if !at.is_multiple_of(WORD) || !is_own(maps, &range) {
            return None;
        }
        let mut words = [0; SPAN as usize];
        for (i, word) in words.iter_mut().enumerate() {
            // The spans of neighbouring pages are mostly near each other.
            *word = view.word(at + i as u64 * WORD, at.saturating_add(PIECE))?;
        }
        let [start, length, _, _, free, bits] = words;
        let state = match bits >> 24 & 3 {
            0 => Use::Blocks,
            1 => Use::Free,
            2 => Use::Returned,
            _ => return None,
        };
        let most = 1 << (ADDRESS - PAGE);
        let fits =
            start > 0 && start < most && (1..most).contains(&length) && start + length <= most;
        let (taken, class) = (bits & 0xffff, (bits >> 16 & 0xff) as usize);
        fits.then_some(Self { start, length, free, taken, class, state })
    }

    /// Returns the span's memory.
    pub(super) fn range(&self) -> Range<u64> {
        self.start << PAGE..(self.start + self.length) << PAGE
    }
}
