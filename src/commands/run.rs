//! `prof run`

use super::on_signal::SignalReportArgs;
use super::parts::{self, Parts};
use super::reach::at_end::{ProveArgs, Prover};
use super::record::RecordArgs;
use super::report::{self, ReportArgs};
use super::run_family::Family;
use super::way::WayArgs;
use crate::failure::{refused, usage};
use crate::look;
use crate::new_file::create;
use crate::session::{self, Settings};
use crate::signals::parse_signal;
use anyhow::{Context, Result};
use clap::Args;
use clap::Parser;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use prof_analyze::Now;
use prof_os::Pid;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Run a command and record it from its first allocation on
///
/// Standard input, output and error, signals and the exit code are those of the command.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub record: RecordArgs,
    /// Print the report when the command has ended
    #[arg(long)]
    pub report: bool,
    /// The signal that switches recording off and on: USR1, USR2, RTMIN+N or none
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = parse_signal)]
    pub signal: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub reports: SignalReportArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub way: WayArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub proof: ProveArgs,
    /// Do not follow the command when it runs another program in its place (exec), as shells, env and shims
    /// do: the recording ends there
    #[arg(long)]
    pub no_follow_exec: bool,
    /// Record each process that the command starts, too, to a file of its own in one folder (-o: its path)
    #[arg(long)]
    pub children: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// Returns the settings of the recordings.
    ///
    /// # Errors
    /// If they contradict each other.
    pub(super) fn settings(&self) -> Result<Settings> {
        let reports = self.reports.reports(self.signal)?;
        Ok(Settings {
            signal: self.signal,
            reports,
            way_in: self.way.way_in()?,
            ..Settings::default()
        })
    }
}

/// Process ID of the command, for the signal handler.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// Signals that came before the command was ready for them, one bit each. Otherwise they would end prof, and leave the
/// command stopped.
static EARLY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Signals with names that are passed on to the command: those that others send to a program, and that would end prof or go
/// unseen.
const PASSED: [i32; 13] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Returns all signals that are passed on to the command.
fn passed() -> impl Iterator<Item = i32> {
    // SIGSTKFLT has this number, and MIPS does not have it (signal(7)).
    let other = cfg!(not(target_arch = "mips64")).then_some(16);
    PASSED.into_iter().chain(other).chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Runs a command under recording, and ends with its exit code.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    args.record.check().map_err(usage)?;
    let settings = args.settings()?;
    let settings = if args.children { settings.with_children() } else { settings };
    refuse_option(&args.command[0])?;
    let proof = args.proof.clone();
    let mut prover = Prover::new(&proof)?;
    let name = args.command[0].to_string_lossy();
    let base = Path::new(&*name).file_name().map(|n| n.to_string_lossy().into_owned());
    let family = match args.children {
        true => Some(Family::new(&args.record, base.as_deref().unwrap_or_default())?),
        false => None,
    };
    let mut args = args.clone();
    if let Some(family) = &family {
        args.record.output = Some(family.recording());
    }
    let args = &args;
    let me = Pid::this();
    let wanted = args.record.output.as_deref();
    let created = create(wanted, &base.unwrap_or_default(), me);
    let (path, file) = created.inspect_err(|_| family.iter().for_each(Family::remove))?;
    let room = session::check_room(&path, &file, &args.record.bounds);
    room.inspect_err(|_| family.iter().for_each(Family::remove))?;
    let absolute = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let undo = |e: anyhow::Error| {
        let _ = fs::remove_file(&absolute);
        family.iter().for_each(Family::remove);
        e
    };
    let options = session::options(&args.record, &settings, &absolute);
    pass_signals(&[], true)?;
    let launched = prof_inject::launch(&args.command, &options)
        .map_err(|e| refused(format!("cannot record {name}: {e}")))
        .map_err(undo)?;
    let pid = launched.pid;
    CHILD.store(pid.as_raw(), SeqCst);
    pass_early();
    let dump = settings.reports.as_ref().map_or(0, |r| r.signal);
    pass_signals(&[args.signal, dump], false)?;
    parts::prepare()?;
    let began = session::activate(launched.installed, file, &args.record, &settings);
    let began = began.map_err(|e| {
        // The command was started only to be recorded.
        let _ = kill(pid.into(), Signal::SIGKILL);
        let _ = waitpid(Some(pid.into()), None);
        undo(e)
    })?;
    began.messages.iter().for_each(|line| log::info!("{line}"));
    prof_inject::process::translated::note(pid).iter().for_each(|line| crate::term::say(line));
    let mut parts = Parts {
        args,
        settings,
        pid,
        path,
        before: PathBuf::new(),
        number: 0,
        collectors: vec![began.collector],
        family: family.as_ref(),
    };
    let supervisor = family.as_ref().and_then(|family| {
        let say = |e| crate::term::say(&format!("the command's children are not recorded: {e:#}"));
        family.follow(args, pid).map_err(say).ok()
    });
    let mut status = parts.follow(prover.as_mut());
    let mut path = finished(parts);
    if let Some(family) = &family {
        family.wait(supervisor);
        path = family.path();
    }
    if let Some(prover) = prover {
        status = prover.finish(status);
    }
    if args.report {
        // The exit code is the command's, even if the report fails.
        if let Err(e) = show(&path) {
            crate::term::say(&format!("cannot print the report: {e:#}"));
        }
    }
    if family.is_none() {
        summarize(&path);
    }
    Ok(status)
}

/// Waits until all recordings of the command's programs are finished; returns the path of the last one.
fn finished(mut parts: Parts<'_>) -> PathBuf {
    let last = parts.collectors.len() - 1;
    for (k, collector) in parts.collectors.iter_mut().enumerate() {
        // Recordings of earlier programs were renamed by this process itself.
        let Some(displaced) = collector.wait().filter(|d| k == last || !d.moved) else { continue };
        crate::term::say(&displaced.message);
        if k == last
            && let Some(path) = displaced.path
        {
            parts.path = path;
        }
    }
    parts.path
}

/// Says what a finished recording has, and where it is.
fn summarize(path: &Path) {
    let summary = look::read(path, &Now::default());
    summary.iter().flat_map(look::lines).for_each(|line| crate::term::say(&line));
    if summary.is_some_and(|s| s.end_reason.as_deref() == Some("exec")) {
        crate::term::say(
            "the recording ends where the command ran another program in its place (exec), which is not in it",
        );
    }
    if let Some(why) = look::limit(path) {
        crate::term::say(&why);
    }
    crate::term::say(&format!("recorded to {}", path.display()));
}

/// Prints the report on a recording, with default options.
pub(crate) fn show(path: &Path) -> Result<()> {
    #[derive(Parser)]
    struct Defaults {
        #[command(flatten)]
        report: ReportArgs,
    }
    let args = [Path::new("report").as_os_str(), path.as_os_str()];
    let args = Defaults::try_parse_from(args).context("report")?.report;
    report::run(&args, &|_| None).map(drop)
}

extern "C" fn pass(signal: i32) {
    // Either this handler sees the child, or the one that stores its id sees the bit.
    if CHILD.load(SeqCst) == 0 {
        let (word, bit) = bit(signal);
        EARLY[word].fetch_or(bit, SeqCst);
        if CHILD.load(SeqCst) != 0 {
            pass_early();
        }
        return;
    }
    // SAFETY: `kill` is async-signal-safe, and the child is not reaped while the handlers are in use.
    unsafe { libc::kill(CHILD.load(Relaxed), signal) };
}

/// Passes on what came before there was a command.
fn pass_early() {
    let early = [0, 1].map(|word: usize| EARLY[word].swap(0, SeqCst));
    let came = |signal: &i32| {
        let (word, bit) = bit(*signal);
        early[word] & bit != 0
    };
    for signal in passed().filter(came) {
        // SAFETY: as in `pass`.
        unsafe { libc::kill(CHILD.load(SeqCst), signal) };
    }
}

/// Returns the place of a signal's bit: the number of the word, and the bit alone.
fn bit(signal: i32) -> (usize, u64) {
    let n = signal.unsigned_abs().saturating_sub(1);
    ((n / 64 % 2) as usize, 1 << (n % 64))
}

/// Refuses a word that begins like an option but is none, as every word from the command on belongs to the command.
fn refuse_option(command: &std::ffi::OsStr) -> Result<()> {
    let name = command.to_string_lossy();
    if !name.starts_with('-') {
        return Ok(());
    }
    Err(usage(format!(
        "prof run has no option {name}, and takes it for the command; `prof run --help` lists the options (a command of that name: ./{name})"
    )))
}

/// Passes signals on to the command. `early`: the command has not been started yet, and starts with the signals ignored
/// that this process ignores, as by `nohup`.
fn pass_signals(more: &[u32], early: bool) -> Result<()> {
    let handler: extern "C" fn(i32) = pass;
    let more = more.iter().map(|s| *s as i32).filter(|s| *s != 0);
    for signal in passed().chain(more) {
        // SAFETY: all zeroes are an action without flags and with an empty mask.
        let (mut action, mut old): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler makes async-signal-safe calls alone, and both actions live until the call has returned.
        let set = unsafe { libc::sigaction(signal, &raw const action, &raw mut old) };
        nix::errno::Errno::result(set).context("cannot set a signal handler")?;
        if early && old.sa_sigaction == libc::SIG_IGN {
            // SAFETY: the action that was in effect before is set again.
            unsafe { libc::sigaction(signal, &raw const old, std::ptr::null_mut()) };
        }
    }
    Ok(())
}
