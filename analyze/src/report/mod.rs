//! The report on a recording: which stacks hold the memory.
//!
//! A [`Report`] holds every figure; [`Report::json`] and [`Report::text`] only format them, so both have the same
//! numbers.

mod before;
mod block_stats;
mod data;
mod frames;
mod grouped;
mod head;
mod head_text;
mod histogram;
mod merged;
mod over_time;
mod places;
mod rows;
mod sort;
mod stats;
mod text;
mod tree;
mod tree_text;
mod unnamed;
mod words;
/// Formats of values: those of [`prof_trace::values`].
pub mod units {
    pub use prof_trace::values::text::*;
}

pub use crate::style::Style;
pub use crate::table::Table;
pub use before::BeforeData;
pub(crate) use block_stats::Adder;
pub use block_stats::{BlockStatsData, SumData};
pub use data::{GroupData, Report, ReportOptions, RestData};
pub use frames::{AskedData, FrameData};
pub(crate) use frames::{asked_by, frames_of};
pub use grouped::{GroupBy, Grouped, GroupedData};
pub use head::{
    CaptureData, DistanceData, FilterData, Head, HookData, JoinedData, KernelData, NotHookedData,
    PartData, RecordingData, RuleData, SuppressedData, TargetData, TotalsData,
};
pub(crate) use head_text::DISTANCES;
pub use histogram::{Histogram, SizeData};
pub use merged::{LocationData, Merged, PathData};
pub use over_time::{ExtentData, MomentData, OverTime};
pub use places::PlaceData;
pub(crate) use places::Places;
pub use rows::{Ask, RestRowsData, RowData, ViewOptions};
pub(crate) use rows::{Row, by_class, order};
pub use sort::SortKey;
pub use stats::{CallsData, LifetimeData, Stats, TallyData, TopPlaceData, TopSizeData};
pub(crate) use text::{asked_line, frame_lines};
pub use tree::{DEEPEST, NodeData, RestNodeData, Tree};
pub use unnamed::{SymbolsData, UnnamedData};
