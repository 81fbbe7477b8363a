//! Attaches to the processes of a family, each of which gets a recording of its own.

use super::find::{Seen, Which, descendants};
use super::folder::Folder;
use super::heir::{self, Kept};
use super::journal::{self, Journal};
use super::workers::{Begun, Outcome};
use crate::commands::record::RecordArgs;
use crate::interrupted::is_interrupted;
use crate::orphans;
use crate::session::{self, Attached, Settings};
use crate::signals::signal_name;
use crate::switch;
use crate::term::say;
use anyhow::Result;
use prof_collect::Peek;
use prof_os::Pid;
use prof_os::sharers::same_memory;
use prof_trace::values::text::count;
use serde_json::json;
use std::collections::HashSet;
use std::time::Instant;

/// Greatest number of looks for processes that appeared while others were attached to.
const LOOKS: usize = 20;

/// Options for recording the processes.
#[derive(Clone, Debug)]
pub(crate) struct How {
    /// The options of each recording; the path of its file is not used.
    pub record: RecordArgs,
    /// The settings of each recording.
    pub settings: Settings,
}

impl How {
    /// Returns the options of the recording of a process, which will be in this folder.
    fn to_folder(&self, folder: &Folder, seen: &Seen) -> RecordArgs {
        let path = folder.new_recording(&seen.comm, seen.pid);
        RecordArgs { output: Some(path), ..self.record.clone() }
    }

    /// Returns the settings for the recording of a process: off from the beginning if the family is paused. A census is refused
    /// in a recording that is off, so that one is switched off behind it.
    fn settings_in(&self, folder: &Folder) -> Settings {
        let on = self.settings.census.is_some() || !folder.is_paused();
        Settings { on, ..self.settings.clone() }
    }

    /// Returns the name of the signal that should have reports written, if the process uses that itself.
    fn not_taken(&self, pid: Pid) -> Option<String> {
        let reports = self.settings.reports.as_ref()?;
        let is_left = session::peek(pid).is_ok_and(|p| p.dump_signal == 0);
        is_left.then(|| signal_name(reports.signal))
    }
}

/// Number of processes that are recorded, and that are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Processes that are recorded.
    pub attached: u64,
    /// Processes that could not be attached to.
    pub failed: u64,
}

/// Attaches to one process, and notes in the journal how that went. `more` is what else is known of it.
pub(crate) fn one(
    folder: &Folder,
    journal: &mut Journal,
    seen: &Seen,
    how: &How,
    more: &serde_json::Value,
) -> Result<Attached> {
    tried(folder, journal, seen, how, more).map(|(attached, _)| attached).map_err(|e| {
        if e.has_ended {
            let reason = format!("{:#}", e.error);
            journal.note(journal::MISSED, Some(seen), json!({ "reason": reason }));
        }
        e.error
    })
}

/// Why a process is not attached to.
pub(super) struct NotAttached {
    error: anyhow::Error,
    /// The process has ended: it was not refused, but was too short, and the journal has nothing of it yet.
    has_ended: bool,
}

/// Attaches to one process. Notes in the journal if it is recorded now, and if it is refused. Returns whether it is recorded from
/// its fork on, too.
pub(super) fn tried(
    folder: &Folder,
    journal: &mut Journal,
    seen: &Seen,
    how: &How,
    more: &serde_json::Value,
) -> Result<(Attached, bool), NotAttached> {
    let began = Instant::now();
    let record = how.to_folder(folder, seen);
    let settings = how.settings_in(folder);
    let taken = match how.settings.heirs {
        true => heir::take(seen, &record, &how.settings),
        false => None,
    };
    let is_heir = taken.is_some();
    if !is_heir && prof_inject::inherited::is_copy(seen.pid) {
        // A child from the time of its parent's attach has code of prof's without patches, which keeps no attach out.
        let _ = prof_inject::children::take_out_alone(seen.pid, how.settings.timeout);
    }
    let attached = taken.map_or_else(|| session::attach(seen.pid, &record, &settings), Ok);
    let took = began.elapsed().as_nanos() as u64;
    let mut note = json!({ "attach_ns": took });
    if let (Some(note), Some(more)) = (note.as_object_mut(), more.as_object()) {
        note.extend(more.clone());
    }
    match attached {
        Ok(a) => {
            a.messages.iter().for_each(|line| log::info!("{}: {line}", seen.pid));
            if is_heir {
                note["from_fork"] = true.into();
            }
            note["recording"] = a.path.file_name().map(|n| n.to_string_lossy()).into();
            journal.note("attached", Some(seen), note);
            switch_as_family(folder, a.pid);
            Ok((a, is_heir))
        }
        Err(error) => {
            let has_ended = !seen.is_there();
            if !has_ended {
                note["reason"] = format!("{error:#}").into();
                journal.note("failed", Some(seen), note);
            }
            Err(NotAttached { error, has_ended })
        }
    }
}

/// Switches the recording of a process as that of its family is: the family may have been paused or resumed during the attach, and
/// a child that is recorded from its fork on begins as its parent was then. [`Folder::set_paused`] comes before the look for what is
/// recorded, so one of the two notices.
fn switch_as_family(folder: &Folder, pid: Pid) {
    let wanted = !folder.is_paused();
    let switched = match wanted {
        _ if session::peek(pid).is_ok_and(|p| p.recording == wanted) => return,
        true => switch::on(pid),
        false => switch::off(pid),
    };
    if let Err(e) = switched {
        log::warn!("process {pid} is not switched {}: {e:#}", if wanted { "on" } else { "off" });
    }
}

/// Begins the recording of a process for a supervisor.
pub(super) fn begun(
    folder: &Folder,
    journal: &mut Journal,
    seen: &Seen,
    how: &How,
    more: &serde_json::Value,
) -> Outcome {
    // An attach may have met the program that the process runs by now. A child by vfork has its parent's memory.
    let is_alone = same_memory(seen.pid, seen.parent) != Some(true);
    if let Some(p) = recorded(folder, seen).filter(|_| is_alone) {
        return Outcome::Begun(Begun::to(p.path, p.collector));
    }
    match tried(folder, journal, seen, how, more) {
        Ok((Attached { path, collector, .. }, from_fork)) => {
            Outcome::Begun(Begun { from_fork, ..Begun::to(path, collector.id()) })
        }
        Err(e) if !e.has_ended => Outcome::Failed,
        Err(e) => {
            log::info!("{}: {:#}", seen.pid, e.error);
            Outcome::Missed
        }
    }
}

/// Returns the state of a process if it is recorded to a folder.
pub(super) fn recorded(folder: &Folder, seen: &Seen) -> Option<Peek> {
    let is_in = |p: &Peek| session::is_recorded(p) && p.path.parent() == Some(folder.path());
    Peek::of(seen.pid).ok().flatten().filter(is_in)
}

/// Returns whether a process has memory in which it records to a folder, whether or not somebody collects.
pub(super) fn has_ring(folder: &Folder, pid: Pid) -> bool {
    let is_in = |p: &Peek| p.path.parent() == Some(folder.path());
    Peek::of(pid).ok().flatten().is_some_and(|p| is_in(&p))
}

/// Saves what a child has recorded that has ended before it had a collector, and notes that in the journal. `status` is that of
/// waitpid(2), if it is known. The path of the recording is empty if the child had done nothing.
pub(super) fn rest(
    folder: &Folder,
    journal: &mut Journal,
    seen: &Seen,
    kept: Kept,
    how: &How,
    status: Option<i32>,
) -> Outcome {
    let reason = match status {
        Some(s) if libc::WIFSIGNALED(s) => format!("killed by signal {}", libc::WTERMSIG(s)),
        Some(_) => "exited".into(),
        None => "ended".into(),
    };
    let saved = match kept.save(seen, &how.to_folder(folder, seen), &reason) {
        Ok(saved) => saved,
        Err(e) => {
            log::info!("{}: what it had recorded could not be saved: {e:#}", seen.pid);
            return Outcome::Missed;
        }
    };
    if let Some((path, _)) = &saved {
        let recording = path.file_name().map(|n| n.to_string_lossy());
        let note = json!({ "recording": recording, "from_fork": true, "after_its_end": true });
        journal.note("attached", Some(seen), note);
    }
    journal.note("exited", Some(seen), journal::how_it_ended(status));
    let (path, events) = saved.unwrap_or_default();
    Outcome::Begun(Begun { events, from_fork: true, ..Begun::to(path, (Pid::NONE, 0)) })
}

/// What [`all`] has done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Number of processes.
    pub count: Count,
    /// The processes that it has attached to.
    pub attached: Vec<Seen>,
    /// Ctrl-C came before it was done.
    pub interrupted: bool,
    /// Number of processes whose children are not recorded from their fork on, though that was asked for.
    without_heirs: u64,
}

/// Attaches to all processes of a family that there are but those that are `known`, also to those that appear meanwhile unless a
/// supervisor `follows`, and says a line about each.
///
/// # Errors
/// If it is not clear which processes are meant.
pub(crate) fn all(
    folder: &Folder,
    journal: &mut Journal,
    which: &Which,
    how: &How,
    known: HashSet<(Pid, u64)>,
    follows: bool,
) -> Result<Done, String> {
    let (mut tried, mut done) = (known, Done::default());
    // A supervisor finds those that appear meanwhile, so that the attach comes to an end however many there are.
    let looks = if follows { 1 } else { LOOKS };
    for _ in 0..looks {
        let mut found = which.find()?;
        // The first process of a tree may have ended before its descendants.
        if matches!(which, Which::Tree(_)) && !tried.is_empty() {
            found.extend(descendants(tried.iter().map(|(pid, _)| *pid)));
        }
        found.retain(|s| tried.insert((s.pid, s.start)));
        if found.is_empty() {
            break;
        }
        for seen in found {
            done.interrupted = is_interrupted();
            if done.interrupted {
                return Ok(done);
            }
            match one(folder, journal, &seen, how, &json!({})) {
                Ok(a) => {
                    done.count.attached += 1;
                    say(&format!("{}, pid {}: recorded to {}", seen.comm, a.pid, a.path.display()));
                    let lacks_heirs = session::peek(a.pid).is_ok_and(|p| !p.makes_heirs);
                    orphans::adopted_by(a.pid).iter().for_each(|line| say(line));
                    done.without_heirs += u64::from(how.settings.heirs && lacks_heirs);
                    if let Some(name) = how.not_taken(a.pid) {
                        let pid = a.pid;
                        say(&format!(
                            "process {pid} uses {name} itself, so that signal writes no report of it; `prof dump {pid}` does"
                        ));
                    }
                    done.attached.push(seen);
                }
                Err(_) if !seen.is_there() => {
                    say(&format!("{}, pid {}: it has ended meanwhile", seen.comm, seen.pid));
                }
                Err(e) => {
                    done.count.failed += 1;
                    say(&format!("{}, pid {}: not recorded: {e:#}", seen.comm, seen.pid));
                }
            }
        }
    }
    if done.without_heirs > 0 {
        let n = count(done.without_heirs, "process", "processes");
        say(&format!(
            "children of {n} are attached to a moment after their fork, and are not recorded from it on: a limit leaves too \
             little memory or address space for that, or system calls are filtered"
        ));
    }
    done.interrupted = is_interrupted();
    Ok(done)
}

impl Count {
    /// Returns the sum of two.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { attached: self.attached + other.attached, failed: self.failed + other.failed }
    }

    /// Returns the numbers in words.
    pub(crate) fn words(&self) -> String {
        let recorded = count(self.attached, "process is recorded", "processes are recorded");
        match self.failed {
            0 => recorded,
            n => format!("{recorded}, {n} could not be"),
        }
    }
}
