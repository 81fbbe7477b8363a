//! `prof detach`

use super::family::{SelectArgs, WhoArgs};
use super::record::parse_duration;
use crate::audit::Audit;
use crate::failure::{FAILED, refused};
use crate::family::again;
use crate::family::control::{Who, each, heirs, wait_for_attach};
use crate::family::find::Seen;
use crate::family::folder::Folder;
use crate::family::heir::Left;
use crate::family::journal;
use crate::family::supervise;
use crate::notes;
use crate::session::{self, Detached};
use crate::term::say as say_line;
use anyhow::Result;
use clap::Args;
use prof_collect::Peek;
use prof_os::Pid;
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Take prof out of a process, or of each process of a family, and finish its recording
///
/// Restores the process to what it was and verifies that. The path of the recording is printed.
#[derive(Args, Debug)]
pub(crate) struct DetachArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub who: WhoArgs,
    /// Time to wait for threads to leave the hook
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Take prof out of children, too, that were forked while the process was recorded and have run no other program
    /// since: without it they keep prof's patches and code, inactive, and are named
    #[arg(long)]
    pub children: bool,
    /// Take your word for it that the seccomp filter of the process lets prof's calls pass, where prof cannot
    /// find out, as in a container: memfd_create, mmap, mremap, munmap, munlock, mprotect, madvise,
    /// rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack and close. If one does not, that kills the
    /// process
    #[arg(long)]
    pub filter_allows: bool,
    /// Write no line to the system's log (authpriv)
    #[arg(long)]
    pub no_log: bool,
}

impl DetachArgs {
    /// Returns the arguments for the end of an attach to a family.
    pub(super) fn of_folder(folder: &Path, filter_allows: bool, no_log: bool) -> Self {
        let who = WhoArgs { who: Some(Who::Folder(folder.into())), select: SelectArgs::default() };
        Self { who, timeout: session::DETACH_TIMEOUT, children: false, filter_allows, no_log }
    }
}

/// Runs `prof detach`, and reports anything that is left in the process.
pub(crate) fn run(args: &DetachArgs) -> Result<ExitCode> {
    if args.filter_allows {
        prof_inject::sandbox::take_word(None);
    }
    match args.who.who()? {
        Who::One(pid) => {
            let heir = session::peek(pid).ok().and_then(|p| save_heir(&p));
            let recording = session::peek(pid).ok().map(|p| p.path);
            let done = one(args, pid);
            heir.into_iter().for_each(end_heir);
            let done = done?;
            // A supervisor has its children recorded on.
            let folder = recording.as_ref().and_then(|path| path.parent());
            let folder = folder.filter(|dir| Folder::open(dir).is_some());
            let is_followed = folder.is_some_and(|dir| journal::running(dir).is_some());
            if let Some(dir) = folder.filter(|_| is_followed) {
                let dir = dir.display();
                say_line(&format!(
                    "the family that it belongs to is recorded on, also new processes; `prof detach {dir}` ends that"
                ));
            }
            let alone = recording.filter(|path| {
                !is_followed && path.parent().is_some_and(|dir| Folder::open(dir).is_some())
            });
            let failed = alone.map(|path| take_left(args, &HashSet::from([path])));
            Ok(failed.filter(|code| *code != ExitCode::SUCCESS).unwrap_or(done))
        }
        who => {
            let waited = match &who {
                Who::Folder(path) => wait_for_attach(path, || supervise::end(path)),
                _ => Ok((false, None)),
            };
            // The processes that are recorded by now are detached from all the same.
            let late = waited.as_ref().err().map(|e| say_line(&format!("{e:#}"))).is_some();
            // The lock is held until all is done.
            let (ended, _lock) = waited.unwrap_or_default();
            if let Who::Folder(path) = &who {
                again::finish_left(path);
            }
            let all = match who.recorded() {
                Err(_) if ended => return Ok(ExitCode::SUCCESS),
                all => all?,
            };
            let mut journal = who.journal();
            let known: HashSet<PathBuf> =
                all.iter().flat_map(|p| p.heir_of.iter().chain([&p.path])).cloned().collect();
            let children: Vec<Left> = all.iter().filter_map(save_heir).collect();
            let done = each(&all, |pid| {
                // A process that has ended meanwhile has nothing of prof's.
                let Some(seen) = Seen::of(pid) else { return Ok(true) };
                say_line(&format!("{}, pid {pid}:", seen.comm));
                let clean = one(args, pid)? == ExitCode::SUCCESS;
                if let Some(journal) = &mut journal {
                    journal.note("detached", Some(&seen), json!({ "clean": clean }));
                }
                Ok(clean)
            });
            children.into_iter().for_each(end_heir);
            let left = take_left(args, &known);
            if !matches!(who, Who::Folder(_)) {
                say_followed(&all);
            }
            // Some have ended meanwhile.
            if let Who::Folder(path) = &who {
                again::finish_left(path);
            }
            let done = if left == ExitCode::SUCCESS { done } else { left };
            Ok(if late { ExitCode::from(FAILED) } else { done })
        }
    }
}

/// Says which families of these processes are followed on.
fn say_followed(all: &[Peek]) {
    let folders: BTreeSet<&Path> = all.iter().filter_map(|p| p.path.parent()).collect();
    let is_followed = |dir: &&Path| Folder::open(dir).is_some() && journal::running(dir).is_some();
    for dir in folders.into_iter().filter(is_followed) {
        let dir = dir.display();
        say_line(&format!(
            "new processes of the family in {dir} are recorded on; `prof detach {dir}` ends that"
        ));
    }
}

/// Begins the recording of a child that nobody has taken yet, so that what its memory holds is saved.
fn save_heir(peek: &Peek) -> Option<Left> {
    let folder = Folder::open(peek.heir_of.as_deref()?.parent()?)?;
    let seen = Seen::of(peek.pid)?;
    let left = Left::begin(&folder, &seen);
    let mut journal = folder.journal().ok();
    let mut note = |event: &str, more| {
        if let Some(journal) = &mut journal {
            journal.note(event, Some(&seen), more);
        }
    };
    match left {
        Ok(left) => {
            let recording = left.path.file_name().map(|n| n.to_string_lossy());
            note("attached", json!({ "from_fork": true, "recording": recording }));
            Some(left)
        }
        Err(e) => {
            let reason = json!({ "reason": format!("{e:#}") });
            note("missed", reason);
            None
        }
    }
}

/// Finishes the recording of such a child if it has ended before the detach came to it.
fn end_heir(left: Left) {
    let path = left.path.clone();
    if let Err(e) = left.end() {
        say_line(&format!("cannot finish {}: {e:#}", path.display()));
    }
}

/// Takes prof out of children that were forked while prof was being taken out of their parents, whose recordings these are.
fn take_left(args: &DetachArgs, recordings: &HashSet<PathBuf>) -> ExitCode {
    /// Number of looks, as such a child may fork, too.
    const LOOKS: usize = 20;
    /// Time for which children may be on their way into memory from their parents.
    const WAY: Duration = Duration::from_secs(2);
    let began = Instant::now();
    for _ in 0..LOOKS {
        // The order matters: a child that has arrived is found.
        while prof_inject::process::rings::are_on_their_way() && began.elapsed() < WAY {
            std::thread::sleep(Duration::from_millis(2));
        }
        let left = heirs(|path| recordings.contains(path));
        if left.is_empty() {
            break;
        }
        let children: Vec<Left> = left.iter().filter_map(save_heir).collect();
        let done = each(&left, |pid| Ok(one(args, pid)? == ExitCode::SUCCESS));
        for child in children {
            let event = if child.seen.is_there() { "detached" } else { "exited" };
            let journal = child.path.parent().and_then(Folder::open).and_then(|f| f.journal().ok());
            journal.into_iter().for_each(|mut j| j.note(event, Some(&child.seen), json!({})));
            end_heir(child);
        }
        if done != ExitCode::SUCCESS {
            return done;
        }
    }
    ExitCode::SUCCESS
}

/// Takes prof out of one process.
fn one(args: &DetachArgs, pid: Pid) -> Result<ExitCode> {
    let audit = Audit::unless(args.no_log);
    let leave = || session::leave(pid, args.timeout, args.children, audit);
    prof_inject::wait_until_idle(pid);
    let detached = match leave() {
        Err(e) if session::was_busy(pid, &e) => leave(),
        detached => detached,
    };
    let mut detached = detached.map_err(|e| match notes::last(pid) {
        Some(note) => {
            crate::term::path(&note.path());
            refused(format!("{e:#}; {}", note.text()))
        }
        None => e,
    })?;
    // Report on the process first, as users wait for that; its recording may take longer.
    say(&detached);
    detached.messages.clear();
    detached.finish();
    detached.messages.iter().for_each(|line| say_line(line));
    if !detached.path.as_os_str().is_empty() {
        crate::term::path(&detached.path);
    }
    Ok(if detached.is_clean() && detached.whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    })
}

/// Reports the result of a detach.
pub(crate) fn say(d: &Detached) {
    d.messages.iter().for_each(|line| say_line(line));
    if d.gone {
        return;
    }
    if d.is_clean() {
        say_line("the process is as it was before");
        return;
    }
    d.left.iter().for_each(|line| say_line(&format!("left in the process: {line}")));
    if d.stays {
        say_line(&format!(
            "what is left does nothing any more, and stays: {}",
            session::stays(d.pid)
        ));
    } else if prof_inject::process::rings::has_parts(d.pid) {
        say_line("what is left does nothing any more; `prof detach` again removes it");
    } else {
        say_line(&format!(
            "`prof detach` does not find what is left; it goes when process {} ends or runs another program",
            d.pid
        ));
    }
}
