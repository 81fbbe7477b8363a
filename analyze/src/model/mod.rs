//! What the operations of a recording come to: live blocks, totals, groups.

mod analysis;
mod follow;
mod live;
mod replay;

pub use analysis::{Analysis, Note, Summary, live_summary};
pub use follow::Follower;
pub use replay::{Figures, Group, Replay, Totals};
