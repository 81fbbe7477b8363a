//! Replays the operations of a recording: live blocks, totals, groups.

mod alive;
mod course;
mod early;
mod estimate;
mod huge;
mod live;
mod replay;
mod stats;
mod stripped;
mod watch;

pub(crate) use alive::Alive;
pub(crate) use course::MOST as BUCKETS;
pub use course::{Bucket, Counts, Course, Extent};
pub use estimate::{Errors, probability, weight};
pub(crate) use estimate::{Estimates, Sum as WeightedSum};
pub use live::Block;
pub(crate) use live::{Live, Value};
pub(crate) use replay::NOWHERE;
pub use replay::{Group, Replay, Totals};
pub use stats::BlockStats;
pub(crate) use stripped::{
    errors as errors_of, figures as figures_of, restore, to_errors, to_figures, to_records,
    to_totals, totals_of,
};
pub use watch::{End, Fate, Watch};
