//! The data of programs and libraries, in which the variables of allocators lie.

use crate::view::{Memory as _, View, WORD, words};
use prof_os::maps::Map;
use prof_os::page_size;
use std::ops::Range;

/// Bytes that are read at a time.
const PIECE: u64 = 256 << 10;

/// Returns whether a range lies in memory that may be an allocator's own.
pub(crate) fn is_own(maps: &[Map], range: &Range<u64>) -> bool {
    let has = |at: u64| {
        let next = maps.partition_point(|m| m.end.0 <= at);
        maps.get(next).is_some_and(|m| m.start.0 <= at && m.read && m.write && m.inode == 0)
    };
    range.start < range.end && has(range.start) && has(range.end - 1)
}

/// Returns the writable segments of programs and libraries, with what follows them without a file.
pub(crate) fn segments(maps: &[Map]) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for m in maps.iter().filter(|m| m.read && m.write && !m.shared) {
        let follows = all.last().is_some_and(|s| s.end == m.start.0);
        match all.last_mut() {
            Some(last) if follows && m.is_anonymous() => last.end = m.end.0,
            _ if m.inode != 0 => all.push(m.start.0..m.end.0),
            // Anonymous memory right behind segments of code or constants is zeroed data.
            _ if m.is_anonymous() && maps.iter().any(|o| o.end == m.start && o.inode != 0) => {
                all.push(m.start.0..m.end.0);
            }
            _ => {}
        }
    }
    all
}

/// Calls `take` with the address and the value of each word of a range that is not zero, of pages that were touched, until
/// it returns `false`. Returns whether all that was wanted was read.
pub(crate) fn each_word(
    view: &mut View<'_>,
    range: Range<u64>,
    mut take: impl FnMut(&mut View<'_>, u64, u64) -> bool,
) -> bool {
    let page = page_size();
    let whole = range.start / page * page..range.end.next_multiple_of(page);
    let Ok(touched) = view.reader.touched(whole, false) else { return false };
    for part in touched {
        let (mut at, end) = (part.start.max(range.start), part.end.min(range.end));
        // The first words may be enough.
        let mut piece = page;
        while at < end {
            let bytes = view.all(at..end.min(at + piece));
            if bytes.is_empty() {
                return false;
            }
            for (i, word) in words(&bytes).enumerate().filter(|(_, w)| *w != 0) {
                if !take(view, at + i as u64 * WORD, word) {
                    return true;
                }
            }
            at += (bytes.len() as u64).next_multiple_of(WORD);
            piece = PIECE;
        }
    }
    true
}

/// Returns the mappings of this process without anonymous ones right behind those of files: memory of other tests may lie
/// where a library's zeroed data would.
///
/// # Panics
/// If the mappings can't be read.
#[cfg(test)]
pub(crate) fn maps_of_files_alone() -> Vec<Map> {
    let maps = prof_os::maps::of(prof_os::Pid::this()).expect("maps");
    let follows = |m: &Map| maps.iter().any(|o| o.end == m.start && o.inode != 0);
    maps.iter().filter(|m| !m.is_anonymous() || !follows(m)).cloned().collect()
}
