//! A process that a command watches while it is recorded: one whose recording runs already, one that is attached to for
//! the time, or a command that is started for it.

use super::record::RecordArgs;
use crate::audit::Audit;
use crate::failure::refused;
use crate::new_file::create;
use crate::session::{self, Settings};
use crate::term;
use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use prof_analyze::Follower;
use prof_collect::Peek;
use prof_inject::Launched;
use prof_os::Pid;
use prof_os::process::{has_ended, is_running};
use prof_trace::records::Stripped;
use prof_trace::shared::state;
use prof_trace::values::text;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The subject of a watch.
pub(super) enum Watch {
    /// A process.
    Process(Pid),
    /// A command that is to be started.
    Command(Vec<OsString>),
}

impl Watch {
    /// Reads a command line, whose words are separated as a shell does it.
    ///
    /// # Errors
    /// A message if it has no words, or a quote that does not end.
    pub(super) fn command(text: &str) -> Result<Self, String> {
        let words = shlex::split(text).filter(|words| !words.is_empty());
        let words = words.ok_or_else(|| format!("--command: {text:?} is no command"))?;
        Ok(Self::Command(words.into_iter().map(OsString::from).collect()))
    }

    /// Takes the running recording of the process, or begins one.
    ///
    /// # Errors
    /// If the process can't be recorded, the collector of its recording has died, or the command can't be started.
    pub(super) fn begin(&self, record: &RecordArgs) -> Result<Watched> {
        match self {
            Self::Process(pid) => match Watched::running(*pid) {
                Some(running) => Ok(running),
                None => match unfinished(*pid) {
                    // To begin another would finish this one, which may go on.
                    Some(peek) => Err(refused(died(*pid, &peek.path))),
                    None => Watched::attach(*pid, record),
                },
            },
            Self::Command(words) => Watched::start(words, record),
        }
    }
}

/// Says what a look at a recording that grows does not see, as short-lived blocks are only counted (`--cull`).
pub(super) fn say_what_is_culled(follower: &Follower) {
    let culled = |s: &&Stripped| matches!(s.how, Stripped::CULLED | Stripped::CULLED_TO_THE_END);
    if let Some(s) = follower.meta().stripped.as_ref().filter(culled) {
        let time = text::duration(s.threshold_ns);
        term::say(&format!(
            "the recording has only blocks that are older than {time} (--cull), and tells of them that much later"
        ));
    }
}

/// Returns an error if a recording that grows has figures by stack, and no blocks.
///
/// # Errors
/// A message that says so.
pub(super) fn want_blocks(follower: &Follower, pid: Pid) -> Result<()> {
    let meta = follower.meta();
    if !meta.is_aggregated() {
        return Ok(());
    }
    let by = meta.figures_by();
    Err(refused(format!(
        "this asks for single blocks, and the recording of process {pid} has only figures by stack ({by}): \
         `prof detach {pid}`, and attach without {by}"
    )))
}

/// Returns the state of a process whose collector has died before it had finished the recording.
fn unfinished(pid: Pid) -> Option<Peek> {
    let has_died = |p: &Peek| {
        let had_one = p.collector.0 != Pid::NONE && !p.path.as_os_str().is_empty();
        p.state == state::ATTACHED && had_one && !p.collector_alive
    };
    Peek::of(pid).ok().flatten().filter(has_died)
}

fn died(pid: Pid, path: &Path) -> String {
    let path = path.display();
    format!(
        "the collector of process {pid} has died, and the recording is not finished: `prof attach {pid} -o {path}` goes on \
         in it, and `prof detach {pid}` finishes it"
    )
}

/// A process whose recording is looked at.
pub(super) struct Watched {
    /// The process.
    pub pid: Pid,
    /// Path of the recording.
    pub path: PathBuf,
    /// Process ID and start time of the collector.
    pub collector: (Pid, u64),
    /// The recording was begun by this command, and ends with it.
    pub own: bool,
    /// The process is a child of this one.
    child: bool,
}

impl Watched {
    /// Takes the running recording of a process; `None` if there is none.
    pub(super) fn running(pid: Pid) -> Option<Self> {
        let running = |p: &Peek| p.collector_alive && !p.path.as_os_str().is_empty();
        let peek = Peek::of(pid).ok().flatten().filter(running)?;
        Some(Self { pid, path: peek.path, collector: peek.collector, own: false, child: false })
    }

    /// Begins a recording, which ends with the command.
    ///
    /// # Errors
    /// If the process can't be recorded.
    fn attach(pid: Pid, record: &RecordArgs) -> Result<Self> {
        let attached = session::attach(pid, record, &Settings::default())?;
        attached.messages.iter().for_each(|line| term::say(line));
        Ok(Self::began(pid, attached.path, false))
    }

    /// Starts a command, and records it from its first allocation on. Its output goes to standard error.
    ///
    /// # Errors
    /// If it can't be started, or can't be recorded.
    fn start(command: &[OsString], record: &RecordArgs) -> Result<Self> {
        let name = command.first().map(|c| c.to_string_lossy()).unwrap_or_default();
        let base = Path::new(&*name).file_name().map(|n| n.to_string_lossy().into_owned());
        let me = Pid::this();
        let (path, file) = create(record.output.as_deref(), &base.unwrap_or_default(), me)?;
        let absolute = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let undo = |e: anyhow::Error| {
            let _ = fs::remove_file(&absolute);
            e
        };
        let options = session::options(record, &Settings::default(), &absolute);
        let launched = with_output_aside(|| prof_inject::launch(command, &options))?
            .map_err(|e| undo(refused(format!("cannot record {name}: {e}"))))?;
        let pid = launched.pid;
        let began = session::activate(launched.installed, file, record, &Settings::default());
        began.map_err(|e| {
            // The command was started only to be recorded.
            let _ = kill(pid.into(), Signal::SIGKILL);
            let _ = waitpid(Some(pid.into()), None);
            undo(e)
        })?;
        let watched = Self::began(pid, path, true);
        Launched::go(pid);
        Ok(watched)
    }

    fn began(pid: Pid, path: PathBuf, child: bool) -> Self {
        term::say(&format!("recording to {}, until this ends", path.display()));
        let collector = session::peek(pid).map(|p| p.collector).unwrap_or_default();
        Self { pid, path, collector, own: true, child }
    }

    /// Returns whether the recording still grows.
    pub(super) fn grows(&self) -> bool {
        is_running(self.collector.0, self.collector.1)
    }

    /// Returns whether the collector has died, and prof is still in the process.
    pub(super) fn has_lost_collector(&self) -> bool {
        !self.grows() && unfinished(self.pid).is_some_and(|p| p.collector == self.collector)
    }

    /// Returns the error that the collector has ended without finishing the recording.
    pub(super) fn died(&self) -> anyhow::Error {
        let (pid, path) = (self.pid, &self.path);
        match self.has_lost_collector() {
            true if self.own => anyhow!("the collector of process {pid} has died"),
            true => anyhow!(died(pid, path)),
            false if has_ended(pid) => anyhow!(
                "{} is not finished: process {pid} has ended, and its collector had died, or had no room on the disk",
                path.display()
            ),
            false => anyhow!(
                "{} is not finished: the collector of process {pid} has died, or had no room on the disk",
                path.display()
            ),
        }
    }

    /// Detaches if this command has attached.
    ///
    /// # Errors
    /// If something is left in the process.
    pub(super) fn end(self) -> Result<ExitCode> {
        let detached = self.detach();
        if self.child {
            let pid = self.pid;
            let ended = waitpid(Some(pid.into()), Some(WaitPidFlag::WNOHANG))
                .context("cannot wait for the command");
            match ended {
                Ok(nix::sys::wait::WaitStatus::StillAlive) => {
                    term::say(&format!("the command goes on, as process {pid}"));
                }
                Ok(status) => log::info!("the command has ended: {status:?}"),
                Err(e) => log::info!("{e:#}"),
            }
        }
        detached.map(|()| ExitCode::SUCCESS)
    }

    fn detach(&self) -> Result<()> {
        // A detach also saves the events that a dead collector has left in the ring.
        if !self.own || !self.grows() && !self.has_lost_collector() {
            return Ok(());
        }
        match session::detach(self.pid, session::DETACH_TIMEOUT, false, Audit::unless(false)) {
            Ok(detached) => super::detach::say(&detached),
            Err(e) if has_ended(self.pid) => log::info!("{e:#}"),
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

/// Calls `start` while standard output is standard error, so that what a command prints, which inherits it, does not
/// come among the lines of this process.
fn with_output_aside<T>(start: impl FnOnce() -> T) -> Result<T> {
    let cannot = "no descriptor is left for the output of the command (`ulimit -n`)";
    let kept = nix::unistd::dup(std::io::stdout()).context(cannot)?;
    nix::unistd::dup2_stdout(std::io::stderr()).context(cannot)?;
    let started = start();
    nix::unistd::dup2_stdout(&kept).context(cannot)?;
    Ok(started)
}
