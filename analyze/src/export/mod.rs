//! Exports a recording in the formats of other tools.
//!
//! Each format is written to a stream, so that only the stacks are held in memory. Formats with one number for each
//! stack take a [`Cost`].

mod dhat;
mod firefox;
mod folded;
pub mod graph;
mod grouped;
mod heaptrack;
pub mod hprof;
mod html;
mod mapped;
mod massif;
mod packing;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_table;
mod pprof;
mod profile;
pub mod replay;
mod rows;
mod speedscope;
mod table;
mod timeline;

use crate::heap::weight;
use crate::index::ScanError;
use crate::maps::{Held, HeldGroup, What};
use crate::query::Query;
use crate::report::FilterData;
use crate::{Analysis, Index};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::io::{self, Write};

pub use grouped::GroupRow;
pub use packing::{Output, Packing};
#[cfg(feature = "parquet")]
pub use parquet_table::parquet_table;
pub use profile::Profile;
pub use table::{TableColumn, Values, html_table};

/// The figure that a stack is shown by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Cost {
    /// Live bytes
    #[default]
    Live,
    /// Bytes that were never freed
    Leaked,
    /// Bytes that were live at the peak
    Peak,
    /// Bytes ever allocated
    Allocated,
    /// Number of allocations, by realloc or not
    Allocations,
    /// Number of allocations that were freed by the next event of their thread
    Temporary,
}

impl Cost {
    /// Returns the unit: `bytes` or `blocks`.
    pub fn unit(self) -> &'static str {
        match self {
            Cost::Allocations | Cost::Temporary => "blocks",
            _ => "bytes",
        }
    }

    /// Returns the name that the command line has for it.
    pub fn name(self) -> &'static str {
        match self {
            Cost::Live => "live",
            Cost::Leaked => "leaked",
            Cost::Peak => "peak",
            Cost::Allocated => "allocated",
            Cost::Allocations => "allocations",
            Cost::Temporary => "temporary",
        }
    }
}

/// An export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Format {
    /// Folded stacks, for flamegraph.pl and its like
    Folded,
    /// A flame graph as SVG, for browsers
    Flamegraph,
    /// For heaptrack_print and heaptrack_gui
    Heaptrack,
    /// For `go tool pprof`: alloc_objects, alloc_space, inuse_objects, inuse_space
    Pprof,
    /// For <https://www.speedscope.app>
    Speedscope,
    /// For ms_print and massif-visualizer
    Massif,
    /// For DHAT's dh_view.html
    Dhat,
    /// Every block, a line each
    Csv,
    /// Every block and every stack
    Json,
    /// Every block as an object, and every stack with its frames, as JSON of version 1.
    #[cfg_attr(feature = "clap", value(skip))]
    JsonObjects,
    /// One page for browsers, to attach to a ticket: timeline, flame graph, table
    Html,
    /// For <https://profiler.firefox.com>
    Firefox,
    /// The calls, for `prof replay`
    Replay,
    /// Every block, for DuckDB, Spark, ClickHouse
    Parquet,
    /// The frames of every stack, a row each
    ParquetStacks,
}

impl Format {
    /// The formats that the command line offers, in its order.
    pub const ALL: [Self; 14] = [
        Self::Folded,
        Self::Flamegraph,
        Self::Heaptrack,
        Self::Pprof,
        Self::Speedscope,
        Self::Massif,
        Self::Dhat,
        Self::Csv,
        Self::Json,
        Self::Html,
        Self::Firefox,
        Self::Replay,
        Self::Parquet,
        Self::ParquetStacks,
    ];

    /// Returns the name that the command line has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Folded => "folded",
            Self::Flamegraph => "flamegraph",
            Self::Heaptrack => "heaptrack",
            Self::Pprof => "pprof",
            Self::Speedscope => "speedscope",
            Self::Massif => "massif",
            Self::Dhat => "dhat",
            Self::Csv => "csv",
            Self::Json | Self::JsonObjects => "json",
            Self::Html => "html",
            Self::Firefox => "firefox",
            Self::Replay => "replay",
            Self::Parquet => "parquet",
            Self::ParquetStacks => "parquet-stacks",
        }
    }

    /// Returns the ending of a file's name, without a point in front.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Flamegraph => "svg",
            Self::Pprof => "pb.gz",
            Self::Speedscope => "speedscope.json",
            Self::Dhat => "dhat.json",
            Self::Firefox => "firefox.json",
            Self::ParquetStacks => "stacks.parquet",
            _ => self.name(),
        }
    }

    /// Returns whether the format can't express that blocks were left out of the recording.
    pub fn needs_every_block(self) -> bool {
        matches!(self, Self::Heaptrack | Self::Massif | Self::Dhat | Self::Replay)
    }

    /// Returns whether this build can write the format.
    pub fn is_built(self) -> bool {
        cfg!(feature = "parquet") || !matches!(self, Format::Parquet | Format::ParquetStacks)
    }
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The output could not be written.
    #[error("cannot write the export: {0}")]
    Write(#[from] io::Error),
    /// The index could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The format lists single events, of which the recording has only a part.
    #[error(
        "this format can't say that blocks were left out of the recording (--sample, --min-size and \
         their like); use html, pprof, folded, flamegraph, speedscope or firefox, which take estimates, or csv, json \
         or parquet, which give each block's weight"
    )]
    Partial,
    /// The format is one of blocks, and mappings are asked for.
    #[error(
        "this format has only blocks of the heap, and no mappings; use --what heap, or html, pprof, folded, flamegraph, \
         speedscope, firefox, heaptrack or json"
    )]
    NoMappings,
    /// The format is one table, and blocks and mappings are asked for.
    #[error("this format is one table, of blocks or of mappings; use --what heap or --what maps")]
    OneTable,
    /// The format is one that this build leaves out.
    #[cfg(not(feature = "parquet"))]
    #[error(
        "this prof was built without Parquet (cargo's feature parquet, which is on by default); csv and json have \
         the columns of parquet, and json those of parquet-stacks"
    )]
    NoParquet,
}

/// The input of an export.
pub struct Source<'a> {
    /// The recording.
    pub index: &'a Index,
    /// Selects the blocks.
    pub query: &'a Query<'a>,
    /// Ticks of the moment that the figures describe; `None`: the end. Formats with every event end there.
    pub at: Option<Ticks>,
    /// The figure that stacks are shown by.
    pub cost: Cost,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
    /// The mappings that are exported, and whether blocks are, too; `None`: blocks alone.
    pub held: Option<&'a Held<'a>>,
}

impl Source<'_> {
    /// Returns whether blocks are exported.
    fn has_blocks(&self) -> bool {
        self.held.is_none_or(|h| h.what != What::Maps)
    }

    /// Returns the mappings that are exported, by stack or name, with the figures of a moment.
    fn mapped_at(&self, at: Option<Ticks>) -> Vec<HeldGroup> {
        self.held.map_or(Vec::new(), |h| h.at(at).groups)
    }

    /// Returns the stacks of an analysis with their figures, as far as blocks are exported, and those of mappings at the
    /// same moment.
    fn profile_of(&self, analysis: &Analysis, at: Option<Ticks>) -> Profile {
        Profile::of(analysis, self.has_blocks(), &self.mapped_at(at))
    }

    /// Returns an error if the format can't have what is asked for.
    fn check(&self, format: Format) -> Result<(), ExportError> {
        if format.needs_every_block() && !self.index.analysis().capture().is_everything() {
            return Err(ExportError::Partial);
        }
        use Format::{Csv, Dhat, Heaptrack, Json, JsonObjects, Parquet, Replay};
        let lists_blocks =
            matches!(format, Csv | Dhat | Heaptrack | Json | JsonObjects | Parquet | Replay);
        if lists_blocks && self.has_blocks() && self.index.analysis().meta().is_aggregated() {
            return Err(ScanError::NoBlocks.into());
        }
        let what = self.held.map_or(What::Heap, |h| h.what);
        match format {
            Format::Massif | Format::Dhat | Format::Replay if what != What::Heap => {
                Err(ExportError::NoMappings)
            }
            Format::Csv | Format::Parquet if what == What::All => Err(ExportError::OneTable),
            _ => Ok(()),
        }
    }

    /// Returns the ticks of the last moment whose events are exported.
    fn until(&self) -> Ticks {
        self.at.unwrap_or(Ticks::MAX)
    }

    /// Returns the weight of a sampled block of this size and distance: the number of the program's blocks that it
    /// represents. It is 1 if the recording is not sampled.
    fn weight(&self, size: u64, rate: u8) -> f64 {
        weight(&self.index.analysis().capture(), size, rate)
    }

    /// Returns the stacks with their figures, at the peak if the cost is [`Cost::Peak`].
    fn profile(&self) -> Result<Profile, ScanError> {
        let at = match self.cost {
            Cost::Peak => Some(self.query.analysis(self.at)?.totals().peak_ticks),
            Cost::Leaked => None,
            _ => self.at,
        };
        Ok(self.profile_of(&self.query.analysis(at)?, at))
    }

    /// Writes the export to `out`.
    ///
    /// # Errors
    /// If the index can't be read, the output can't be written, or the format can't express the recording.
    pub fn write(&self, format: Format, out: &mut dyn Write) -> Result<(), ExportError> {
        self.check(format)?;
        let maps = self.held.filter(|h| h.what == What::Maps);
        match format {
            Format::Folded => folded::write(&self.profile()?, self.cost, out)?,
            Format::Flamegraph => folded::flamegraph(self, out)?,
            Format::Heaptrack => heaptrack::write(self, out)?,
            Format::Pprof => pprof::write(self, out)?,
            Format::Speedscope => speedscope::write(self, out)?,
            Format::Massif => massif::write(self, out)?,
            Format::Dhat => dhat::write(self, out)?,
            Format::Csv => match maps {
                Some(held) => mapped::csv(self, held, out)?,
                None => rows::csv(self, out)?,
            },
            Format::Json => rows::json(self, out)?,
            Format::JsonObjects => rows::json_objects(self, out)?,
            Format::Html => html::write(self, out)?,
            Format::Firefox => firefox::write(self, out)?,
            Format::Replay => replay::write(self, out)?,
            #[cfg(feature = "parquet")]
            Format::Parquet => match maps {
                Some(held) => parquet::mappings(self, held, out)?,
                None => parquet::blocks(self, out)?,
            },
            #[cfg(feature = "parquet")]
            Format::ParquetStacks => parquet::stacks(self, out)?,
            #[cfg(not(feature = "parquet"))]
            Format::Parquet | Format::ParquetStacks => return Err(ExportError::NoParquet),
        }
        out.flush()?;
        Ok(())
    }
}

/// Replaces control characters: names come from the target, and must not break a line.
fn one_line(name: &str) -> String {
    name.replace(char::is_control, " ")
}
