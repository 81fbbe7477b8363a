//! Sorts that end when their script is stopped.

use crate::error::{Fault, Stopped, end};
use prof_analyze::Job;

/// Number of items that are sorted or merged between two looks at the job: a millisecond or so.
const STEP: usize = 1 << 14;

/// Sorts by a key, and leaves items with equal keys in their order.
///
/// # Errors
/// If the job of this thread was cancelled: after a step at most.
pub(crate) fn by_key<T: Copy>(mut items: Vec<T>, key: impl Fn(&T) -> u64) -> Result<Vec<T>, Fault> {
    for part in items.chunks_mut(STEP) {
        look()?;
        part.sort_by_key(&key);
    }
    let (mut length, mut merged) = (STEP, Vec::new());
    while length < items.len() {
        merged.reserve_exact(items.len());
        for both in items.chunks(2 * length) {
            let (first, second) = both.split_at(length.min(both.len()));
            merge(first, second, &key, &mut merged)?;
        }
        std::mem::swap(&mut items, &mut merged);
        merged.clear();
        length *= 2;
    }
    Ok(items)
}

/// Merges two sorted parts; of equal keys, those of the first part come first.
fn merge<T: Copy>(
    mut first: &[T],
    mut second: &[T],
    key: impl Fn(&T) -> u64,
    out: &mut Vec<T>,
) -> Result<(), Fault> {
    while let (Some(a), Some(b)) = (first.first(), second.first()) {
        if out.len().is_multiple_of(STEP) {
            look()?;
        }
        if key(a) <= key(b) {
            out.push(*a);
            first = &first[1..];
        } else {
            out.push(*b);
            second = &second[1..];
        }
    }
    out.extend_from_slice(first);
    out.extend_from_slice(second);
    Ok(())
}

fn look() -> Result<(), Fault> {
    match Job::is_current_cancelled() {
        true => Err(end(Stopped("the script was stopped".into()))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn items_are_sorted_and_equal_ones_stay_in_their_order() {
        for count in [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP + 5, 8 * STEP] {
            let mut n = 7u64;
            let mut next = || {
                n = n
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                n >> 50
            };
            let items: Vec<(u64, usize)> = (0..count).map(|i| (next(), i)).collect();
            let mut meant = items.clone();
            meant.sort();
            assert_eq!(by_key(items, |i| i.0).ok(), Some(meant), "{count} items");
        }
    }

    /// Counts the keys that are still asked for after the job is cancelled, rather than the time.
    #[test]
    fn a_cancelled_sort_ends_within_a_step() {
        const COUNT: usize = 64 * STEP;
        let (all, _) = asked(usize::MAX);
        let mut tried = 0;
        for at in [1, COUNT / 2, 4 * COUNT, all - 4 * STEP] {
            let (asked, ended) = asked(at);
            assert!(
                ended && asked < at + 40 * STEP,
                "cancelled at {at} of {all}, ended at {asked}"
            );
            tried += 1;
        }
        assert_eq!(tried, 4);

        /// Returns the number of keys that a sort asks for which is cancelled at a key, and whether it ended early.
        fn asked(at: usize) -> (usize, bool) {
            let (job, asked) = (Job::default(), Cell::new(0));
            let items: Vec<u64> =
                (0..COUNT as u64).map(|i| i.wrapping_mul(0x9e37_79b9) % 100_003).collect();
            let key = |i: &u64| {
                asked.set(asked.get() + 1);
                if asked.get() == at {
                    job.cancel();
                }
                *i
            };
            let sorted = job.run(|| by_key(items, key));
            (asked.get(), sorted.is_err())
        }
    }
}
