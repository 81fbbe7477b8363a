//! Processes that begin recordings for a supervisor, which takes notice of other processes meanwhile.

use super::find::Seen;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, fork};
use prof_os::Pid;
use std::ffi::OsString;
use std::io::{PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Least and greatest number of workers: as many as there are processors, within these.
const WORKERS: (usize, usize) = (2, 8);
/// Room for a message: four numbers and a path.
const MESSAGE: usize = 64 + 4096;

/// A recording that a worker has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    /// Path of the recording.
    pub path: PathBuf,
    /// The collector's process ID and start time; [`Pid::NONE`]: the process had ended, and the recording is complete.
    pub collector: (Pid, u64),
    /// Number of events of a complete recording.
    pub events: u64,
    /// The process was recorded from its fork on.
    pub from_fork: bool,
}

/// The result of a worker's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A recording.
    Begun(Begun),
    /// The process could not be attached to, and the journal says why.
    Failed,
    /// The process had ended, and nothing of it is recorded.
    Missed,
    /// The worker was killed, or came to no end.
    Killed,
}

/// The end of a worker.
pub(super) struct Done {
    /// The process that it was to record.
    pub seen: Seen,
    /// The result of its work.
    pub outcome: Outcome,
}

/// Seconds over which [`Workers::load`] is a mean, with weights that fall exponentially.
const SPAN: f64 = 4.0;
/// Exit codes of a worker that has begun nothing.
const FAILED: i32 = 1;
const MISSED: i32 = 2;
const KILLED: i32 = 3;
/// Niceness of a worker for which no process waits, so that the supervisor is not kept from what happens meanwhile.
const NICE: libc::c_int = 10;

/// The workers that run.
pub(super) struct Workers {
    running: Vec<Worker>,
    /// Greatest number of them.
    most: usize,
    /// Time for which workers have worked, less of it the longer ago that was, and when it was added up last.
    worked: (Duration, Instant),
}

struct Worker {
    pid: Pid,
    /// The worker's status when it was looked at last.
    status: Option<WaitStatus>,
    started: Instant,
    seen: Seen,
    told: PipeReader,
}

impl Workers {
    /// Returns none, and room for as many as this machine has processors for.
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(WORKERS.0, usize::from);
        let worked = (Duration::ZERO, Instant::now());
        Self { running: Vec::new(), most: processors.clamp(WORKERS.0, WORKERS.1), worked }
    }

    /// Returns for which part of the last seconds a worker has been at work; more than 1 if several were.
    pub(super) fn load(&self) -> f64 {
        let (worked, at) = self.worked;
        worked.as_secs_f64() / SPAN * (-at.elapsed().as_secs_f64() / SPAN).exp()
    }

    /// Returns whether another one may be started. The last place is for an `urgent` one.
    pub(super) fn has_room(&self, urgent: bool) -> bool {
        self.running.len() + usize::from(!urgent) < self.most
    }

    /// Returns whether one runs.
    pub(super) fn are_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// Reaps the processes that this one has adopted, as collectors whose workers have ended, but those that are of its own.
    pub(super) fn reap_adopted(&self, is_own: impl Fn(Pid) -> bool) {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Some(pid) = waitid(Id::All, flags).ok().and_then(|status| status.pid()) {
            let is_worker = self.running.iter().any(|w| w.pid == pid.into());
            if is_worker || is_own(pid.into()) {
                break;
            }
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Starts a worker for a process, which goes without processor time that others want if it is not `urgent`.
    ///
    /// # Errors
    /// If this process can't have another one; `work` has not been called then.
    pub(super) fn start(
        &mut self,
        seen: &Seen,
        urgent: bool,
        work: impl FnOnce() -> Outcome,
    ) -> std::io::Result<()> {
        let (told, mut tell) = std::io::pipe()?;
        // SAFETY: a supervisor has one thread.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => {
                let started = Instant::now();
                let (pid, status, seen) = (child.into(), None, seen.clone());
                self.running.push(Worker { pid, status, started, seen, told });
                Ok(())
            }
            ForkResult::Child => {
                if !urgent {
                    // SAFETY: the call takes no pointers.
                    unsafe { libc::nice(NICE) };
                }
                let code = match work() {
                    Outcome::Begun(begun) => {
                        i32::from(tell.write_all(&begun.encode()).is_err()) * KILLED
                    }
                    Outcome::Failed => FAILED,
                    Outcome::Missed => MISSED,
                    Outcome::Killed => KILLED,
                };
                // SAFETY: ends this process without the destructors of what its parent holds.
                unsafe { libc::_exit(code) }
            }
        }
    }

    /// Returns those that have ended since the last call.
    pub(super) fn ended(&mut self) -> Vec<Done> {
        let has_ended = |w: &mut Worker| {
            w.status = waitpid(Some(w.pid.into()), Some(WaitPidFlag::WNOHANG)).ok();
            w.status != Some(WaitStatus::StillAlive)
        };
        let ended: Vec<_> = self.running.extract_if(.., has_ended).collect();
        let worked: Duration = ended.iter().map(|w| w.started.elapsed()).sum();
        let before = Duration::from_secs_f64(self.load() * SPAN);
        self.worked = (before + worked, Instant::now());
        ended.into_iter().map(Worker::done).collect()
    }
}

impl Worker {
    fn done(mut self) -> Done {
        let outcome = match self.status {
            Some(WaitStatus::Exited(_, 0)) => {
                self.message().map_or(Outcome::Killed, Outcome::Begun)
            }
            Some(WaitStatus::Exited(_, FAILED)) => Outcome::Failed,
            Some(WaitStatus::Exited(_, MISSED)) => Outcome::Missed,
            _ => Outcome::Killed,
        };
        Done { outcome, seen: self.seen }
    }

    /// Reads the message of a worker that has ended.
    fn message(&mut self) -> Option<Begun> {
        let mut one = [PollFd::new(self.told.as_fd(), PollFlags::POLLIN)];
        poll(&mut one, PollTimeout::ZERO).ok().filter(|n| *n > 0)?;
        let mut bytes = [0; MESSAGE];
        let n = self.told.read(&mut bytes).ok()?;
        Begun::decode(&bytes[..n])
    }
}

impl Begun {
    /// Returns a recording that has just begun.
    pub(super) fn to(path: PathBuf, collector: (Pid, u64)) -> Self {
        Self { path, collector, events: 0, from_fork: false }
    }

    fn encode(&self) -> Vec<u8> {
        let (pid, start) = self.collector;
        let from_fork = u8::from(self.from_fork);
        let mut bytes = format!("{pid} {start} {} {from_fork} ", self.events).into_bytes();
        bytes.extend_from_slice(self.path.as_os_str().as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.splitn(5, |b| *b == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<u64>().ok();
        let (pid, start, events, from_fork) = (number()?, number()?, number()?, number()? == 1);
        let path = OsString::from_vec(words.next()?.to_vec());
        let pid = Pid::from_u32(u32::try_from(pid).ok()?);
        Some(Self { path: path.into(), collector: (pid, start), events, from_fork })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_a_worker_arrives_with_any_path() {
        let path = PathBuf::from(OsString::from_vec(b"/a b/\xff\n".to_vec()));
        let begun = Begun { events: 3, from_fork: true, ..Begun::to(path, (Pid::from_raw(7), 9)) };
        assert_eq!(Begun::decode(&begun.encode()), Some(begun));
        for bad in [&b""[..], b"1 2", b"1 2 3 0", b"x 2 3 0 /a", b"99999999999 2 3 0 /a"] {
            assert_eq!(Begun::decode(bad), None);
        }
    }

    #[test]
    fn a_worker_tells_what_it_has_begun_or_nothing() {
        let seen = Seen { pid: Pid::this(), start: 1, parent: Pid::NONE, comm: "x".into() };
        let begun = Begun::to("/a".into(), (Pid::NONE, 0));
        let mut workers = Workers::new();
        for outcome in [Outcome::Begun(begun), Outcome::Failed, Outcome::Missed, Outcome::Killed] {
            let told = outcome.clone();
            let work = || if told == Outcome::Killed { std::process::abort() } else { told };
            workers.start(&seen, true, work).expect("a process");
            let began = Instant::now();
            let done = loop {
                let mut done = workers.ended();
                if let Some(done) = done.pop() {
                    break done;
                }
                assert!(began.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!((done.outcome, &done.seen, workers.are_busy()), (outcome, &seen, false));
        }
        assert!(workers.load() > 0.0);
        workers.worked.1 -= Duration::from_secs(100);
        assert!(workers.load() < 0.001, "long ago");
    }
}
