//! `prof diff`: compares two recordings.

use super::input::{FilterArgs, IndexArgs, Locate, resolve};
use super::report::{Format, given, print};
use crate::failure::usage;
use crate::term;
use anyhow::Result;
use clap::Args;
use prof_analyze::diff::{Diff, DiffOptions};
use prof_analyze::query::Query;
use prof_analyze::report::Style;
use std::process::ExitCode;

/// Compare two recordings: which call stacks hold more, and which less
///
/// Stacks are matched by module, function and offset, not by address, so the recordings can be of two runs; where a
/// module was rebuilt between them, by function alone. The filters apply to both. To compare two moments of one
/// recording see `prof report --base`.
#[derive(Args, Clone, Debug)]
pub struct DiffArgs {
    /// The recording, or process, to compare with
    #[arg(value_name = "BEFORE")]
    pub before: String,

    /// The recording, or process, to compare
    #[arg(value_name = "AFTER")]
    pub after: String,

    /// How many call stacks to show; 0 shows all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: FilterArgs,
}

/// Runs the command.
///
/// # Errors
/// If a recording can't be read, or standard output can't be written to.
pub fn run(args: &DiffArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let analysis = |name: &str| {
        let index = args.index.open(&resolve(Some(name), locate)?)?;
        let query = Query::new(&index, &args.filter.0).map_err(|e| usage(e.to_string()))?;
        anyhow::Ok(query.analysis(None)?)
    };
    let (before, after) = (analysis(&args.before)?, analysis(&args.after)?);
    let options = DiffOptions { top: args.top, filter: given(&args.filter.0) };
    show(&Diff::new(&before, &after, &options), args.format)
}

/// Prints a comparison.
///
/// # Errors
/// If standard output can't be written to.
pub fn show(diff: &Diff, format: Format) -> Result<ExitCode> {
    print(&match format {
        Format::Text => diff.text(Style { color: term::color(), width: term::width() }),
        Format::Json => diff.json() + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}
