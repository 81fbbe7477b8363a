//! Reads the recording's clock, as the hook does.

use prof_os::clock::monotonic_ns;
use prof_trace::shared::{Shared, clock};
use prof_trace::ticks::Ticks;
use std::sync::atomic::Ordering::Relaxed;

/// Reads the time in ticks of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    counter: bool,
    ticks_per_sec: u64,
    /// Offset that is added to the counter (see `epochs.rs`).
    offset: u64,
}

impl Clock {
    /// Returns the clock that the control page names.
    pub fn of(shared: &Shared) -> Self {
        let c = shared.control();
        Self::new(c.clock.load(Relaxed), c.ticks_per_sec.load(Relaxed))
    }

    /// Creates the clock from the fields of the control page.
    pub(crate) fn new(source: u32, ticks_per_sec: u64) -> Self {
        Self {
            counter: clock::is_counter(source),
            ticks_per_sec: ticks_per_sec.clamp(1, 1 << 40),
            offset: 0,
        }
    }

    /// Returns the clock with this offset.
    pub(crate) fn with(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    /// Returns a clock that reads `CLOCK_MONOTONIC`.
    #[cfg(test)]
    pub(crate) fn monotonic() -> Self {
        Self { counter: false, ticks_per_sec: 1_000_000_000, offset: 0 }
    }

    /// Returns the present time in ticks.
    pub fn now(&self) -> Ticks {
        let now = if self.counter { prof_arch::native::capture::counter() } else { monotonic_ns() };
        Ticks(now).wrapping_add(self.offset)
    }

    /// Returns the upper bound, in ticks, on how early an unordered (odd) timestamp of the hook can be; 0: there are
    /// none.
    pub fn early(&self) -> u64 {
        let marked = self.counter && prof_arch::native::capture::LOADS_IN_ORDER;
        if marked { (self.ticks_per_sec * LOAD_NS / 1_000_000_000).max(1) } else { 0 }
    }

    /// Returns the frequency in ticks per second.
    pub fn ticks_per_sec(&self) -> u64 {
        self.ticks_per_sec
    }
}

/// Longest time of a load that misses all caches, in nanoseconds, with a good margin: the hook's unordered readings of
/// the counter are not earlier than that (see `Target::early`).
const LOAD_NS: u64 = 2000;
