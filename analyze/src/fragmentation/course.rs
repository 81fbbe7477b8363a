//! The chunks of recorded blocks that are in use while the allocator is looked at.
use prof_trace::ticks::Ticks;

/// Greatest number of blocks that are kept of the ones that begin or end meanwhile.
const MOST: usize = 1 << 20;

/// Chunks in use at the moments of a short period.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    /// First and last tick; without them nothing is counted.
    time: Option<(Ticks, Ticks)>,
    /// Bytes in use at each moment of the period.
    always: u64,
    /// First address, and first address behind the end, of each chunk in use at some moments only.
    others: Vec<(u64, u64)>,
    /// Whether there were more than [`MOST`] of these.
    too_many: bool,
}

impl Course {
    /// Creates the course of a period without blocks.
    pub(super) fn of(time: Option<(Ticks, Ticks)>) -> Self {
        Self { time, ..Self::default() }
    }

    /// Returns the period.
    pub(super) fn time(&self) -> Option<(Ticks, Ticks)> {
        self.time
    }

    /// Adds the chunk of a block that lives from `begin` until before `end`.
    pub(super) fn add(&mut self, (begin, end): (Ticks, Ticks), addr: u64, bytes: u64) {
        let Some((from, to)) = self.time else { return };
        if begin > to || end < from {
            return;
        }
        if begin < from && end > to {
            self.always = self.always.saturating_add(bytes);
        } else if self.others.len() < MOST {
            self.others.push((addr, addr.saturating_add(bytes)));
        } else {
            self.too_many = true;
        }
    }

    /// Adds the chunks of another course of the same period.
    pub(super) fn merge(&mut self, other: Self) {
        self.always = self.always.saturating_add(other.always);
        self.too_many |= other.too_many;
        self.others.extend(other.others);
    }

    /// Returns the bytes of chunks that are in use at each moment of the period.
    pub(super) fn at_each_moment(&self) -> u64 {
        self.always
    }

    /// Returns the bytes that belong to chunks in use at any moment of the period; `None` if these were too many. A
    /// byte counts once, however often it is allocated.
    pub(super) fn at_some_moment(&self) -> Option<u64> {
        let mut all = self.others.clone();
        all.sort_unstable();
        let (mut sum, mut reached) = (self.always, 0);
        for (start, end) in all {
            sum = sum.saturating_add(end.saturating_sub(start.max(reached)));
            reached = reached.max(end);
        }
        (!self.too_many).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_counts_once_however_often_it_is_allocated() {
        let mut one = Course::of(Some((Ticks(100), Ticks(200))));
        let mut other = one.clone();
        one.add((Ticks::ZERO, Ticks(100)), 0x1000, 32); // ends with the first tick
        one.add((Ticks(120), Ticks(130)), 0x1000, 64);
        one.add((Ticks(140), Ticks::MAX), 0x1020, 64);
        one.add((Ticks::ZERO, Ticks(99)), 0x5000, 1000);
        other.add((Ticks(99), Ticks(201)), 0x2000, 500);
        other.add((Ticks(150), Ticks(151)), 0x1010, 16);
        other.add((Ticks(201), Ticks::MAX), 0x6000, 1000);
        one.merge(other);
        assert_eq!(one.at_each_moment(), 500);
        assert_eq!(one.at_some_moment(), Some(500 + 0x60));
    }

    #[test]
    fn any_times_and_addresses_give_an_answer() {
        let mut all = Course::of(Some((Ticks::ZERO, Ticks::MAX)));
        all.add((Ticks::ZERO, Ticks::MAX), u64::MAX, u64::MAX);
        all.add((Ticks(5), Ticks(4)), 3, u64::MAX);
        all.merge(all.clone());
        assert_eq!(all.at_some_moment(), Some(u64::MAX - 3));
        let mut none = Course::of(None);
        none.add((Ticks(1), Ticks(2)), 3, 4);
        assert_eq!((none.at_each_moment(), none.at_some_moment()), (0, Some(0)));
    }

    #[test]
    fn what_does_not_fit_is_not_left_out_silently() {
        let mut all = Course::of(Some((Ticks::ZERO, Ticks(9))));
        all.others.resize(MOST - 1, (0, 16));
        all.add((Ticks(1), Ticks(2)), 32, 16);
        assert_eq!(all.at_some_moment(), Some(32));
        all.add((Ticks(1), Ticks(2)), 64, 16);
        assert_eq!(all.at_some_moment(), None);
    }
}
