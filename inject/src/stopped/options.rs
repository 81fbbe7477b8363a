//! Options of a thread's trace (ptrace(2), `PTRACE_SETOPTIONS`).

use crate::stopped::tracee::Tracee;
use crate::{Error, Result};
use nix::sys::ptrace::{self, Options};
use std::time::{Duration, Instant};

/// `PTRACE_O_SUSPEND_SECCOMP`, which nix lacks.
const SUSPEND_SECCOMP: Options = Options::from_bits_retain(1 << 21);

impl Tracee {
    /// Suspends the thread's seccomp filters for as long as it is traced.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN (EPERM), or where the kernel can't (EINVAL).
    pub fn suspend_seccomp(&self) -> nix::Result<()> {
        self.add_options(SUSPEND_SECCOMP)
    }

    /// Has the kernel trace the children that the thread makes without an exit signal, or not any more.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn trace_clones(&self, on: bool) -> nix::Result<()> {
        if on {
            return self.add_options(Options::PTRACE_O_TRACECLONE);
        }
        self.options.set(self.options.get() - Options::PTRACE_O_TRACECLONE);
        self.add_options(Options::empty())
    }

    fn add_options(&self, more: Options) -> nix::Result<()> {
        let all = self.options.get() | more;
        ptrace::setoptions(self.tid.into(), Options::PTRACE_O_TRACESYSGOOD | all)?;
        self.options.set(all);
        Ok(())
    }

    /// Makes the thread stop at its next exec.
    ///
    /// # Errors
    /// If it is gone.
    pub fn trace_exec(&self) -> Result<()> {
        // The options of a running thread can be given only when it is seized, so stop it first.
        let mut me = Self::running(self.pid, self.tid);
        me.interrupt();
        let stopped = me.wait_stopped(Instant::now() + Duration::from_secs(5));
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACEEXEC;
        let set = ptrace::setoptions(self.tid.into(), options);
        let went_on = me.resume(libc::PTRACE_CONT, 0);
        std::mem::forget(me);
        stopped?;
        went_on?;
        set.map_err(|errno| Error::Sys {
            what: "set the trace options of a thread of",
            pid: self.pid,
            errno,
        })
    }
}
