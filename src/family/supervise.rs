//! The supervisor of a family: a process that attaches to those of its processes that are new, and notes what becomes of
//! each.

use super::collectors::Collectors;
use super::events::{Event, Source};
use super::fates::Fates;
use super::find::{Seen, Which, is_copy, is_ours};
use super::folder::{Folder, FolderLock};
use super::heir::Kept;
use super::journal::{self, Journal};
use super::record::{self, How};
use super::workers::{Outcome, Workers};
use anyhow::Result;
use prof_inject::process::program::Program;
use prof_os::sharers::same_memory;
use prof_os::{Pid, process};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Longest time between two looks at the members.
const TICK: Duration = Duration::from_millis(50);
/// Time that a new process gets to run its program by exec, as most do at once, before it is attached to.
const SETTLES: Duration = Duration::from_millis(5);
/// Time for which an event about the end of a process that is gone may be outstanding.
const LATE: Duration = Duration::from_millis(50);
/// Time between two looks while all workers are at work.
const WORKS: Duration = Duration::from_millis(5);
/// Greatest number of processes whose memory is held open until they have a collector: each takes up to three descriptors.
const KEPT: usize = 200;
/// Time that a new process gets whose parent makes no memory for its children: most of these end before.
const SHORT: Duration = Duration::from_millis(100);
/// Age up to which a process that shares its parent's memory is taken for a child by vfork, and one that has not taken its own
/// memory into use for a child that has not run yet.
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
    /// The processes that have just been attached to. They may run another program by the time that somebody follows them.
    pub attached: Vec<Seen>,
}

mod itself;
mod outcomes;

pub(crate) use itself::{end, start};

/// A process of the family that lives.
struct Member {
    seen: Seen,
    program: Program,
    /// Time of the attach; `None`: it was tried, or a worker is at it.
    due: Option<Instant>,
    /// A worker begins its recording.
    is_begun: bool,
    /// It has run another program meanwhile.
    has_changed: bool,
    /// When it was first seen to be gone, as its parent has waited for it.
    gone_since: Option<Instant>,
    /// The process has ended meanwhile: its status of waitpid(2), if that is known.
    ended: Option<Option<i32>>,
    /// The status with which its first thread has ended, while others went on.
    first_ended: Option<i32>,
    /// The memory that it records to since its fork, for the case that it ends before it has a collector.
    kept: Option<Kept>,
    /// The process's present program is recorded.
    recorded: bool,
    /// It is recorded from its fork on, so that any exec is newer than the recording.
    from_fork: bool,
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
    /// With each, what is to be noted when that event comes: that the process was missed.
    gone: HashMap<Pid, Option<Seen>>,
    collectors: Collectors,
    fates: Fates,
    /// When the members were looked at last.
    checked: Instant,
    workers: Workers,
    /// Processes that have ended before they had a collector, and their status of waitpid(2): what they have recorded is to be
    /// saved.
    rest: VecDeque<(Seen, Kept, Option<i32>)>,
}

impl<'a> Supervisor<'a> {
    fn new(folder: &'a Folder, follow: &'a Follow, lock: FolderLock) -> Result<Self> {
        let mut all = Self {
            folder,
            follow,
            lock,
            beat: Instant::now(),
            journal: folder.journal()?,
            source: Source::open(matches!(follow.which, Which::Tree(_))),
            members: BTreeMap::new(),
            known: HashSet::new(),
            gone: HashMap::new(),
            collectors: Collectors::of(folder, follow.except),
            fates: Fates::default(),
            checked: Instant::now(),
            workers: Workers::new(),
            rest: VecDeque::new(),
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
        for seen in follow.attached.iter().filter(|s| s.is_there()) {
            if !record::has_ring(folder, seen.pid) {
                all.execed(seen.pid, Seen::of(seen.pid).unwrap_or_else(|| seen.clone()));
            }
        }
        Ok(all)
    }

    /// Takes a process up, if it is not known yet.
    fn add(&mut self, seen: Seen, due: Option<Instant>) {
        if !self.known.insert((seen.pid, seen.start)) {
            return;
        }
        // The process that had this number has ended.
        if let Some(old) = self.members.remove(&seen.pid) {
            self.known.remove(&(old.seen.pid, old.seen.start));
            self.journal.note("exited", Some(&old.seen), json!({}));
        }
        let is_held = self.fates.is_held(seen.parent);
        let due = due.map(|due| if is_held { due + SHORT } else { due });
        let may_record = due.is_some()
            && self.follow.how.settings.heirs
            && !is_held
            && self.rest.len() + self.members.values().filter(|m| m.kept.is_some()).count() < KEPT;
        let member = Member {
            program: Program::of(seen.pid),
            due,
            is_begun: false,
            has_changed: false,
            gone_since: None,
            ended: None,
            first_ended: None,
            kept: may_record.then(|| Kept::of(&seen)).flatten(),
            recorded: due.is_none(),
            from_fork: false,
            has_execed: false,
            seen,
        };
        self.members.insert(member.seen.pid, member);
    }

    fn run(&mut self) {
        self.look();
        while !itself::is_to_end() {
            let waits = self.members.values().any(|m| m.due.is_some()) || !self.rest.is_empty();
            let time = match self.workers.are_busy() {
                false if !waits => TICK,
                true if !self.workers.has_room(true) => WORKS,
                _ => Duration::from_millis(1),
            };
            for event in self.source.wait(time) {
                self.take(event);
            }
            self.begun();
            // Events tell of what a look at all members finds, if they come.
            if self.checked.elapsed() >= TICK || !self.source.tells() {
                self.check();
            }
            while self.attach() || self.save() {}
            if self.beat.elapsed() > BEAT {
                // The folder may have been removed, and there may be another one in its place, which is not this one's.
                if self.lock.is_displaced(self.folder) {
                    break;
                }
                self.lock.beat();
                self.journal.add_up();
                self.workers.reap_adopted(|pid| self.collectors.is_worker(pid));
                self.beat = Instant::now();
            }
            self.collectors.look(self.folder, &mut self.journal, &self.follow.how);
            // The processes of a tree can't be followed by new ones when there are none.
            if matches!(self.follow.which, Which::Tree(_)) && self.members.is_empty() {
                break;
            }
        }
        self.none_is_gone();
        // Workers finish what they have begun, and save what processes have left.
        let deadline = Instant::now() + ENDS;
        loop {
            self.begun();
            self.check();
            while self.save() {}
            let waits = self.members.values().any(|m| m.gone_since.is_some());
            let is_done = !self.workers.are_busy() && self.rest.is_empty() && !waits;
            if is_done || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for (seen, _, status) in std::mem::take(&mut self.rest) {
            self.journal.note(journal::MISSED, Some(&seen), journal::how_it_ended(status));
        }
        // Recordings are complete when their collectors have ended.
        while !itself::is_to_end() && !self.collectors.are_done() && Instant::now() < deadline {
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
                if (member.is_none() && !self.gone.contains_key(&parent)) || is_copy(child) {
                    return;
                }
                let comm = member.map_or(String::new(), |m| m.seen.comm.clone());
                // A process that has lost its parent by now has another one.
                match Seen::of(child).map(|seen| Seen { parent, ..seen }) {
                    Some(mut seen) => {
                        // It has ended since.
                        if seen.comm.is_empty() {
                            seen.comm = comm;
                        }
                        self.add(seen, Some(Instant::now() + SETTLES));
                    }
                    // A process that has ended already is counted.
                    None => {
                        let ended = Seen { pid: child, start: 0, parent, comm };
                        self.gone.insert(child, Some(ended));
                    }
                }
            }
            Event::Fork { child, .. } => self.appeared(child),
            Event::Exec { pid } => self.changed(pid),
            Event::Exit { pid, status, signal } => {
                if let Some(Some(ended)) = self.gone.remove(&pid) {
                    self.unseen(&ended, status, signal);
                }
                self.ended(pid, Some(status));
            }
            Event::Lost => {
                self.journal.note("overrun", None, json!({}));
                self.none_is_gone();
                self.look();
            }
            Event::Look => self.look(),
        }
    }

    /// A process may belong to the family.
    fn appeared(&mut self, pid: Pid) {
        if !self.members.contains_key(&pid)
            && self.follow.which.has(pid)
            && !is_ours(pid)
            && let Some(seen) = Seen::of(pid)
        {
            self.add(seen, Some(Instant::now() + SETTLES));
        }
    }

    /// A process may run another program, and may have another name.
    fn changed(&mut self, pid: Pid) {
        // The events from before the exec are of no interest.
        let due = self.members.get_mut(&pid).filter(|m| m.due.is_some());
        let first = due.filter(|m| !m.has_execed).map(|m| {
            (m.kept, m.has_execed) = (None, true);
            m.seen.parent
        });
        first.into_iter().for_each(|parent| self.short(parent));
        let seen = Seen::of(pid);
        match self.members.get_mut(&pid) {
            // The worker's end is awaited first.
            Some(m) if m.is_begun => {
                m.has_changed = true;
                return;
            }
            // The process may have ended since.
            Some(m) if m.recorded && m.from_fork => {
                let seen = seen.unwrap_or_else(|| m.seen.clone());
                self.execed(pid, seen);
                return;
            }
            _ => {}
        }
        let Some(seen) = seen else { return };
        match self.members.get_mut(&pid) {
            // The exec that the attach has waited for has happened.
            Some(m) if m.due.is_some() => {
                (m.seen, m.program, m.due) = (seen, Program::of(pid), Some(Instant::now()));
            }
            // The event may be older than the attach. A child by vfork can't be attached to before its exec.
            Some(m) if !m.recorded || m.program.is_replaced() => self.execed(pid, seen),
            Some(_) => {}
            None => self.appeared(pid),
        }
    }

    /// Takes notice of a child that was too short, if its parent is there.
    fn short(&mut self, parent: Pid) {
        if self.members.contains_key(&parent) {
            self.fates.short(parent);
        }
    }

    fn execed(&mut self, pid: Pid, seen: Seen) {
        let Some(m) = self.members.get_mut(&pid) else { return };
        m.program = Program::of(pid);
        (m.seen, m.has_execed, m.from_fork, m.first_ended) = (seen, true, false, None);
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
        self.checked = Instant::now();
        let has_ended = |m: &&Member| !m.is_begun && !m.seen.runs();
        let ended: Vec<Pid> = self.members.values().filter(has_ended).map(|m| m.seen.pid).collect();
        for pid in ended {
            // A process that its parent has not waited for yet says how it has ended. Of another one an event says so, which may
            // come a moment later.
            let code = prof_os::stat::Stat::of(pid).and_then(|s| s.exit_code());
            let Some(m) = self.members.get_mut(&pid) else { continue };
            let (since, had_event) = (*m.gone_since.get_or_insert(self.checked), m.first_ended);
            let code = code.or(had_event);
            if code.is_some() || !self.source.tells() || since.elapsed() > LATE {
                if had_event.is_none() {
                    self.goes(pid);
                }
                self.ended(pid, code);
            }
        }
        for m in self.members.values_mut().filter(|m| m.kept.is_some() && !m.is_begun) {
            if m.program.is_replaced() {
                (m.kept, m.has_execed) = (None, true);
            }
        }
        let execed: Vec<Pid> = self
            .members
            .values()
            .filter(|m| m.due.is_none() && !m.is_begun && m.program.is_replaced())
            .map(|m| m.seen.pid)
            .collect();
        for pid in execed {
            if let Some(seen) = Seen::of(pid) {
                self.execed(pid, seen);
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: Option<i32>) {
        if let Some(m) = self.members.get_mut(&pid).filter(|m| m.is_begun) {
            m.ended = Some(status);
            return;
        }
        // The first thread of a process may end before the others: alone, or as another one runs the next program.
        if let Some(m) = self.members.get_mut(&pid).filter(|m| m.seen.runs()) {
            m.first_ended = status.or(m.first_ended);
            return;
        }
        let Some(mut m) = self.members.remove(&pid) else { return };
        self.known.remove(&(pid, m.seen.start));
        self.fates.ended(pid);
        if let Some(kept) = m.kept.take() {
            self.rest.push_back((m.seen, kept, status));
            return;
        }
        // A process with a due time was never attached to, or the attach failed because the process was ending.
        let event = if m.due.is_some() { journal::MISSED } else { "exited" };
        if m.due.is_some() && !m.has_execed {
            self.short(m.seen.parent);
        }
        self.journal.note(event, Some(&m.seen), journal::how_it_ended(status));
    }

    /// Has a worker save what a process has recorded that has ended. Returns whether there was one, and room for it.
    fn save(&mut self) -> bool {
        if !self.workers.has_room(false) {
            return false;
        }
        let Some((seen, kept, status)) = self.rest.pop_front() else { return false };
        let (folder, journal, how) = (self.folder, &mut self.journal, &self.follow.how);
        let mut held = Some(kept);
        let saved = self.workers.start(&seen, false, || match held.take() {
            Some(kept) => record::rest(folder, journal, &seen, kept, how, status),
            None => Outcome::Missed,
        });
        if let (Err(e), Some(kept)) = (&saved, held) {
            log::warn!("cannot start a process that saves what process {} did: {e}", seen.pid);
            self.rest.push_front((seen, kept, status));
        }
        saved.is_ok()
    }

    /// Has a worker attach to the next process whose turn it is. Returns whether there was one, and room for it.
    fn attach(&mut self) -> bool {
        if !self.workers.has_room(true) {
            return false;
        }
        let now = Instant::now();
        // Children that have run no other program may be recorded from their fork on, which takes less time and can't wait.
        let is_due = |m: &&mut Member| m.due.is_some_and(|due| due <= now);
        let next = self.members.values_mut().filter(is_due).min_by_key(|m| m.has_execed);
        let Some(m) = next else { return false };
        let pid = m.seen.pid;
        // A command of prof's that was started in the family does not belong to it, and what it starts is its own.
        if is_ours(pid) {
            self.known.remove(&(pid, m.seen.start));
            self.members.remove(&pid);
            return true;
        }
        let (age, parent) = (Duration::from_nanos(age_ns(m.seen.start)), m.seen.parent);
        // It has its parent's memory, and its parent's recording, until its exec; or it has not run yet, and an attach would take out
        // what its parent's hook has given it.
        let is_pending = m.kept.as_ref().is_some_and(Kept::is_pending);
        if age < VFORK && (is_pending || same_memory(m.seen.pid, parent) == Some(true)) {
            m.due = Some(now + SETTLES);
            return true;
        }
        let comm = process::comm(m.seen.pid);
        if !comm.is_empty() {
            m.seen.comm = comm;
        }
        m.program = Program::of(m.seen.pid);
        let more: Value = json!({ "age_ns": age.as_nanos() as u64 });
        let (folder, journal, how) = (self.folder, &mut self.journal, &self.follow.how);
        let seen = &m.seen;
        let work = || record::begun(folder, journal, seen, how, &more);
        let begun = self.workers.start(seen, true, work);
        match &begun {
            Ok(()) => (m.due, m.is_begun, m.has_changed) = (None, true, false),
            Err(e) => {
                log::warn!("cannot start a process that attaches to process {}: {e}", seen.pid);
                m.due = Some(now + TICK);
            }
        }
        begun.is_ok()
    }

    /// Returns whether this has to do with a process: it is, or was, recorded to the folder.
    fn has_recorded(&self, pid: Pid) -> bool {
        self.members.contains_key(&pid) || record::has_ring(self.folder, pid)
    }

    /// Notes that a process has ended, of whose end an event is to come.
    fn goes(&mut self, pid: Pid) {
        if self.source.tells() {
            self.gone.insert(pid, None);
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
