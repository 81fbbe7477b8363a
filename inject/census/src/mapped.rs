//! Finds blocks that have a mapping of their own: nothing leads to them, but their headers tell.

use crate::chunk::{ALIGN, Chunk, HEADER, MAPPED, State};
use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use prof_os::page_size;
use std::ops::Range;

/// Least size of such a block that is believed where a mapping neither begins nor another block ends: `mallopt` can make
/// them smaller, but no default does.
const LEAST: u64 = 64 << 10;
/// Greatest number of pages of one mapping that are looked at.
const MOST_PAGES: u64 = 1 << 16;

/// A block with a mapping of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub chunk: Chunk,
    /// Start of the mapping. It lies before the chunk if the block is aligned.
    pub start: u64,
}

impl Own {
    /// Returns the mapping.
    pub(crate) fn mapping(&self) -> Range<u64> {
        self.start..self.chunk.at + self.chunk.size()
    }
}

/// Returns whether blocks may lie in a mapping.
pub(crate) fn may_have(m: &Map) -> bool {
    m.is_anonymous() && m.read && m.write && !m.exec && !m.shared
}

/// Returns the blocks in a mapping, outside of `taken`, ranges in order that are known to be something else. Only pages
/// that were touched are read.
pub(crate) fn find(view: &mut View<'_>, m: &Map, taken: &[Range<u64>]) -> Vec<Own> {
    let (page, mut found) = (page_size(), Vec::new());
    let Ok(touched) = view.reader.touched(m.start.0..m.end.0, false) else { return found };
    let mut expected = m.start.0;
    let mut looked = 0;
    for part in touched {
        let mut at = part.start.max(expected);
        while at < part.end && looked < MOST_PAGES && !view.is_late() {
            let n = taken.partition_point(|r| r.end <= at);
            if let Some(r) = taken.get(n).filter(|r| r.contains(&at)) {
                at = r.end.next_multiple_of(page);
                expected = at;
                continue;
            }
            looked += 1;
            let least = if at == expected { page } else { LEAST };
            match block(view, at, m.end.0).filter(|c| c.1 - at >= least) {
                Some((chunk, end)) => {
                    found.push(Own { chunk, start: at });
                    (at, expected) = (end, end);
                }
                None => at += page,
            }
        }
    }
    found
}

/// Returns whether a block that was found is still there: its mapping may have become another's meanwhile.
pub(crate) fn is_there(view: &mut View<'_>, own: &Own) -> bool {
    let mapping = own.mapping();
    block(view, mapping.start, mapping.end) == Some((own.chunk, mapping.end))
}

/// Returns the block whose header is at `from`, in a mapping that begins at `at`, and where that mapping ends; `None` if the
/// two words are no header.
///
/// Since glibc 2.43 the size is that of the program's memory, without the header.
fn of_header(at: u64, from: u64, limit: u64, [before, size]: [u64; 2]) -> Option<(Chunk, u64)> {
    let page = page_size();
    let (len, flags) = (size & !7, size & 7);
    let ends =
        [0, HEADER].into_iter().filter_map(|header| from.checked_add(len)?.checked_add(header));
    let end = ends.into_iter().find(|end| end.is_multiple_of(page) && *end <= limit)?;
    (flags == MAPPED && before == from - at && len > ALIGN && len.is_multiple_of(ALIGN))
        .then(|| (Chunk::new(from, end - from, State::InUse), end))
}

/// Returns the block whose mapping begins at an address, and where that ends.
///
/// An aligned block begins later in its mapping, and notes how much. The header at the beginning is left over from before
/// the block was aligned, or was never written: `realloc` changes only the size in the block's own header.
fn block(view: &mut View<'_>, at: u64, limit: u64) -> Option<(Chunk, u64)> {
    let header = view.words(at)?;
    // A left-over size may be beyond the end of a mapping that has shrunk.
    let told = of_header(at, at, u64::MAX, header);
    if told.is_none() && header != [0, 0] {
        return None;
    }
    let plain = told.filter(|p| p.1 <= limit);
    let first = view.all(at..(at + page_size()).min(limit));
    let first: Vec<u64> = words(&first).collect();
    let later = first.chunks_exact((ALIGN / WORD) as usize).enumerate().skip(1);
    for (k, w) in later {
        let from = at + k as u64 * ALIGN;
        // Most of it is the program's memory, which may look like anything: only the right distance makes it a header. If
        // the sizes differ, its mapping must also end where the memory does, or where another block begins.
        let Some((chunk, end)) = of_header(at, from, limit, [w[0], w[1]]) else { continue };
        let is_alike = plain.as_ref().is_none_or(|p| p.1 == end);
        let mut begins = |at| view.words(at).is_some_and(|w| of_header(at, at, limit, w).is_some());
        if is_alike || end == limit || begins(end) {
            return Some((chunk, end));
        }
    }
    plain
}
