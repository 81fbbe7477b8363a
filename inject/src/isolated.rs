//! Runs ptrace work on a thread of its own.

use crate::stopped::patience::SLEEPS;
use crate::stopped::tracee::release_stuck;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Keeps job control (Ctrl-Z, or a terminal that a background job may not use) from stopping prof until the value is
/// dropped: whatever prof holds would be held for as long as prof is stopped. The signals stay pending. Threads that
/// are made meanwhile inherit the mask.
struct Unstoppable(SigSet);

impl Unstoppable {
    fn begin() -> Option<Self> {
        let mut stops = SigSet::empty();
        [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().for_each(|s| stops.add(s));
        stops.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok().map(Self)
    }
}

impl Drop for Unstoppable {
    fn drop(&mut self) {
        // This fails for no mask that the kernel has returned.
        let _ = self.0.thread_set_mask();
    }
}

/// Keeps Ctrl-C and other requests to end from ending prof until the value is dropped, for work that would leave something
/// behind in a process. The signals stay pending, and the work ends early by [`Interrupts::are_due`]. Threads that are made
/// meanwhile inherit the mask.
#[derive(Debug)]
pub struct Interrupts(SigSet);

impl Interrupts {
    const ALL: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

    /// Holds the signals back.
    #[must_use]
    pub fn hold() -> Option<Self> {
        let held: SigSet = Self::ALL.into_iter().collect();
        held.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok().map(Self)
    }

    /// Returns whether a signal is held back.
    #[must_use]
    pub fn are_due() -> bool {
        let mut pending = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the call writes the set.
        if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
            return false;
        }
        // SAFETY: the call has written the set.
        let pending = unsafe { SigSet::from_sigset_t_unchecked(pending.assume_init()) };
        Self::ALL.into_iter().any(|s| pending.contains(s))
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // This fails for no mask that the kernel has returned.
        let _ = self.0.thread_set_mask();
    }
}

/// Gives the calling thread the priority of prof's first thread again: the target does not wait for it any more.
pub fn at_ease() {
    // SAFETY: all arguments are integers, and 0 is the calling thread. A lower priority may always be taken.
    unsafe {
        let own = libc::getpriority(libc::PRIO_PROCESS, std::process::id());
        libc::setpriority(libc::PRIO_PROCESS, 0, own);
    }
}

/// Runs ptrace work on a thread of its own. When that thread ends, the kernel lets go of everything that it still
/// traces, also of threads that could not be stopped. Job control can stop prof only before and after the work.
pub fn isolated<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let _unstoppable = Unstoppable::begin();
    crate::resident::fault_in();
    let id = AtomicI32::new(0);
    let work = Mutex::new(Some(work));
    let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let on_thread = || {
        // The target is stopped while this thread waits for a processor, hence the highest priority.
        // SAFETY: all arguments are integers, and 0 is the calling thread. Without the permission for it, the call
        // for the priority fails.
        unsafe {
            id.store(libc::gettid(), Relaxed);
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
            libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        }
        take().map(|work| work())
    };
    let result = std::thread::scope(|s| {
        let thread = std::thread::Builder::new().spawn_scoped(s, on_thread);
        thread.map(ScopedJoinHandle::join)
    });
    if let Err(e) = &result
        && let Some(work) = take()
    {
        log::info!("prof could not start a thread for tracing, and traces from this one: {e}");
        return on_this_thread(work);
    }
    // A thread counts as joined before the kernel lets go of what it traced, so wait until the thread itself is gone.
    let task = format!("/proc/self/task/{}", id.load(Relaxed));
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::path::Path::new(&task).exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(50));
    }
    match result {
        Ok(Ok(Some(v))) => v,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        // The thread, or the call above, has taken the work.
        Ok(Ok(None)) | Err(_) => unreachable!(),
    }
}

/// Runs the work on this thread if no other can be made (`ulimit -u`), perhaps in the midst of an undo. It then waits
/// for threads that have not stopped to be let go of, since no thread ends that would release them.
fn on_this_thread<T>(work: impl FnOnce() -> T) -> T {
    let done = work();
    let deadline = Instant::now() + Duration::from_secs(5);
    while release_stuck() && Instant::now() < deadline {
        std::thread::sleep(SLEEPS.1);
    }
    done
}
