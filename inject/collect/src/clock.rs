//! The recording's clock, as the hook reads it.

use prof_trace::shared::{Shared, clock};
use std::sync::atomic::Ordering::Relaxed;

/// Reads the time in ticks of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    counter: bool,
    ticks_per_sec: u64,
    /// Added to the counter (see `epochs.rs`).
    offset: u64,
}

impl Clock {
    /// The clock that the control page names.
    pub fn of(shared: &Shared) -> Self {
        let c = shared.control();
        Self::new(c.clock.load(Relaxed), c.ticks_per_sec)
    }

    /// The same from what the control page says.
    pub(crate) fn new(source: u32, ticks_per_sec: u64) -> Self {
        Self {
            counter: clock::is_counter(source),
            ticks_per_sec: ticks_per_sec.clamp(1, 1 << 40),
            offset: 0,
        }
    }

    /// The same with so much added.
    pub(crate) fn with(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    /// `CLOCK_MONOTONIC`.
    #[cfg(test)]
    pub(crate) fn monotonic() -> Self {
        Self { counter: false, ticks_per_sec: 1_000_000_000, offset: 0 }
    }

    /// Now.
    pub fn now(&self) -> u64 {
        let now = if self.counter { prof_arch::native::capture::counter() } else { monotonic_ns() };
        now.wrapping_add(self.offset)
    }

    /// Ticks by which the hook's times may be too early that say so; 0: none does.
    pub fn early(&self) -> u64 {
        let marked = self.counter && prof_arch::native::capture::LOADS_IN_ORDER;
        if marked { (self.ticks_per_sec * LOAD_NS / 1_000_000_000).max(1) } else { 0 }
    }

    /// Ticks in a second.
    pub fn ticks_per_sec(&self) -> u64 {
        self.ticks_per_sec
    }
}

/// The longest that a load takes which finds nothing in any cache, in ns, with a good margin: the hook's
/// unordered readings of the counter are not earlier than that (see `Target::early`).
const LOAD_NS: u64 = 2000;

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
