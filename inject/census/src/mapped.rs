//! Finds blocks that have a mapping of their own: nothing leads to them, but their headers tell.

use crate::chunk::{ALIGN, Chunk, MAPPED, State};
use crate::view::View;
use prof_os::maps::Map;
use prof_os::page_size;
use std::ops::Range;

/// Least size of such a block that is believed where a mapping neither begins nor another block ends: `mallopt` can make
/// them smaller, but no default does.
const LEAST: u64 = 64 << 10;
/// Greatest number of pages of one mapping that are looked at.
const MOST_PAGES: u64 = 1 << 16;

/// Returns whether blocks may lie in a mapping.
pub(crate) fn may_have(m: &Map) -> bool {
    m.is_anonymous() && m.read && m.write && !m.exec && !m.shared
}

/// Returns the blocks in a mapping, outside of `taken`, ranges in order that are known to be something else. Only pages
/// that were touched are read.
pub(crate) fn find(view: &mut View<'_>, m: &Map, taken: &[Range<u64>]) -> Vec<Chunk> {
    let (page, mut found) = (page_size(), Vec::new());
    let Ok(touched) = view.reader.touched(m.start.0..m.end.0, false) else { return found };
    let mut expected = m.start.0;
    let mut looked = 0;
    for part in touched {
        let mut at = part.start.max(expected);
        while at < part.end && looked < MOST_PAGES {
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
                    found.push(chunk);
                    (at, expected) = (end, end);
                }
                None => at += page,
            }
        }
    }
    found
}

/// Returns the block whose mapping begins at an address, and where that ends. An aligned block begins later in its mapping,
/// and notes how much.
fn block(view: &mut View<'_>, at: u64, limit: u64) -> Option<(Chunk, u64)> {
    let page = page_size();
    let fits = |from: u64, [before, size]: [u64; 2]| {
        let len = size & !7;
        let end = from.checked_add(len)?;
        let whole = end.is_multiple_of(page) && end <= limit && len.is_multiple_of(ALIGN);
        (size & 7 == MAPPED && before == from - at && whole && len > ALIGN)
            .then(|| (Chunk::new(from, len, State::InUse), end))
    };
    let header = view.words(at)?;
    if let Some(found) = fits(at, header) {
        return Some(found);
    }
    // A new mapping has zeros up to the header of an aligned block.
    if header != [0, 0] {
        return None;
    }
    let all = view.all(at..at + page);
    let all: Vec<u64> = crate::view::words(&all).collect();
    let first = all.iter().position(|w| *w != 0)?;
    let from = first as u64 * crate::view::WORD;
    let pair = [all[first], *all.get(first + 1)?];
    (from.is_multiple_of(ALIGN)).then(|| fits(at + from, pair)).flatten()
}
