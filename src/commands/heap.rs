//! `prof heap`: the blocks of a running process, whoever allocated them and whenever.

mod classes;
mod report;

use super::reach::{Snapshot, time_limit};
use super::record::pid;
use super::report::{Format, print};
use crate::failure::refused;
use crate::term;
use anyhow::Result;
use clap::Args;
use prof_analyze::report::Style;
use prof_census::{Options, take};
use prof_os::Pid;
use report::HeapData;
use std::process::ExitCode;
use std::time::Duration;

/// Time that threads get to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// Count all blocks of a running process, also those from before prof came
///
/// Walks the heaps of glibc, jemalloc, mimalloc, tcmalloc and musl from outside, by the allocator's own data: every block with its size,
/// whether the program has it, and where it is kept if it is free. The process need not be recorded, nothing is written to it, and no code of it runs.
/// Memory of other allocators counts by mapping.
#[derive(Args, Clone, Debug)]
pub(crate) struct HeapArgs {
    /// The id of a process; it need not be recorded
    #[arg(value_name = "PID", value_parser = pid)]
    pub pid: Pid,

    /// How many sizes to show, those with the most memory; 0 shows all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 15)]
    pub top: usize,

    /// Add up the blocks in use by the C++ class of the object that they begin with, as far as it has virtual functions
    #[arg(long)]
    pub classes: bool,

    /// Whether all threads are stopped for the walk, so that all figures are of one moment
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Snapshot::Auto)]
    pub snapshot: Snapshot,

    /// Time for the walk; what is not walked by then counts as lost
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time_limit)]
    pub timeout: Duration,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Runs the command.
///
/// # Errors
/// If the process is gone or can't be read, or standard output can't be written to.
pub(crate) fn run(args: &HeapArgs) -> Result<ExitCode> {
    let options =
        Options { snapshot: args.snapshot.of_census(), patience: PATIENCE, timeout: args.timeout };
    prof_inject::has_memory(args.pid).map_err(|e| refused(e.to_string()))?;
    let census = take(args.pid, &options).map_err(|e| refused(e.to_string()))?;
    let mut data = HeapData::new(args.pid, &census);
    if args.classes {
        data.classes = Some(classes::of_process(args.pid, &census)?);
    }
    let style = Style { color: term::color(), width: term::width(), ..Style::default() };
    print(&match args.format {
        Format::Text => data.text(if args.top == 0 { usize::MAX } else { args.top }, style),
        Format::Json => data.json(),
    })?;
    Ok(ExitCode::SUCCESS)
}
