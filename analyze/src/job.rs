//! Cancels long operations, and tells how far they are.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// An operation that another thread may cancel. Copies refer to the same operation.
///
/// Everything that goes through an index or reads a recording looks at the job of its thread, once for each block of
/// rows or chunk of the recording. A query that was cancelled returns
/// [`ScanError::Cancelled`](crate::index::ScanError::Cancelled), and reading a recording
/// [`Error::Cancelled`](crate::Error::Cancelled).
#[derive(Clone, Debug, Default)]
pub struct Job(Arc<State>);

#[derive(Debug, Default)]
struct State {
    cancelled: AtomicBool,
    /// A pass is under way: others that begin within it are not counted.
    under_way: AtomicBool,
    what: Mutex<&'static str>,
    done: AtomicU64,
    total: AtomicU64,
}

/// The progress of a job's pass over an index or a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobProgress {
    /// Description of the pass; empty before the first one.
    pub what: &'static str,
    /// Amount of work done, in the unit of `total`.
    pub done: u64,
    /// Total amount of work of this pass.
    pub total: u64,
}

thread_local! {
    static OF_THREAD: RefCell<Option<Job>> = const { RefCell::new(None) };
}

impl Job {
    /// Runs an operation on this thread as part of the job.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Restores the job that the thread had before, also if the operation panics.
        struct Before(Option<Job>);
        impl Drop for Before {
            fn drop(&mut self) {
                OF_THREAD.set(self.0.take());
            }
        }
        let _before = Before(OF_THREAD.replace(Some(self.clone())));
        work()
    }

    /// Makes the job's operations end early, those that begin later included.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Relaxed);
    }

    /// Returns whether the job was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Relaxed)
    }

    /// Returns whether the job of this thread was cancelled: for work outside of this crate that takes long.
    #[must_use]
    pub fn is_current_cancelled() -> bool {
        OF_THREAD.with_borrow(|job| job.as_ref().is_some_and(Job::is_cancelled))
    }

    /// Returns the progress of the pass that is under way, or of the last one. A query may take several passes.
    #[must_use]
    pub fn progress(&self) -> JobProgress {
        let s = &self.0;
        let what = *s.what.lock().unwrap_or_else(PoisonError::into_inner);
        JobProgress { what, done: s.done.load(Relaxed), total: s.total.load(Relaxed) }
    }
}

/// A pass of the job of the thread that began it.
pub(crate) struct Pass {
    job: Option<Job>,
    outermost: bool,
}

impl Pass {
    pub(crate) fn begin(what: &'static str, total: u64) -> Self {
        let job = OF_THREAD.with_borrow(Clone::clone);
        let outermost = job.as_ref().is_some_and(|j| !j.0.under_way.swap(true, Relaxed));
        if let Some(Job(s)) = job.as_ref().filter(|_| outermost) {
            *s.what.lock().unwrap_or_else(PoisonError::into_inner) = what;
            s.done.store(0, Relaxed);
            s.total.store(total, Relaxed);
        }
        Self { job, outermost }
    }

    /// Adds to the work done.
    pub(crate) fn add(&self, n: u64) {
        if let Some(Job(s)) = self.job.as_ref().filter(|_| self.outermost) {
            s.done.fetch_add(n, Relaxed);
        }
    }

    /// Sets the work done.
    pub(crate) fn set(&self, done: u64) {
        if let Some(Job(s)) = self.job.as_ref().filter(|_| self.outermost) {
            s.done.store(done, Relaxed);
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.job.as_ref().is_some_and(Job::is_cancelled)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(Job(s)) = self.job.as_ref().filter(|_| self.outermost) {
            s.under_way.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_belong_to_the_job_of_their_thread() {
        let job = Job::default();
        job.run(|| {
            let outer = Pass::begin("outer", 10);
            outer.add(3);
            let inner = Pass::begin("inner", 5);
            inner.add(5);
            assert_eq!(job.progress(), JobProgress { what: "outer", done: 3, total: 10 });
            drop((inner, outer));
            let next = Pass::begin("next", 2);
            next.set(1);
            assert_eq!(job.progress(), JobProgress { what: "next", done: 1, total: 2 });
            job.clone().cancel();
            assert!(next.is_cancelled() && Pass::begin("later", 1).is_cancelled());
            assert!(Job::is_current_cancelled());
            let other = std::thread::spawn(|| Pass::begin("elsewhere", 1).is_cancelled());
            assert!(!other.join().expect("a thread"));
            Job::default().run(|| assert!(!Pass::begin("nested", 1).is_cancelled()));
            assert!(Pass::begin("back", 1).is_cancelled());
        });
        assert!(!Pass::begin("outside", 1).is_cancelled() && job.is_cancelled());
    }
}
