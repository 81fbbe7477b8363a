//! Keeps the scan from taking more of a processor than it may.

use prof_os::clock::thread_ns;
use std::time::{Duration, Instant};

/// Longest single rest.
const REST: Duration = Duration::from_millis(200);

/// A limit on the share of a processor that a thread takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throttle {
    percent: u64,
    began: Instant,
    cpu: u64,
}

impl Throttle {
    /// Begins to count; 0 percent: there is no limit.
    pub(crate) fn new(percent: u32) -> Self {
        Self { percent: percent.into(), began: Instant::now(), cpu: thread_ns() }
    }

    /// Sleeps until the thread may go on.
    pub(crate) fn rest(&self) {
        let used = thread_ns().saturating_sub(self.cpu);
        let Some(due) = (used * 100).checked_div(self.percent) else { return };
        let due = Duration::from_nanos(due).saturating_sub(self.began.elapsed());
        if !due.is_zero() {
            std::thread::sleep(due.min(REST));
        }
    }
}
