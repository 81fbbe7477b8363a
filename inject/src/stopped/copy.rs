//! A copy of the target's memory as of one moment: a child of the target that never runs an instruction of its program.
//!
//! All threads are stopped, one of them makes the child by a remote `clone`, and all go on. The kernel copies the page
//! tables alone; a page is copied when the target writes to it next. The child is traced from its first instant on, and
//! prof kills it when it has read it. If prof dies before, the kernel kills it (`PTRACE_O_EXITKILL`); in the instant
//! before that option is set it restores a second signal frame instead, from which it calls `exit_group`.
//!
//! The child has no exit signal, so the target's calls of `wait` do not see it, unless they have `__WCLONE` or `__WALL`.
//! A remote `wait4` takes it away when it has ended. It shares the table of descriptors, so that what the target closes
//! meanwhile is closed.

use crate::stopped::candidates::{Before, with_all_stopped_after, with_caller};
use crate::stopped::copyable::not_copied;
use crate::stopped::gadgets::Gadgets;
use crate::stopped::remote::{Caller, PATIENCE};
use crate::stopped::threads::StopTimes;
use crate::stopped::tracee::{Stop, Tracee};
use crate::{Error, RemoteMemory, Result};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use prof_arch::native::syscall::nr;
use prof_os::{Pid, maps};
use std::time::{Duration, Instant};

/// What the child shares with the target: descriptors, and the folder for relative paths. There is no exit signal.
const FLAGS: u64 = (libc::CLONE_FILES | libc::CLONE_FS) as u64;
/// How the ended child is waited for: it has no exit signal, and a call that finds none does not wait.
const WAIT: u64 = (libc::__WCLONE | libc::WNOHANG) as u64;
/// Value of `oom_score_adj` with which the kernel ends a process before all others if memory gets short.
const FIRST_TO_GO: &str = "1000";

/// A copy of a process's memory. Dropping the value ends the copy; [`MemoryCopy::end`] takes its remains out of the target, too.
#[derive(Debug)]
pub struct MemoryCopy {
    child: Tracee,
    /// The process that was copied.
    of: Pid,
    /// The child's id, as the target sees it.
    inner: u64,
}

impl MemoryCopy {
    /// Copies a process's memory: stops all its threads, calls `look` with them, and makes the copy. Must be called on the
    /// thread that reads the copy and ends it (see [`crate::isolated()`]). `look` is called again if a thread can't make the
    /// copy and another is tried. Adds the time for which the threads were stopped to `stops`.
    ///
    /// # Errors
    /// If the threads can't be stopped, or the kernel or a filter of the process's does not permit a child.
    pub fn of(
        pid: Pid,
        timeout: Duration,
        stops: &mut StopTimes,
        look: &mut (dyn FnMut(&mut [Tracee]) + '_),
    ) -> Result<Self> {
        let mem = RemoteMemory::open(pid)?;
        let gadgets = Gadgets::find(pid, &mem, &maps::of(pid)?)?;
        let before = Before { look, frames: 2 };
        with_all_stopped_after(pid, &mem, gadgets, timeout, stops, before, |c| c.copy())
    }

    /// Returns the id of the copy, whose memory `/proc` shows.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.child.pid
    }

    /// Returns whether the copy is still there: the kernel may have ended it because memory was short.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !prof_os::process::has_ended(self.child.pid)
    }

    /// Ends the copy, and has a thread of the target take away what is left of it (a zombie).
    ///
    /// # Errors
    /// If no thread of the target can do that. The zombie then stays until the target ends.
    pub fn end(mut self, timeout: Duration, stops: &mut StopTimes) -> Result<()> {
        self.kill();
        match self.take_away(timeout, stops) {
            // The target has waited for all its children, whatever their exit signal, or has ended.
            Ok(_) | Err(Error::Remote { errno: Errno::ECHILD, .. } | Error::Gone(_)) => Ok(()),
            Err(_) if prof_os::process::has_ended(self.of) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn take_away(&self, timeout: Duration, stops: &mut StopTimes) -> Result<u64> {
        let (pid, args) = (self.of, [self.inner, 0, WAIT, 0, 0, 0]);
        let mem = RemoteMemory::open(pid)?;
        let gadgets = Gadgets::find(pid, &mem, &maps::of(pid)?)?;
        with_caller(pid, &mem, gadgets, timeout, stops, |c| {
            c.call("wait for the copy made of", nr::WAIT4, args)
        })
    }

    /// Does the same, and warns if a zombie stays.
    pub fn end_or_warn(self, timeout: Duration, stops: &mut StopTimes) {
        let of = self.of;
        if let Err(e) = self.end(timeout, stops) {
            e.warn(of, "what is left of the copy of its memory (a zombie) stays until it ends");
        }
    }

    /// Keeps a new child from ever running.
    fn hold(of: Pid, child: Pid, inner: u64) -> Result<Self> {
        let mut copy = Self { child: Tracee::running(child, child), of, inner };
        // From here on, dropping the copy ends it.
        if copy.child.wait(Instant::now() + PATIENCE)? != Some(Stop::Event) {
            return Err(Error::Nonsense {
                pid: of,
                what: "the copy of its memory did not stop before its first instruction".into(),
            });
        }
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(child.into(), options).map_err(|errno| Error::Sys {
            what: "set the trace options of the copy of",
            pid: of,
            errno,
        })?;
        // Without it the kernel might choose the target. That it may be refused changes nothing else.
        if let Err(e) = std::fs::write(format!("/proc/{child}/oom_score_adj"), FIRST_TO_GO) {
            log::debug!("the copy {child} of process {of} is not the first to go: {e}");
        }
        Ok(copy)
    }

    fn kill(&mut self) {
        if self.child.is_gone() {
            return;
        }
        // SAFETY: the call takes integers only. The id is the child's until this thread has waited for it.
        unsafe { libc::kill(self.child.pid.as_raw(), libc::SIGKILL) };
        let deadline = Instant::now() + PATIENCE;
        while !self.child.is_gone() {
            match self.child.wait(deadline) {
                Ok(_) => {}
                Err(e) => {
                    e.warn(self.of, "the copy of its memory did not end");
                    break;
                }
            }
        }
    }
}

impl Drop for MemoryCopy {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Caller<'_> {
    /// Makes a copy of the process's memory, held by this thread of prof's.
    ///
    /// # Errors
    /// If the kernel refuses it, a filter could kill the thread for it or for what takes the copy away, or there was no room
    /// for two signal frames.
    fn copy(&mut self) -> Result<MemoryCopy> {
        let pid = self.pid();
        let sp = self.exit_sp.ok_or(Error::NoThread(pid))?;
        let args = [FLAGS, sp, 0, 0, 0, 0];
        if !self.may_ask(nr::WAIT4, [1, 0, WAIT, 0, 0, 0]) || !self.may_ask(nr::CLONE, args) {
            let why =
                "a seccomp filter could kill it for the calls that make a copy (clone, wait4)";
            return Err(not_copied(pid, why.into()));
        }
        self.trace_clones(true)?;
        let made = self.call_seen("clone", nr::CLONE, args);
        let (copy, inner) = match made {
            Ok((inner, Some(child))) => (MemoryCopy::hold(pid, child, inner), inner),
            Ok((_, None)) => (Err(Error::NoThread(pid)), 0),
            Err(Error::Remote { errno, .. }) => {
                let why = format!(
                    "the kernel refused another process: {errno} (clone; EAGAIN: a limit of processes is reached, `ulimit -u` or \
                     pids.max)"
                );
                (Err(not_copied(pid, why)), 0)
            }
            Err(e) => (Err(e), 0),
        };
        log::debug!("copy of process {pid}: {inner}");
        self.trace_clones(false)?;
        copy
    }
}
