//! Following a program that `prof run` has started through exec: wrappers, shims, `env`, `sh -c`.
//!
//! To be stopped at an exec, before the new program's first instruction, a process must be traced. That is not
//! free of effects (a signal that it ignores ends some of its waits), and keeps other tracers out. So a program
//! is traced only for the moment in which shims call exec, shells and the like for longer; whoever else wants to
//! trace asks by a signal ([`LET_GO`]). An exec that comes later is found by looking, some milliseconds late.

use crate::launch::{hold, run_to_start};
use crate::program::Program;
use crate::tracee::{Stop, Tracee, ptrace};
use crate::{Installed, Options, Result, install, preflight, proc};
use std::time::{Duration, Instant};

/// Asks `prof run` to stop tracing its program; ignored by whoever knows nothing of it.
pub const LET_GO: i32 = libc::SIGURG;

/// So long any program is traced.
const MOMENT: Duration = Duration::from_millis(500);
/// How often an exec is looked for: at first, and after a while.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
const AT_FIRST: Duration = Duration::from_secs(3);
/// An exec of the traced thread is seen within this time.
const UNSEEN: Duration = Duration::from_millis(500);
/// How long a traced program is waited for at a time.
const REST: Duration = Duration::from_millis(100);

/// Programs that do little but call exec, at some time.
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

/// What has become of a program.
#[derive(Debug)]
pub enum Next {
    /// It has ended, with this status of waitpid(2).
    Ended(i32),
    /// It runs another program; stopped before that has done anything.
    Exec,
    /// It runs another program, for some milliseconds.
    Late,
}

/// A child of this process that is waited for.
#[derive(Debug)]
pub struct Follow {
    pid: i32,
    /// For as long as it is traced.
    tracee: Option<Tracee>,
    /// It was asked to stop, to be let go of.
    leaving: bool,
    /// How it has ended, if that was seen by the way.
    ended: Option<i32>,
    /// What it runs, unless its end alone is waited for.
    program: Option<Program>,
    /// Since when it is so while no exec was seen: another thread of it has called exec.
    left: Option<Instant>,
    since: Instant,
    always: bool,
}

impl Follow {
    /// Follows a child that stands stopped. If it can't be traced, by looking.
    #[must_use]
    pub fn new(pid: i32) -> Self {
        let exe = proc::exe(pid);
        let name = exe.file_name().and_then(|n| n.to_str()).unwrap_or_default();
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

    /// Waits for its end only.
    #[must_use]
    pub fn end_of(pid: i32) -> Self {
        let (tracee, program, since) = (None, None, Instant::now());
        Self { pid, tracee, leaving: false, ended: None, program, left: None, since, always: false }
    }

    /// Whether its end was seen by the way.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Waits for its next exec, or its end. SIGCHLD must be blocked. `let_go`: it may not be traced any longer.
    pub fn next(&mut self, let_go: impl Fn() -> bool) -> Next {
        if let Some(status) = self.ended {
            return Next::Ended(status);
        }
        loop {
            let mut status = 0;
            // SAFETY: writes the status.
            let r = unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL | libc::WNOHANG) };
            if r == self.pid && !libc::WIFSTOPPED(status) {
                self.forget();
                return Next::Ended(status);
            }
            if r == self.pid {
                if self.stopped(status) {
                    return Next::Exec;
                }
                continue;
            }
            // SAFETY: no pointers.
            if r == -1 && unsafe { *libc::__errno_location() } != libc::EINTR {
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

    /// Goes on from a stop; true if it is that at an exec.
    fn stopped(&mut self, status: i32) -> bool {
        let Some(mut t) = self.tracee.take() else { return false };
        let stop = t.understand(status);
        let is_group = libc::WSTOPSIG(status) != libc::SIGTRAP;
        if self.leaving && stop == Some(Stop::Event) {
            // What the stop has ended is put right there.
            let _ = t.look();
            t.detach();
            return false;
        }
        if self.leaving {
            // Any stop takes back what was asked for.
            t.interrupt();
        }
        let _ = match stop {
            Some(Stop::Signal(signal)) => t.resume(libc::PTRACE_CONT, signal),
            // Stopped as a process: it stays so until a SIGCONT.
            Some(Stop::Event) if is_group => t.resume(libc::PTRACE_LISTEN, 0),
            Some(Stop::Other) => Ok(()),
            _ => t.resume(libc::PTRACE_CONT, 0),
        };
        self.tracee = Some(t);
        stop == Some(Stop::Other)
    }

    /// Until something happens, or it is time to look.
    fn rest(&self) {
        let time = match (&self.tracee, &self.program) {
            (Some(_), _) | (_, None) => REST,
            _ if self.since.elapsed() < AT_FIRST => LOOKS.0,
            _ => LOOKS.1,
        };
        let t = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        };
        // SAFETY: a set of this function's, and a valid time.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGCHLD);
            libc::sigtimedwait(&set, std::ptr::null_mut(), &t);
        }
    }

    /// Whether its program is gone, and it is not.
    fn has_left(&self) -> bool {
        self.program.as_ref().is_some_and(Program::is_replaced)
    }

    /// It is gone: there is nothing to be let go of.
    fn forget(&mut self) {
        if let Some(t) = self.tracee.take() {
            std::mem::forget(t);
        }
    }

    /// After [`Next::Exec`]: runs the new program to where it has done nothing of its own, and leaves it stopped
    /// by SIGSTOP; after [`Next::Late`]: leaves it as it is.
    ///
    /// # Errors
    /// If it ends, or does not come there. It runs on then.
    pub fn to_start(&mut self) -> Result<()> {
        let Some(mut t) = self.tracee.take() else { return Ok(()) };
        let arrived = run_to_start(&mut t);
        if arrived.is_ok() {
            // SAFETY: our own child.
            unsafe { libc::kill(self.pid, libc::SIGSTOP) };
        }
        if t.is_gone() {
            self.ended = Some(t.status);
        }
        t.detach();
        arrived.and_then(|()| hold(self.pid))
    }
}

/// Has a process, which goes on as it is, stop at its next exec; `None` where that is not permitted.
fn seize(pid: i32) -> Option<Tracee> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
    let seized = ptrace(libc::PTRACE_SEIZE, pid, 0, options as usize);
    seized.is_ok().then(|| Tracee::running(pid, pid))
}

/// Puts prof's memory into a child that runs another program now.
///
/// # Errors
/// If it can't be recorded.
pub fn install_again(pid: i32, options: &Options) -> Result<Installed> {
    install(&preflight(pid)?, options)
}

/// Asks the `prof run` that traces a process to let go of it, and waits for that; nothing, if nobody of that
/// kind does.
pub fn ask_to_let_go(pid: i32) {
    let tracer = || {
        let status = proc::Status::of(pid).ok()?;
        status.number("TracerPid").filter(|t| *t > 0).map(|t| t as i32)
    };
    let Some(by) = tracer() else { return };
    let is_run = proc::comm(by) == "prof" && proc::cmdline(by).iter().any(|a| a == "run");
    if !is_run {
        return;
    }
    // SAFETY: a signal that is ignored where it is not expected.
    unsafe { libc::kill(by, LET_GO) };
    let deadline = Instant::now() + Duration::from_secs(2);
    while tracer() == Some(by) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
}
