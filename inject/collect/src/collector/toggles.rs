//! Reads from the control page when recording was switched off and on.

use prof_trace::shared::{TOGGLES, Toggle};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The collector's place in the table of toggles. The collector empties an entry that it has read, so that the next toggle of that
/// place can be told from it, but not before the toggle is in the file: a collector that goes on after this one reads those that are
/// not.
#[derive(Debug, Default)]
pub(super) struct Toggles {
    /// Number of the next toggle.
    next: u64,
    /// Numbers and times of toggles that may not be in the file yet.
    taken: Vec<(u64, u64)>,
    /// Number of toggles that the page had when the recording was continued: an entry of these that stays empty was emptied by the
    /// collector before, and the end of the recording is lost.
    before: u64,
    /// Whether the page was looked at since.
    has_looked: bool,
}

/// A toggle that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// The time in the counter's ticks; `None`: it is not known any more.
    pub time: Option<u64>,
    /// Whether recording was switched on.
    pub on: bool,
}

impl Toggles {
    /// Continues behind the toggles that a recording has. The page has had `count`; a recording that met its bounds has one more.
    pub(super) fn continue_from(&mut self, recorded: u64, count: u64) {
        (self.next, self.before, self.has_looked) = (recorded.min(count), count, false);
    }

    /// Empties the entries of toggles that are in the file by now.
    pub(super) fn are_written(&mut self, table: &[Toggle; TOGGLES]) {
        for (number, time) in self.taken.drain(..) {
            // The place may be another toggle's already.
            let entry = &table[number as usize % TOGGLES].time;
            let _ = entry.compare_exchange(time, 0, Release, Relaxed);
        }
    }

    /// Returns the toggles that have come since the last look, of the `count` that there were.
    pub(super) fn take(&mut self, table: &[Toggle; TOGGLES], count: u64) -> Vec<Taken> {
        let mut all = Vec::new();
        // The oldest of very many have given their places away.
        self.next = self.next.max(count.saturating_sub(TOGGLES as u64));
        while self.next < count {
            let entry = &table[self.next as usize % TOGGLES];
            let time = Some(entry.time.load(Acquire)).filter(|time| *time != 0);
            let is_emptied = self.next < self.before && self.has_looked;
            // Whoever switches has reserved the entry, and not written it yet.
            if time.is_none() && !is_emptied {
                break;
            }
            let on = entry.on.load(Relaxed) & 1 == 1;
            self.taken.extend(time.map(|time| (self.next, time)));
            all.push(Taken { time, on });
            self.next += 1;
        }
        self.has_looked = true;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> [Toggle; TOGGLES] {
        std::array::from_fn(|_| Toggle::default())
    }

    fn put(table: &[Toggle; TOGGLES], number: u64, time: u64) {
        let entry = &table[number as usize % TOGGLES];
        entry.on.store(number % 2, Relaxed);
        entry.time.store(time, Relaxed);
    }

    fn times(all: &[Taken]) -> Vec<u64> {
        all.iter().map(|t| t.time.unwrap_or(0)).collect()
    }

    #[test]
    fn each_toggle_is_read_once_and_one_that_is_not_written_is_waited_for() {
        let (table, mut toggles) = (table(), Toggles::default());
        put(&table, 0, 10);
        assert_eq!(toggles.take(&table, 2), [Taken { time: Some(10), on: false }]);
        assert_eq!(times(&toggles.take(&table, 2)), [0; 0]);
        put(&table, 1, 20);
        assert_eq!(toggles.take(&table, 2), [Taken { time: Some(20), on: true }]);
        toggles.are_written(&table);
        // The place of the first has another toggle by now, which was not read.
        let many = TOGGLES as u64;
        (2..many).for_each(|n| put(&table, n, 10 * (n + 1)));
        assert_eq!(toggles.take(&table, many).len() as u64, many - 2);
        put(&table, many + 2, 7);
        toggles.are_written(&table);
        assert_eq!(times(&toggles.take(&table, many + 3)), [0; 0], "two are not written yet");
        put(&table, many, 5);
        put(&table, many + 1, 6);
        assert_eq!(times(&toggles.take(&table, many + 3)), [5, 6, 7]);
        // Of too many, the last are there.
        (0..2 * many).for_each(|n| put(&table, n, 1000 + n));
        assert_eq!(times(&toggles.take(&table, 4 * many))[0], 1000 + many);
    }

    #[test]
    fn a_collector_that_goes_on_reads_what_the_recording_does_not_have() {
        let (table, mut first) = (table(), Toggles::default());
        (0..4).for_each(|n| put(&table, n, 10 * (n + 1)));
        assert_eq!(first.take(&table, 2).len(), 2);
        first.are_written(&table);
        // It is killed before the next two are in the file.
        assert_eq!(times(&first.take(&table, 4)), [30, 40]);
        let mut next = Toggles::default();
        next.continue_from(2, 4);
        assert_eq!(times(&next.take(&table, 4)), [30, 40]);
        // The file has lost one that was in it: that it came is known, and not when.
        let mut next = Toggles::default();
        next.continue_from(1, 4);
        assert_eq!(next.take(&table, 4), []);
        assert_eq!(times(&next.take(&table, 4)), [0, 30, 40]);
        // A recording that met its bounds has a toggle of its own.
        let mut next = Toggles::default();
        next.continue_from(5, 4);
        put(&table, 4, 50);
        assert_eq!(times(&next.take(&table, 5)), [50]);
    }
}
