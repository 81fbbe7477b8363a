//! Answers for pages and programs that show parts of a recording: sorted, paged and pruned where the data is.
//!
//! * [`mod@groups`]: blocks by stack, function, file, module, thread or size;
//! * [`Query::blocks`](crate::query::Query::blocks): pages of single blocks;
//! * [`Query::space`](crate::query::Query::space): the address space in bins;
//! * [`mod@flame`], [`flame_diff`], [`sandwich`]: trees of functions.

mod blocks;
mod flame;
mod groups;
mod space;

pub use blocks::{
    BlockDetails, BlockPage, BlockRow, BlockSort, BlocksAsk, ChainRow, Cursor, FreedAt,
    MOST_BLOCKS, MOST_SKIPPED,
};
pub use flame::{
    Flame, FlameAsk, FlameName, Metric, Sandwich, Transform, flame, flame_diff, flame_of, sandwich,
};
pub use groups::{GroupKey, GroupRow, Groups, GroupsAsk, groups};
pub use space::{MOST_BINS, Space, SpaceAsk};
