//! Reads the recordings of prof and reports who holds the memory.
//!
//! * [`load`]: a recording as a stream of operations in the order of time, and its records about the target;
//! * [`heap`]: replays operations: live blocks, totals, figures by stack;
//! * [`analysis`]: the figures and records of a whole recording;
//! * [`index`]: a row for each block, in a file beside the recording;
//! * [`query`]: filters, and the figures of the selected blocks;
//! * [`stacks`]: the named stacks of a recording;
//! * [`answers`]: sorted, paged and pruned answers for pages that show parts of a recording;
//! * [`live`]: looks at recordings that grow;
//! * [`holds`]: who holds the live blocks, and how much would go with whom;
//! * [`maps`]: the mappings of a process over time;
//! * [`leaks`]: which stacks leak, by what they held over time;
//! * [`diff`]: what grew and what shrank;
//! * [`export`]: the formats of other tools;
//! * [`fragmentation`]: which stacks keep pages, and a breakdown of resident memory;
//! * [`info`]: the contents of a recording's file;
//! * [`rewrite`]: recordings made from others;
//! * [`symbols`]: code addresses to functions, files and lines;
//! * [`unseen`]: whether the recording misses memory that the target takes;
//! * [`progress`]: progress of long operations; [`Job`]: cancels them;
//! * [`report`]: the text and the JSON of `prof report`.
//!
//! A recording is untrusted input: if it is cut off, damaged or made up, the result is an [`Error`], or the figures of
//! its whole part with a [`Note`], but never a panic.

mod aggregate;
pub mod allocator;
pub mod analysis;
pub mod answers;
mod askers;
mod change;
pub mod diff;
mod error;
pub mod export;
pub mod fragmentation;
pub mod heap;
mod history;
pub mod holds;
pub mod index;
pub mod info;
mod job;
mod joined;
pub mod leaks;
pub mod live;
pub mod load;
pub mod maps;
pub mod objects;
pub mod progress;
pub mod query;
pub mod report;
pub mod rewrite;
pub mod stacks;
mod style;
mod summary;
pub mod symbols;
mod table;
pub mod unseen;

pub use analysis::{Analysis, Follower, Note, Progress};
pub use error::Error;
pub use index::{Growing, Index, IndexOptions};
pub use job::{Job, JobProgress};
pub use load::LoadOptions;

pub use prof_trace::values;
pub use summary::{Now, Summary, live_summary};
