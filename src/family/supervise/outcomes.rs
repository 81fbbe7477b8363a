//! Takes notice of what the supervisor's workers have done.

use super::super::workers::{Begun, Done, Outcome};
use super::super::{journal, record};
use super::{Seen, Supervisor};
use prof_inject::process::program::Program;
use prof_os::Pid;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Why a process is not recorded whose worker did not come to its end.
const KILLED: &str = "the process of prof that was to attach to it was killed";
/// Number of events from which on memory for a child has paid, though it ended before it had a collector.
const MUCH: u64 = 1000;
/// Part of the time for which workers may work while such children are saved: beyond that their parents make no memory for
/// children for a while, and the program has the processors for itself.
const LOAD: f64 = 0.25;

impl Supervisor<'_> {
    /// Takes notice of what workers have done.
    pub(super) fn begun(&mut self) {
        for Done { seen, outcome } in self.workers.ended() {
            let member = self.members.get(&seen.pid).filter(|m| m.seen.start == seen.start);
            if member.is_none_or(|m| !m.has_execed) {
                self.judge(&seen, &outcome);
            }
            match outcome {
                Outcome::Begun(begun) => self.recorded(&seen, begun),
                Outcome::Failed => self.failed(&seen),
                Outcome::Missed => self.missed(&seen, Value::Null),
                // It may have been killed when all was done.
                Outcome::Killed => match record::recorded(self.folder, &seen) {
                    Some(p) => {
                        self.recorded(&seen, Begun::to(p.path, p.collector));
                    }
                    None if seen.is_there() => {
                        self.journal.note("failed", Some(&seen), json!({ "reason": KILLED }));
                        self.failed(&seen);
                    }
                    None => match self.left_by_killed(&seen) {
                        Some(begun) => self.recorded(&seen, begun),
                        None => self.missed(&seen, KILLED.into()),
                    },
                },
            }
        }
    }

    /// Finds the recording of a process that has ended, if a worker that was killed had made it. The journal may lack it.
    fn left_by_killed(&mut self, seen: &Seen) -> Option<Begun> {
        let lines = journal::read(&self.folder.path().join(journal::NAME));
        let is_its = |l: &&Value| l["pid"] == json!(seen.pid) && l["start"] == seen.start;
        let noted = lines.iter().filter(is_its).find(|l| l["event"] == "attached");
        let ending = format!(".{}.prof", seen.pid);
        let is_its = |p: &PathBuf| p.to_string_lossy().ends_with(&ending);
        let path = match noted.and_then(|l| l["recording"].as_str()) {
            Some(name) => self.folder.path().join(name),
            None => self.folder.recordings().into_iter().find(is_its)?,
        };
        if noted.is_none() {
            let recording = path.file_name().map(|n| n.to_string_lossy());
            self.journal.note("attached", Some(seen), json!({ "recording": recording }));
        }
        Some(Begun::to(path, (Pid::NONE, 0)))
    }

    /// Judges by the end of a child whether memory for the children of its parent has paid.
    fn judge(&mut self, seen: &Seen, outcome: &Outcome) {
        if !self.members.contains_key(&seen.parent) {
            return;
        }
        match outcome {
            Outcome::Begun(b) if b.collector.0 != Pid::NONE => self.fates.lives(seen.parent),
            Outcome::Begun(b) if b.events >= MUCH && self.workers.load() > LOAD => {
                self.fates.pause(seen.parent);
            }
            Outcome::Begun(b) if b.events >= MUCH => self.fates.lives(seen.parent),
            _ if !seen.is_there() => self.fates.short(seen.parent),
            _ => {}
        }
    }

    /// Takes notice that a process is recorded, or was if it has ended.
    fn recorded(&mut self, seen: &Seen, begun: Begun) {
        let Begun { path, collector, from_fork, .. } = begun;
        if let Some(m) = self.members.get_mut(&seen.pid).filter(|m| m.seen.start == seen.start) {
            (m.is_begun, m.recorded, m.from_fork, m.kept) = (false, true, from_fork, None);
            // The attach may have met the program that runs by now.
            if m.program.is_replaced() {
                let program = Program::of(seen.pid);
                if record::recorded(self.folder, seen).is_some_and(|p| p.path == path) {
                    m.program = program;
                }
            }
            let (ended, has_changed) = (m.ended.take(), m.has_changed && from_fork);
            if has_changed {
                self.execed(seen.pid, Seen::of(seen.pid).unwrap_or_else(|| seen.clone()));
            }
            ended.into_iter().for_each(|status| self.ended(seen.pid, status));
        }
        if collector.0 != Pid::NONE {
            self.collectors.add(seen, path, collector);
        }
    }

    /// Takes notice that a process can't be recorded, which the journal says.
    fn failed(&mut self, seen: &Seen) {
        let member = self.members.get_mut(&seen.pid).filter(|m| m.seen.start == seen.start);
        let Some(m) = member else { return };
        (m.is_begun, m.kept) = (false, None);
        let (ended, has_changed) = (m.ended.take(), m.has_changed);
        if let Some(status) = ended {
            self.ended(seen.pid, status);
        } else if has_changed && let Some(now) = Seen::of(seen.pid) {
            self.execed(seen.pid, now);
        }
    }

    /// Takes notice of the end of a process that had ended before anybody could look at it: it was missed, unless it was a copy
    /// of a process's memory, which prof makes and kills.
    pub(super) fn unseen(&mut self, seen: &Seen, status: i32, signal: i32) {
        if (status, signal) != (libc::SIGKILL, 0) {
            self.note_unseen(seen);
        }
    }

    /// Notes that a process was missed at which nobody could look.
    fn note_unseen(&mut self, seen: &Seen) {
        self.journal.note(journal::MISSED, Some(seen), json!({}));
        self.short(seen.parent);
    }

    /// Notes all processes as missed whose ends no event has told of.
    pub(super) fn none_is_gone(&mut self) {
        for seen in std::mem::take(&mut self.gone).into_values().flatten() {
            self.note_unseen(&seen);
        }
    }

    /// Takes notice that a process had ended before it had a collector. What it has recorded since its fork is saved; of one that has
    /// run another program since, that is of no interest.
    fn missed(&mut self, seen: &Seen, reason: Value) {
        let member = self.members.get_mut(&seen.pid).filter(|m| m.seen.start == seen.start);
        if let Some(m) = member.filter(|m| m.kept.is_some() && !m.has_changed) {
            m.is_begun = false;
            let ended = m.ended.take();
            ended.into_iter().for_each(|status| self.ended(seen.pid, status));
            return;
        }
        let member = self.members.get(&seen.pid).filter(|m| m.seen.start == seen.start);
        let ended = member.and_then(|m| m.ended);
        let mut note = journal::how_it_ended(ended.flatten());
        if !reason.is_null() {
            note["reason"] = reason;
        }
        self.journal.note(journal::MISSED, Some(seen), note);
        if member.is_some() {
            self.members.remove(&seen.pid);
            self.known.remove(&(seen.pid, seen.start));
            self.fates.ended(seen.pid);
            if ended.is_none() {
                self.goes(seen.pid);
            }
        }
    }
}
