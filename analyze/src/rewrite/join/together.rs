//! Bounds from above the memory that several processes held at one moment, given the most that each held.

use prof_trace::ticks::Ticks;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The memory that one process held: numbers of blocks, and bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Ticks from when on the process held anything.
    pub begin: Ticks,
    /// Ticks when its recording ended; [`Ticks::MAX`]: it has not.
    pub end: Ticks,
    /// The most that it held at any time.
    pub most: [u64; 2],
    /// Live at the end, which counts as live from then on.
    pub last: [u64; 2],
    /// Ticks when it held the most bytes.
    pub at: Ticks,
}

/// Adds up what processes held. As it is only known of each how much it held at most, the sum is that of the most of all
/// whose recordings were made at the same time, and of what the others held at their ends.
#[derive(Clone, Debug, Default)]
pub(super) struct Together {
    /// Of each process whose recording has an end that was not reached: that end, and by how much it then holds less than the
    /// most. The first to end comes first.
    open: BinaryHeap<Reverse<(Ticks, [u64; 2])>>,
    now: [u64; 2],
    /// The greatest sum at any time.
    pub most: [u64; 2],
    /// Ticks when that of the bytes was reached, as the process has it that was added last.
    pub at: Ticks,
}

impl Together {
    /// Adds a process. Processes must come in the order in which they began.
    pub(super) fn add(&mut self, held: &Held) {
        let Held { begin, end, most, last, at } = *held;
        while self.open.peek().is_some_and(|Reverse((end, _))| *end <= begin)
            && let Some(Reverse((_, less))) = self.open.pop()
        {
            self.now = [0, 1].map(|i| self.now[i].saturating_sub(less[i]));
        }
        if end != Ticks::MAX {
            self.open.push(Reverse((end, [0, 1].map(|i| most[i].saturating_sub(last[i])))));
        }
        self.now = [0, 1].map(|i| self.now[i].saturating_add(most[i].max(last[i])));
        if self.now[1] > self.most[1] {
            self.at = at;
        }
        self.most = [0, 1].map(|i| self.most[i].max(self.now[i]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held([begin, end]: [u64; 2], most: u64, last: u64) -> Held {
        let both = |n| [n, 10 * n];
        let (begin, end) = (Ticks(begin), Ticks(end));
        Held { begin, end, most: both(most), last: both(last), at: Ticks(begin.0 + 1) }
    }

    #[test]
    fn processes_at_the_same_time_count_together_and_others_one_after_the_other() {
        let mut all = Together::default();
        all.add(&held([0, 100], 7, 2));
        assert_eq!((all.most, all.at), ([7, 70], Ticks(1)));
        // The first has ended, and two blocks of it are left.
        all.add(&held([100, 200], 4, 0));
        assert_eq!((all.most, all.at), ([7, 70], Ticks(1)));
        all.add(&held([150, u64::MAX], 4, 4));
        assert_eq!((all.most, all.at), ([10, 100], Ticks(151)));
        all.add(&held([300, 400], 3, 1));
        assert_eq!(all.most, [10, 100]);
        all.add(&held([300, 400], 3, 1));
        assert_eq!((all.most, all.at), ([12, 120], Ticks(301)));
    }
}
