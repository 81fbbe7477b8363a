//! `prof allocator`: shows a process's allocators.

use super::by_process::{ByProcess, each_of};
use super::input::{InputArgs, Locate, resolve, say_losses};
use super::report::{Format, given, moment, print};
use crate::failure::{refused, usage};
use crate::term;
use anyhow::Result;
use clap::Args;
use prof_analyze::allocator::{AllocatorOptions, AllocatorReport, OverheadSort};
use prof_analyze::report::Style;
use prof_os::Pid;
use prof_trace::values::parse::{Time, time};
use std::path::Path;
use std::process::ExitCode;

/// Show the allocator of a process: its settings, its arenas, what it has done, and what blocks take beyond what was
/// asked for
///
/// Of a process that is not being recorded, it shows what can be read without recording it: allocators and versions,
/// settings, arenas.
#[derive(Args, Clone, Debug)]
pub(crate) struct AllocatorArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,

    /// How many call stacks and calls to show; 0 shows all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// The order of the call stacks, most first
    #[arg(short, long, value_name = "KEY", value_enum, default_value_t = OverheadSort::Overhead)]
    pub sort: OverheadSort,

    /// The moment whose live blocks count [default: the end, or the peak if nothing is live at the end]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub at: Option<Time>,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// Returns the process that was named, if it can be looked at without a recording.
fn unrecorded(args: &AllocatorArgs, locate: Locate<'_>) -> Option<Pid> {
    let name = args.input.input.as_deref()?;
    let pid =
        name.parse::<Pid>().ok().filter(|pid| *pid > Pid::NONE && !Path::new(name).exists())?;
    let alive = prof_os::process::process_of(pid) == Some(pid);
    (alive && locate(pid).is_none() && resolve(Some(name), locate).is_err()).then_some(pid)
}

/// Runs the command.
///
/// # Errors
/// If the recording or the process can't be read, or standard output can't be written to.
pub(crate) fn run(args: &AllocatorArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.by.by_process {
        let by = ByProcess::default();
        return each_of(&args.input, args.format, locate, |input| {
            run(&AllocatorArgs { input, by, ..args.clone() }, locate)
        });
    }
    let report = match unrecorded(args, locate) {
        Some(pid) => {
            if args.at.is_some() || !args.input.filter.0.given().is_empty() {
                let message = format!(
                    "process {pid} is not being recorded, so its blocks are not known, and --at and filters have no \
                     effect; record it with `prof attach {pid}`"
                );
                return Err(usage(message));
            }
            prof_inject::has_memory(pid).map_err(|e| refused(e.to_string()))?;
            let found = prof_collect::read_allocators(pid);
            let found = found.map_err(|e| {
                usage(format!("cannot read process {pid}: {e}; to read it takes the right to trace it, as root has"))
            })?;
            AllocatorReport::of(&found, pid.as_u32())
        }
        None => recorded(args, locate)?,
    };
    print(&match args.format {
        Format::Text => {
            report.text(Style { color: term::color(), width: term::width(), ..Style::default() })
        }
        Format::Json => report.json() + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}

fn recorded(args: &AllocatorArgs, locate: Locate<'_>) -> Result<AllocatorReport> {
    let index = args.input.open_one(locate)?;
    say_losses(index.analysis());
    let query = args.input.query(&index)?;
    let at = args.at.map(|t| moment(index.analysis(), "--at", t)).transpose()?;
    let options = AllocatorOptions {
        top: args.top,
        sort: args.sort,
        at,
        filter: given(&args.input.filter.0),
    };
    Ok(AllocatorReport::new(&index, &query, &options)?)
}
