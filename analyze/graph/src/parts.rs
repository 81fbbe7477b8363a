//! The parts of a [`Heap`], one by one: blocks, and pointers.

use crate::edges::NONE;
use crate::heap::Heap;

/// A block of a [`Heap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapBlock<'a> {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes requested; 0 if the block was freed meanwhile.
    pub size: u64,
    /// Stack that allocated the block; `None`: it was freed meanwhile.
    pub stack: Option<u32>,
    /// Table of virtual functions that the block begins with.
    pub class: Option<u64>,
    /// Numbers of the blocks that it points to.
    pub to: &'a [u32],
}

impl Heap {
    /// Returns the blocks in the order of their addresses, which numbers them from 0 on. Those that were freed meanwhile are
    /// among them.
    pub fn blocks(&self) -> impl Iterator<Item = HeapBlock<'_>> {
        (0..self.table.len()).map(|i| {
            let stack = Some(self.stacks[i]).filter(|s| *s != NONE);
            let class = self.edges.classes.get(i).and_then(|c| self.edges.tables.get(*c as usize));
            HeapBlock {
                address: self.table.block(i as u32).0,
                size: self.sizes[i],
                stack,
                class: class.copied(),
                to: self.pointers_of(i),
            }
        })
    }

    /// Returns the pointers of roots: number of the root, number of the block, and address of the word or 0.
    pub fn root_pointers(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        self.of_roots.iter().map(|e| (e.root, e.to, e.at))
    }

    /// Returns the numbers of the blocks that a block points to.
    pub(crate) fn pointers_of(&self, block: usize) -> &[u32] {
        let (from, to) = (self.edges.starts[block], self.edges.starts[block + 1]);
        &self.edges.to[from as usize..to as usize]
    }
}
