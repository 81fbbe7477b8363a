//! `prof export`: writes a recording in the formats of other tools.

use super::by_process::{each_file, of_one};
use super::input::{InputArgs, Locate, say_losses};
use super::report::{Of, given, moment};
use crate::failure::usage;
use crate::part::Part;
use crate::term::say;
use anyhow::Result;
use clap::Args;
use prof_analyze::Analysis;
use prof_analyze::export::{Cost, ExportError, Format, Output, Packing, Source};
use prof_analyze::maps::Held;
use prof_trace::values::parse::{Time, time};
use std::io::{BufWriter, ErrorKind, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write a recording in the format of another tool
///
/// The filters choose the blocks; --cost chooses the number in formats that have only one for each
/// stack (folded, flamegraph, speedscope, firefox), and what html shows first.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArgs {
    /// The format
    #[arg(value_name = "FORMAT", value_enum)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: InputArgs,

    /// The file to write to, compressed if its name ends in .gz or .zst; it must not exist; - and /dev/stdout are
    /// standard output [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Write a file for each process of a family: the name must contain {pid}, in whose place the process's id stands
    #[arg(long, help_heading = "Families", requires = "output")]
    pub by_process: bool,

    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    pub force: bool,

    /// The version of json: 2 has an array for each block, and each frame once; 1 an object for each block,
    /// and each stack in full
    #[arg(long, value_name = "VERSION", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub json_version: u8,

    /// The figure that each stack is shown by
    #[arg(long, value_name = "COST", value_enum, default_value_t = Cost::Live)]
    pub cost: Cost,

    /// The memory to export: blocks of the heap; mappings, the allocator's included, with what is resident of them; or
    /// both, each byte once
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Of::Heap)]
    pub what: Of,

    /// The figures as they were at this time, as if the recording had ended there
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub at: Option<Time>,
}

/// Runs the command.
///
/// # Errors
/// If the recording can't be read, or the output can't be written.
pub(crate) fn run(args: &ExportArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.by_process {
        return each_process(args, locate);
    }
    // Standard output by any name.
    let output = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let shows = output.is_none_or(|path| path == Path::new("/dev/stdout"));
    if args.kind_is_binary() && shows && std::io::stdout().is_terminal() {
        return Err(usage("this format is not for terminals; give a file with -o"));
    }
    let index = args.input.open(locate)?;
    say_losses(index.analysis());
    let query = args.input.query(&index)?;
    let analysis = index.analysis();
    let at = args.at.map(|t| moment(analysis, "--at", t)).transpose()?;
    let filter = given(&args.input.filter.0);
    if args.what == Of::Heap && args.is_sum() {
        let chosen = query.analysis(at)?;
        if of(args.cost, &chosen) == 0 {
            say(nothing(args.cost));
        } else if args.cost == Cost::Peak && has_left_out(analysis) {
            // Those that were left out had their part in the peak.
            let peak = query.analysis(Some(chosen.totals().peak_ticks))?;
            if of(Cost::Live, &peak) == 0 {
                say(
                    "the recording has none of the blocks that were live at the peak (--cull, --on-limit, prof strip), so there \
                     is nothing in this export; --cost allocated shows what was allocated",
                );
            }
        }
    }
    let maps = args.what.maps(&index, &args.input.filter.0)?;
    let held = match &maps {
        Some((maps, filter)) => Some(Held::new(&index, maps, args.what.what(), filter.clone())?),
        None => None,
    };
    if maps.as_ref().is_some_and(|(maps, _)| !maps.is_recorded()) {
        say("the recording does not tell of mappings, so there are none in this export");
    }
    let held = held.as_ref();
    let source = Source { index: &index, query: &query, at, cost: args.cost, filter, held };
    let format = match (args.format, args.json_version) {
        (Format::Json, 1) => Format::JsonObjects,
        (format, _) => format,
    };
    let written = match output {
        None => source.write(format, &mut BufWriter::new(std::io::stdout().lock())),
        Some(path) => {
            if is_same_file(path, &analysis.path()) {
                return Err(usage(format!("{} is the recording itself", path.display())));
            }
            let part = Part::create(path, args.force, "--force replaces it")?;
            let packing = if is_packed(args.format) { None } else { Packing::of(path) };
            let mut out = Output::new(BufWriter::new(&part.file), packing)?;
            source.write(format, &mut out).and_then(|()| Ok(out.finish()?)).and_then(|()| {
                part.keep()?;
                Ok(())
            })
        }
    };
    match written {
        // The reader of the pipe has closed it, which is no error.
        Err(ExportError::Write(e)) if e.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e @ (ExportError::NoMappings | ExportError::OneTable)) => Err(usage(e.to_string())),
        other => other.map(|()| ExitCode::SUCCESS).map_err(Into::into),
    }
}

/// Writes a file for each process of a family.
fn each_process(args: &ExportArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let input = (args.input.input.as_deref(), &args.input.index.pid[..]);
    each_file(input, args.output.as_deref(), locate, |path, output| {
        let mut one = ExportArgs { by_process: false, output: Some(output), ..args.clone() };
        (one.input.input, one.input.index) = (Some(path), of_one(&args.input.index)?);
        run(&one, locate).map(|_| ())
    })
}

/// Returns whether blocks were left out of a recording that has others.
fn has_left_out(analysis: &Analysis) -> bool {
    analysis.meta().lacks_blocks() && !analysis.meta().is_aggregated()
}

/// Returns the total of the chosen figure.
fn of(cost: Cost, analysis: &Analysis) -> u64 {
    let f = &analysis.totals().figures;
    match cost {
        Cost::Live | Cost::Leaked => f.live_bytes,
        Cost::Peak => f.peak_bytes,
        Cost::Allocated => f.allocated_bytes,
        Cost::Allocations => f.allocations + f.reallocations,
        Cost::Temporary => f.temporary,
    }
}

/// Returns why an export is empty.
fn nothing(cost: Cost) -> &'static str {
    match cost {
        Cost::Live | Cost::Leaked => {
            "none of these blocks is live then, so there is nothing in this export; --cost peak or --cost allocated shows what was"
        }
        Cost::Temporary => "none of these blocks was temporary, so there is nothing in this export",
        Cost::Peak | Cost::Allocated | Cost::Allocations => {
            "there are no such blocks in the recording, so there is nothing in this export"
        }
    }
}

/// Returns whether two paths lead to the same existing file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let id = |p: &Path| std::fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
    id(a).is_some_and(|a| id(b) == Some(a))
}

/// Returns whether the format itself is compressed.
fn is_packed(format: Format) -> bool {
    matches!(format, Format::Pprof | Format::Parquet | Format::ParquetStacks)
}

impl ExportArgs {
    /// Returns whether the format has one number for each stack, and omits stacks where it is 0.
    fn is_sum(&self) -> bool {
        matches!(self.format, Format::Folded | Format::Flamegraph | Format::Speedscope)
    }

    fn kind_is_binary(&self) -> bool {
        use Format::{Parquet, ParquetStacks, Pprof, Replay};
        matches!(self.format, Pprof | Replay | Parquet | ParquetStacks)
    }
}
