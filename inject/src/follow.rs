//! Follows a program that `prof run` has started through exec: wrappers, shims, `env`, `sh -c`.
//!
//! Only a traced process stops at an exec, before the new program's first instruction. Tracing has side effects (a
//! signal that the process ignores ends some of its waits), and keeps other tracers out. So a program is traced only
//! for the moment in which shims call exec, and shells and the like for longer. Another tracer asks for the process
//! by a signal ([`LET_GO`]). An exec that comes later is found by polling, some milliseconds late.

use crate::launch::{hold, run_to_start};
use crate::process::program::Program;
use crate::stopped::tracee::{Stop, Tracee};
use crate::{Installed, Options, Result, install, preflight};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options as Tracing};
use nix::sys::signal::{SigSet, Signal, kill};
use prof_os::status::Status;
use prof_os::{Pid, process};
use std::time::{Duration, Instant};

/// Signal that asks `prof run` to stop tracing its program. Processes that know nothing of that ignore it by default.
pub const LET_GO: i32 = libc::SIGURG;

/// Time for which any program is traced.
const MOMENT: Duration = Duration::from_millis(500);
/// Interval between looks for an exec: during [`AT_FIRST`], and after it.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
const AT_FIRST: Duration = Duration::from_secs(3);
/// Time within which the stop at an exec of the traced thread is seen.
const UNSEEN: Duration = Duration::from_millis(500);
/// Longest wait between two checks of a traced program, or of one whose end alone matters.
const REST: Duration = Duration::from_millis(100);

/// Programs that do little but call exec, sooner or later.
const WRAPPERS: [&str; 29] = [
    "sh",
    "dash",
    "bash",
    "ash",
    "zsh",
    "ksh",
    "mksh",
    "yash",
    "busybox",
    "toybox",
    "env",
    "nice",
    "nohup",
    "setsid",
    "taskset",
    "ionice",
    "chrt",
    "numactl",
    "stdbuf",
    "setpriv",
    "unshare",
    "nsenter",
    "chroot",
    "prlimit",
    "runuser",
    "setarch",
    "gosu",
    "su-exec",
    "coreutils",
];

/// Next event of a program.
#[derive(Debug)]
pub enum Next {
    /// The program has ended, with this status of waitpid(2).
    Ended(i32),
    /// The process runs another program now, and is stopped before that has done anything.
    Exec,
    /// The process has been running another program for some milliseconds.
    Late,
}

/// A child of this process, whose execs and end are waited for.
#[derive(Debug)]
pub struct Follow {
    pid: Pid,
    /// `None` if the child is not traced, or not any more.
    tracee: Option<Tracee>,
    /// Whether the child was asked to stop, so that tracing can end.
    leaving: bool,
    /// Status with which the child ended, if that was seen while something else was waited for.
    ended: Option<i32>,
    /// Program that the child runs; `None` if its end alone is waited for.
    program: Option<Program>,
    /// Time since when the program is gone without a stop at an exec: another thread of it has called exec.
    left: Option<Instant>,
    since: Instant,
    always: bool,
}

impl Follow {
    /// Follows a child that is stopped: by tracing if that is possible, else by polling.
    #[must_use]
    pub fn new(pid: Pid) -> Self {
        let exe = process::exe(pid);
        let name = exe.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        // Stops of the traced child must not wait for pages that the child itself may have to serve.
        crate::resident::fault_in();
        Self {
            pid,
            tracee: seize(pid),
            leaving: false,
            ended: None,
            program: Some(Program::of(pid)),
            left: None,
            since: Instant::now(),
            always: WRAPPERS.contains(&name),
        }
    }

    /// Follows a child whose end alone is to be waited for.
    #[must_use]
    pub fn end_of(pid: Pid) -> Self {
        let (tracee, program, since) = (None, None, Instant::now());
        Self { pid, tracee, leaving: false, ended: None, program, left: None, since, always: false }
    }

    /// Returns whether the child's end was seen while something else was waited for.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Waits for the child's next exec, or its end. SIGCHLD must be blocked. `let_go` returns whether tracing has to
    /// end.
    pub fn next(&mut self, let_go: impl Fn() -> bool) -> Next {
        if let Some(status) = self.ended {
            return Next::Ended(status);
        }
        loop {
            let mut status = 0;
            // Not nix's, which loses the status of a stop by a realtime signal.
            // SAFETY: the call writes the status only.
            let r = unsafe {
                libc::waitpid(self.pid.as_raw(), &mut status, libc::__WALL | libc::WNOHANG)
            };
            if r == self.pid.as_raw() && !libc::WIFSTOPPED(status) {
                self.forget();
                return Next::Ended(status);
            }
            if r == self.pid.as_raw() {
                if self.stopped(status) {
                    return Next::Exec;
                }
                continue;
            }
            if r == -1 && Errno::last() != Errno::EINTR {
                self.forget();
                return Next::Ended(0);
            }
            let enough = !self.always && self.since.elapsed() >= MOMENT;
            if let Some(t) = &mut self.tracee
                && !self.leaving
                && (enough || let_go())
            {
                self.leaving = true;
                t.interrupt();
            }
            if !self.has_left() {
                self.left = None;
            } else if self.tracee.is_none() {
                return Next::Late;
            } else if self.left.get_or_insert_with(Instant::now).elapsed() > UNSEEN {
                self.forget();
                return Next::Late;
            }
            self.rest();
        }
    }

    /// Resumes the child from a stop. Returns whether the stop was that at an exec.
    fn stopped(&mut self, status: i32) -> bool {
        let Some(mut t) = self.tracee.take() else { return false };
        let stop = t.understand(status);
        let is_group = libc::WSTOPSIG(status) != libc::SIGTRAP;
        if self.leaving && stop == Some(Stop::Event) {
            // `look` restarts the system call that the stop has ended.
            let _ = t.look();
            t.detach();
            return false;
        }
        if self.leaving {
            // Any stop cancels the stop that was asked for before, so it is asked for again.
            t.interrupt();
        }
        let _ = match stop {
            Some(Stop::Signal(signal)) => t.resume(libc::PTRACE_CONT, signal),
            // In a group stop the child stays stopped until a SIGCONT.
            Some(Stop::Event) if is_group => t.resume(libc::PTRACE_LISTEN, 0),
            Some(Stop::Other) => Ok(()),
            _ => t.resume(libc::PTRACE_CONT, 0),
        };
        self.tracee = Some(t);
        stop == Some(Stop::Other)
    }

    /// Sleeps until a SIGCHLD comes, or it is time for the next check.
    fn rest(&self) {
        let time = match (&self.tracee, &self.program) {
            (Some(_), _) | (_, None) => REST,
            _ if self.since.elapsed() < AT_FIRST => LOOKS.0,
            _ => LOOKS.1,
        };
        prof_os::signals::wait(&SigSet::from(Signal::SIGCHLD), time);
    }

    /// Returns whether the child lives, but does not run its program any more.
    fn has_left(&self) -> bool {
        self.program.as_ref().is_some_and(Program::is_replaced)
    }

    /// Drops the tracee without detaching: the traced thread is gone.
    fn forget(&mut self) {
        if let Some(t) = self.tracee.take() {
            std::mem::forget(t);
        }
    }

    /// After [`Next::Exec`], runs the new program to a point where it has done nothing of its own, and leaves it
    /// stopped by SIGSTOP. After [`Next::Late`], leaves it as it is.
    ///
    /// # Errors
    /// If the program ends, or does not reach that point. It then runs on.
    pub fn to_start(&mut self) -> Result<()> {
        let Some(mut t) = self.tracee.take() else { return Ok(()) };
        let arrived = run_to_start(&mut t);
        if arrived.is_ok() {
            let _ = kill(self.pid.into(), Signal::SIGSTOP);
        }
        if t.is_gone() {
            self.ended = Some(t.status);
        }
        t.detach();
        arrived.and_then(|()| hold(self.pid))
    }
}

/// Traces a running process so that it stops at its next exec. Returns `None` where that is not permitted.
fn seize(pid: Pid) -> Option<Tracee> {
    let options = Tracing::PTRACE_O_TRACESYSGOOD | Tracing::PTRACE_O_TRACEEXEC;
    let seized = ptrace::seize(pid.into(), options);
    seized.is_ok().then(|| Tracee::running(pid, pid))
}

/// Installs prof in a child that runs another program now.
pub fn install_again(pid: Pid, options: &Options) -> Result<Installed> {
    install(&preflight(pid)?, options)
}

/// Asks the `prof run` that traces a process to let go of it, and waits for that. Does nothing if no `prof run`
/// traces it.
pub fn ask_to_let_go(pid: Pid) {
    let tracer = || {
        let status = Status::of(pid).ok()?;
        status.pid("TracerPid").filter(|t| *t != Pid::NONE)
    };
    let Some(by) = tracer() else { return };
    let is_run = process::comm(by) == "prof" && process::cmdline(by).iter().any(|a| a == "run");
    if !is_run {
        return;
    }
    // Programs that do not expect this signal ignore it.
    if let Ok(signal) = Signal::try_from(LET_GO) {
        let _ = kill(by.into(), signal);
    }
    let deadline = Instant::now() + Duration::from_secs(2);
    while tracer() == Some(by) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}
