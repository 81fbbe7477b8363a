//! Looks at recordings that grow.
//!
//! A [`Follower`](crate::Follower) keeps the live blocks and the figures by stack as the recording grows. A look reads
//! what was added since the one before, and passes over the live blocks.

mod names;
mod only;
mod outstanding;

pub use names::{NamedStack, Names};
pub use only::Only;
pub use outstanding::{BlockData, Order, Outstanding, OutstandingOptions, StackData};
