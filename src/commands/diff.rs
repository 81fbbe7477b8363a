//! `prof diff`: compares two recordings.

use super::input::{FilterArgs, IndexArgs, Locate, resolve};
use super::report::{Format, Of, given, print};
use crate::failure::usage;
use crate::term;
use anyhow::Result;
use clap::Args;
use prof_analyze::Index;
use prof_analyze::diff::{Diff, DiffOptions, MapsDiff, MapsSide};
use prof_analyze::maps::Held;
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::Style;
use prof_trace::ticks::Ticks;
use std::process::ExitCode;

/// Compare two recordings: which call stacks hold more, and which less
///
/// Stacks are matched by module, function and offset, not by address, so the recordings can be of two runs; where a
/// module was rebuilt between them, by function alone. The filters apply to both. To compare two moments of one
/// recording see `prof report --base`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiffArgs {
    /// The recording, or process, to compare with
    #[arg(value_name = "BEFORE")]
    pub before: String,

    /// The recording, or process, to compare
    #[arg(value_name = "AFTER")]
    pub after: String,

    /// How many call stacks to show; 0 shows all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub top: usize,

    /// The memory to compare: blocks of the heap; mappings, the allocator's included; or both, each byte once
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Of::Heap)]
    pub what: Of,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Compare the figures of each process of two families, a line each: a process with itself (of the same id and name), or
    /// with the next of the same name
    #[arg(long, help_heading = "Families")]
    pub by_process: bool,

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
pub(crate) fn run(args: &DiffArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let open = |name: &str| args.index.open(&resolve(Some(name), locate)?);
    let (before, after) = (open(&args.before)?, open(&args.after)?);
    let analysis = |index: &Index| {
        let query = Query::new(index, &args.filter.0).map_err(|e| usage(e.to_string()))?;
        anyhow::Ok(query.analysis(None)?)
    };
    let options = DiffOptions { top: args.top, filter: given(&args.filter.0) };
    let mut diff = Diff::new(&analysis(&before)?, &analysis(&after)?, &options);
    diff.maps = maps(args.what, &args.filter.0, [(&before, None), (&after, None)], args.top)?;
    show(&diff, args.format)
}

/// Compares the mappings of two recordings, each at a moment (`None`: the end), if they are asked for.
///
/// # Errors
/// If a recording can't be read, or mappings have no such filter.
pub(crate) fn maps(
    what: Of,
    filter: &Filter,
    [before, after]: [(&Index, Option<Ticks>); 2],
    top: usize,
) -> Result<Option<MapsDiff>> {
    let side = |(index, at): (&Index, Option<Ticks>)| -> Result<Option<_>> {
        let Some((maps, filter)) = what.maps(index, filter)? else { return Ok(None) };
        let held = Held::new(index, &maps, what.what(), filter)?.at(at);
        Ok(Some((held, maps.is_recorded())))
    };
    let (Some(a), Some(b)) = (side(before)?, side(after)?) else { return Ok(None) };
    let [a, b] = [(before.0, a), (after.0, b)].map(|(index, (held, recorded))| MapsSide {
        analysis: index.analysis(),
        held,
        recorded,
    });
    Ok(Some(MapsDiff::new(&a, &b, what.what(), top)))
}

/// Prints a comparison.
///
/// # Errors
/// If standard output can't be written to.
pub(crate) fn show(diff: &Diff, format: Format) -> Result<ExitCode> {
    print(&match format {
        Format::Text => {
            diff.text(Style { color: term::color(), width: term::width(), ..Style::default() })
        }
        Format::Json => diff.json() + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}
