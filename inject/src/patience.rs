//! How long to wait for a thread to stop, and how.

use crate::tracee::release_stuck;
use crate::{Error, Result};
use std::time::{Duration, Instant};

/// How long to look for a stop before sleeping between the looks.
/// Longer than this, a spinning tracer only takes the processor from its tracee.
const SPIN: Duration = Duration::from_micros(100);
/// Sleeps between looks: the shortest and the longest.
pub(crate) const SLEEPS: (Duration, Duration) =
    (Duration::from_micros(20), Duration::from_millis(2));

/// How to wait for a stop: not longer than until a deadline, and at first without sleeping. A stop takes
/// some ten microseconds, and waking up from a sleep would double it. The sleeps get longer while nothing
/// happens: with one processor that is slow, each look may take all of it from the thread that is to stop.
pub(crate) struct Patience {
    began: Instant,
    deadline: Instant,
    /// Longest time without anything happening.
    span: Duration,
    /// When something happened last.
    since: Instant,
}

impl Patience {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self::while_moving(Duration::MAX, deadline)
    }

    /// For as long as something happens within each `span`, and not longer than until the deadline.
    pub(crate) fn while_moving(span: Duration, deadline: Instant) -> Self {
        let now = Instant::now();
        Self { began: now, deadline, span, since: now }
    }

    /// Something has happened: one of several has stopped.
    pub(crate) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Lets others run.
    ///
    /// # Errors
    /// If the deadline has passed: the thread does not stop.
    pub(crate) fn rest(&mut self, pid: i32, tid: i32) -> Result<()> {
        release_stuck();
        let now = Instant::now();
        if now >= self.deadline || now - self.since >= self.span {
            let ms = (now - self.began).as_millis();
            return Err(Error::NotStopping { pid, tid, ms });
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
        const SPAN: Duration = Duration::from_millis(200);
        let began = Instant::now();
        let mut moving = Patience::while_moving(SPAN, began + Duration::from_secs(600));
        // Several spans, in each of which something happens.
        while began.elapsed() < SPAN * 4 {
            moving.renew();
            moving.rest(1, 1).expect("something has just happened");
        }
        while moving.rest(1, 1).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(60), "waits without anything happening");
        }
        let mut over = Patience::while_moving(SPAN, Instant::now());
        over.renew();
        assert!(over.rest(1, 1).is_err(), "the deadline holds in any case");
    }
}
