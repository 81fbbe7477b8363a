//! Looks at recordings that grow: what is outstanding at a moment, and each event as it comes.
//!
//! All of it stands on a [`Follower`](crate::Follower), which keeps the figures by stack as the recording grows, so that
//! a look costs what was added since the one before.

mod names;
mod only;
mod outstanding;

pub use names::{NamedStack, Names};
pub use only::Only;
pub use outstanding::{BlockData, Order, Outstanding, OutstandingOptions, StackData};
