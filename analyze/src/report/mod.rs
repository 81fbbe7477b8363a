//! The report on a recording: which stacks hold the memory.
//!
//! A [`Report`] holds every figure; [`Report::json`] and [`Report::text`] only write it down, so
//! both have the same numbers.

mod data;
mod sort;
mod text;
pub mod units;

pub(crate) use data::frames_of;
pub use data::{
    CaptureData, FilterData, FrameData, GroupData, Head, HookData, KernelData, NotHookedData,
    PartData, RecordingData, Report, ReportOptions, RestData, TargetData, TotalsData,
};
pub use sort::SortKey;
pub use text::Style;
pub(crate) use text::frame_lines;
