//! The hook's counters, added up.

use prof_trace::records::Counters;
use prof_trace::shared::{FUNCTIONS, Shared};
use std::sync::atomic::Ordering::Relaxed;

/// Adds up what the hook has counted so far.
pub fn totals(shared: &Shared) -> Counters {
    let c = shared.control();
    let functions = (c.functions.load(Relaxed) as usize).min(FUNCTIONS);
    let mut t = Counters { calls: vec![0; functions], ..Default::default() };
    t.lost = shared.lost_without_slot();
    for s in shared.used_slots() {
        let add = |sum: &mut u64, n: u64| *sum = sum.wrapping_add(n);
        add(&mut t.events, s.events.load(Relaxed));
        add(&mut t.lost, s.lost.load(Relaxed));
        add(&mut t.reentered, s.reentered.load(Relaxed));
        add(&mut t.truncated, s.truncated.load(Relaxed));
        add(&mut t.mismatches, s.mismatches.load(Relaxed));
        add(&mut t.verified, s.verified.load(Relaxed));
        for (sum, n) in t.calls.iter_mut().zip(&s.calls) {
            add(sum, n.load(Relaxed));
        }
    }
    t
}
