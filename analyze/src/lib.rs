//! Reads the recordings of prof and says who holds the memory.
//!
//! * [`load`]: a recording as a stream of operations in the order of time, and what it says of the
//!   target;
//! * [`model`]: replaying them: live blocks, totals, figures by stack;
//! * [`index`]: a row for each block, in a file beside the recording;
//! * [`query`]: filters, and the figures of what they let through;
//! * [`leaks`]: which stacks leak, by what they held over time;
//! * [`diff`]: what grew and what shrank;
//! * [`export`]: the formats of other tools;
//! * [`fragmentation`]: who keeps pages, and what resident memory is;
//! * [`info`]: what is in the file;
//! * [`rewrite`]: recordings made of others;
//! * [`symbols`]: code addresses to functions, files and lines;
//! * [`unseen`]: whether the recording sees the memory that the target takes;
//! * [`progress`]: how far what takes long has come;
//! * [`report`]: the text and the JSON of `prof report`.
//!
//! A recording is input that nobody vouches for: cut off, damaged or made up, it leads to an
//! [`Error`] or to the figures of what was whole with a [`Note`], and never to a panic.

mod askers;
pub mod diff;
mod error;
pub mod export;
pub mod fragmentation;
mod history;
pub mod index;
pub mod info;
pub mod leaks;
pub mod load;
pub mod model;
pub mod progress;
pub mod query;
pub mod report;
pub mod rewrite;
pub mod symbols;
pub mod unseen;

pub use error::Error;
pub use index::{Index, IndexOptions};
pub use load::LoadOptions;
pub use model::{Analysis, Follower, Note, Now, Progress, Summary, live_summary};
