//! The supervisor of a family: a process that attaches to those of its processes that are new, and notes what becomes of
//! each.

use super::collectors::Collectors;
use super::events::{Event, Source};
use super::fates::Fates;
use super::find::{Seen, Which};
use super::folder::{Folder, FolderLock};
use super::journal::{self, Journal};
use super::record::{How, one};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, fork};
use prof_inject::process::program::Program;
use prof_os::sharers::same_memory;
use prof_os::{Pid, process};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest time between two looks at the members.
const TICK: Duration = Duration::from_millis(50);
/// Time that a new process gets to run its program by exec, as most do at once, before it is attached to.
const SETTLES: Duration = Duration::from_millis(5);
/// Age up to which a process that shares its parent's memory is taken for a child by vfork.
const VFORK: Duration = Duration::from_secs(1);
/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Time that a supervisor gets to end: an attach that is in progress is finished.
const ENDS: Duration = Duration::from_secs(30);

/// The processes that a supervisor follows, and how it records them.
#[derive(Clone, Debug)]
pub(crate) struct Follow {
    /// The family.
    pub which: Which,
    /// Options for recording the family's processes.
    pub how: How,
    /// A process that another prof records through its execs.
    pub except: Option<Pid>,
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: i32) {
    STOP.store(true, Relaxed);
}

/// Starts a supervisor, to which the lock on the folder passes, and waits until it follows. Returns its process ID.
///
/// # Errors
/// If it can't be started.
pub(crate) fn start(folder: &Folder, follow: &Follow, lock: FolderLock) -> Result<Pid> {
    let path = folder.absolute();
    let folder = Folder::open(&path)
        .with_context(|| format!("cannot open {}; was it removed?", path.display()))?;
    let (mut ready, mut write) =
        std::io::pipe().context("cannot make a pipe to the supervisor (`ulimit -n`?)")?;
    // SAFETY: this process has one thread now: those that trace end with the attach.
    match unsafe { fork() }.context("cannot start the supervisor")? {
        ForkResult::Parent { child } => {
            drop(write);
            let mut byte = [0];
            ready.read_exact(&mut byte).context("the supervisor ended before it was ready")?;
            Ok(child.into())
        }
        ForkResult::Child => {
            become_supervisor(&[write.as_raw_fd(), lock.descriptor()]);
            let done = Supervisor::new(&folder, follow, lock).map(|mut supervisor| {
                let _ = write.write_all(&[1]);
                drop(write);
                supervisor.run();
            });
            // SAFETY: ends this process without the destructors of what its parent holds.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
    }
}

/// Makes a forked process independent of the terminal and of its parent's files, but for some descriptors.
fn become_supervisor(keep: &[i32]) {
    crate::daemon::leave_group();
    // SAFETY: the calls take integers, a path that is a valid string, and handlers that live for ever.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            libc::dup2(null, fd);
        }
        for fd in crate::daemon::open_descriptors().into_iter().filter(|fd| !keep.contains(fd)) {
            libc::close(fd);
        }
        let stops = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGINT, libc::SIGHUP];
        let others = [libc::SIGPIPE, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];
        for signal in stops.into_iter().chain(others) {
            libc::signal(signal, libc::SIG_IGN);
        }
        let handler: extern "C" fn(i32) = stop;
        libc::signal(libc::SIGTERM, handler as *const () as libc::sighandler_t);
    }
    let _ = std::env::set_current_dir("/");
}

/// A process of the family that lives.
struct Member {
    seen: Seen,
    program: Program,
    /// Time of the attach; `None`: it was tried.
    due: Option<Instant>,
    /// The process's present program is recorded.
    recorded: bool,
    /// The process has run another program since it is known.
    has_execed: bool,
}

struct Supervisor<'a> {
    folder: &'a Folder,
    follow: &'a Follow,
    lock: FolderLock,
    beat: Instant,
    journal: Journal,
    source: Source,
    members: BTreeMap<Pid, Member>,
    known: HashSet<(Pid, u64)>,
    /// Processes that are known to have ended before the event that says so: there may be events of their children.
    gone: HashSet<Pid>,
    collectors: Collectors,
    fates: Fates,
}

impl<'a> Supervisor<'a> {
    fn new(folder: &'a Folder, follow: &'a Follow, lock: FolderLock) -> Result<Self> {
        let mut all = Self {
            folder,
            follow,
            lock,
            beat: Instant::now(),
            journal: folder.journal()?,
            source: Source::open(),
            members: BTreeMap::new(),
            known: HashSet::new(),
            gone: HashSet::new(),
            collectors: Collectors::of(folder, follow.except),
            fates: Fates::default(),
        };
        let me = Pid::this();
        let start = process::start_time(me);
        let note = json!({ "supervisor": [me, start], "by": all.source.name() });
        all.journal.note("follows", None, note);
        for line in journal::read(&folder.path().join(journal::NAME)) {
            let noted = journal::process(&line);
            if let Some(seen) =
                noted.and_then(|s| Seen::of(s.pid).filter(|now| now.start == s.start))
            {
                all.add(seen, None);
            }
        }
        if let Some(seen) = follow.except.and_then(Seen::of) {
            all.add(seen, None);
        }
        Ok(all)
    }

    /// Takes a process up, if it is not known yet.
    fn add(&mut self, seen: Seen, due: Option<Instant>) {
        if self.known.insert((seen.pid, seen.start)) {
            let program = Program::of(seen.pid);
            self.members.insert(
                seen.pid,
                Member { seen, program, due, recorded: due.is_none(), has_execed: false },
            );
        }
    }

    fn run(&mut self) {
        self.look();
        while !STOP.load(Relaxed) {
            let due = self.members.values().any(|m| m.due.is_some());
            let time = if due { Duration::from_millis(1) } else { TICK };
            for event in self.source.wait(time) {
                self.take(event);
            }
            self.check();
            self.attach();
            if self.beat.elapsed() > BEAT {
                self.lock.beat();
                self.journal.add_up();
                self.beat = Instant::now();
            }
            self.collectors.look(self.folder, &mut self.journal, &self.follow.how);
            // The processes of a tree can't be followed by new ones when there are none.
            if matches!(self.follow.which, Which::Tree(_)) && self.members.is_empty() {
                break;
            }
        }
        // Their recordings are complete when they have ended.
        let deadline = Instant::now() + ENDS;
        while !STOP.load(Relaxed) && !self.collectors.are_done() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        // A recording that a process takes up can't be detached by another one meanwhile.
        while self.collectors.are_taken_up() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.journal.add_up();
        self.journal.note("ended", None, json!({}));
    }

    fn take(&mut self, event: Event) {
        let is_tree = matches!(self.follow.which, Which::Tree(_));
        match event {
            Event::Fork { parent, child } if is_tree => {
                let member = self.members.get(&parent);
                if member.is_none() && !self.gone.contains(&parent) {
                    return;
                }
                let comm = member.map_or(String::new(), |m| m.seen.comm.clone());
                // A process that has lost its parent by now has another one.
                match Seen::of(child).map(|seen| Seen { parent, ..seen }) {
                    Some(seen) => self.add(seen, Some(Instant::now() + SETTLES)),
                    // A process that has ended already is counted.
                    None => {
                        let ended = Seen { pid: child, start: 0, parent, comm };
                        self.journal.note("missed", Some(&ended), json!({}));
                        self.gone.insert(child);
                        self.fates.short(parent);
                    }
                }
            }
            Event::Fork { child: pid, .. } | Event::Exec { pid } => self.changed(pid),
            Event::Exit { pid, status } => {
                self.gone.remove(&pid);
                self.ended(pid, Some(status));
            }
            Event::Lost => {
                self.journal.note("overrun", None, json!({}));
                self.gone.clear();
                self.look();
            }
            Event::Look => self.look(),
        }
    }

    /// A process may run another program, and may have another name.
    fn changed(&mut self, pid: Pid) {
        let Some(seen) = Seen::of(pid) else { return };
        match self.members.get_mut(&pid) {
            Some(m) if m.due.is_some() => {
                // The exec that the attach has waited for has happened.
                if !std::mem::replace(&mut m.has_execed, true) {
                    self.fates.short(m.seen.parent);
                }
                (m.seen, m.program, m.due) = (seen, Program::of(pid), Some(Instant::now()));
            }
            // The event may be older than the attach. A child by vfork can't be attached to before its exec.
            Some(m) if !m.recorded || m.program.is_replaced() => self.execed(pid, seen),
            Some(_) => {}
            None if self.follow.which.has(pid) && !super::find::is_ours(pid) => {
                self.add(seen, Some(Instant::now() + SETTLES));
            }
            None => {}
        }
    }

    fn execed(&mut self, pid: Pid, seen: Seen) {
        let Some(m) = self.members.get_mut(&pid) else { return };
        m.program = Program::of(pid);
        (m.seen, m.has_execed) = (seen, true);
        self.journal.note("exec", Some(&m.seen), json!({}));
        if self.follow.except != Some(pid) {
            (m.due, m.recorded) = (Some(Instant::now()), false);
        }
    }

    /// Looks for processes of the family that no event told of.
    fn look(&mut self) {
        let began = Instant::now();
        let found = match &self.follow.which {
            Which::Tree(_) => super::find::descendants(self.members.keys().copied()),
            which => which.find().unwrap_or_default(),
        };
        for seen in found {
            self.add(seen, Some(Instant::now() + SETTLES));
        }
        self.source.looked(began.elapsed());
    }

    /// Looks which members have ended, or run another program.
    fn check(&mut self) {
        let ended: Vec<Pid> =
            self.members.values().filter(|m| !m.seen.runs()).map(|m| m.seen.pid).collect();
        for pid in ended {
            // A process that its parent has not waited for yet says how it has ended.
            let stat = prof_os::stat::Stat::of(pid);
            self.goes(pid);
            self.ended(pid, stat.and_then(|s| s.exit_code()));
        }
        let execed: Vec<Pid> = self
            .members
            .values()
            .filter(|m| m.due.is_none() && m.program.is_replaced())
            .map(|m| m.seen.pid)
            .collect();
        for pid in execed {
            if let Some(seen) = Seen::of(pid) {
                self.execed(pid, seen);
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: Option<i32>) {
        let Some(m) = self.members.remove(&pid) else { return };
        self.known.remove(&(pid, m.seen.start));
        let how = match status {
            Some(s) if libc::WIFEXITED(s) => json!({ "code": libc::WEXITSTATUS(s) }),
            Some(s) if libc::WIFSIGNALED(s) => json!({ "signal": libc::WTERMSIG(s) }),
            _ => json!({}),
        };
        // A process with a due time was never attached to, or the attach failed because the process was ending.
        let event = if m.due.is_some() { "missed" } else { "exited" };
        if m.due.is_some() && !m.has_execed {
            self.fates.short(m.seen.parent);
        }
        self.fates.ended(pid);
        self.journal.note(event, Some(&m.seen), how);
    }

    /// Attaches to the next process whose turn it is.
    fn attach(&mut self) {
        let now = Instant::now();
        // Children that have run no other program may be recorded from their fork on, which takes less time and can't wait.
        let is_due = |m: &&mut Member| m.due.is_some_and(|due| due <= now);
        let next = self.members.values_mut().filter(is_due).min_by_key(|m| m.has_execed);
        let Some(m) = next else { return };
        let (age, parent) = (Duration::from_nanos(age_ns(m.seen.start)), m.seen.parent);
        // It has its parent's memory, and its parent's recording, until its exec.
        if age < VFORK && same_memory(m.seen.pid, parent) == Some(true) {
            m.due = Some(now + SETTLES);
            return;
        }
        m.due = None;
        m.seen.comm = process::comm(m.seen.pid);
        let more: Value = json!({ "age_ns": age.as_nanos() as u64 });
        match one(self.folder, &mut self.journal, &m.seen, &self.follow.how, &more) {
            Ok(attached) => {
                (m.program, m.recorded) = (Program::of(m.seen.pid), true);
                if !m.has_execed {
                    self.fates.lives(m.seen.parent);
                }
                self.collectors.add(&m.seen, attached);
            }
            // The process has been noted as missed.
            Err(_) if !m.seen.is_there() => {
                let (pid, start) = (m.seen.pid, m.seen.start);
                if !m.has_execed {
                    self.fates.short(m.seen.parent);
                }
                self.members.remove(&pid);
                self.known.remove(&(pid, start));
                self.goes(pid);
            }
            Err(_) => {}
        }
    }

    /// Notes that a process has ended, of whose end an event is to come.
    fn goes(&mut self, pid: Pid) {
        if matches!(self.source, Source::Connector(_)) {
            self.gone.insert(pid);
        }
    }
}

/// Returns the age of a process in nanoseconds, to a hundredth of a second, given its start time.
fn age_ns(start: u64) -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    let now = now.map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64);
    let per_sec = prof_os::clock_ticks().max(1);
    now.saturating_sub(start.saturating_mul(1_000_000_000 / per_sec))
}

/// Returns whether the supervisor of a folder was killed, and there is no other yet.
pub(crate) fn was_killed(folder: &Path) -> bool {
    let lines = journal::read(&folder.join(journal::NAME));
    journal::has_ended(&lines) == Some(false) && running(folder).is_none()
}

/// Returns the supervisor of a folder, if it runs.
pub(crate) fn running(folder: &Path) -> Option<Pid> {
    let lines = journal::read(&folder.join(journal::NAME));
    let line = lines.iter().rev().find(|l| l["event"] == "follows")?;
    let pid =
        line["supervisor"][0].as_i64().and_then(|p| i32::try_from(p).ok()).map(Pid::from_raw)?;
    let start = line["supervisor"][1].as_u64()?;
    // The journal may have been written by others.
    (process::is_running(pid, start) && super::find::is_ours(pid)).then_some(pid)
}

/// Ends the supervisor of a folder; returns whether there was one. Of one that was killed it notes that it is not to be
/// replaced any more.
pub(crate) fn end(folder: &Path) -> bool {
    let Some(pid) = running(folder) else {
        let lines = journal::read(&folder.join(journal::NAME));
        if journal::has_ended(&lines) == Some(false)
            && let Ok(mut journal) = Journal::open(&folder.join(journal::NAME))
        {
            journal.note("ended", None, json!({ "by": "detach" }));
        }
        return false;
    };
    let start = process::start_time(pid).unwrap_or(0);
    let _ = kill(pid.into(), Signal::SIGTERM);
    let deadline = Instant::now() + ENDS;
    while process::is_running(pid, start) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
