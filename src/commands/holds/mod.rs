//! `prof holds`: who holds the live blocks, and how much would go with whom.

mod export;
mod looked;
mod roots;
mod save;

use super::by_process::{ByProcess, each_of_these, processes};
use super::input::SymbolArgs;
use super::input::{IndexArgs, Locate, resolve, say_losses};
use super::reach::scan::ScanArgs;
use super::reach::{Snapshot, time_limit};
use super::report::{Format, print};
use crate::failure::usage;
use crate::family::joined::Member;
use crate::term;
use anyhow::Result;
use clap::{Args, ValueEnum};
use looked::Looked;
use prof_analyze::holds::{Comparison, HoldsData, HoldsOptions, Wanted};
use prof_analyze::report::Style;
use prof_os::Pid;
use prof_trace::shared::MARK_NAME;
use prof_trace::values::parse;
use prof_trace::values::text::count;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Number of roots and of stacks that are shown.
const TOP: usize = 10;
/// Number of levels below a root that are shown.
const DEPTH: usize = 4;
/// Maximum number of these levels. Readers of JSON refuse more than some 100 nested levels, and a hostile heap would
/// have as many levels as stacks.
const DEEPEST: usize = 50;

/// Parts of the report that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Roots, with what hangs on each, and stacks
    Both,
    /// Roots only
    Root,
    /// Stacks only
    Stack,
}

/// Show who holds the live blocks of a recorded process, and how much would go with whom
///
/// Reads the process's memory and registers from outside, and follows all that looks like a pointer to a recorded block.
/// What a variable, a stack, or the blocks of one call stack *retain* is all that only they lead to: it would be
/// unreachable without them. Only blocks that were allocated since the attach are
/// known, or all with --census; other memory is a root.
///
/// With --save the scan becomes part of the recording, where `prof holds FILE` shows it later and elsewhere.
#[derive(Args, Clone, Debug)]
pub(crate) struct HoldsArgs {
    /// The id of a process that is being recorded, or a recording with a scan [default: the newest recording in the
    /// current folder]
    #[arg(value_name = "PID|FILE")]
    pub input: Option<String>,

    /// Show this scan of the recording: its number, its name, or `last` [default for a file: last]
    #[arg(long, value_name = "N|NAME")]
    pub scan: Option<String>,

    /// Show what came to be held by whom, and what is not held any more, since this scan of the recording
    #[arg(long, value_name = "N|NAME")]
    pub since_scan: Option<String>,

    /// Write the scan into the recording, under a name if one is given
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "",
        value_parser = scan_name)]
    pub save: Option<String>,

    /// How many roots and how many call stacks to show; 0 shows all
    #[arg(short = 'n', long, value_name = "N", default_value_t = TOP)]
    pub top: usize,

    /// What to list
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = By::Both)]
    pub by: By,

    /// How many levels of blocks to show below a root; 0 shows all, 50 at most
    #[arg(long, value_name = "N", default_value_t = DEPTH)]
    pub depth: usize,

    /// Show a shortest chain of pointers from a root to this block, or to a block of this stack: an address such as
    /// 0x55d0c3a2, or the number behind `stack` in the report
    #[arg(long, value_name = "BLOCK|STACK", value_parser = wanted)]
    pub path: Vec<Wanted>,

    /// How the process is looked at: `stop` stops all threads for the time of reading, so that all pointers are of one
    /// moment; with `none` the process runs meanwhile, and what it changes may be seen in part [default: auto]
    #[arg(long, value_name = "HOW", value_enum)]
    pub snapshot: Option<Snapshot>,

    /// Show blocks from before the attach as blocks, too, and not as roots: all threads are stopped while the heap of
    /// glibc's allocator is walked
    #[arg(long)]
    pub census: bool,

    /// Write to this file instead of printing: NAME.html, a page to open in a browser; NAME.json, NAME.csv or NAME.parquet, all
    /// roots, blocks and pointers (with CSV and Parquet, pointers are in NAME.pointers.csv or .parquet); NAME.hprof, a heap dump
    /// for Eclipse MAT and VisualVM
    #[arg(long, value_name = "FILE", value_parser = export::parse, conflicts_with = "since_scan")]
    pub export: Option<PathBuf>,

    /// Replace the file of --export if there is one
    #[arg(long, requires = "export")]
    pub force: bool,

    /// Time for everything [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    pub timeout: Option<Duration>,

    /// Of the folder of a family, take this process
    #[arg(long, help_heading = "Families", value_name = "PID")]
    pub pid: Option<Pid>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub by_process: ByProcess,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub how: ScanArgs,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub symbols: SymbolArgs,
}

/// Parses what a chain shall lead to.
///
/// # Errors
/// A message that says what is wrong with the text.
fn wanted(text: &str) -> Result<Wanted, String> {
    if text.starts_with("0x") {
        return parse::address(text).map(Wanted::Block);
    }
    text.parse().map(Wanted::Stack).map_err(|_| {
        format!("{text:?} is neither an address (0x...) nor the number of a stack in the report")
    })
}

/// Checks the name of a scan.
fn scan_name(text: &str) -> Result<String, String> {
    let is_number = text.trim_start_matches('#').parse::<usize>().is_ok();
    if text.len() > MARK_NAME {
        return Err(format!("a scan's name has at most {MARK_NAME} bytes"));
    }
    if text.starts_with('-') {
        return Err("a scan's name begins with no dash, as options do".into());
    }
    if text == "last" || is_number || text.trim() != text || text.contains(char::is_control) {
        return Err("a scan's name is no number, not `last`, and has no line breaks".into());
    }
    Ok(text.to_owned())
}

/// Default time limit of the command.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Options for reading a running process.
#[derive(Clone, Copy, Debug)]
struct Live {
    snapshot: Snapshot,
    timeout: Duration,
}

impl HoldsArgs {
    /// Returns the process that is asked about as it is now; `None`: a scan of a recording is wanted.
    pub(crate) fn pid(&self) -> Option<Pid> {
        let is_saved = self.scan.is_some() || self.since_scan.is_some() || self.pid.is_some();
        let name = self.input.as_deref().filter(|name| !is_saved && !Path::new(name).exists())?;
        name.parse().ok().filter(|p| *p > Pid::NONE)
    }

    /// Refuses options on how a process is looked at where a scan of a recording is wanted.
    fn check_saved(&self) -> Result<()> {
        let wanted = [("--scan", &self.scan), ("--since-scan", &self.since_scan)];
        let wanted = wanted.iter().find(|(_, of)| of.is_some()).map_or("", |(option, _)| option);
        let given = [
            ("--save", self.save.is_some()),
            ("--snapshot", self.snapshot.is_some()),
            ("--census", self.census),
            ("--timeout", self.timeout.is_some()),
            ("--pointer-mask", self.how.pointer_mask.is_some()),
            ("--max-cpu", self.how.max_cpu.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) if !wanted.is_empty() => Err(usage(format!(
                "{option} is for a process that is looked at now, and {wanted} for scans that are in its recording: \
                 look with `prof holds PID --save` first, then ask with {wanted}"
            ))),
            Some((option, _)) => Err(usage(format!(
                "{option} is for a process that is looked at now: `prof holds PID`; this is a scan of a recording"
            ))),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// If the process is not recorded, can't be read, or its blocks are not known; if the recording has no such scan.
pub(crate) fn run(args: &HoldsArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if let Some(pid) = args.pid() {
        if args.by_process.by_process {
            return Err(usage("--by-process is about the folder of a family, and its saved scans"));
        }
        let live = Live {
            snapshot: args.snapshot.unwrap_or(Snapshot::Auto),
            timeout: args.timeout.unwrap_or(TIMEOUT),
        };
        let until = Instant::now() + live.timeout;
        let mut looked = Looked::now(pid, args, &live)?;
        show(args, &mut looked)?;
        if let Some(name) = &args.save {
            term::say(&save::save(&looked, name, until)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    args.check_saved()?;
    if args.by_process.by_process {
        return each_process(args, locate);
    }
    let path = resolve(args.input.as_deref(), locate)?;
    let index = IndexArgs {
        symbols: args.symbols.clone(),
        pid: args.pid.into_iter().collect(),
        ..IndexArgs::plain()
    }
    .open_one(&path)?;
    say_losses(index.analysis());
    let wanted = args.scan.as_deref().unwrap_or("last");
    let mut looked = Looked::saved(&index, args, wanted)?;
    match &args.since_scan {
        None => show(args, &mut looked)?,
        Some(old) => {
            let old = Looked::saved(&index, args, old)?;
            let top = if args.top == 0 { usize::MAX } else { args.top };
            let Looked { of, analysis, names, .. } = &mut looked;
            let comparison = Comparison::new((&old.of, of), analysis, names, top);
            print(&match args.format {
                Format::Text => comparison.text(style()),
                Format::Json => comparison.json(),
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the saved scans of each process. Processes without a scan are counted on standard error.
fn each_process(args: &HoldsArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.export.is_some() {
        return Err(usage(
            "--by-process prints a report of each process; --export writes one file, so it wants --pid",
        ));
    }
    let mut all = processes(args.input.as_deref(), args.pid.as_slice(), locate)?;
    let before = all.len();
    let index = IndexArgs { symbols: args.symbols.clone(), ..IndexArgs::plain() };
    let has_scan = |m: &Member| Ok(!index.open(&m.path)?.analysis().meta().scans.is_empty());
    let have = all.iter().map(has_scan).collect::<Result<Vec<bool>>>()?;
    let mut have = have.into_iter();
    all.retain(|_| have.next() == Some(true));
    if all.is_empty() {
        return Err(usage(
            "no process of the family has a scan; `prof holds PID --save` makes one",
        ));
    }
    if all.len() < before {
        let n = count((before - all.len()) as u64, "process has", "processes have");
        term::say(&format!("{n} no scan; `prof holds PID --save` makes one"));
    }
    each_of_these(&all, args.format, |path| {
        let by_process = ByProcess::default();
        run(&HoldsArgs { input: Some(path), by_process, pid: None, ..args.clone() }, locate)
    })
}

fn style() -> Style {
    Style { color: term::color(), width: term::width(), ..Style::default() }
}

/// Prints the report.
fn show(args: &HoldsArgs, looked: &mut Looked<'_>) -> Result<()> {
    check(args, looked)?;
    let options = HoldsOptions {
        roots: args.by != By::Stack,
        stacks: args.by != By::Root,
        top: if args.top == 0 { usize::MAX } else { args.top },
        depth: if args.depth == 0 { DEEPEST } else { args.depth.min(DEEPEST) },
        paths: &args.path,
        style: style(),
    };
    let Looked { of, analysis, names, .. } = &mut *looked;
    let report = HoldsData::new(of, analysis, names, &options);
    if let Some(path) = &args.export {
        let written = export::write(path, looked, &report, args.force)?;
        written.iter().for_each(|p| term::path(p));
        return Ok(());
    }
    print(&match args.format {
        Format::Text => report.text(style()),
        Format::Json => report.json(),
    })
}

/// Refuses chains to blocks and stacks that do not exist.
fn check(args: &HoldsArgs, looked: &Looked<'_>) -> Result<()> {
    let (lies, more) = match looked.of.saved {
        None => ("lies there now", "; --census adds those from before the attach"),
        Some(_) => ("lay there", ""),
    };
    match args.path.iter().find(|w| !w.is_in(&looked.of.heap)) {
        None => Ok(()),
        Some(Wanted::Block(at)) => {
            Err(usage(format!("--path {at:#x}: no block that is known {lies}{more}")))
        }
        Some(Wanted::Stack(n)) => Err(usage(format!(
            "--path {n}: no live block is of that stack; the report shows each stack's number"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_scans_are_not_numbers() {
        for good in ["", "before deploy", "a1", "é"] {
            assert_eq!(scan_name(good), Ok(good.to_owned()));
        }
        for bad in ["1", "#1", "last", " a", "a\nb", "-a"] {
            assert!(scan_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn chains_lead_to_addresses_or_numbers_of_stacks() {
        assert_eq!(wanted("0x10"), Ok(Wanted::Block(16)));
        assert_eq!(wanted("10"), Ok(Wanted::Stack(10)));
        assert!(wanted("").is_err() && wanted("main").is_err() && wanted("-1").is_err());
    }
}
