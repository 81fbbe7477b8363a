//! Finds the memory that the main arena has mapped where its heap could not grow.
//!
//! Nothing leads to such a piece. But it begins with a chunk at the beginning of a page, and its chunks lead to a fence at
//! the end of one, or to the arena's top chunk.

use crate::arena::Arenas;
use crate::chunk::{HEADER, SizeField};
use crate::mapped;
use crate::view::{View, WORD};
use prof_os::maps::Map;
use prof_os::page_size;
use std::ops::Range;

/// Greatest number of pages of one mapping that are looked at.
const MOST_PAGES: u64 = 1 << 16;

/// Returns the pieces of the main arena, if it has any. Only pages that were touched are read.
pub(crate) fn find(view: &mut View<'_>, arenas: &Arenas, maps: &[Map]) -> Vec<Range<u64>> {
    let Some(main) = arenas.all.first().filter(|a| a.system > 0) else { return Vec::new() };
    let is_heap = |m: &Map| m.name == b"[heap]";
    let top_in_heap = maps.iter().any(|m| is_heap(m) && has(m, main.top.0));
    if top_in_heap && arenas.missing() == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    for m in maps.iter().filter(|m| mapped::may_have(m) && !is_heap(m)) {
        // The kernel may have joined a piece with a heap of another arena behind it.
        let heaps = arenas.all.iter().flat_map(|a| &a.heaps).filter(|h| h.end > m.start.0);
        let end = heaps.map(|h| h.start).min().map_or(m.end.0, |h| h.min(m.end.0));
        if m.start.0 < end {
            find_in(view, m.start.0..end, main.top, &mut found);
        }
    }
    found
}

fn has(m: &Map, address: u64) -> bool {
    m.start.0 <= address && address < m.end.0
}

fn find_in(view: &mut View<'_>, part: Range<u64>, top: (u64, u64), found: &mut Vec<Range<u64>>) {
    let Ok(touched) = view.reader.touched(part.clone(), false) else { return };
    let (mut next, mut looked) = (part.start, 0);
    for t in touched {
        let mut at = t.start.max(next);
        while at < t.end && looked < MOST_PAGES && !view.is_late() {
            looked += 1;
            let end = end_of(view, at, part.end, top.0);
            found.extend(end.map(|end| at..end));
            at = match end {
                Some(end) if end == top.0 => top
                    .0
                    .saturating_add(top.1)
                    .checked_next_multiple_of(page_size())
                    .unwrap_or(part.end),
                Some(end) => end,
                None => at + page_size(),
            };
        }
        next = next.max(at);
    }
}

/// Returns where the piece ends that begins at an address, if one does: behind its fence, or at the arena's top chunk.
pub(crate) fn end_of(view: &mut View<'_>, start: u64, limit: u64, top: u64) -> Option<u64> {
    let mut at = start;
    loop {
        if at == top {
            return Some(at);
        }
        let size = SizeField(view.word(at.checked_add(WORD)?, limit)?);
        if size.is_fence() {
            // Two headers, and a third one if the old top chunk had room for no more.
            let ends = [2, 3].map(|n| at.saturating_add(n * HEADER));
            let end = ends.into_iter().find(|end| end.is_multiple_of(page_size()))?;
            return (at > start && end <= limit).then_some(end);
        }
        // The first chunk has the flag of a predecessor in use, as glibc has no free chunk in front of it.
        if !size.is_sane() || (at == start && !size.before_in_use()) {
            return None;
        }
        at = at.checked_add(size.size()).filter(|next| *next < limit)?;
    }
}
