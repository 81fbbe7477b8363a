//! Reports the progress of long operations.

use crate::job::Pass;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Description of the operation.
    pub what: &'static str,
    /// Amount of work done, in the unit of `total`.
    pub done: u64,
    /// Total amount of work; 0 if it is not known.
    pub total: u64,
    /// Time since the operation began.
    pub elapsed: Duration,
}

/// Receives progress reports; `None` at the end of each operation.
pub type Show = fn(Option<At>);

/// Shortest interval between two reports.
const EVERY: Duration = Duration::from_millis(100);

static SHOW: OnceLock<Show> = OnceLock::new();
/// An operation is running: others that begin within it are not reported.
static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Sets the receiver of progress reports. Only the first call has an effect.
pub fn show(show: Show) {
    let _ = SHOW.set(show);
}

/// An operation that may take long; it ends when this is dropped.
pub(crate) struct Step {
    what: &'static str,
    total: u64,
    done: AtomicU64,
    began: Instant,
    /// Milliseconds from the beginning to the last report.
    told: AtomicU64,
    outermost: bool,
    /// The step's part in the job of the thread that began it.
    pass: Pass,
}

impl Step {
    pub(crate) fn begin(what: &'static str, total: u64) -> Self {
        let outermost = SHOW.get().is_some() && !UNDER_WAY.swap(true, Relaxed);
        let (done, told) = Default::default();
        let pass = Pass::begin(what, total);
        Self { what, total, done, began: Instant::now(), told, outermost, pass }
    }

    /// Returns whether the job that it is part of was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.pass.is_cancelled()
    }

    /// Adds to the work done.
    pub(crate) fn add(&self, n: u64) {
        self.pass.add(n);
        if self.outermost {
            self.tell(self.done.fetch_add(n, Relaxed) + n);
        }
    }

    /// Sets the work done.
    pub(crate) fn set(&self, done: u64) {
        self.pass.set(done);
        if self.outermost {
            self.tell(done);
        }
    }

    fn tell(&self, done: u64) {
        let elapsed = self.began.elapsed();
        let (now, told) = (elapsed.as_millis() as u64, self.told.load(Relaxed));
        let due = now >= told + EVERY.as_millis() as u64;
        if due && self.told.compare_exchange(told, now, Relaxed, Relaxed).is_ok() {
            let at = At { what: self.what, done: done.min(self.total), total: self.total, elapsed };
            SHOW.get().iter().for_each(|show| show(Some(at)));
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.outermost {
            UNDER_WAY.store(false, Relaxed);
            SHOW.get().iter().for_each(|show| show(None));
        }
    }
}

/// The state of an operation that may block, shown in place of the step that it is part of.
pub(crate) struct Wait {
    done: AtomicU64,
    /// 0: not known, or not begun.
    total: AtomicU64,
    begun: AtomicBool,
}

impl Wait {
    /// Notes that data arrives, with its size in bytes, if that is known.
    pub(crate) fn begins(&self, total: Option<u64>) {
        self.total.store(total.unwrap_or(0), Relaxed);
        self.begun.store(true, Relaxed);
    }

    /// Notes how many bytes have arrived.
    pub(crate) fn has(&self, done: u64) {
        self.done.store(done, Relaxed);
    }
}

/// Runs an operation that may block, and reports its progress meanwhile: as `before` until data arrives, then as
/// `what`.
pub(crate) fn waiting<T>(
    before: &'static str,
    what: &'static str,
    blocking: impl FnOnce(&Wait) -> T,
) -> T {
    let wait = Wait { done: 0.into(), total: 0.into(), begun: false.into() };
    let Some(show) = SHOW.get() else { return blocking(&wait) };
    let began = Instant::now();
    let (over, is_over) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        let wait = &wait;
        let tell = move || {
            show(None);
            while is_over.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let what = if wait.begun.load(Relaxed) { what } else { before };
                let (done, total) = (wait.done.load(Relaxed), wait.total.load(Relaxed));
                show(Some(At { what, done, total, elapsed: began.elapsed() }));
            }
            show(None);
        };
        // Without a thread for it, nothing is shown.
        let _ = std::thread::Builder::new().spawn_scoped(s, tell);
        let result = blocking(wait);
        drop(over);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static SEEN: Mutex<Vec<Option<At>>> = Mutex::new(Vec::new());

    #[test]
    fn the_outermost_step_is_told_of_now_and_then() {
        show(|at| SEEN.lock().expect("a lock").push(at));
        let step = Step::begin("a test of steps", 10);
        for _ in 0..1000 {
            step.set(3);
            Step::begin("a step of the test", 1).add(1);
        }
        std::thread::sleep(EVERY * 2);
        step.add(12);
        drop(step);
        let seen = SEEN.lock().expect("a lock");
        // Other tests of this process may report progress as well.
        let of: Vec<_> = seen.iter().flatten().filter(|a| a.what == "a test of steps").collect();
        assert!(seen.iter().flatten().all(|a| a.what != "a step of the test"));
        if let Some(last) = of.last() {
            assert!(of.len() < 500 && last.done == 10 && last.total == 10, "{of:?}");
            assert_eq!(seen.last(), Some(&None));
        }
    }
}
