//! Chooses the thread of the target that makes system calls for prof.

use crate::sandbox::{self, Pass};
use crate::stopped::gadgets::Gadgets;
use crate::stopped::remote::{Caller, layout};
use crate::stopped::threads::{StopTimes, stop_all};
use crate::stopped::tracee::Tracee;
use crate::{Error, Refusal, RemoteMemory, Result};
use prof_arch::native::call::is_never_restarted;
use prof_os::status::Status;
use prof_os::{Pid, maps, process, task};
use std::time::{Duration, Instant};

/// Time for which prof waits for a moment in which the target does not catch its system calls, and the interval at
/// which it looks.
const CAUGHT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(10));

/// Maximum number of threads that are tried, as each try stops all of them.
const MOST_CALLERS: usize = 8;

/// Suitability of a thread for being stopped, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fitness {
    /// The thread sleeps in a call that continues by itself after a stop.
    Asleep,
    /// The thread runs.
    Running,
    /// The thread sleeps in a call that a stop ends with EINTR, until prof restarts it.
    Fragile,
    /// The thread sleeps in the kernel and can't be interrupted (state D).
    Stuck,
}

/// Returns at most 64 living threads, in the order in which to try them.
pub(crate) fn candidates(pid: Pid) -> Result<Vec<(Fitness, Pid)>> {
    let mut all = Vec::new();
    for tid in process::threads(pid)?.into_iter().take(64) {
        let status = Status::of_thread(pid, tid).unwrap_or_default();
        let state = status.field("State").and_then(|f| f.chars().next());
        let fragile =
            || task::asleep(pid, tid).and_then(|a| a.call).is_some_and(is_never_restarted);
        let fitness = match state {
            // The first thread may have ended before the others.
            None | Some('Z' | 'X') => continue,
            Some('D') => Fitness::Stuck,
            Some('S') if fragile() => Fitness::Fragile,
            Some('S') => Fitness::Asleep,
            _ => Fitness::Running,
        };
        all.push((fitness, tid));
    }
    all.sort_unstable();
    Ok(all)
}

/// Calls `step` with `f` until `step` has taken that, or the target catches its system calls no longer, or for too long.
fn until_calls_pass<F, T>(
    timeout: Duration,
    f: F,
    mut step: impl FnMut(&mut Option<F>) -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + timeout.min(CAUGHT.0);
    let mut f = Some(f);
    loop {
        let done = step(&mut f);
        let is_caught = matches!(done, Err(Error::Refused(Refusal::Dispatched(..))));
        if !is_caught || f.is_none() || Instant::now() >= deadline {
            return done;
        }
        std::thread::sleep(CAUGHT.1);
    }
}

/// Stops one thread that can make system calls for prof, calls `f` with it, and restores and resumes it. Waits for a
/// while if the target catches its system calls at the moment.
pub(crate) fn with_caller<T>(
    pid: Pid,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: impl FnOnce(&mut Caller<'_>) -> Result<T>,
) -> Result<T> {
    until_calls_pass(timeout, f, |f| try_callers(pid, mem, gadgets, timeout, stops, f))
}

/// Tries each thread once for [`with_caller`]. Takes `f` when it calls it.
fn try_callers<T>(
    pid: Pid,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: &mut Option<impl FnOnce(&mut Caller<'_>) -> Result<T>>,
) -> Result<T> {
    let mut last = Error::NoThread(pid);
    layout();
    let maps = maps::of(pid)?;
    let deadline = Instant::now() + timeout;
    let fit = candidates(pid)?;
    for (k, (_, tid)) in fit.iter().copied().enumerate() {
        // Everything that can be read beforehand is read while the thread still runs.
        let Ok(status) = Status::of_thread(pid, tid) else { continue };
        let filtered = status.number("Seccomp") == Some(2);
        if filtered {
            sandbox::look_ahead(pid, &status);
        }
        let waits_in = task::waits_in(pid, tid);
        let Some(mut t) = Tracee::seize(pid, tid)? else { continue };
        let mut since = Instant::now();
        t.interrupt();
        // The last candidate gets all the time that is left, the others a second each.
        let patience = if k + 1 == fit.len() { timeout } else { Duration::from_secs(1) };
        match t.wait_stopped(deadline.min(since + patience)) {
            Ok(true) => {}
            Ok(false) => continue,
            // All candidates together have used up the time.
            Err(Error::NotStopping { .. }) if Instant::now() >= deadline => {
                return Err(Error::NotStopping { pid, tid, waited: timeout });
            }
            Err(e) => {
                last = e;
                continue;
            }
        }
        // A thread that took long to stop was in the kernel, and ran on until then: that time does not count as a
        // stop.
        if since.elapsed() > Duration::from_millis(5) {
            since = Instant::now();
        }
        let pass = match Pass::of(&t, filtered.then_some(&status)) {
            Ok(pass) => pass,
            Err(e) => {
                last = e;
                continue;
            }
        };
        let dispatch = t.dispatch();
        if gadgets.code().any(|at| dispatch.catches(mem, at)) {
            last = Refusal::Dispatched(pid, process::comm(pid)).into();
            continue;
        }
        match Caller::new(t, mem, &maps, gadgets, &waits_in, pass) {
            Ok(mut c) => {
                let r = f.take().map_or(Err(Error::NoThread(pid)), |f| f(&mut c));
                let end = c.finish();
                stops.add(since);
                return r.and_then(|v| end.map(|()| v));
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// What is done with all stopped threads before one of them makes system calls.
pub(crate) struct Before<'a> {
    /// Looks at the threads. It is called anew for each thread that is tried.
    pub look: &'a mut (dyn FnMut(&mut [Tracee]) + 'a),
    /// Number of signal frames that the thread needs room for: 2 if it makes a copy of the process's memory.
    pub frames: usize,
}

/// Stops all threads, has one of them make system calls for prof in `f`, and resumes all. Used for what no other
/// thread may see half done: see [`crate::mapped::ring`].
pub(crate) fn with_all_stopped<T>(
    pid: Pid,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    f: impl FnOnce(&mut Caller<'_>) -> Result<T>,
) -> Result<T> {
    let before = Before { look: &mut |_| {}, frames: 1 };
    with_all_stopped_after(pid, mem, gadgets, timeout, stops, before, f)
}

/// Does the same after a look at all threads.
pub(crate) fn with_all_stopped_after<T>(
    pid: Pid,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    mut before: Before<'_>,
    f: impl FnOnce(&mut Caller<'_>) -> Result<T>,
) -> Result<T> {
    until_calls_pass(timeout, f, |f| {
        try_with_all_stopped(pid, mem, gadgets, timeout, stops, &mut before, f)
    })
}

/// Tries each thread once for [`with_all_stopped`]. Takes `f` when it calls it.
fn try_with_all_stopped<T>(
    pid: Pid,
    mem: &RemoteMemory,
    gadgets: Gadgets,
    timeout: Duration,
    stops: &mut StopTimes,
    before: &mut Before<'_>,
    f: &mut Option<impl FnOnce(&mut Caller<'_>) -> Result<T>>,
) -> Result<T> {
    let mut last = Error::NoThread(pid);
    layout();
    let maps = maps::of(pid)?;
    let deadline = Instant::now() + timeout;
    for tid in of_one_table(candidates(pid)?).into_iter().take(MOST_CALLERS) {
        let Ok(status) = Status::of_thread(pid, tid) else { continue };
        let filtered = status.number("Seccomp") == Some(2);
        if filtered {
            sandbox::look_ahead(pid, &status);
        }
        let waits_in = task::waits_in(pid, tid);
        let mut stopped = stop_all(pid, deadline.saturating_duration_since(Instant::now()))?;
        (before.look)(&mut stopped.threads);
        let at = stopped.threads.iter().position(|t| t.tid == tid && t.is_stopped());
        let Some(t) = at.map(|at| stopped.threads.swap_remove(at)) else {
            stopped.resume(stops);
            continue;
        };
        let dispatch = t.dispatch();
        let caller = if gadgets.code().any(|at| dispatch.catches(mem, at)) {
            Err(Refusal::Dispatched(pid, process::comm(pid)).into())
        } else {
            Pass::of(&t, filtered.then_some(&status)).and_then(|pass| {
                Caller::with_frames(before.frames, t, mem, &maps, gadgets, &waits_in, pass)
            })
        };
        match caller {
            Ok(mut c) => {
                let r = f.take().map_or(Err(Error::NoThread(pid)), |f| f(&mut c));
                let end = c.finish();
                stopped.resume(stops);
                return r.and_then(|v| end.map(|()| v));
            }
            Err(e) => last = e,
        }
        stopped.resume(stops);
    }
    Err(last)
}

/// Returns the threads that share the table of descriptors of the first living thread. Descriptors that a killed prof
/// left are looked for in that table.
fn of_one_table(fit: Vec<(Fitness, Pid)>) -> Vec<Pid> {
    let lowest = fit.iter().map(|f| f.1).min().unwrap_or(Pid::NONE);
    let other = |tid: Pid| {
        // The table counts as the same if the kernel can't compare.
        prof_os::sharers::same_descriptors(lowest, tid) == Some(false)
    };
    fit.into_iter().map(|f| f.1).filter(|tid| !other(*tid)).collect()
}
