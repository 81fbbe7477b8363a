//! Attaches to the processes of a family, each of which gets a recording of its own.

use super::find::{Seen, Which, descendants};
use super::folder::Folder;
use super::heir;
use super::journal::Journal;
use crate::commands::record::RecordArgs;
use crate::session::{self, Attached, Settings};
use crate::signals::signal_name;
use crate::term::say;
use anyhow::Result;
use prof_os::Pid;
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
    let began = Instant::now();
    let path = folder.new_recording(&seen.comm, seen.pid);
    let record = RecordArgs { output: Some(path), ..how.record.clone() };
    let taken = match how.settings.heirs {
        true => heir::take(seen, &record, &how.settings),
        false => None,
    };
    let is_heir = taken.is_some();
    if !is_heir && prof_inject::inherited::is_copy(seen.pid) {
        // A child from the time of its parent's attach has code of prof's without patches, which keeps no attach out.
        let _ = prof_inject::children::take_out_alone(seen.pid, how.settings.timeout);
    }
    let attached = taken.map_or_else(|| session::attach(seen.pid, &record, &how.settings), Ok);
    let took = began.elapsed().as_nanos() as u64;
    let mut note = json!({ "attach_ns": took });
    if let (Some(note), Some(more)) = (note.as_object_mut(), more.as_object()) {
        note.extend(more.clone());
    }
    match &attached {
        Ok(a) => {
            a.messages.iter().for_each(|line| log::info!("{}: {line}", seen.pid));
            if is_heir {
                note["from_fork"] = true.into();
            }
            note["recording"] = a.path.file_name().map(|n| n.to_string_lossy()).into();
            journal.note("attached", Some(seen), note);
        }
        // A process that has ended was not refused: it was too short.
        Err(e) => {
            note["reason"] = format!("{e:#}").into();
            let event = if seen.is_there() { "failed" } else { "missed" };
            journal.note(event, Some(seen), note);
        }
    }
    attached
}

/// Attaches to all processes of a family that there are but those that are `known`, also to those that appear meanwhile,
/// and says a line about each.
///
/// # Errors
/// If it is not clear which processes are meant.
pub(crate) fn all(
    folder: &Folder,
    journal: &mut Journal,
    which: &Which,
    how: &How,
    known: HashSet<(Pid, u64)>,
) -> Result<Count, String> {
    let (mut tried, mut done) = (known, Count::default());
    for _ in 0..LOOKS {
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
            match one(folder, journal, &seen, how, &json!({})) {
                Ok(a) => {
                    done.attached += 1;
                    say(&format!("{}, pid {}: recorded to {}", seen.comm, a.pid, a.path.display()));
                    if let Some(name) = how.not_taken(a.pid) {
                        let pid = a.pid;
                        say(&format!(
                            "process {pid} uses {name} itself, so that signal writes no report of it; `prof dump {pid}` does"
                        ));
                    }
                }
                Err(_) if !seen.is_there() => {
                    say(&format!("{}, pid {}: it has ended meanwhile", seen.comm, seen.pid));
                }
                Err(e) => {
                    done.failed += 1;
                    say(&format!("{}, pid {}: not recorded: {e:#}", seen.comm, seen.pid));
                }
            }
        }
    }
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
