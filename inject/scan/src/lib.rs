//! Finds the blocks of a running process that nothing points to, from outside.
//!
//! * [`Blocks`] is who knows the live blocks: a recording that grows;
//! * [`Scanner`] makes a pass: it reads the process's memory and registers, and marks what is reached;
//! * [`prove()`] makes passes until they agree;
//! * [`Scanner::survey`] reads all pointers once, and [`Heap`] says who holds what;
//! * [`Heap::save`] encodes them for a recording, and [`Saved`] decodes them.
//!
//! The target's memory is only read. It runs meanwhile, but for the moment in which a thread's registers are looked at.

mod bits;
mod dominators;
mod edges;
mod error;
mod freed;
mod heap;
mod kernel;
mod mark;
mod memory;
mod parts;
mod pass;
mod prove;
mod ranges;
mod saved;
mod survey;
mod table;
mod threads;
mod throttle;
mod word;

pub use edges::Root;
pub use error::{Boxed, Error};
pub use freed::Freed;
pub use heap::{Heap, Held, Holder, Node, Path, Sum};
pub use parts::HeapBlock;
pub use pass::{Block, Blocks, Options, ScanStats, Scanner};
pub use prove::{Limits, Proof, Stop, prove};
pub use saved::{Naming, Saved, Unusable};
