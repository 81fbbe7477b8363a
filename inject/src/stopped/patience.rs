//! Waiting for a thread to stop: how long, and with which pauses.

use crate::stopped::tracee::release_stuck;
use crate::{Error, Result};
use prof_os::Pid;
use std::time::{Duration, Instant};

/// Time after which the wait sleeps between its looks. A tracer that spins for longer only takes the processor from
/// its tracee.
const SPIN: Duration = Duration::from_micros(100);
/// Shortest and longest sleep between two looks.
pub(crate) const SLEEPS: (Duration, Duration) =
    (Duration::from_micros(20), Duration::from_millis(2));

/// A wait for a stop, which ends at a deadline and does not sleep at first. A stop takes some ten microseconds, and
/// waking up from a sleep would double that. The sleeps grow while nothing happens: on a slow machine with one
/// processor, each look may take all its time from the thread that is to stop.
pub(crate) struct Patience {
    began: Instant,
    deadline: Instant,
    /// Longest time that may pass without progress.
    span: Duration,
    /// Time of the last progress.
    since: Instant,
}

impl Patience {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self::while_moving(Duration::MAX, deadline)
    }

    /// Waits for as long as there is progress within each `span`, and at most until the deadline.
    pub(crate) fn while_moving(span: Duration, deadline: Instant) -> Self {
        let now = Instant::now();
        Self { began: now, deadline, span, since: now }
    }

    /// Notes progress: one of several threads has stopped.
    pub(crate) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Lets other threads run for a while.
    ///
    /// # Errors
    /// If the deadline has passed, or a span without progress: the thread does not stop.
    pub(crate) fn rest(&mut self, pid: Pid, tid: Pid) -> Result<()> {
        release_stuck();
        let now = Instant::now();
        if now >= self.deadline || now - self.since >= self.span {
            return Err(Error::NotStopping { pid, tid, waited: now - self.began });
        }
        if now - self.began > SPIN {
            std::thread::sleep(((now - self.since) / 8).clamp(SLEEPS.0, SLEEPS.1));
        } else {
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_goes_on_for_as_long_as_threads_stop() {
        const ONE: Pid = Pid::from_raw(1);
        const SPAN: Duration = Duration::from_millis(200);
        let began = Instant::now();
        let mut moving = Patience::while_moving(SPAN, began + Duration::from_secs(600));
        // Several spans pass, with progress in each.
        while began.elapsed() < SPAN * 4 {
            moving.renew();
            moving.rest(ONE, ONE).expect("something has just happened");
        }
        while moving.rest(ONE, ONE).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(60), "waits without anything happening");
        }
        let mut over = Patience::while_moving(SPAN, Instant::now());
        over.renew();
        assert!(over.rest(ONE, ONE).is_err(), "the deadline holds in any case");
    }
}
