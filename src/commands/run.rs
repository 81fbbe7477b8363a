//! `prof run`

use super::parts::{self, Parts};
use super::report::{self, ReportArgs};
use crate::audit::Audit;
use crate::cli::RunArgs;
use crate::failure::{refused, usage};
use crate::look;
use crate::session::{self, Choice};
use anyhow::{Context, Result};
use clap::Parser;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use prof_analyze::Now;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Process ID of the command, for the signal handler.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Signals that are passed on to the command.
const PASSED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// Runs a command under recording, and ends with its exit code.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    args.record.check().map_err(usage)?;
    refuse_option(&args.command[0])?;
    let name = args.command[0].to_string_lossy();
    let base = Path::new(&*name).file_name().map(|n| n.to_string_lossy().into_owned());
    let me = std::process::id() as i32;
    let wanted = args.record.output.as_deref();
    let (path, file) = session::create(wanted, &base.unwrap_or_default(), me)?;
    let absolute = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let undo = |e: anyhow::Error| {
        let _ = fs::remove_file(&absolute);
        e
    };
    let choice = Choice { signal: args.signal, ..Choice::default() };
    let options = session::options(&args.record, &choice, &absolute);
    let launched = prof_inject::launch(&args.command, &options)
        .map_err(|e| refused(format!("cannot record {name}: {e}")))
        .map_err(undo)?;
    let pid = launched.pid;
    CHILD.store(pid, Relaxed);
    pass_signals(args.signal)?;
    parts::prepare()?;
    let audit = Audit::of(&args.record);
    let began =
        session::activate(launched.installed, file, args.record.compress.into(), None, audit);
    let began = began.map_err(|e| {
        // The command was started only to be recorded.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        let _ = waitpid(Pid::from_raw(pid), None);
        undo(e)
    })?;
    began.said.iter().for_each(|line| log::info!("{line}"));
    let mut parts = Parts {
        args,
        choice,
        pid,
        path,
        before: PathBuf::new(),
        number: 0,
        collectors: vec![began.collector],
    };
    let status = parts.follow();
    let mut path = parts.path;
    let last = parts.collectors.len() - 1;
    for (k, collector) in parts.collectors.iter_mut().enumerate() {
        // Recordings of earlier programs were renamed by this process itself.
        let Some(displaced) = collector.wait().filter(|d| k == last || !d.moved) else { continue };
        crate::term::say(&displaced.said);
        if k == last {
            path = displaced.path.unwrap_or(path);
        }
    }
    if args.report {
        // The exit code is the command's, even if the report fails.
        if let Err(e) = show(&path) {
            crate::term::say(&format!("cannot print the report: {e:#}"));
        }
    }
    let summary = look::read(&path, &Now::default());
    summary.iter().flat_map(look::lines).for_each(|line| crate::term::say(&line));
    if summary.is_some_and(|s| s.end_reason.as_deref() == Some("exec")) {
        crate::term::say(
            "the recording ends where the command ran another program in its place (exec), which is not in it",
        );
    }
    crate::term::say(&format!("recorded to {}", path.display()));
    Ok(status)
}

/// Prints the report on a recording, with default options.
pub fn show(path: &Path) -> Result<()> {
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
    // SAFETY: `kill` is async-signal-safe, and the child is not reaped while the handlers are in use.
    unsafe { libc::kill(CHILD.load(Relaxed), signal) };
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

fn pass_signals(toggle: u32) -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(pass), SaFlags::SA_RESTART, SigSet::empty());
    for signal in PASSED {
        // SAFETY: the handler is async-signal-safe, as it makes one such call.
        unsafe { sigaction(signal, &action) }.context("cannot set a signal handler")?;
    }
    // Real-time signals are not part of `Signal`.
    let named = Signal::try_from(toggle as i32).is_ok();
    if toggle != 0 && !(named && PASSED.iter().any(|s| *s as u32 == toggle)) {
        let handler: extern "C" fn(i32) = pass;
        // SAFETY: the handler is async-signal-safe, and is a function that lives for ever.
        let set =
            unsafe { libc::signal(toggle as i32, handler as *const () as libc::sighandler_t) };
        nix::errno::Errno::result(if set == libc::SIG_ERR { -1 } else { 0 })
            .context("cannot set a signal handler")?;
    }
    Ok(())
}
