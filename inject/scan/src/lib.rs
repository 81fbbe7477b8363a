//! Finds the blocks of a running process that nothing points to, from outside.
//!
//! * [`Blocks`] is who knows the live blocks: a recording that grows;
//! * [`Scanner`] makes a pass: it reads the process's memory and registers, and marks what is reached;
//! * [`prove()`] makes passes until they agree; [`prove_held`] sees the moment at which a process ends;
//! * [`Scanner::survey`] reads all pointers once, for a [`prof_graph::Heap`], which says who holds what.
//!
//! The target's memory is only read. It runs meanwhile, but for the moment in which a thread's registers are looked at.

mod classes;
mod copy;
mod edges;
mod error;
mod frames;
mod freed;
mod kernel;
mod locals;
mod mark;
mod memory;
mod pass;
mod prove;
mod ranges;
mod survey;
mod threads;
mod throttle;
mod word;

pub use classes::Classes;
pub use error::{Boxed, Error};
pub use freed::Freed;
pub use pass::{Block, Blocks, Options, ScanStats, Scanner};
pub use prove::{Limits, Proof, Stop, prove, prove_held};
