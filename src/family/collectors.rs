//! The collectors of a family's processes, as its supervisor sees them: it replaces those that were killed.

use super::again;
use super::control::in_folder;
use super::find::Seen;
use super::folder::Folder;
use super::journal::{self, Journal};
use super::record::How;
use crate::session;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use prof_collect::{Peek, finish_unattended};
use prof_os::{Pid, process};
use prof_trace::shared::state;
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two looks: the hook waits much longer before it takes a collector for dead.
const LOOK: Duration = Duration::from_millis(250);
/// Greatest number of times that a recording is taken up within a time: what kills collectors may go on doing so.
const MOST: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// The collectors of a family's processes.
#[derive(Default)]
pub(super) struct Collectors {
    of: BTreeMap<PathBuf, Watched>,
    looked: Option<Instant>,
}

/// A recording whose collector is to live for as long as its process does.
struct Watched {
    seen: Seen,
    collector: (Pid, u64),
    /// The recording was begun for this supervisor.
    is_own: bool,
    /// The collector whose end was noted last: another may be killed before it was seen alive.
    noted: Option<(Pid, u64)>,
    /// When the recording was taken up.
    taken: VecDeque<Instant>,
    /// A process that takes it up now.
    worker: Option<Pid>,
}

/// The next step for a recording, as its process and its collector are now.
enum Next {
    /// Nothing: its collector is at work, or somebody is.
    Nothing,
    /// Another collector has taken it up.
    Watch((Pid, u64)),
    /// The recording goes on with another collector: its own has died, and the process lives.
    TakeUp(Box<Peek>),
    /// The process is not recorded to this file any more, but perhaps to another.
    Finish(Option<Box<Peek>>),
}

impl Collectors {
    /// Finds the collectors of the processes that are recorded to a folder, but for one process.
    pub(super) fn of(folder: &Folder, except: Option<Pid>) -> Self {
        let mut all = Self::default();
        for peek in in_folder(folder.path()) {
            let seen = Seen::of(peek.pid).filter(|s| Some(s.pid) != except);
            if let Some(seen) = seen {
                all.of.insert(peek.path, Watched::new(seen, peek.collector));
            }
        }
        all
    }

    /// Adds the collector of a process that was attached to.
    pub(super) fn add(&mut self, seen: &Seen, path: PathBuf, collector: (Pid, u64)) {
        let watched = self.of.entry(path).or_insert_with(|| Watched::new(seen.clone(), collector));
        (watched.collector, watched.is_own) = (collector, true);
    }

    /// Returns whether no collector of a recording that was begun for this supervisor is at work, and nobody takes up a
    /// recording.
    pub(super) fn are_done(&mut self) -> bool {
        let works = |(pid, start): (Pid, u64)| process::is_at_work(pid, start);
        !self.of.values().any(|w| w.is_own && works(w.collector)) && !self.are_taken_up()
    }

    /// Returns whether a process takes up a recording for this one.
    pub(super) fn is_worker(&self, pid: Pid) -> bool {
        self.of.values().any(|w| w.worker == Some(pid))
    }

    /// Returns whether a recording is being taken up.
    pub(super) fn are_taken_up(&mut self) -> bool {
        self.of.values_mut().for_each(Watched::reap);
        self.of.values().any(|w| w.worker.is_some())
    }

    /// Looks which collectors have ended, and has the recordings of those go on that were killed.
    pub(super) fn look(&mut self, folder: &Folder, journal: &mut Journal, how: &How) {
        if self.looked.is_some_and(|t| t.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        let mut moved = Vec::new();
        self.of.retain(|path, watched| {
            watched.reap();
            match watched.next(path) {
                Next::Nothing => true,
                Next::Watch(collector) => {
                    watched.collector = collector;
                    true
                }
                Next::TakeUp(peek) => {
                    watched.take_up(folder, journal, &peek, how);
                    true
                }
                Next::Finish(other) => {
                    finish(path, &watched.seen, journal);
                    let is_in = |p: &Peek| p.path.parent() == path.parent();
                    moved.extend(other.filter(|p| is_in(p)).map(|p| (watched.seen.clone(), p)));
                    false
                }
            }
        });
        for (seen, peek) in moved {
            self.of.entry(peek.path).or_insert_with(|| Watched::new(seen, peek.collector));
        }
    }
}

impl Watched {
    fn new(seen: Seen, collector: (Pid, u64)) -> Self {
        Self { seen, collector, is_own: false, noted: None, taken: VecDeque::new(), worker: None }
    }

    /// Takes notice of the end of the process that takes up the recording.
    fn reap(&mut self) {
        let Some(worker) = self.worker else { return };
        let failed = match waitpid(Some(worker.into()), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return,
            Ok(WaitStatus::Exited(_, code)) => code != 0,
            _ => true,
        };
        self.worker = None;
        if failed {
            // The obstacle may not go away soon.
            self.taken = std::iter::repeat_n(Instant::now(), MOST).collect();
        }
    }

    fn next(&self, path: &Path) -> Next {
        let (collector, start) = self.collector;
        if self.worker.is_some() || process::is_at_work(collector, start) {
            return Next::Nothing;
        }
        match Peek::of(self.seen.pid) {
            _ if !self.seen.runs() => Next::Finish(None),
            Ok(Some(peek)) if peek.path != path => Next::Finish(Some(Box::new(peek))),
            Ok(Some(peek)) if session::is_recorded(&peek) => Next::Watch(peek.collector),
            Ok(Some(peek)) if peek.state == state::ATTACHED => Next::TakeUp(Box::new(peek)),
            // An attach or a detach is in progress, or has failed in the middle.
            Ok(Some(_)) => Next::Nothing,
            Ok(None) => Next::Finish(None),
            Err(_) if process::has_ended(self.seen.pid) => Next::Finish(None),
            Err(_) => Next::Nothing,
        }
    }

    /// Has the recording go on, now or when it may be taken up again.
    fn take_up(&mut self, folder: &Folder, journal: &mut Journal, peek: &Peek, how: &How) {
        let now = Instant::now();
        self.taken.retain(|t| now.duration_since(*t) < WINDOW);
        let oldest = self.taken.front().filter(|_| self.taken.len() >= MOST);
        let waits = oldest.map(|t| WINDOW.saturating_sub(now.duration_since(*t)));
        if self.noted != Some(peek.collector) {
            self.noted = Some(peek.collector);
            let recording = peek.path.file_name().map(|n| n.to_string_lossy());
            let waits = waits.map(|t| t.as_nanos() as u64);
            let note = json!({ "recording": recording, "waits_ns": waits });
            journal.note("collector_died", Some(&self.seen), note);
        }
        if waits.is_some() {
            return;
        }
        self.taken.push_back(now);
        // A long recording takes its time to read, in which the supervisor is wanted for others.
        // SAFETY: this process has one thread: those that trace end with the attach.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { child }) => self.worker = Some(child.into()),
            Ok(ForkResult::Child) => {
                let done = again::orphan(folder, journal, &self.seen, peek, how);
                // SAFETY: ends this process without the destructors of what its parent holds.
                unsafe { libc::_exit(i32::from(done.is_err())) }
            }
            Err(e) => log::warn!("cannot start a process to take up a recording: {e}"),
        }
    }
}

/// Finishes the recording of a process that has ended, or runs another program, if its collector has not done so.
fn finish(path: &Path, seen: &Seen, journal: &mut Journal) {
    if let Ok(Some(until)) = finish_unattended(path, || again::is_written(path)) {
        let recording = path.file_name().map(|n| n.to_string_lossy());
        let until = journal::unix_ns(until);
        let note = json!({ "recording": recording, "until_unix_ns": until });
        journal.note("cut_off", Some(seen), note);
    }
}
