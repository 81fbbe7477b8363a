//! Finds the recorded processes of a family, and does the same to each.

use super::find::Which;
use super::folder::{Folder, FolderLock};
use super::journal::{self, Journal};
use crate::failure::{FAILED, refused};
use crate::term::say;
use anyhow::{Context, Result};
use prof_collect::{Peek, all_recorded};
use prof_os::{Pid, process};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest wait for an attach to the processes of a family, and the time between two looks.
const ATTACH: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// The processes that a command is to work on.
#[derive(Clone, Debug)]
pub(crate) enum Who {
    /// One process.
    One(Pid),
    /// All processes that are recorded to this folder.
    Folder(PathBuf),
    /// All recorded processes that have this in common.
    All(Which),
}

impl Who {
    /// Parses the ID of a process, or the path of a family's folder.
    ///
    /// # Errors
    /// A message, if it is neither.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match crate::commands::record::pid(text) {
            Ok(pid) => Ok(Self::One(pid)),
            Err(_) if Folder::open(Path::new(text)).is_some() => Ok(Self::Folder(text.into())),
            Err(e) => Err(format!("{e}, and it is no folder of a family either")),
        }
    }

    /// Opens the journal of the folder, if it is one and can be written.
    pub(crate) fn journal(&self) -> Option<Journal> {
        match self {
            Self::Folder(path) => Folder::open(path)?.journal().ok(),
            _ => None,
        }
    }

    /// Returns the recorded processes of a family.
    ///
    /// # Errors
    /// If none is recorded, or it is not clear which are meant.
    pub(crate) fn recorded(&self) -> Result<Vec<Peek>> {
        let all = match self {
            Self::One(pid) => vec![crate::session::peek(*pid)?],
            Self::Folder(path) => {
                let folder = Folder::open(path).map(|f| f.absolute());
                let heirs = heirs(|recording| recording.parent() == folder.as_deref());
                in_folder(path).into_iter().chain(heirs).collect()
            }
            Self::All(which) => {
                let found = which.find().map_err(refused)?;
                let has = |p: &Peek| found.iter().any(|s| s.pid == p.pid);
                all_recorded().into_iter().filter(has).collect()
            }
        };
        if all.is_empty() {
            let message = match self {
                Self::One(pid) => {
                    format!("process {pid} is not being recorded; start with `prof attach {pid}`")
                }
                Self::Folder(path) => {
                    format!("no process is being recorded to {}", path.display())
                }
                Self::All(which) => {
                    format!("{} are not being recorded; start with `prof attach`", which.words())
                }
            };
            return Err(refused(message));
        }
        Ok(all)
    }
}

/// Waits until no prof is about to attach to processes of a folder's family any more, but for a supervisor, which `heed` is
/// told of. A look at the family before that would miss some. Returns what `heed` said last, and the folder's lock, which keeps
/// further attaches to the family out, if it can be had.
///
/// # Errors
/// If that takes too long.
pub(crate) fn wait_for_attach(
    path: &Path,
    mut heed: impl FnMut() -> bool,
) -> Result<(bool, Option<FolderLock>)> {
    let Some(folder) = Folder::open(path) else { return Ok((heed(), None)) };
    let deadline = Instant::now() + ATTACH;
    loop {
        // A supervisor may have begun since the last look.
        let heeded = heed();
        let lock = folder.lock();
        if heeded || !matches!(lock, Ok(None)) {
            return Ok((heeded, lock.ok().flatten()));
        }
        if Instant::now() >= deadline {
            return Err(refused(format!(
                "another prof is just attaching to processes of {}; try again when it is done",
                path.display()
            )));
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns the processes that are recorded to a folder now.
pub(crate) fn in_folder(path: &Path) -> Vec<Peek> {
    let folder = Folder::open(path).map(|f| f.absolute());
    let is_in = |p: &Peek| p.path.parent() == folder.as_deref();
    all_recorded().into_iter().filter(is_in).collect()
}

/// Returns the children that record in memory from their parents, and have no collector yet. `is_one` tells by the path of an
/// ancestor's recording which are meant.
pub(crate) fn heirs(is_one: impl Fn(&Path) -> bool) -> Vec<Peek> {
    let is_meant = |p: &Peek| p.heir_of.as_deref().is_some_and(&is_one);
    all_recorded().into_iter().filter(is_meant).collect()
}

/// Does the same to each process, and says a line about each for which it fails. The exit code says whether all went
/// well.
pub(crate) fn each(all: &[Peek], mut work: impl FnMut(Pid) -> Result<bool>) -> ExitCode {
    let mut failed = false;
    for peek in all {
        let pid = peek.pid;
        match work(pid) {
            Ok(good) => failed |= !good,
            // There is nothing left to do to it.
            Err(_) if process::is_gone(pid) => {}
            Err(e) => {
                failed = true;
                say(&format!("pid {pid}: {e:#}"));
            }
        }
    }
    if failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS }
}

/// Notes in a family's folder that its recordings are off, or on again.
///
/// # Errors
/// If the folder can't be written.
pub(crate) fn mark_paused(path: &Path, is_paused: bool) -> Result<()> {
    let folder = Folder::open(path).filter(|folder| folder.is_paused() != is_paused);
    let Some(folder) = folder else { return Ok(()) };
    let shown = path.display();
    folder.set_paused(is_paused).with_context(|| {
        format!("cannot write {shown}, so processes to come would not be switched")
    })?;
    let mut journal = folder.journal()?;
    journal.note(if is_paused { "paused" } else { "resumed" }, None, json!({}));
    Ok(())
}

/// Returns what happened last to each process of a folder, as far as that was noted.
pub(crate) fn history(path: &Path) -> Vec<journal::Last> {
    journal::last(&journal::read(&path.join(journal::NAME)))
}
