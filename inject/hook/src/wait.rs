//! Waits of threads for the collector, which are bounded.

use crate::mapping::Shared;
use crate::{clock, header, sys, toggle};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use prof_trace::ticks::Ticks;

/// Time without a sign of life after which the collector counts as dead, in ns.
const COLLECTOR_DEAD_NS: u64 = 5_000_000_000;

/// Maximum number of rounds waited without a clock: each is 1,000 pause instructions of some 30 ns, so about
/// a tenth of a second in all.
const ROUNDS: u32 = 4000;

/// Outcome of a round of a [`Wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The thread has waited: what it waits for may be there.
    Waited,
    /// The thread has waited for as long as the recording allows, or nobody collects.
    Over,
    /// As [`Round::Over`], and there is no clock that advances by itself. A wait since these ticks is over at once.
    Timeless(Ticks),
}

/// A wait of this thread for the collector.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    since: Ticks,
    /// Longest time that is waited since then, in ticks.
    patience: u64,
    rounds: u32,
}

fn per_ns(shared: &Shared, ns: u64) -> u64 {
    let per_sec = shared.control().ticks_per_sec.load(Relaxed);
    (ns as u128 * per_sec as u128 / 1_000_000_000) as u64
}

impl Wait {
    /// Begins a wait that counts from `since`.
    pub fn since(shared: &Shared, since: Ticks) -> Self {
        let patience = per_ns(shared, shared.control().wait_ns.load(Relaxed));
        Self { since, patience, rounds: 0 }
    }

    /// Makes it last `ns` nanoseconds at least.
    pub fn at_least(self, shared: &Shared, ns: u64) -> Self {
        Self { patience: self.patience.max(per_ns(shared, ns)), ..self }
    }

    /// Waits for a moment; turns recording off if the collector is dead.
    pub fn round(&mut self, shared: &Shared) -> Round {
        let c = shared.control();
        // A child that was forked meanwhile has nobody to wait for.
        if !header::attached() {
            return Round::Over;
        }
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds > ROUNDS && !clock::goes_on(shared) {
            let over = clock::before(shared).wrapping_sub(self.patience).max(Ticks(1));
            return Round::Timeless(over);
        }
        let now = clock::before(shared);
        let seen = Ticks(c.heartbeat.load(Relaxed));
        if now.wrapping_since(seen) as i64 > per_ns(shared, COLLECTOR_DEAD_NS) as i64 {
            if header::flag()[0].swap(0, AcqRel) == 1 {
                c.orphaned.store(1, Relaxed);
                toggle::note(shared, 0);
            }
            return Round::Over;
        }
        if now.wrapping_since(self.since) as i64 >= self.patience as i64 {
            return Round::Over;
        }
        if sys::allowed(shared) {
            sys::sleep(50_000);
        } else {
            for _ in 0..1000 {
                core::hint::spin_loop();
            }
        }
        Round::Waited
    }
}
