//! Finds the blocks of a running process that nothing points to, from outside.
//!
//! * [`Blocks`] is who knows the live blocks: a recording that grows;
//! * [`Scanner`] makes a pass: it reads the process's memory and registers, and marks what is reached;
//! * [`prove()`] makes passes until they agree.
//!
//! The target's memory is only read. It runs meanwhile, but for the moment in which a thread's registers are looked at.

mod bits;
mod error;
mod freed;
mod kernel;
mod mark;
mod memory;
mod pass;
mod prove;
mod ranges;
mod table;
mod threads;
mod throttle;

pub use error::{Boxed, Error};
pub use freed::Freed;
pub use pass::{Block, Blocks, Figures, Options, Scanner};
pub use prove::{Limits, Proof, Stop, prove};
