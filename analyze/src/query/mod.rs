//! Answers questions about some of a recording's blocks.
//!
//! * [`Filter`]: which blocks, as text and as fields; the one grammar of all commands;
//! * [`Query`]: a filter compiled for an index: conditions on stacks are decided once for each stack, the others become
//!   ranges of columns;
//! * [`Query::analysis`]: the figures of those blocks; [`Query::by`]: the figures by classes of stacks, threads or
//!   sizes; [`Query::spread`]: by lifetimes and sizes;
//! * [`Query::timeline`]: the figures over time;
//! * [`Query::in_order`]: their beginnings and ends, in the order of time.

mod aggregated;
mod block_stats;
mod chains;
mod fields;
mod filter;
mod order;
mod plan;
mod rowset;
mod selected;
mod spread;
mod stacks;
mod steps;
mod suppress;
mod timeline;
/// The grammar of values: that of [`prof_trace::values`].
pub mod value {
    pub use prof_trace::values::parse::*;
}

pub use crate::analysis::Rule;
pub(crate) use block_stats::join;
pub use block_stats::{By, SIZE_CLASSES, size_class};
pub use fields::{FIELDS, Field, find};
pub use filter::{Filter, FilterError, Lifetime, Range};
pub use order::Event;
pub(crate) use order::{Entry, Key, Select, in_order};
pub use plan::{Query, QueryError, Selection};
pub use rowset::RowSet;
pub use spread::{LIFETIMES, Spread, Tally};
pub use suppress::Suppressions;
pub(crate) use suppress::is_list;
pub use timeline::{Band, MOST_COLUMNS, Span, Timeline};
pub(crate) use timeline::{by_course, resident};
