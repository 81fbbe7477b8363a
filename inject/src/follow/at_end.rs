//! Holds a process at its end: every thread of it stops in the kernel before anything of the process is taken apart,
//! with its registers as they were (ptrace(2), PTRACE_EVENT_EXIT).

use crate::stopped::tracee::{Stop, Tracee};
use nix::sys::ptrace::{self, Options as Tracing};
use prof_os::{Pid, process};
use std::path::Path;
use std::time::{Duration, Instant};

/// Options by which the end of every thread is seen. New threads inherit them.
pub(super) const OPTIONS: Tracing = Tracing::PTRACE_O_TRACESYSGOOD
    .union(Tracing::PTRACE_O_TRACEEXEC)
    .union(Tracing::PTRACE_O_TRACEEXIT)
    .union(Tracing::PTRACE_O_TRACECLONE);

/// Time for which threads that an exec ends are taken for threads of a process that ends.
const EXECS: Duration = Duration::from_millis(100);
/// Time that all threads of a process that ends get to come to their end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bits of an exit code that name a signal.
const SIGNAL: libc::c_long = 0x7f;

/// A process whose end is waited for. Its first thread is traced by [`super::Follow`].
#[derive(Debug)]
pub(super) struct AtEnd {
    pid: Pid,
    others: Vec<Tracee>,
    /// Threads that are stopped at their end.
    held: Vec<Pid>,
    /// Time since when the first of them is.
    since: Option<Instant>,
    /// The process ends, and not one thread alone.
    ends: bool,
    /// The first thread has ended by itself.
    first_is_gone: bool,
    /// One of the threads did not come, so none is held any more.
    over: bool,
}

/// The decision about a thread that has stopped at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It stays stopped.
    Stays,
    /// It ends alone, and goes on.
    Goes,
}

impl AtEnd {
    /// Waits for the end of a process whose first thread is traced, with [`OPTIONS`].
    pub(super) fn of(pid: Pid) -> Self {
        let others = process::threads(pid).unwrap_or_default().into_iter().filter(|t| *t != pid);
        let seize =
            |tid: Pid| ptrace::seize(tid.into(), OPTIONS).map(|()| Tracee::running(pid, tid));
        let others = others.filter_map(|tid| seize(tid).ok()).collect();
        Self {
            pid,
            others,
            held: Vec::new(),
            since: None,
            ends: false,
            first_is_gone: false,
            over: false,
        }
    }

    /// Notes a thread that another one has made. It is traced from its first instruction on.
    pub(super) fn made(&mut self, by: &Tracee) {
        if let Some(tid) = by.message().and_then(|tid| i32::try_from(tid).ok()) {
            self.others.push(Tracee::running(self.pid, Pid::from_raw(tid)));
        }
    }

    /// Decides about a thread that has stopped at its end.
    pub(super) fn arrives(&mut self, t: &Tracee) -> Arrival {
        let call = t.call_number();
        let by_signal = t.message().is_some_and(|code| code & SIGNAL != 0);
        if self.over {
            return Arrival::Goes;
        }
        if call == Some(libc::SYS_exit as u64) && !by_signal {
            self.first_is_gone |= t.tid == self.pid;
            return Arrival::Goes;
        }
        self.ends |= by_signal || call == Some(libc::SYS_exit_group as u64);
        self.held.push(t.tid);
        self.since.get_or_insert_with(Instant::now);
        Arrival::Stays
    }

    /// Sees what the other threads have done. `leaving`: none of them is to be traced any more.
    pub(super) fn look(&mut self, leaving: bool) {
        let mut left = Vec::new();
        // A thread may make others, which are looked at next.
        while let Some(mut t) = self.others.pop() {
            let stays = self.held.contains(&t.tid) && !leaving || self.one(&mut t, leaving);
            if stays {
                left.push(t);
            }
        }
        self.others = left;
    }

    /// Sees what a thread has done, and lets it go on. Returns whether it is still traced.
    fn one(&mut self, t: &mut Tracee, leaving: bool) -> bool {
        if leaving && self.held.contains(&t.tid) {
            return false;
        }
        while let Some((stop, status)) = t.next_stop() {
            let Some(stop) = stop else { return false };
            let is_thread = Path::new(&format!("/proc/{}/task/{}", self.pid, t.tid)).exists();
            if leaving && stop == Stop::Event || !is_thread {
                // `look` restarts the system call that the stop has ended.
                let _ = t.look();
                return false;
            }
            if leaving {
                t.interrupt();
            }
            let is_group = libc::WSTOPSIG(status) != libc::SIGTRAP;
            let _ = match stop {
                Stop::Exit if leaving => return false,
                Stop::Exit if self.arrives(t) == Arrival::Stays => return true,
                Stop::Exit => return false,
                Stop::Clone => {
                    self.made(t);
                    t.resume(libc::PTRACE_CONT, 0)
                }
                Stop::Signal(signal) => t.resume(libc::PTRACE_CONT, signal),
                // In a group stop the thread stays stopped until a SIGCONT.
                Stop::Event if is_group => t.resume(libc::PTRACE_LISTEN, 0),
                _ => t.resume(libc::PTRACE_CONT, 0),
            };
        }
        !t.is_gone()
    }

    /// Asks all other threads to stop, so that they can be let go of.
    pub(super) fn interrupt(&mut self) {
        self.others.iter_mut().for_each(Tracee::interrupt);
    }

    /// Returns whether other threads are traced.
    pub(super) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns whether all threads of a process that ends are held.
    pub(super) fn is_there(&self) -> bool {
        let all = self.others.iter().all(|t| self.held.contains(&t.tid));
        self.ends && all && (self.first_is_gone || self.held.contains(&self.pid))
    }

    /// Returns whether threads are held in vain: an exec ends them, or one of the process's does not come.
    pub(super) fn is_in_vain(&self) -> bool {
        let most = if self.ends { PATIENCE } else { EXECS };
        self.since.is_some_and(|since| since.elapsed() > most)
    }

    /// Returns whether the first thread is held.
    pub(super) fn has_first(&self) -> bool {
        self.held.contains(&self.pid)
    }

    /// Returns the other threads, which are held.
    pub(super) fn take(&mut self) -> Vec<Tracee> {
        std::mem::take(&mut self.others)
    }

    /// Lets go of the threads that are held; returns whether the first one is among them.
    pub(super) fn release(&mut self) -> bool {
        let held = std::mem::take(&mut self.held);
        (self.since, self.over) = (None, self.ends);
        self.others.retain(|t| !held.contains(&t.tid));
        held.contains(&self.pid)
    }
}
