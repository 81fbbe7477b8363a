//! Packs the course of the figures for the file of an index.
//!
//! A head of words (start, exponent of the width, number of buckets, how each column is packed), the packed columns,
//! and a checksum of it all.

use super::column::{How, PACKED_WORDS, Packed, pack, unpack};
use super::format::{bytes_of, words_of};
use crate::heap::{Bucket, Counts, Course, Extent};
use prof_trace::chunk::checksum;
use prof_trace::ticks::Ticks;

/// Number of values of a bucket.
const VALUES: usize = 15;
/// Number of words in front of those of the columns.
const FRONT: usize = 3;
/// Length of the head.
const HEAD: usize = (FRONT + VALUES * PACKED_WORDS) * 8;

fn values(b: &Bucket) -> [u64; VALUES] {
    let c = &b.counts;
    let (Extent { min, max, last }, blocks) = (b.bytes, b.blocks);
    [
        min,
        max,
        last,
        blocks.min,
        blocks.max,
        blocks.last,
        c.allocations,
        c.reallocations,
        c.frees,
        c.ends,
        c.allocated_bytes,
        c.freed_bytes,
        c.temporary,
        c.leaked_bytes,
        c.leaked_blocks,
    ]
}

fn bucket(v: [u64; VALUES]) -> Bucket {
    let [min, max, last, least, most, final_, ..] = v;
    let [.., allocations, reallocations, frees, ends, allocated, freed, temporary, bytes, blocks] =
        v;
    Bucket {
        bytes: Extent { min, max, last },
        blocks: Extent { min: least, max: most, last: final_ },
        counts: Counts {
            allocations,
            reallocations,
            frees,
            ends,
            allocated_bytes: allocated,
            freed_bytes: freed,
            temporary,
            leaked_bytes: bytes,
            leaked_blocks: blocks,
        },
    }
}

/// Returns a course as bytes.
pub(crate) fn encode(course: &Course) -> Vec<u8> {
    let buckets = course.buckets();
    let mut head = vec![course.start().0, course.shift().into(), buckets.len() as u64];
    let mut bytes = Vec::new();
    for i in 0..VALUES {
        let column: Vec<u64> = buckets.iter().map(|b| values(b)[i]).collect();
        head.extend(pack(&column, How { steps: true, short: true }, &mut bytes).words());
    }
    let mut out = bytes_of(&head);
    out.extend(bytes);
    let sum = checksum(1, &out);
    out.extend(sum.to_le_bytes());
    out
}

/// Decodes a course; `None` if it is damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<Course> {
    let (bytes, sum) = bytes.split_last_chunk::<8>()?;
    if checksum(1, bytes) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (head, mut rest) = bytes.split_at_checked(HEAD)?;
    let words = words_of(head);
    let ([start, shift, count], packed) = words.split_first_chunk::<FRONT>()?;
    let count = usize::try_from(*count).ok().filter(|n| *n <= crate::heap::BUCKETS)?;
    let mut all = vec![[0; VALUES]; count];
    let mut column = Vec::new();
    for (i, w) in packed.as_chunks::<PACKED_WORDS>().0.iter().enumerate() {
        let p = Packed::from_words(*w)?;
        let (of_column, behind) = rest.split_at_checked(p.len(count))?;
        unpack(&p, of_column, count, &mut column)?;
        all.iter_mut().zip(&column).for_each(|(v, c)| v[i] = *c);
        rest = behind;
    }
    let buckets = all.into_iter().map(bucket).collect();
    Course::of(Ticks(*start), u32::try_from(*shift).ok()?, buckets).filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_comes_back_and_damage_is_seen() {
        let bucket = |i: u64| {
            let mut v = [0; VALUES];
            v.iter_mut().enumerate().for_each(|(k, v)| *v = i * i * (k as u64 + 3));
            bucket(v)
        };
        for n in [0, 1, 2, 1000] {
            let course = Course::of(Ticks(77), 5, (0..n).map(bucket).collect()).expect("a course");
            let bytes = encode(&course);
            assert_eq!(decode(&bytes), Some(course));
            for at in (0..bytes.len()).step_by(7) {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                assert!(decode(&bad).is_none(), "{n} buckets, byte {at}");
                assert!(decode(&bytes[..at]).is_none());
            }
        }
    }
}
