//! `prof run --children`: the folder and the supervisor for what a command starts.

use super::record::RecordArgs;
use super::run::RunArgs;
use crate::family::again;
use crate::family::control::in_folder;
use crate::family::find::{Seen, Which};
use crate::family::folder::Folder;
use crate::family::journal;
use crate::family::record::How;
use crate::family::supervise::{self, Follow};
use crate::term::say;
use anyhow::{Context, Result};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use prof_os::Pid;
use prof_trace::values::text::count;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the command's own recording.
const OWN: &str = "command.prof";
/// Time after the end of the command after which processes that go on are not waited for.
const STAYS: Duration = Duration::from_secs(1);
/// Longest wait for recordings to be finished.
const FINISHES: Duration = Duration::from_secs(60);

/// A command's family.
pub(super) struct Family {
    folder: Folder,
}

impl Family {
    /// Creates the folder.
    ///
    /// # Errors
    /// If that fails.
    pub(super) fn new(record: &RecordArgs, name: &str) -> Result<Self> {
        let folder = Folder::create(record.output.as_deref(), name)?;
        let version = env!("CARGO_PKG_VERSION");
        let family = format!("the command {name}");
        folder.journal()?.note("began", None, json!({ "family": family, "prof": version }));
        Ok(Self { folder })
    }

    /// Returns the path of the command's own recording.
    pub(super) fn recording(&self) -> PathBuf {
        self.folder.path().join(OWN)
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Removes the folder of a command that could not be started.
    pub(super) fn remove(&self) {
        self.folder.remove();
    }

    /// Notes that the command has run another program in its place. `before` is the path of the recording of the program before,
    /// or why the next one is not recorded.
    pub(super) fn goes_on(&self, pid: Pid, before: Result<&Path, &str>) {
        let Ok(mut journal) = self.folder.journal() else { return };
        let seen = Seen::of(pid);
        match before {
            Ok(before) => {
                let before = before.file_name().map(|n| n.to_string_lossy());
                let note = json!({ "recording": OWN, "before": before });
                journal.note("attached", seen.as_ref(), note);
            }
            Err(why) => journal.note("failed", seen.as_ref(), json!({ "reason": why })),
        }
    }

    /// Starts a supervisor for what the command, which has done nothing yet, will start. Returns its process ID.
    ///
    /// # Errors
    /// If it can't be started.
    pub(super) fn follow(&self, args: &RunArgs, pid: Pid) -> Result<Pid> {
        let which = Which::Tree(pid);
        let note = json!({ "recording": OWN, "root": again::note_of_root(&which) });
        self.folder.journal()?.note("attached", Seen::of(pid).as_ref(), note);
        let how = How { record: args.record.clone(), settings: args.settings()?.with_children() };
        let follow = Follow { which, how, except: Some(pid), attached: Vec::new() };
        let lock = self.folder.lock()?.context("another prof has taken the folder")?;
        supervise::start(&self.folder, &follow, lock)
    }

    /// Waits until all recordings are finished, unless processes go on, and says what was recorded.
    pub(super) fn wait(&self, supervisor: Option<Pid>) {
        let began = Instant::now();
        let mut goes_on = false;
        let status = || supervisor.map(|pid| waitpid(Some(pid.into()), Some(WaitPidFlag::WNOHANG)));
        let mut last = status();
        while last == Some(Ok(WaitStatus::StillAlive)) && began.elapsed() < FINISHES {
            goes_on = began.elapsed() > STAYS && !in_folder(self.folder.path()).is_empty();
            if goes_on {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
            last = status();
        }
        let lines = journal::read(&self.folder.path().join(journal::NAME));
        let number = |event: &str| journal::number(&lines, event);
        let path = self.folder.path().display();
        let recorded = count(number("attached"), "recording", "recordings");
        let ended = number("missed");
        let missed = count(ended, "process", "processes");
        let they = if ended == 1 { "it" } else { "they" };
        say(&format!(
            "{recorded} in {path}; {missed} ended before {they} could be recorded, {} could not be",
            journal::failed(&lines).len()
        ));
        if matches!(last, Some(Ok(WaitStatus::Signaled(..)))) {
            say(
                "the process of prof that attaches to new processes was killed: those that began since are neither recorded nor counted",
            );
        }
        if number("overrun") > 0 {
            say("the kernel had more to tell than prof could take: some processes are not counted");
        }
        if goes_on {
            say(&format!(
                "processes that the command has started go on, and are recorded on; `prof detach {path}` ends that"
            ));
        }
    }
}
