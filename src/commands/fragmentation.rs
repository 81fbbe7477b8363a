//! `prof fragmentation`: finds stacks that keep sparsely used pages, and breaks down resident memory.

use super::by_process::{ByProcess, each_of};
use super::input::{InputArgs, Locate};
use super::report::{Format, given, moment, print};
use crate::failure::usage;
use crate::term;
use anyhow::Result;
use clap::Args;
use prof_analyze::fragmentation::{Fragmentation, FragmentationError, FragmentationOptions};
use prof_analyze::report::Style;
use prof_trace::values::parse::{Amount, Time, amount, time};
use std::process::ExitCode;

/// Show what resident memory consists of, and which call stacks keep pages that are hardly used
///
/// An allocator can't return a page to the kernel while there is a live block on it. For each call stack: the pages
/// that it alone keeps, and how much of them no live block uses.
#[derive(Args, Clone, Debug)]
pub(crate) struct FragmentationArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,

    /// How many call stacks to show; 0 shows all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// Call a page sparse if live blocks use less of it than this
    #[arg(long, value_name = "N%", default_value = "25%", value_parser = part)]
    pub sparse: f64,

    /// The moment [default: that of the last reading of resident memory, which is made at a detach]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub at: Option<Time>,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// Parses a part of a page: `25%`.
fn part(text: &str) -> Result<f64, String> {
    match amount(text)? {
        Amount::Part(p) if p <= 1.0 => Ok(p),
        _ => Err(format!("{text:?} is no part of a page; give one such as 25%")),
    }
}

/// Runs the command.
///
/// # Errors
/// If the recording can't be read, or is a sample; or standard output can't be written to.
pub(crate) fn run(args: &FragmentationArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.by.by_process {
        let by = ByProcess::default();
        return each_of(&args.input, args.format, locate, |input| {
            run(&FragmentationArgs { input, by, ..args.clone() }, locate)
        });
    }
    let index = args.input.open_one(locate)?;
    let query = args.input.query(&index)?;
    let analysis = index.analysis();
    let options = FragmentationOptions {
        top: args.top,
        sparse: args.sparse,
        at: args.at.map(|t| moment(analysis, "--at", t)).transpose()?,
        filter: given(&args.input.filter.0),
    };
    let found = Fragmentation::new(&index, &query, &options).map_err(|e| match e {
        FragmentationError::Sampled => usage(e.to_string()),
        FragmentationError::Scan(e) => e.into(),
    })?;
    print(&match args.format {
        Format::Text => {
            found.text(Style { color: term::color(), width: term::width(), ..Style::default() })
        }
        Format::Json => found.json() + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}
