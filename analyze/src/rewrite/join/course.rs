//! Adds up the figures of several recordings over time, up to one moment.

use crate::heap::{BUCKETS, Bucket, Counts, Course, Extent};
use prof_trace::ticks::Ticks;

/// Greatest number of buckets of time of the sum.
const MOST: usize = BUCKETS / 4;

/// Adds up courses. The sum has buckets as wide as the widest of the courses, and the last one ends at a moment.
pub(super) struct Adder {
    until: Ticks,
    start: Ticks,
    shift: u32,
    buckets: Vec<Bucket>,
}

impl Adder {
    /// Creates a sum of courses from the earliest of these starts to `until`, with buckets at least as wide as the
    /// widest of the courses has.
    pub(super) fn new(spans: impl Iterator<Item = (Ticks, u32)>, until: Ticks) -> Self {
        let (start, mut shift) =
            spans.fold((until, 0), |(start, most), (s, shift)| (start.min(s), most.max(shift)));
        let long = until.since(start);
        while long >> shift >= MOST as u64 {
            shift += 1;
        }
        // The first bucket has all from before, if there is no time for one more.
        let count = long.div_ceil(1 << shift).min(until.0 >> shift).max(1);
        let start = Ticks(until.0.saturating_sub(count.saturating_mul(1 << shift)));
        Self { until, start, shift, buckets: vec![Bucket::default(); count as usize] }
    }

    /// Adds a course, whose times are to be increased by so many ticks. A bucket of it that lies in two of the sum counts
    /// with its least and its most in both, and with its end in the later one.
    pub(super) fn add(&mut self, course: &Course, later: u64) {
        let width = 1u64 << self.shift;
        let start = course.start().wrapping_add(later);
        let span = |i: usize| {
            let at = |i: usize| Ticks(start.0.saturating_add((i as u64) << course.shift()));
            (at(i), at(i + 1))
        };
        let (all, mut next, mut before) = (course.buckets(), 0, Bucket::default());
        for (i, sum) in self.buckets.iter_mut().enumerate() {
            let end = self.start.saturating_add(width.saturating_mul(i as u64 + 1));
            let mut now = before.still();
            // Buckets that end in this one of the sum, and then one that begins in it.
            while next < all.len() && span(next).1 <= end {
                now.follow(&all[next]);
                next += 1;
            }
            before = now;
            if let Some(half) = all.get(next).filter(|_| span(next).0 < end) {
                now.bytes = both(&now.bytes, &half.bytes);
                now.blocks = both(&now.blocks, &half.blocks);
            }
            add(sum, &now);
        }
    }

    /// Returns the sum, and the most blocks and bytes that were live in one of its buckets, with the ticks of the latter.
    pub(super) fn finish(self) -> (Course, [u64; 2], Ticks) {
        let Self { until, start, shift, buckets } = self;
        let (mut most, mut at) = ([0, 0], until);
        for (i, b) in buckets.iter().enumerate() {
            if b.bytes.max > most[1] {
                at = start.saturating_add((i as u64) << shift);
            }
            most = [most[0].max(b.blocks.max), most[1].max(b.bytes.max)];
        }
        (Course::of(start, shift, buckets).unwrap_or_default(), most, at)
    }
}

/// Widens an extent by another, but keeps its end.
fn both(now: &Extent, half: &Extent) -> Extent {
    Extent { min: now.min.min(half.min), max: now.max.max(half.max), last: now.last }
}

fn add(sum: &mut Bucket, b: &Bucket) {
    for (to, e) in [(&mut sum.bytes, &b.bytes), (&mut sum.blocks, &b.blocks)] {
        *to = Extent {
            min: to.min.wrapping_add(e.min),
            max: to.max.wrapping_add(e.max),
            last: to.last.wrapping_add(e.last),
        };
    }
    let (s, c) = (sum.counts, b.counts);
    sum.counts = Counts {
        allocations: s.allocations.wrapping_add(c.allocations),
        reallocations: s.reallocations.wrapping_add(c.reallocations),
        frees: s.frees.wrapping_add(c.frees),
        ends: s.ends.wrapping_add(c.ends),
        allocated_bytes: s.allocated_bytes.wrapping_add(c.allocated_bytes),
        freed_bytes: s.freed_bytes.wrapping_add(c.freed_bytes),
        temporary: s.temporary.wrapping_add(c.temporary),
        leaked_bytes: s.leaked_bytes.wrapping_add(c.leaked_bytes),
        leaked_blocks: s.leaked_blocks.wrapping_add(c.leaked_blocks),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(start: u64, shift: u32, bytes: &[[u64; 3]]) -> Course {
        let bucket = |[min, max, last]: &[u64; 3]| {
            let bytes = Extent { min: *min, max: *max, last: *last };
            Bucket {
                bytes,
                blocks: bytes,
                counts: Counts { allocations: *max, ..Counts::default() },
            }
        };
        Course::of(Ticks(start), shift, bytes.iter().map(bucket).collect()).expect("a course")
    }

    #[test]
    fn buckets_that_lie_in_two_of_the_sum_count_in_both() {
        // From 100 to 116, and from 102 to 110.
        let a = course(100, 3, &[[1, 9, 4], [3, 7, 5]]);
        let b = course(102, 2, &[[0, 20, 10], [5, 30, 8]]);
        let all = [&a, &b];
        let mut adder = Adder::new(all.iter().map(|c| (c.start(), c.shift())), Ticks(116));
        all.iter().for_each(|c| adder.add(c, 0));
        let (sum, most, at) = adder.finish();
        assert_eq!((sum.start(), sum.shift(), sum.buckets().len()), (Ticks(100), 3, 2));
        let bytes: Vec<[u64; 3]> =
            sum.buckets().iter().map(|b| [b.bytes.min, b.bytes.max, b.bytes.last]).collect();
        // The first bucket of the second course ends in the first of the sum, and its second one in both.
        assert_eq!(bytes, [[0, 9 + 30, 4 + 10], [3 + 5, 7 + 30, 5 + 8]]);
        assert_eq!((most, at), ([39, 39], Ticks(100)));
        let counts: Vec<u64> = sum.buckets().iter().map(|b| b.counts.allocations).collect();
        assert_eq!(counts, [9 + 20, 7 + 30]);
    }

    #[test]
    fn times_at_both_ends_of_all_do_no_harm() {
        for (start, shift, until) in
            [(0, 0, u64::MAX), (0, 63, u64::MAX), (5, 10, 7), (u64::MAX, 63, 0)]
        {
            let c = course(start, shift, &[[1, 2, 1], [0, 5, 3]]);
            let mut adder = Adder::new(std::iter::once((c.start(), c.shift())), Ticks(until));
            adder.add(&c, 0);
            let (sum, ..) = adder.finish();
            assert!((1..=MOST).contains(&sum.buckets().len()), "{start} {shift} {until}");
        }
    }
}
