//! Sorted ranges of addresses.

use crate::memory::PIECE;
use prof_os::memory::Reader;
use std::ops::Range;

/// Ranges that are closer together than this are read at once.
const NEAR: u64 = 8 << 10;
const WORD: u64 = size_of::<usize>() as u64;

/// Returns ranges in order, widened to whole words, and joined where they touch.
pub(crate) fn joined(mut all: Vec<Range<u64>>) -> Vec<Range<u64>> {
    for r in &mut all {
        *r = r.start / WORD * WORD..r.end.checked_next_multiple_of(WORD).unwrap_or(r.end);
    }
    all.retain(|r| r.start < r.end);
    all.sort_unstable_by_key(|r| r.start);
    all.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    all
}

/// Returns the parts of `a` that are in `b`; both are in order.
pub(crate) fn common(a: &[Range<u64>], b: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let (mut i, mut k) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(k)) {
        let both = x.start.max(y.start)..x.end.min(y.end);
        if both.start < both.end {
            out.push(both);
        }
        if x.end < y.end { i += 1 } else { k += 1 }
    }
    out
}

/// Returns the parts of `a` that are not in `b`; both are in order.
pub(crate) fn without(a: &[Range<u64>], b: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let mut k = 0;
    for x in a {
        let mut at = x.start;
        while b.get(k).is_some_and(|y| y.end <= at) {
            k += 1;
        }
        let mut next = k;
        while let Some(y) = b.get(next).filter(|y| y.start < x.end) {
            if at < y.start {
                out.push(at..y.start);
            }
            at = at.max(y.end);
            next += 1;
        }
        if at < x.end {
            out.push(at..x.end);
        }
    }
    out
}

/// Reads ranges, which must be in order and of whole words, and calls `take` with their contents, piece by piece, as long
/// as `go_on` says so. Returns the number of bytes that could not be read.
pub(crate) fn read(
    reader: &Reader,
    ranges: &[Range<u64>],
    go_on: impl Fn() -> bool,
    mut take: impl FnMut(u64, &[u8]),
) -> u64 {
    let (mut lost, mut buffer) = (0, Vec::new());
    let mut i = 0;
    while let Some(first) = ranges.get(i).filter(|_| go_on()) {
        if first.end - first.start > PIECE {
            let mut at = first.start;
            while at < first.end && go_on() {
                let end = (at + PIECE).min(first.end);
                lost += whole(reader, at..end, &mut buffer, &mut take);
                at = end;
            }
            i += 1;
            continue;
        }
        let mut n = 1;
        let fits = |r: &Range<u64>, last: &Range<u64>| {
            r.start - last.end < NEAR && r.end - first.start <= PIECE
        };
        while ranges.get(i + n).is_some_and(|r| fits(r, &ranges[i + n - 1])) {
            n += 1;
        }
        let group = &ranges[i..i + n];
        let span = first.start..group[n - 1].end;
        let len = (span.end - span.start) as usize;
        if reader.read(span.start, room(&mut buffer, len)) == len {
            for r in group {
                let part = (r.start - span.start) as usize..(r.end - span.start) as usize;
                take(r.start, &buffer[part]);
            }
        } else {
            for r in group {
                lost += whole(reader, r.clone(), &mut buffer, &mut take);
            }
        }
        i += n;
    }
    lost
}

/// Returns this much of a buffer, which never shrinks: bytes that are read over need not be cleared.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Reads one range of at most a piece, passing over pages that can't be read.
pub(crate) fn whole(
    reader: &Reader,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    take: &mut impl FnMut(u64, &[u8]),
) -> u64 {
    let page = prof_os::page_size();
    let (mut at, mut lost) = (range.start, 0);
    while at < range.end {
        let to = room(buffer, (range.end - at) as usize);
        let n = reader.read(at, to) as u64 / WORD * WORD;
        if n > 0 {
            take(at, &buffer[..n as usize]);
        }
        at += n;
        if at < range.end {
            let next = ((at / page + 1) * page).min(range.end);
            lost += next - at;
            at = next;
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::Pid;

    #[test]
    fn ranges_are_joined_intersected_and_taken_away() {
        let a = joined(vec![40..48, 0..7, 8..16, 100..101, 50..50, 44..64]);
        assert_eq!(a, [0..16, 40..64, 96..104]);
        let b = [8..48, 56..60, 96..97, 200..300];
        assert_eq!(common(&a, &b), [8..16, 40..48, 56..60, 96..97]);
        assert_eq!(without(&a, &b), [0..8, 48..56, 60..64, 97..104]);
        assert_eq!(without(&a, &[]), a);
        assert_eq!(common(&a, &[]), []);
        assert_eq!(without(&[0..10, 20..30], &[5..25, 40..41]), [0..5, 25..30]);
    }

    #[test]
    fn ranges_are_read_whole_and_what_is_missing_is_counted() {
        let reader = Reader::open(Pid::this()).expect("own memory");
        let own: Vec<u64> = (0..300_000).collect();
        let at = own.as_ptr() as u64;
        let ranges = [at..at + 8, at + 64..at + 80, at + 1_000_000..at + 2_400_000];
        let mut sum = 0;
        let mut words = 0u64;
        let lost = read(
            &reader,
            &ranges,
            || true,
            |_, bytes| {
                for w in bytes.as_chunks::<8>().0 {
                    sum += u64::from_ne_bytes(*w);
                    words += 1;
                }
            },
        );
        let expected: u64 = [0..1, 8..10, 125_000..300_000].into_iter().flatten().sum();
        assert_eq!((lost, words, sum), (0, 175_003, expected));
        assert_eq!(read(&reader, &[8..24, 32..40], || true, |_, _| panic!("nothing is there")), 24);
    }
}
