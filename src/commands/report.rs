//! `prof report`: who holds the memory.

use super::diff;
use super::input::{InputArgs, Locate};
use crate::failure::usage;
use crate::term;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use prof_analyze::Index;
use prof_analyze::diff::{Diff, DiffOptions};
use prof_analyze::query::{Filter, value};
use prof_analyze::report::{FilterData, Report, ReportOptions, SortKey, Style};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Show which call stacks hold the memory
///
/// Reads a recording, also one that is still growing, and shows the call stacks that hold the most
/// memory. The figures count what was allocated while recording was on.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,

    /// How many call stacks to show; 0 shows all [default: 10, of those that have anything of
    /// what is sorted by]
    #[arg(short = 'n', long, value_name = "N")]
    pub top: Option<usize>,

    /// What to sort by, largest first
    #[arg(short, long, value_name = "KEY", value_enum, default_value_t = Sort::Size)]
    pub sort: Sort,

    /// The figures as they were at this time since the start (ms, 4h3m2s, N%), as if the recording
    /// had ended there
    #[arg(long, value_name = "TIME", conflicts_with = "peak")]
    pub at: Option<String>,

    /// The figures as they were when the most bytes were live
    #[arg(long)]
    pub peak: bool,

    /// What grew and what shrank since this time
    #[arg(long, value_name = "TIME")]
    pub base: Option<String>,

    /// How to write it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// What to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Live bytes
    Size,
    /// Live allocations
    Count,
    /// The most bytes that were live at a time
    PeakSize,
    /// The most allocations that were live at a time
    PeakCount,
    /// Bytes ever allocated
    Allocated,
    /// Number of allocations ever
    Allocations,
    /// Age of the oldest live allocation
    Age,
    /// Allocations that were freed by the next allocation event of their thread
    Temporary,
}

impl From<Sort> for SortKey {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Size => SortKey::Size,
            Sort::Count => SortKey::Count,
            Sort::PeakSize => SortKey::PeakSize,
            Sort::PeakCount => SortKey::PeakCount,
            Sort::Allocated => SortKey::Allocated,
            Sort::Allocations => SortKey::Allocations,
            Sort::Age => SortKey::Age,
            Sort::Temporary => SortKey::Temporary,
        }
    }
}

/// How to write a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs; the numbers are those of the text
    Json,
}

/// Runs the command. `locate` says where the recording of a process is that is being recorded.
///
/// # Errors
/// If the recording can't be read, or standard output not be written.
pub fn run(args: &ReportArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let index = args.input.open(locate)?;
    let query = args.input.query(&index)?;
    let analysis = query.analysis(args.moment(&index)?)?;
    if let Some(text) = &args.base {
        let before = query.analysis(Some(ticks(&index, "--base", text)?))?;
        let filter = given(&args.input.filter.0);
        let options = DiffOptions { top: args.top.unwrap_or(10), filter };
        return diff::show(&Diff::new(&before, &analysis, &options), args.format);
    }
    let options = ReportOptions {
        top: args.top.unwrap_or(10),
        sort: args.sort.into(),
        empty: args.top.is_some(),
        filter: given(&args.input.filter.0),
    };
    let report = Report::new(&analysis, &options);
    let text = match args.format {
        Format::Text => report.text(Style { color: term::color(), width: term::width() }),
        Format::Json => report.json() + "\n",
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl ReportArgs {
    /// Ticks of the moment that is asked for.
    fn moment(&self, index: &Index) -> Result<Option<u64>> {
        let analysis = index.analysis();
        if self.peak {
            return Ok(Some(analysis.totals().peak_ticks));
        }
        let Some(text) = &self.at else { return Ok(None) };
        ticks(index, "--at", text).map(Some)
    }
}

/// Ticks of a moment of a recording.
fn ticks(index: &Index, option: &str, text: &str) -> Result<u64> {
    let time = value::time(text).map_err(|e| usage(format!("{option}: {e}")))?;
    let analysis = index.analysis();
    Ok(analysis.ticks_at(time.ns(analysis.duration_ns())))
}

/// A filter as reports name it.
pub fn given(filter: &Filter) -> Vec<FilterData> {
    let data = |(name, value): &(&str, String)| FilterData {
        name: (*name).to_owned(),
        value: value.clone(),
    };
    filter.given().iter().map(data).collect()
}

/// Prints to standard output.
///
/// # Errors
/// If it can't be written; a reader who has gone away is none.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("cannot write the report"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_the_name_that_the_analysis_gives_it() {
        for sort in Sort::value_variants() {
            let name = sort.to_possible_value().map(|v| v.get_name().to_owned());
            assert_eq!(name.as_deref(), Some(SortKey::from(*sort).name()));
        }
    }
}
