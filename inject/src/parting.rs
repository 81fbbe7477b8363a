//! The end of a collector whose parent is the target: the kernel gives orphans to the first process of a container,
//! or to an ancestor that asks for them (`PR_SET_CHILD_SUBREAPER`). The target must neither get a SIGCHLD for a child
//! that it has not made, nor keep a zombie.
//!
//! The collector ends under ptrace, so that the kernel reports its end to prof alone. Then prof stops the target's
//! threads and lets the kernel report the end to the target. One of these threads takes the signal and reaps the
//! child before any thread goes on. A child of the target's own that ends in the same moment is left alone: the
//! collector is waited for by number, and the signal is taken only if it is the collector's. As there is a single
//! SIGCHLD for all children that end before it is taken, the thread sends it again for the other child. If prof dies
//! meanwhile, the target has an ended child and its SIGCHLD, as with any orphan.

use crate::isolated;
use crate::stopped::candidates::with_all_stopped;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::remote::Caller;
use crate::stopped::threads::StopTimes;
use crate::{Error, RemoteMemory, Result};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use prof_arch::native::syscall::SIGSET_LEN;
use prof_os::stat::Stat;
use prof_os::status::Status;
use prof_os::{Pid, maps, process};
use std::time::{Duration, Instant};

/// Time within which the collector has to end after SIGKILL.
const ENDS: Duration = Duration::from_secs(5);
/// Size of `struct timespec`, of either width.
const TIME_LEN: usize = 16;
/// Size of `siginfo_t`, which is equal everywhere.
const SIGINFO_LEN: usize = 128;
/// `PTRACE_PEEKSIGINFO_SHARED`, which the libc crate has for AMD64 only.
const PEEKSIGINFO_SHARED: u32 = 1;
#[allow(clippy::unnecessary_cast)] // of 32 bits on ARM
const WAIT4: u64 = libc::SYS_wait4 as u64;
#[allow(clippy::unnecessary_cast)]
const TAKE: u64 = libc::SYS_rt_sigtimedwait as u64;
#[allow(clippy::unnecessary_cast)]
const SEND: u64 = libc::SYS_rt_sigqueueinfo as u64;

/// Ends `collector`, a child of `pid` that has nothing left to do, such that `pid` does not notice. `collector` holds
/// its pid and its start time, which identifies it.
///
/// # Errors
/// If that is not possible. The collector may have ended then, like any orphan.
pub fn dismiss(pid: Pid, collector: (Pid, u64), timeout: Duration) -> Result<()> {
    let _lock = crate::lock::lock(pid)?;
    isolated(|| {
        let done = end(pid, collector.0, collector.1, timeout);
        // After an error, this reports the end to the parent.
        reap(collector.0);
        done
    })
}

fn end(pid: Pid, child: Pid, start: u64, timeout: Duration) -> Result<()> {
    let failed = |errno| Error::Sys { what: "end the collector without a SIGCHLD for", pid, errno };
    ptrace::seize(child.into(), Options::empty()).map_err(failed)?;
    // The process is traced now, so its number can't pass to another process.
    let status = Status::of(child)?;
    if process::start_time(child) != Some(start) || status.pid("PPid") != Some(pid) {
        return Err(failed(Errno::ECHILD));
    }
    let numbers = Status::of(pid)?.pids();
    let levels = numbers.len();
    let itself = numbers.last().copied().unwrap_or(pid);
    let seen_as = seen_in(child, levels).ok_or(failed(Errno::ENOENT))?;
    let ids = Ids { pid, itself, levels, child, seen_as };
    if kill(child.into(), Signal::SIGKILL).is_err() || !has_ended(child) {
        return Err(failed(Errno::ETIMEDOUT));
    }
    let mem = RemoteMemory::open(pid)?;
    let gadgets = Gadgets::find(pid, &mem, &maps::of(pid)?)?;
    let mut stops = StopTimes::default();
    with_all_stopped(pid, &mem, gadgets, timeout, &mut stops, |c| take(c, &ids))
}

/// Waits until a traced child has ended, without reaping it.
fn has_ended(child: Pid) -> bool {
    let deadline = Instant::now() + ENDS;
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG | libc::__WALL;
    while Instant::now() < deadline {
        // nix's `waitid` makes an error of a status that it does not know, such as that of a real-time signal.
        // SAFETY: all zeroes is a valid siginfo_t, which is written to.
        let ended = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.as_u32(), &mut info, options) == 0
                && info.si_pid() == child.as_raw()
        };
        if ended {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Reaps the child as its tracer; then the kernel reports the end to its parent.
fn reap(child: Pid) {
    // nix's `waitpid` would return an error for some statuses, which are of no interest here.
    // SAFETY: the status pointer may be null, and there is no other.
    unsafe { libc::waitpid(child.as_raw(), std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
}

struct Ids {
    /// The target's pid.
    pid: Pid,
    /// The target's pid in its own pid namespace.
    itself: Pid,
    /// Number of pid namespaces in which the target has a pid.
    levels: usize,
    /// The collector's pid.
    child: Pid,
    /// The collector's pid in the target's pid namespace.
    seen_as: Pid,
}

/// Returns a process's pid in the pid namespace of a process that has pids in `levels` namespaces.
fn seen_in(pid: Pid, levels: usize) -> Option<Pid> {
    Status::of(pid).ok()?.pids().get(levels.checked_sub(1)?).copied()
}

/// Lets the kernel report the collector's end to the target, takes the signal and reaps the child. All threads are
/// stopped meanwhile.
fn take(c: &mut Caller<'_>, ids: &Ids) -> Result<()> {
    let set = 1u64 << (libc::SIGCHLD - 1);
    let words = (0..8 / size_of::<usize>()).map(|k| (set >> (k * usize::BITS as usize)) as usize);
    let mut bytes = vec![0; TIME_LEN];
    bytes.extend(words.flat_map(usize::to_ne_bytes));
    bytes.resize(TIME_LEN + SIGSET_LEN, 0);
    // These bytes begin with the timeout, which is zero.
    let time = c.put(&bytes)?;
    let options = (libc::WNOHANG | libc::__WALL) as u64;
    let reap_it = [ids.seen_as.as_raw() as u64, 0, options, 0, 0, 0];
    let take_it = [time.plus(TIME_LEN as u64).0, 0, time.0, SIGSET_LEN as u64, 0, 0];
    let send = [ids.itself.as_raw() as u64, libc::SIGCHLD as u64, time.0, 0, 0, 0];
    // Either all three calls are possible or none is made: a handler that waits for the child of its signal would
    // wait for ever if only the child were reaped.
    if ![(WAIT4, reap_it), (TAKE, take_it), (SEND, send)].iter().all(|(n, a)| c.may_ask(*n, *a)) {
        return Err(Error::Sys {
            what: "reap the collector (a seccomp filter forbids that) in",
            pid: ids.pid,
            errno: Errno::EPERM,
        });
    }
    let of_another = is_pending(ids, c.tid(), None)?;
    reap(ids.child);
    // A SIGCHLD that was pending before stays, as it stands for both children.
    let taken = !of_another && is_pending(ids, c.tid(), Some(ids.seen_as))?;
    if taken {
        c.call("rt_sigtimedwait", TAKE, take_it)?;
    }
    match c.call("wait4", WAIT4, reap_it) {
        // A target that ignores SIGCHLD has no zombies.
        Ok(_) | Err(Error::Remote { errno: Errno::ECHILD, .. }) => {}
        Err(e) => return Err(e),
    }
    match taken.then(|| ended_child(ids.pid)).flatten() {
        Some(other) => send_again(c, other, ids),
        None => Ok(()),
    }
}

/// Returns a child of the target that has ended and that the target has not waited for.
fn ended_child(pid: Pid) -> Option<Pid> {
    let mut all = Vec::new();
    for tid in process::threads(pid).ok()? {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
        all.extend(
            text.unwrap_or_default().split_whitespace().filter_map(|p| p.parse::<Pid>().ok()),
        );
    }
    all.into_iter().find(|child| Status::of(*child).is_ok_and(|s| s.is_dead()))
}

/// Sends the target a child's SIGCHLD as the kernel would. Only the process itself may send such a signal.
fn send_again(c: &mut Caller<'_>, child: Pid, ids: &Ids) -> Result<()> {
    let status = Stat::of(child).and_then(|s| s.exit_code()).unwrap_or(0);
    let (code, status) = match status {
        s if libc::WIFEXITED(s) => (libc::CLD_EXITED, libc::WEXITSTATUS(s)),
        s if libc::WCOREDUMP(s) => (libc::CLD_DUMPED, libc::WTERMSIG(s)),
        s => (libc::CLD_KILLED, libc::WTERMSIG(s)),
    };
    let user = Status::of(child).ok().and_then(|s| s.number("Uid")).unwrap_or(0) as i32;
    // SAFETY: all zeroes is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    (info.si_signo, info.si_code) = (libc::SIGCHLD, code);
    // SAFETY: the union consists of plain integers and has been zeroed.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const info).cast::<u8>(), SIGINFO_LEN) };
    let mut bytes = bytes.to_vec();
    // The fields come after three integers, with a pointer's alignment.
    let mut at = (3 * size_of::<i32>()).next_multiple_of(size_of::<usize>());
    for word in [seen_in(child, ids.levels).unwrap_or(Pid::NONE).as_raw(), user, status] {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        at += 4;
    }
    let info = c.put(&bytes)?;
    let args = [ids.itself.as_raw() as u64, libc::SIGCHLD as u64, info.0, 0, 0, 0];
    c.call("rt_sigqueueinfo", SEND, args).map(|_| ())
}

/// Returns whether SIGCHLD is pending for the process or, if `child` is `None`, for its stopped thread. With a child,
/// only the signal of that child's end counts.
fn is_pending(ids: &Ids, tid: Pid, child: Option<Pid>) -> Result<bool> {
    let of_process = pending(ids.pid, tid, true)?;
    let is_it = |s: &&libc::siginfo_t| s.si_signo == libc::SIGCHLD;
    let Some(child) = child else {
        return Ok(of_process.iter().chain(&pending(ids.pid, tid, false)?).any(|s| is_it(&s)));
    };
    Ok(of_process.iter().filter(is_it).any(|s| {
        // SAFETY: the kernel has written it, and a positive code means that it is a child's signal.
        s.si_code > 0 && unsafe { s.si_pid() } == child.as_raw()
    }))
}

/// Returns the pending signals of a stopped thread's process, or those of the thread alone.
fn pending(pid: Pid, tid: Pid, of_process: bool) -> Result<Vec<libc::siginfo_t>> {
    /// Number of signals that are read at a time.
    const SOME: usize = 16;
    let mut all = Vec::new();
    loop {
        let asked = libc::ptrace_peeksiginfo_args {
            off: all.len() as u64,
            flags: if of_process { PEEKSIGINFO_SHARED } else { 0 },
            nr: SOME as i32,
        };
        // SAFETY: all zeroes is a valid siginfo_t.
        let mut some: [libc::siginfo_t; SOME] = unsafe { std::mem::zeroed() };
        let (what, to) = (libc::PTRACE_PEEKSIGINFO, some.as_mut_ptr());
        // nix lacks the request.
        // SAFETY: the kernel writes at most as many entries as were asked for.
        let n = unsafe { libc::ptrace(what, tid.as_raw(), &raw const asked, to) };
        let Ok(n) = usize::try_from(n) else {
            return Err(Error::Sys {
                what: "read the pending signals of",
                pid,
                errno: Errno::last(),
            });
        };
        all.extend_from_slice(&some[..n.min(SOME)]);
        if n < SOME {
            return Ok(all);
        }
    }
}
