//! `prof holds`: who holds the live blocks, and how much would go with whom.

mod report;
mod roots;

use super::input::SymbolArgs;
use super::reach::before::{BEFORE, LABEL};
use super::reach::ledger::Ledger;
use super::reach::scan::{ScanArgs, failed};
use super::reach::{Snapshot, time_limit};
use super::record::pid;
use super::report::{Format, print};
use crate::failure::usage;
use crate::term;
use anyhow::Result;
use clap::{Args, ValueEnum};
use prof_analyze::live::Names;
use prof_analyze::report::Style;
use prof_os::Pid;
use prof_scan::Heap;
use prof_trace::values::parse;
use report::{HoldsData, ReportOptions};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Number of roots and of stacks that are shown.
const TOP: usize = 10;
/// Number of levels below a root that are shown.
const DEPTH: usize = 4;
/// The most of them: readers of JSON refuse what is nested more than some 100 times, and a hostile heap would nest it as
/// often as it has stacks.
const DEEPEST: usize = 50;

/// What is listed.
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
#[derive(Args, Clone, Debug)]
pub(crate) struct HoldsArgs {
    /// The id of a process that is being recorded
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: Pid,

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
    /// moment; with `none` the process runs meanwhile, and what it changes may be seen in part
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Snapshot::Auto)]
    pub snapshot: Snapshot,

    /// Show blocks from before the attach as blocks, too, and not as roots: all threads are stopped while the heap of
    /// glibc's allocator is walked
    #[arg(long)]
    pub census: bool,

    /// Time for everything
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time_limit)]
    pub timeout: Duration,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub scan: ScanArgs,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub symbols: SymbolArgs,
}

/// What a chain of pointers shall lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A block, by an address in it.
    Block(u64),
    /// Any block of a stack, by the stack's number in the recording.
    Stack(u32),
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

/// Runs the command.
///
/// # Errors
/// If the process is not recorded, can't be read, or its blocks are not known.
pub(crate) fn run(args: &HoldsArgs) -> Result<ExitCode> {
    let mut names = Names::new(args.symbols.options()?);
    let mut ledger = Ledger::open(args.pid, Instant::now() + args.timeout)?;
    if args.census {
        ledger.add_census(args.snapshot.of_census())?;
        names.put_note(BEFORE, LABEL);
    }
    let mut scanner = args.scan.open(args.pid)?;
    let until = ledger.until;
    let mut heap = scanner.survey(&mut ledger, args.snapshot.stop(), until).map_err(failed)?;
    heap.renumber_stacks(|group| ledger.node_of(group));
    check(args, &heap)?;
    let style = Style { color: term::color(), width: term::width() };
    let options = ReportOptions {
        by: args.by,
        top: if args.top == 0 { usize::MAX } else { args.top },
        depth: if args.depth == 0 { DEEPEST } else { args.depth.min(DEEPEST) },
        paths: &args.path,
    };
    let report = HoldsData::new(&ledger, &scanner, &mut heap, &mut names, &options)?;
    print(&match args.format {
        Format::Text => report.text(style),
        Format::Json => report.json(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses chains to what is not there.
fn check(args: &HoldsArgs, heap: &Heap) -> Result<()> {
    for wanted in &args.path {
        match *wanted {
            Wanted::Block(at) if heap.block_at(at).is_none() => {
                return Err(usage(format!(
                    "--path {at:#x}: no block that is known lies there now; --census adds those from before the attach"
                )));
            }
            Wanted::Stack(n) if !heap.has_stack(n) => {
                return Err(usage(format!(
                    "--path {n}: no live block is of that stack; the report shows each stack's number"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_lead_to_addresses_or_numbers_of_stacks() {
        assert_eq!(wanted("0x10"), Ok(Wanted::Block(16)));
        assert_eq!(wanted("10"), Ok(Wanted::Stack(10)));
        assert!(wanted("").is_err() && wanted("main").is_err() && wanted("-1").is_err());
    }
}
