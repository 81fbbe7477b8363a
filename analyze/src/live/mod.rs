//! Looks at recordings that grow.
//!
//! A [`Follower`](crate::Follower) keeps the live blocks and the figures by stack as the recording grows. A look reads
//! what was added since the one before, and passes over the live blocks.

mod book;
mod by_thread;
mod names;
mod only;
mod outstanding;
mod pace;
mod trace;

pub use book::{Book, Namer, StackFrames, Unnamed, read};
pub use by_thread::{StatsByThread, ThreadStats};
pub use names::{NamedStack, Names};
pub use only::{Only, Threads};
pub use outstanding::{BlockData, Order, Outstanding, OutstandingOptions, StackData};
pub use pace::Pace;
pub use trace::{LineData, Trace, TraceOptions, What};
