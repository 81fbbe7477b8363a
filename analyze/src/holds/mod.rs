//! The answers of `prof holds`: the holders of live blocks, and the memory that would be unreachable without each.
//!
//! * [`Holders`]: the blocks and pointers of a moment, with the names of roots and classes;
//! * [`read()`]: makes them of a scan that is in a recording; [`find`] tells which one is meant;
//! * [`HoldsData`]: the report, as text, JSON or a page;
//! * [`Comparison`]: two scans, and what came to be held by whom;
//! * [`ScanGraph`]: all roots, blocks and pointers, for files.
//!
//! `prof-scan` makes the same of a process that runs.

mod compare;
mod dump;
mod graph;
mod page;
mod read;
mod report;
mod roots;
mod scan;
mod tree;

pub use compare::{Compared, Comparison, Course, RootChange, StackChange};
pub use graph::ScanGraph;
pub use prof_graph::{Heap, Held, Holder, Root, Sum};
use prof_trace::ticks::Ticks;
pub use read::{HoldsError, described, find, read};
pub use report::{
    HoldsData, HoldsOptions, NodeData, PathData, RootReport, SavedData, StackReport, StepData,
    SumData, Wanted,
};
pub use roots::{RootData, RootKind};
pub use scan::ScanData;
pub use tree::{StackSums, Tree};

pub use crate::load::{BEFORE, LABEL, is_before};

use crate::symbols::class_name;
use prof_os::Pid;
use std::collections::HashMap;
use std::ops::Range;

/// Memory of the process, from which names are read.
pub trait Memory {
    /// Returns the mangled name of the class of a table of virtual functions.
    fn class(&self, table: u64) -> Option<String>;
    /// Returns the offset in a block of the first word that points into a range; `None`: it is not known.
    fn offset(&self, from: Range<u64>, to: &Range<u64>) -> Option<u64>;
}

/// The names of classes in a recording, in which a table's address is a number.
#[derive(Clone, Debug, Default)]
pub struct Classes(Vec<String>);

impl Memory for Classes {
    fn class(&self, table: u64) -> Option<String> {
        self.0.get(usize::try_from(table.checked_sub(1)?).ok()?).cloned()
    }

    fn offset(&self, _: Range<u64>, _: &Range<u64>) -> Option<u64> {
        None
    }
}

/// The blocks of a moment with all that is known of who holds them. `M` is the memory that they lie in, or what a
/// recording has of it.
#[derive(Debug)]
pub struct Holders<M = Classes> {
    /// The process.
    pub pid: Pid,
    /// The moment, in nanoseconds since the start of the recording.
    pub at_ns: u64,
    /// The moment, in ticks.
    pub ticks: Ticks,
    /// The scan of the recording that this is; `None`: the process was looked at.
    pub saved: Option<SavedData>,
    /// Blocks and pointers.
    pub heap: Heap,
    /// Blocks and bytes that each holder retains.
    pub held: Held,
    /// The nodes below each node of `held`.
    pub tree: Tree,
    /// Names of the roots. Roots with the same name are one.
    pub roots: HashMap<Root, RootData>,
    /// Cost of the scan, and pointers that it may have missed.
    pub scan: ScanData,
    /// The memory.
    pub memory: M,
}

impl<M: Memory> Holders<M> {
    /// Returns the name of a root by its number.
    #[must_use]
    pub fn root(&self, number: u32) -> Option<&RootData> {
        self.roots.get(self.heap.roots().get(number as usize)?)
    }

    /// Changes the memory for something that has it.
    #[must_use]
    pub fn with<N>(self, memory: impl FnOnce(M) -> N) -> Holders<N> {
        let Self { pid, at_ns, ticks, saved, heap, held, tree, roots, scan, memory: old } = self;
        Holders { pid, at_ns, ticks, saved, heap, held, tree, roots, scan, memory: memory(old) }
    }

    /// Returns the name of the class of a table of virtual functions.
    #[must_use]
    pub fn class(&self, table: u64) -> Option<String> {
        self.memory.class(table).map(|mangled| class_name(&mangled))
    }
}
