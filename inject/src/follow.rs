//! Follows a program that `prof run` has started through exec: wrappers, shims, `env`, `sh -c`.
//!
//! Only a traced process stops at an exec, before the new program's first instruction. Tracing has side effects (a
//! signal that the process ignores ends some of its waits), and keeps other tracers out. So a program is traced only
//! for the moment in which shims call exec, and shells and the like for longer. Another tracer asks for the process
//! by a signal ([`LET_GO`]). An exec that comes later is found by polling, some milliseconds late.

mod at_end;

use crate::launch::{hold, run_to_start};
use crate::permission::may_name_processes;
use crate::process::program::Program;
use crate::stopped::tracee::{Stop, Tracee};
use crate::{Installed, Options, Result, install, preflight};
use at_end::{Arrival, AtEnd};
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
    /// The process ends, and all of its threads are held: see [`Follow::at_end`].
    Ends,
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
    /// The process is to be held at its end.
    at_end: Option<AtEnd>,
}

impl Follow {
    /// Follows a child that is stopped: by tracing if that is possible, else by polling.
    #[must_use]
    pub fn new(pid: Pid) -> Self {
        Self::traced(pid, TRACING)
    }

    /// Follows a child that is stopped, and holds it at its end. It is traced all the time.
    #[must_use]
    pub fn to_end(pid: Pid) -> Self {
        let mut follow = Self::traced(pid, at_end::OPTIONS);
        if follow.tracee.is_some() {
            (follow.always, follow.at_end) = (true, Some(AtEnd::of(pid)));
        }
        follow
    }

    fn traced(pid: Pid, options: Tracing) -> Self {
        let exe = process::exe(pid);
        let name = exe.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        // Stops of the traced child must not wait for pages that the child itself may have to serve.
        crate::resident::fault_in();
        Self {
            pid,
            tracee: seize(pid, options),
            leaving: false,
            ended: None,
            program: Some(Program::of(pid)),
            left: None,
            since: Instant::now(),
            always: WRAPPERS.contains(&name),
            at_end: None,
        }
    }

    /// Follows a child whose end alone is to be waited for.
    #[must_use]
    pub fn end_of(pid: Pid) -> Self {
        Self {
            pid,
            tracee: None,
            leaving: false,
            ended: None,
            program: None,
            left: None,
            since: Instant::now(),
            always: false,
            at_end: None,
        }
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
            if self.is_traced() && !self.leaving && (enough || let_go()) {
                self.leaving = true;
                self.tracee.iter_mut().for_each(Tracee::interrupt);
                self.at_end.iter_mut().for_each(AtEnd::interrupt);
            }
            if self.others() {
                return Next::Ends;
            }
            if !self.has_left() {
                self.left = None;
            } else if !self.is_traced() {
                return Next::Late;
            } else if self.left.get_or_insert_with(Instant::now).elapsed() > UNSEEN {
                self.forget();
                return Next::Late;
            }
            self.rest();
        }
    }

    /// Returns whether a thread of the child may be traced. The first one need not be: it may have ended before others, and
    /// one that calls exec takes its place.
    fn is_traced(&self) -> bool {
        self.tracee.is_some() || self.at_end.is_some()
    }

    /// Sees what threads beside the first have done. Returns whether the process ends, and all of its threads are held.
    fn others(&mut self) -> bool {
        let Some(end) = &mut self.at_end else { return false };
        end.look(self.leaving);
        if end.is_there() && !self.leaving {
            return true;
        }
        if end.is_in_vain() {
            let has_first = end.release();
            self.let_first_go(has_first);
        }
        if self.leaving
            && self.tracee.is_none()
            && !self.at_end.as_ref().is_some_and(AtEnd::has_others)
        {
            self.at_end = None;
        }
        false
    }

    /// Returns the thread that has called exec if it was not the first one: from then on it has the id of that.
    fn successor(&self) -> Option<Tracee> {
        self.at_end.as_ref().map(|_| Tracee::running(self.pid, self.pid))
    }

    /// Lets the first thread go on from its end.
    fn let_first_go(&mut self, held: bool) {
        if let Some(t) = self.tracee.take_if(|_| held) {
            t.detach();
        }
    }

    /// After [`Next::Ends`], calls `work` with the threads of the process, all of which are stopped before anything of it
    /// is taken apart. Then the process ends.
    pub fn at_end<T>(&mut self, work: impl FnOnce(&mut [Tracee]) -> T) -> T {
        let mut end = self.at_end.take();
        let mut threads = end.as_mut().map(AtEnd::take).unwrap_or_default();
        let has_first = end.is_some_and(|end| end.has_first());
        threads.extend(self.tracee.take_if(|_| has_first));
        let done = work(&mut threads);
        threads.into_iter().for_each(Tracee::detach);
        // A process that ends runs no program.
        self.program = None;
        done
    }

    /// Resumes the child from a stop. Returns whether the stop was that at an exec.
    fn stopped(&mut self, status: i32) -> bool {
        let Some(mut t) = self.tracee.take().or_else(|| self.successor()) else { return false };
        let stop = t.understand(status);
        let is_group = libc::WSTOPSIG(status) != libc::SIGTRAP;
        if stop == Some(Stop::Exit) {
            let stays = self.at_end.as_mut().filter(|_| !self.leaving).map(|end| end.arrives(&t));
            match stays {
                Some(Arrival::Stays) => self.tracee = Some(t),
                _ => t.detach(),
            }
            return false;
        }
        if let (Some(Stop::Clone), Some(end)) = (stop, &mut self.at_end) {
            end.made(&t);
        }
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

/// Options by which a process stops at its next exec.
const TRACING: Tracing = Tracing::PTRACE_O_TRACESYSGOOD.union(Tracing::PTRACE_O_TRACEEXEC);

/// Traces a running process. Returns `None` where that is not permitted.
fn seize(pid: Pid, options: Tracing) -> Option<Tracee> {
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
    // In the /proc of another pid namespace, the tracer's number is another process's.
    let Some(by) = tracer().filter(|_| may_name_processes().is_ok()) else { return };
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
