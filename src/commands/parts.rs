//! Follows a `prof run` through exec: makes a recording for each program that the command runs in its place.

use super::reach::at_end::Prover;
use super::run::RunArgs;
use super::run_family::Family;
use crate::failure::REFUSED;
use crate::new_file::create;
use crate::recorder::Started;
use crate::session::{self, Settings};
use crate::term::say;
use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use prof_inject::Launched;
use prof_inject::follow::{Follow, Next, install_again};
use prof_os::{Pid, process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Greatest number of programs that are followed: a program that runs itself endlessly would fill the disk.
const MOST: usize = 64;

/// Whether another prof wants to trace the command.
static LET_GO: AtomicBool = AtomicBool::new(false);

extern "C" fn let_go(_: i32) {
    LET_GO.store(true, Relaxed);
}

/// Prepares this process for [`Parts::follow`]. Must be called after the command has been started, which would inherit
/// the signal mask.
pub(super) fn prepare() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(let_go), SaFlags::SA_RESTART, SigSet::empty());
    let ask = Signal::try_from(prof_inject::follow::LET_GO).context("no such signal")?;
    // SAFETY: the handler is async-signal-safe, as it only stores to an atomic.
    unsafe { sigaction(ask, &action) }.context("cannot set a signal handler")?;
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    set.thread_block().context("cannot block signals")
}

/// A command and its recordings.
pub(super) struct Parts<'a> {
    /// The arguments of `prof run`.
    pub args: &'a RunArgs,
    /// The settings of the recordings.
    pub settings: Settings,
    /// Process ID of the command.
    pub pid: Pid,
    /// Path of the recording of the present program.
    pub path: PathBuf,
    /// Path of the recording of the program before.
    pub before: PathBuf,
    /// Number of recordings before the present one.
    pub number: usize,
    /// The collectors that write them.
    pub collectors: Vec<Started>,
    /// The family that the command belongs to.
    pub family: Option<&'a Family>,
}

impl Parts<'_> {
    /// Lets the stopped command run to its end, through all programs. Returns its exit code, or 128 + signal.
    /// A prover looks at it when it ends.
    pub(super) fn follow(&mut self, mut prover: Option<&mut Prover<'_>>) -> ExitCode {
        let mut follow = self.begin_to_follow();
        let mut name = process::comm(self.pid);
        Launched::go(self.pid);
        loop {
            match follow.next(|| LET_GO.swap(false, Relaxed)) {
                Next::Ended(status) => return exit_code(status),
                Next::Exec => follow = self.go_on(follow, &mut name, false),
                Next::Late => follow = self.go_on(follow, &mut name, true),
                Next::Ends => match &mut prover {
                    Some(prover) => prover.look(&mut follow, self.pid),
                    None => follow.at_end(|_| ()),
                },
            }
        }
    }

    fn begin_to_follow(&self) -> Follow {
        match (self.args.proof.prove, self.args.no_follow_exec) {
            (true, _) => Follow::to_end(self.pid),
            (false, true) => Follow::end_of(self.pid),
            (false, false) => Follow::new(self.pid),
        }
    }

    /// Begins to record the program that the command runs now.
    fn go_on(&mut self, mut follow: Follow, name: &mut String, late: bool) -> Follow {
        let old = std::mem::replace(name, process::comm(self.pid));
        let why = if self.number >= MOST {
            Some("so many programs were followed already".to_owned())
        } else {
            let begun = follow.to_start().map_err(|e| crate::failure::failed(self.pid, e));
            begun.and_then(|()| self.begin(&old)).err().map(|e| format!("{e:#}"))
        };
        let late_words = match late {
            true => " (what it allocated in its first moments is not in it)",
            false => "",
        };
        match why {
            None => {
                self.family.iter().for_each(|family| family.goes_on(self.pid, Ok(&self.before)));
                say(&format!(
                    "{old} has run {name} in its place (exec): recording that to {}{late_words}, what {old} did is in {}",
                    self.path.display(),
                    self.before.display()
                ));
            }
            Some(_) if follow.has_ended() || prof_os::process::has_ended(self.pid) => {
                return follow;
            }
            Some(why) => {
                self.family.iter().for_each(|family| family.goes_on(self.pid, Err(&why)));
                say(&format!(
                    "{old} has run {name} in its place (exec), which is not recorded: {why}"
                ));
            }
        }
        let next =
            if self.number >= MOST { Follow::end_of(self.pid) } else { self.begin_to_follow() };
        if !late && self.number < MOST {
            Launched::go(self.pid);
        }
        next
    }

    /// Begins the next recording. The requested file name is that of the last program; earlier recordings are renamed
    /// with a number and their program's name.
    fn begin(&mut self, old: &str) -> Result<()> {
        let wanted = self.args.record.output.as_deref();
        let aside = wanted.map(|path| self.aside(path, old));
        if let (Some(path), Some(aside)) = (wanted, &aside) {
            fs::rename(path, aside).with_context(|| format!("cannot rename {}", path.display()))?;
        }
        match self.record(wanted) {
            Ok(path) => {
                self.before = aside.unwrap_or_else(|| self.path.clone());
                self.number += 1;
                self.path = path;
                Ok(())
            }
            Err(e) => {
                if let (Some(path), Some(aside)) = (wanted, &aside) {
                    let _ = fs::rename(aside, path);
                }
                Err(e)
            }
        }
    }

    fn record(&mut self, wanted: Option<&Path>) -> Result<PathBuf> {
        let record = &self.args.record;
        let me = Pid::this();
        let (path, file) = create(wanted, &process::comm(self.pid), me)?;
        let absolute = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let options = session::options(record, &self.settings, &absolute);
        let began = install_again(self.pid, &options)
            .map_err(|e| crate::failure::failed(self.pid, e))
            .and_then(|installed| session::activate(installed, file, record, &self.settings));
        match began {
            Ok(began) => {
                prof_inject::process::translated::note(self.pid).iter().for_each(|line| say(line));
                self.collectors.push(began.collector);
                Ok(path)
            }
            Err(e) => {
                let _ = fs::remove_file(&absolute);
                Err(e)
            }
        }
    }

    /// Returns the path for an earlier recording: `r.1-sh.prof` for `r.prof`.
    fn aside(&self, path: &Path, name: &str) -> PathBuf {
        let part =
            |p: Option<&std::ffi::OsStr>| p.unwrap_or_default().to_string_lossy().into_owned();
        let (stem, extension) = (part(path.file_stem()), part(path.extension()));
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_+".contains(c) { c } else { '_' };
        let name: String = name.chars().map(plain).collect();
        let named = |n: usize| match extension.is_empty() {
            true => path.with_file_name(format!("{stem}.{n}-{name}")),
            false => path.with_file_name(format!("{stem}.{n}-{name}.{extension}")),
        };
        let free = (self.number + 1..).map(named).find(|p| !p.exists());
        free.unwrap_or_else(|| path.with_extension("part"))
    }
}

fn exit_code(status: i32) -> ExitCode {
    if libc::WIFEXITED(status) {
        ExitCode::from(libc::WEXITSTATUS(status) as u8)
    } else if libc::WIFSIGNALED(status) {
        ExitCode::from(128u8.wrapping_add(libc::WTERMSIG(status) as u8))
    } else {
        ExitCode::from(REFUSED)
    }
}
