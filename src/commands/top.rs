//! `prof top`: who holds the memory of running processes, on a terminal, while it changes.

use super::input::IndexArgs;
use super::record::{RecordArgs, parse_duration, pid};
use super::watched::{Watch, Watched};
use crate::failure::usage;
use crate::new_file::beside;
use crate::part::Part;
use crate::term;
use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use prof_analyze::export;
use prof_os::Pid;
use prof_top::app::{Format, Leave};
use prof_top::feed::{FeedOptions, Source};
use prof_top::rows::View;
use prof_top::terminal::{Control, Options, Shown};
use prof_trace::values::parse::size;
use prof_trace::values::text::bytes;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Show who holds the memory of running processes, while it changes
///
/// A table on the terminal: stacks, functions, modules, threads, or trees of calls, with what they hold and how fast
/// that grows. `?` lists the keys. A process that is not recorded is attached to; at the end prof asks whether to
/// detach from it.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArgs {
    /// The processes
    #[arg(value_name = "PID", value_parser = pid, required = true)]
    pub pids: Vec<Pid>,
    /// Time between two looks at the figures
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Show only what matches this regular expression: a function, file or module of its stack
    #[arg(long, value_name = "REGEX", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Kind of rows at the start
    #[arg(long, value_name = "VIEW", value_enum, default_value_t = View::Stacks)]
    pub by: View,
    /// Detach at the end without asking, also from processes that were recorded before
    #[arg(long, conflicts_with = "keep")]
    pub detach: bool,
    /// Go on recording at the end without asking
    #[arg(long)]
    pub keep: bool,
    /// Stop reading when this view itself takes more than this
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size)]
    pub memory: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,
}

/// Runs the command.
///
/// # Errors
/// If there is no terminal, a process can't be recorded, or its recording can't be read.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(usage(
            "prof top needs a terminal for input and output; `prof leaks PID --live` prints what is outstanding",
        ));
    }
    if args.interval.is_zero() {
        return Err(usage("--interval: 0 s leaves no time to look"));
    }
    let symbols = args.index.symbol_options()?;
    crate::interrupted::on_interrupt()?;
    let mut pids = args.pids.clone();
    pids.dedup();
    let mut watched: Vec<Watched> = Vec::new();
    for pid in pids {
        match Watch::Process(pid).begin(&RecordArgs::plain()) {
            Ok(w) => watched.push(w),
            Err(e) => {
                leave(watched, args, None);
                return Err(e);
            }
        }
    }
    let shown = watched.iter().map(|w| Shown {
        own: w.own,
        source: Source {
            pid: w.pid,
            name: prof_os::process::comm(w.pid),
            path: w.path.clone(),
            collector: w.collector,
        },
    });
    let options = Options {
        feed: FeedOptions { interval: args.interval, memory: args.memory, symbols },
        leave: args.answer(),
        color: term::color(),
        filter: args.filter.clone(),
        view: args.by,
    };
    // Lines of the log would be written over the screen.
    let level = log::max_level();
    log::set_max_level(log::LevelFilter::Off);
    let shown: Vec<Shown> = shown.collect();
    let ran =
        std::panic::catch_unwind(|| prof_top::terminal::run(shown, &options, &Arc::new(Ours)));
    log::set_max_level(level);
    // What was answered ahead counts, too, if the terminal is lost.
    let answer = match &ran {
        Ok(Ok(answer)) => *answer,
        _ => args.answer(),
    };
    let clean = leave(watched, args, answer);
    match ran {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(Err(e)) => Err(anyhow!(e)),
        Ok(Ok(_)) if clean => Ok(ExitCode::SUCCESS),
        Ok(Ok(_)) => Ok(ExitCode::from(crate::failure::FAILED)),
    }
}

impl TopArgs {
    /// Returns the answer that was given ahead.
    fn answer(&self) -> Option<Leave> {
        match (self.detach, self.keep) {
            (true, _) => Some(Leave::Detach),
            (_, true) => Some(Leave::Keep),
            _ => None,
        }
    }
}

/// Detaches, or says that processes go on being recorded. Without an answer it ends what this command has begun. Returns
/// whether all went well.
fn leave(watched: Vec<Watched>, args: &TopArgs, answer: Option<Leave>) -> bool {
    let mut clean = true;
    for mut w in watched {
        let (pid, path) = (w.pid, w.path.clone());
        w.own |= args.detach;
        if answer == Some(Leave::Keep) && w.own && w.grows() {
            term::say(&format!(
                "process {pid} goes on being recorded, to {}; `prof detach {pid}` ends that",
                path.display()
            ));
            continue;
        }
        if w.has_lost_collector() {
            term::say(&format!("{:#}", w.died()));
            // Another collector may go on in a recording that the user keeps.
            w.own &= answer != Some(Leave::Keep);
            clean = false;
        }
        let own = w.own;
        if let Err(e) = w.end() {
            term::say(&format!("{e:#}"));
            clean = false;
        }
        if own {
            term::path(&path);
        }
    }
    clean
}

/// The actions that the view may ask for.
struct Ours;

/// The name of the format that is no export.
const REPORT: &str = "report";

impl Control for Ours {
    fn toggle(&self, pid: Pid, on: bool) -> Result<(), String> {
        let done = if on { crate::switch::on(pid) } else { crate::switch::off(pid) };
        done.map(drop).map_err(|e| format!("{e:#}"))
    }

    fn formats(&self) -> Vec<Format> {
        let report = Format { name: REPORT.into(), help: "The text of prof report".into() };
        let built = export::Format::value_variants().iter().filter(|f| f.is_built());
        let all = built.filter_map(|f| {
            let value = f.to_possible_value()?;
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            Some(Format { name: value.get_name().to_owned(), help })
        });
        std::iter::once(report).chain(all).collect()
    }

    fn export(&self, source: &Source, format: &Format) -> Result<String, String> {
        let path = beside(&source.name, source.pid, suffix(&format.name));
        written(source, format, &path)?;
        let len = std::fs::metadata(&path).map_or(0, |m| m.len());
        Ok(format!("written: {} ({})", path.display(), bytes(len)))
    }

    fn is_interrupted(&self) -> bool {
        crate::interrupted::is_interrupted()
    }
}

/// Writes a file in a process of its own, whose memory goes with it.
fn written(source: &Source, format: &Format, path: &Path) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    let mut command = Command::new("/proc/self/exe");
    let part = match format.name.as_str() {
        REPORT => Some(Part::create(path, false, "try again").map_err(|e| format!("{e:#}"))?),
        _ => None,
    };
    match &part {
        Some(part) => {
            let file = part.file.try_clone().map_err(cannot)?;
            command.arg("report").arg(&source.path).stdout(file)
        }
        None => command
            .args(["export", &format.name, "-o"])
            .arg(path)
            .arg(&source.path)
            .stdout(Stdio::null()),
    };
    let out = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().map_err(cannot)?;
    if out.status.success() {
        return part.map_or(Ok(()), Part::keep).map_err(cannot);
    }
    let errors = String::from_utf8_lossy(&out.stderr);
    Err(errors.lines().last().unwrap_or("prof export has failed").to_owned())
}

/// Returns the ending of the name of a file in a format.
fn suffix(name: &str) -> &'static str {
    match export::Format::ALL.into_iter().find(|f| f.name() == name) {
        None => "report.txt",
        // The format is long, and its readers take it compressed.
        Some(export::Format::Heaptrack) => "heaptrack.zst",
        Some(format) => format.ending(),
    }
}
