//! `prof report`: shows which stacks hold the memory.

use super::diff;
use super::input::{InputArgs, Locate, of_one};
use crate::failure::usage;
use crate::term;
use anyhow::{Context, Result};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use prof_analyze::diff::{Diff, DiffOptions};
use prof_analyze::maps::{Beside, Held, MapFilter, Maps, What, map_filter};
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::{
    Ask, FilterData, GroupBy, Grouped, Histogram, Merged, OverTime, Report, ReportOptions, SortKey,
    Stats, Style, Tree, ViewOptions,
};
use prof_analyze::{Analysis, Index};
use prof_trace::ticks::Ticks;
use prof_trace::values::parse::{Time, time};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Show which call stacks hold the memory
///
/// Reads a recording, also one that is still growing, and shows the call stacks that hold the most
/// memory. The figures count what was allocated while recording was on.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,

    /// How many call stacks to show; 0 shows all [default: 10, without those whose sort key is 0]
    #[arg(short = 'n', long, value_name = "N")]
    pub top: Option<usize>,

    /// The key to sort by, largest first
    #[arg(short, long, value_name = "KEY", value_enum, default_value_t = SortKey::Size)]
    pub sort: SortKey,

    /// Smallest first
    #[arg(long)]
    pub reverse: bool,

    /// Sort by temporary allocations: those that were freed by the next event of their thread
    #[arg(long, conflicts_with = "sort")]
    pub temporary: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub view: ViewArgs,

    /// Show the figures at this time since the start (30 or 30s, 4h3m2s, N%), as if the recording had ended there
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "peak")]
    pub at: Option<Time>,

    /// Show the figures at the peak of live bytes
    #[arg(long)]
    pub peak: bool,

    /// Show what has grown and shrunk since this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub base: Option<Time>,

    /// Show the figures of each process of a family, a line each
    #[arg(long, help_heading = "Families", conflicts_with_all = ["one-view", "bottom_up", "base"])]
    pub by_process: bool,

    /// The memory to show: blocks of the heap; mappings, the allocator's included; or both, each byte once
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Of::Heap, conflicts_with = "one-view")]
    pub what: Of,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Print the question as a script for `prof script`, and don't answer it
    #[cfg(feature = "script")]
    #[arg(long, conflicts_with_all = ["one-view", "bottom_up", "reverse", "at", "peak", "base", "what", "format"])]
    pub as_script: bool,
}

/// The memory to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Of {
    /// Blocks of the heap
    Heap,
    /// Mappings, the allocator's included
    Maps,
    /// Blocks, and mappings that are not the allocator's
    All,
}

impl Of {
    /// Returns the memory as the analysis names it.
    pub(crate) fn what(self) -> What {
        match self {
            Self::Heap => What::Heap,
            Self::Maps => What::Maps,
            Self::All => What::All,
        }
    }

    /// Returns the mappings of a recording that match the filter; `None` if blocks alone are asked for.
    ///
    /// # Errors
    /// If the recording can't be read, or mappings have no such filter.
    pub(crate) fn maps(self, index: &Index, filter: &Filter) -> Result<Option<(Maps, MapFilter)>> {
        if self == Self::Heap {
            return Ok(None);
        }
        of_one(index)?;
        let filter = map_filter(filter).map_err(|e| usage(e.to_string()))?;
        filter.check(index.analysis().meta()).map_err(usage)?;
        Ok(Some((Maps::of(index.analysis())?, filter)))
    }
}

/// Options that choose how blocks are grouped.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = true)]
pub(crate) struct ViewArgs {
    /// Group the blocks, and show the figures of each group
    #[arg(long, help_heading = "Views", value_name = "WHAT", value_enum, group = "one-view")]
    pub group_by: Option<Grouping>,
    /// Group the stacks by the place that asked for memory, and show the largest stacks of each
    #[arg(long, help_heading = "Views", group = "one-view")]
    pub merge: bool,
    /// Show the stacks as a tree, from the start of the threads inwards (--top: children of a node)
    #[arg(long, help_heading = "Views", group = "one-view")]
    pub tree: bool,
    /// Show blocks by their size
    #[arg(long, help_heading = "Views", group = "one-view")]
    pub histogram: bool,
    /// Show what each thread allocated and freed; the same as --group-by thread
    #[arg(long, help_heading = "Views", group = "one-view")]
    pub threads: bool,
    /// Show rates, sizes, lifetimes, and the places that allocate the most (--top: of each list)
    #[arg(long, help_heading = "Views", group = "one-view", conflicts_with = "base")]
    pub stats: bool,
    /// Show live bytes and the process's memory over time: resident, mapped by kind, anonymous, dirty, clean, swapped
    /// out (--top: number of parts of the time, 20 by default)
    #[arg(
        long,
        help_heading = "Views",
        group = "one-view",
        conflicts_with_all = ["base", "at", "peak"]
    )]
    pub over_time: bool,
    /// Show the tree from the functions that asked for memory outwards
    #[arg(
        long,
        help_heading = "Views",
        conflicts_with_all = ["group_by", "merge", "histogram", "threads", "stats", "over_time"]
    )]
    pub bottom_up: bool,
    /// How many levels of a tree, or frames of a stack, to show; 0 shows all
    #[arg(long, help_heading = "Views", value_name = "N", default_value_t = 0)]
    pub depth: usize,
    /// With --merge: how many stacks to show of each place; 0 shows all
    #[arg(long, help_heading = "Views", value_name = "N", default_value_t = 5)]
    pub paths: usize,
}

/// The value of `--group-by`: by stacks, as the plain report does, or by the classes of another view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// The stack that asked for them.
    Stack,
    /// A class of blocks.
    By(GroupBy),
}

impl ValueEnum for Grouping {
    fn value_variants<'a>() -> &'a [Self] {
        use GroupBy::{File, Function, Module, Thread};
        &[Self::Stack, Self::By(Function), Self::By(File), Self::By(Module), Self::By(Thread)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Stack => Some(PossibleValue::new("stack").help("The stack that asked for them")),
            Self::By(by) => by.to_possible_value(),
        }
    }
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs; the numbers are those of the text
    Json,
}

/// Runs the command. `locate` returns the recording of a process that is being recorded.
///
/// # Errors
/// If the recording can't be read, or standard output can't be written to.
pub(crate) fn run(args: &ReportArgs, locate: Locate<'_>) -> Result<ExitCode> {
    #[cfg(feature = "script")]
    if args.as_script {
        let filter = args.input.filter.0.given();
        let sort = args.sort().name();
        let text = prof_script::report_script(filter, args.top, sort).map_err(usage)?;
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.by_process {
        return super::by_process::report(args, locate);
    }
    let index = args.input.open(locate)?;
    let query = args.input.query(&index)?;
    let style = Style { color: term::color(), width: term::width(), ..Style::default() };
    if let Some(view) = args.view() {
        let text = args.show(view, &index, &query, style)?;
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let analysis = query.analysis(args.moment(&index)?)?;
    if let Some(base) = args.base {
        let base = moment(index.analysis(), "--base", base)?;
        let before = query.analysis(Some(base))?;
        let filter = given(&args.input.filter.0);
        let options = DiffOptions { top: args.top.unwrap_or(10), filter };
        let mut diff = Diff::new(&before, &analysis, &options);
        let moments = [(&index, Some(base)), (&index, args.moment(&index)?)];
        diff.maps = diff::maps(args.what, &args.input.filter.0, moments, options.top)?;
        return diff::show(&diff, args.format);
    }
    let options = ReportOptions {
        top: args.top.unwrap_or(10),
        sort: args.sort(),
        reverse: args.reverse,
        empty: args.top.is_some(),
        depth: args.view.depth,
        filter: given(&args.input.filter.0),
    };
    let mut report = Report::new(&analysis, &options);
    let what = args.what.what();
    if let Some((maps, filter)) = args.what.maps(&index, &args.input.filter.0)? {
        let held = Held::new(&index, &maps, what, filter)?;
        let at = args.moment(&index)?;
        report.maps = Some(Beside::new(index.analysis(), &held, at, options.top));
    }
    let text = match (args.format, &report.maps) {
        (Format::Text, Some(maps)) if what == What::Maps => {
            report.head.text(style) + maps.text(style).as_str()
        }
        (Format::Text, Some(maps)) => report.text(style) + maps.text(style).as_str(),
        (Format::Text, None) => report.text(style),
        (Format::Json, _) => report.json() + "\n",
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// A view other than the list of stacks.
#[derive(Clone, Copy)]
enum View {
    Grouped(GroupBy),
    Merged,
    Tree,
    Histogram,
    Stats,
    OverTime,
}

impl ReportArgs {
    /// Returns the key to sort by.
    pub(super) fn sort(&self) -> SortKey {
        if self.temporary { SortKey::Temporary } else { self.sort }
    }

    /// Returns the view that the options ask for; `None`: the list of stacks.
    fn view(&self) -> Option<View> {
        let v = &self.view;
        if let Some(by) = v.group_by {
            return match by {
                Grouping::Stack => None,
                Grouping::By(by) => Some(View::Grouped(by)),
            };
        }
        let views = [
            (v.merge, View::Merged),
            (v.tree || v.bottom_up, View::Tree),
            (v.histogram, View::Histogram),
            (v.stats, View::Stats),
            (v.over_time, View::OverTime),
            (v.threads, View::Grouped(GroupBy::Thread)),
        ];
        views.into_iter().find(|(asked, _)| *asked).map(|(_, view)| view)
    }

    fn show(&self, view: View, index: &Index, query: &Query<'_>, style: Style) -> Result<String> {
        let at = self.moment(index)?;
        let base = self.base.map(|t| moment(index.analysis(), "--base", t)).transpose()?;
        if let (Some(base), Some(at)) = (base, at)
            && base > at
        {
            return Err(usage("--base is later than the moment that it is the base for"));
        }
        let sort = self.sort();
        if matches!(view, View::Tree) && !sort.is_of_trees() {
            let name = sort.name();
            return Err(usage(format!(
                "--sort {name}: a tree has no peaks of its own, as those of stacks lie at different \
                 times; --peak --tree shows the moment at which the most bytes were live"
            )));
        }
        let options = ViewOptions {
            top: self.top.unwrap_or(if matches!(view, View::Stats) { 5 } else { 10 }),
            sort,
            reverse: self.reverse,
            empty: self.top.is_some(),
            at,
            base,
            paths: self.view.paths,
            depth: self.view.depth,
            bottom_up: self.view.bottom_up,
            filter: given(&self.input.filter.0),
        };
        let ask = Ask::new(index, query, options)?;
        let json = self.format == Format::Json;
        macro_rules! show {
            ($made:expr) => {{
                let made = $made;
                if json { made.json() + "\n" } else { made.text(style) }
            }};
        }
        Ok(match view {
            View::Grouped(by) => show!(Grouped::new(&ask, by)?),
            View::Merged => show!(Merged::new(&ask)?),
            View::Tree => show!(Tree::new(&ask)),
            View::Histogram => show!(Histogram::new(&ask)?),
            View::Stats => show!(Stats::new(&ask)?),
            View::OverTime => {
                let maps = Maps::of(index.analysis())?;
                show!(OverTime::new(&ask, &maps, self.top.unwrap_or(0))?)
            }
        })
    }

    /// Returns the ticks of the moment that the options ask for.
    fn moment(&self, index: &Index) -> Result<Option<Ticks>> {
        let analysis = index.analysis();
        if self.peak {
            return Ok(Some(analysis.totals().peak_ticks));
        }
        self.at.map(|t| moment(analysis, "--at", t)).transpose()
    }
}

/// Converts a moment to ticks of the recording.
///
/// # Errors
/// If the moment is after the recording's end.
pub(crate) fn moment(analysis: &Analysis, option: &str, time: Time) -> Result<Ticks> {
    let ns = time.within(analysis.duration_ns(), option).map_err(usage)?;
    Ok(analysis.ticks_at(ns))
}

/// Converts a filter to the form in reports.
pub(crate) fn given(filter: &Filter) -> Vec<FilterData> {
    let data = |(name, value): &(&str, String)| FilterData {
        name: (*name).to_owned(),
        value: value.clone(),
    };
    filter.given().iter().map(data).collect()
}

/// Prints to standard output.
///
/// # Errors
/// If it can't be written to. A reader that has closed the pipe is no error.
pub(crate) fn print(text: &str) -> Result<()> {
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
        for sort in SortKey::value_variants() {
            let name = sort.to_possible_value().map(|v| v.get_name().to_owned());
            assert_eq!(name.as_deref(), Some(sort.name()));
        }
    }

    #[test]
    fn every_format_has_the_name_that_the_analysis_gives_it() {
        use prof_analyze::export::Format;
        assert_eq!(Format::value_variants(), Format::ALL);
        for format in Format::ALL {
            let name = format.to_possible_value().map(|v| v.get_name().to_owned());
            assert_eq!(name.as_deref(), Some(format.name()));
        }
    }
}
