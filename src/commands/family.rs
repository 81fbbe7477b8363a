//! Families in commands on processes: finds which one is asked for, and attaches to all of one.

use super::attach::AttachArgs;
use super::detach::{self, DetachArgs};
use super::record::pid;
use crate::census;
use crate::failure::{FAILED, REFUSED, refused, usage};
use crate::family::again;
use crate::family::control::{Who, mark_paused};
use crate::family::find::{Seen, Which, cgroup};
use crate::family::folder::{Folder, FolderLock};
use crate::family::journal::Journal;
use crate::family::record::{self, Count, How};
use crate::family::supervise::{self, Follow};
use crate::interrupted::on_interrupt;
use crate::session::Settings;
use crate::term::say;
use anyhow::Result;
use clap::Args;
use prof_os::Pid;
use serde_json::json;
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options that choose several processes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SelectArgs {
    /// Process PID and all of its descendants
    #[arg(long, help_heading = "Families", value_name = "PID", value_parser = pid, group = "family")]
    pub tree: Option<Pid>,
    /// All processes with this name, or whose program has this name or path
    #[arg(long, help_heading = "Families", value_name = "NAME", group = "family")]
    pub name: Option<String>,
    /// All processes in this cgroup and those below it: a folder in /sys/fs/cgroup, or its path from there
    #[arg(long, help_heading = "Families", value_name = "PATH", group = "family")]
    pub cgroup: Option<PathBuf>,
    /// All processes in the container with this id, or with the one that begins so
    #[arg(long, help_heading = "Families", value_name = "ID", group = "family")]
    pub container: Option<String>,
}

impl SelectArgs {
    /// Returns the family that the options name, if they do.
    pub(crate) fn which(&self) -> Option<Which> {
        let tree = self.tree.map(Which::Tree);
        let name = self.name.clone().map(Which::Name);
        let cgroup = self.cgroup.as_deref().map(|path| Which::Cgroup(cgroup(path)));
        let container = self.container.clone().map(Which::Container);
        tree.or(name).or(cgroup).or(container)
    }
}

/// Selects the processes that a command works on.
#[derive(Args, Clone, Debug)]
pub(crate) struct WhoArgs {
    /// The process, or the folder of a family
    #[arg(value_name = "PID|FOLDER", value_parser = Who::parse, required_unless_present = "family")]
    pub who: Option<Who>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub select: SelectArgs,
}

impl WhoArgs {
    /// Returns the processes that are meant.
    ///
    /// # Errors
    /// If both a process and a family are named, or none.
    pub(crate) fn who(&self) -> Result<Who> {
        match (self.who.clone(), self.select.which()) {
            (Some(who), None) => Ok(who),
            (None, Some(which)) => Ok(Who::All(which)),
            _ => Err(usage("name a process or a family, and not both")),
        }
    }

    /// Returns the process that alone is meant.
    pub(crate) fn one(&self) -> Option<Pid> {
        match self.who {
            Some(Who::One(pid)) => Some(pid),
            _ => None,
        }
    }
}

/// Attaches to all processes of a family.
pub(crate) fn attach(args: &AttachArgs, which: &Which, settings: &Settings) -> Result<ExitCode> {
    args.record.check().map_err(usage)?;
    if args.foreground {
        return Err(usage("--foreground shows one process, and no family"));
    }
    let follows = args.follow || args.children.is_some();
    // A family is refused as a whole, and not each process.
    census::check(&args.record, settings.census.is_some(), settings.on).map_err(usage)?;
    on_interrupt()?;
    let settings = settings.clone();
    let settings = if follows { settings.with_children() } else { settings };
    let how = How { record: args.record.clone(), settings };
    let mut began = begin(args, which, &how)?;
    let Began { folder, journal, known, .. } = &mut began;
    if folder.is_paused() {
        let path = folder.path().display();
        say(&format!("the family is paused; `prof resume {path}` switches its recordings on"));
    }
    let known = std::mem::take(known);
    let done = record::all(folder, journal, which, &how, known, follows).map_err(refused)?;
    if done.interrupted {
        return give_up(began, args);
    }
    let (attached, done) = (done.attached, began.taken_up.and(done.count));
    let folder = began.folder;
    if follows && (done.attached > 0 || args.children.is_none_or(may_have_children)) {
        let follow = Follow { which: which.clone(), how, except: None, attached };
        supervise::start(&folder, &follow, began.lock)?;
    } else if done.attached == 0 {
        if began.is_new {
            folder.remove();
        }
        say("no process is recorded");
        return Ok(ExitCode::from(REFUSED));
    }
    let path = folder.path().display();
    let more = if follows { ", and new ones are to be" } else { "" };
    say(&format!("{}{more}; `prof detach {path}` ends all", done.words()));
    crate::term::path(folder.path());
    Ok(if done.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Returns whether a process that can't be recorded may have children that can: the kernel permits prof to trace it.
fn may_have_children(pid: Pid) -> bool {
    Seen::of(pid).is_some_and(|seen| seen.is_there())
        && std::fs::File::open(format!("/proc/{pid}/mem")).is_ok()
}

/// Ends an attach at Ctrl-C. In a folder that it has made, prof is taken out of the processes again that it has come to. In one in
/// which it goes on, recordings stay that another command has begun.
///
/// # Errors
/// If prof can't be taken out of one of them.
fn give_up(began: Began, args: &AttachArgs) -> Result<ExitCode> {
    let path = began.folder.absolute();
    let shown = began.folder.path().display();
    if !began.is_new {
        say(&format!(
            "interrupted: no further process is attached to; `prof detach {shown}` ends what is recorded"
        ));
        return Ok(ExitCode::from(FAILED));
    }
    let recorded = Who::Folder(path).recorded();
    if recorded.is_err() && began.folder.recordings().is_empty() {
        say("interrupted: no process is recorded");
        began.folder.remove();
        return Ok(ExitCode::from(FAILED));
    }
    say(&format!(
        "interrupted: prof is taken out of the processes again that it has attached to; what was recorded stays in {shown}"
    ));
    // A detach takes the lock.
    let Began { folder, lock, .. } = began;
    drop(lock);
    detach::run(&DetachArgs::of_folder(folder.path(), args.filter_allows, args.record.no_log))?;
    Ok(ExitCode::from(FAILED))
}

/// The folder of a family, in which recording begins or goes on.
struct Began {
    folder: Folder,
    journal: Journal,
    lock: FolderLock,
    is_new: bool,
    /// The processes that an earlier command has attached to, and how many of them are recorded now.
    known: HashSet<(Pid, u64)>,
    taken_up: Count,
}

/// Creates the folder of a family, or takes up the recordings in one that is there.
///
/// # Errors
/// If there are no processes, or the folder can't be used.
fn begin(args: &AttachArgs, which: &Which, how: &How) -> Result<Began> {
    let wanted = args.record.output.as_deref();
    let (mut known, mut taken_up) = (HashSet::new(), Count::default());
    if let Some(folder) = wanted.and_then(Folder::open) {
        let (lock, before) = again::open(&folder, which)?;
        if args.paused {
            mark_paused(folder.path(), true)?;
        }
        let mut journal = folder.journal()?;
        taken_up = again::take_up(&folder, &mut journal, &before, how, &mut known);
        return Ok(Began { folder, journal, lock, is_new: false, known, taken_up });
    }
    let waits = args.follow && !matches!(which, Which::Tree(_));
    if which.find().map_err(refused)?.is_empty() && !waits {
        return Err(refused(which.none()));
    }
    let folder = Folder::create(wanted, &which.name())?;
    let mut journal = folder.journal()?;
    let lock = folder.lock()?.ok_or_else(|| {
        refused(format!("another prof was faster to take {}", folder.path().display()))
    })?;
    let (version, root) = (env!("CARGO_PKG_VERSION"), again::note_of_root(which));
    journal.note("began", None, json!({ "family": which.words(), "prof": version, "root": root }));
    if args.paused {
        mark_paused(folder.path(), true)?;
    }
    Ok(Began { folder, journal, lock, is_new: true, known, taken_up })
}
