//! Blocks of memory with the pointers between them: who holds what, and how much would go with whom.
//!
//! * [`Table`] finds the block that an address points into;
//! * [`Heap`] is blocks, [`Edges`] and [`Root`]s of a moment, and [`Heap::held`] the tree of what each holder retains;
//! * [`Heap::save`] encodes them for a recording, and [`Saved`] decodes them.
//!
//! Nothing here reads a process: `prof-scan` does that.

mod bits;
mod dominators;
mod edges;
mod heap;
mod held;
mod parts;
mod roots;
mod saved;
mod sieve;
mod table;

pub use bits::Bits;
pub use edges::{Edges, NONE, Root, RootEdge};
pub use heap::{Heap, Path, Sum};
pub use held::{Held, Holder, Node};
pub use parts::HeapBlock;
pub use saved::{Naming, Read, Saved, Unusable};
pub use table::{Keys, Table};
