//! Sums up the hook's counters. They are in memory that the target can write to, so implausible values are ignored.

use prof_trace::records::Counters;
use prof_trace::shared::{FUNCTIONS, Shared, Slot};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Returns the sums of the hook's counters, without implausible values.
pub fn totals(shared: &Shared) -> Counters {
    Checked::default().totals(shared)
}

/// The plausible counts of one thread's slot.
#[derive(Debug, Default)]
struct Seen {
    counts: [u64; 6],
    calls: Vec<u64>,
    /// A count was implausible; further counts of the slot are ignored.
    doubtful: bool,
}

/// The latest counts, which may only grow.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    slots: HashMap<usize, Seen>,
    no_slot: Seen,
}

/// Returns the greatest plausible count: one per nanosecond since the machine was started.
fn most() -> u64 {
    prof_os::clock::boot_ns().saturating_add(1_000_000_000)
}

impl Seen {
    fn take(&mut self, counts: [u64; 6], calls: &[AtomicU64], most: u64) {
        self.calls.resize(calls.len().max(self.calls.len()), 0);
        let now: Vec<u64> = calls.iter().map(|n| n.load(Relaxed)).collect();
        let right = |old: &[u64], new: &[u64]| {
            old.iter().zip(new).all(|(old, new)| old <= new && *new <= most)
        };
        if !right(&self.counts, &counts) || !right(&self.calls, &now) {
            self.doubtful = true;
        }
        if !self.doubtful {
            self.counts = counts;
            self.calls[..now.len()].copy_from_slice(&now);
        }
    }
}

impl Checked {
    /// Returns the sums of the hook's counters, without implausible values.
    pub(crate) fn totals(&mut self, shared: &Shared) -> Counters {
        let c = shared.control();
        let most = most();
        let functions = (c.functions.load(Relaxed) as usize).min(FUNCTIONS);
        for s in shared.used_slots() {
            let counts =
                [&s.events, &s.lost, &s.reentered, &s.truncated, &s.mismatches, &s.verified];
            let counts = counts.map(|n| n.load(Relaxed));
            let key = std::ptr::from_ref::<Slot>(s) as usize;
            let seen = self.slots.entry(key).or_default();
            seen.take(counts, &s.calls[..functions.min(s.calls.len())], most);
        }
        self.no_slot.take([0, shared.lost_without_slot(), 0, 0, 0, 0], &[], most);
        self.sum(functions)
    }

    fn sum(&self, functions: usize) -> Counters {
        let mut t = Counters { calls: vec![0; functions], ..Counters::default() };
        for s in self.slots.values().chain([&self.no_slot]) {
            let sums = [
                &mut t.events,
                &mut t.lost,
                &mut t.reentered,
                &mut t.truncated,
                &mut t.mismatches,
                &mut t.verified,
            ];
            for (sum, n) in sums.into_iter().zip(s.counts) {
                *sum = sum.saturating_add(n);
            }
            for (sum, n) in t.calls.iter_mut().zip(&s.calls) {
                *sum = sum.saturating_add(*n);
            }
            t.doubtful += u64::from(s.doubtful);
        }
        t
    }
}
