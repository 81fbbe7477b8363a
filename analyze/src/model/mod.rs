//! Replays the operations of a recording: live blocks, totals, groups.

mod analysis;
mod course;
mod early;
mod estimate;
mod follow;
mod huge;
mod live;
pub(crate) use analysis::{Source, read_all};
pub(crate) use estimate::{Estimates, Sum as WeightedSum};
pub use live::Block;
pub(crate) use live::{Live, Value};
mod replay;
mod stripped;

pub use analysis::{Analysis, LeftOut, Note, Rule};
pub(crate) use course::MOST as BUCKETS;
pub use course::{Bucket, Counts, Course, Extent};
pub use estimate::{Errors, probability, weight};
pub use follow::{Follower, Progress};
pub use replay::{End, Fate, Figures, Group, Replay, Totals, Watch};
pub(crate) use stripped::{restore, to_records};
