//! The parts of a [`Heap`], one by one: blocks, and pointers.

use crate::bits::Bits;
use crate::edges::{NONE, RootEdge};
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

    /// Returns the address of a block by its number, which must be one.
    #[must_use]
    pub fn address(&self, block: u32) -> u64 {
        self.table.block(block).0
    }

    /// Returns the pointers of a root, by its number.
    #[must_use]
    pub fn pointers_of_root(&self, root: u32) -> &[RootEdge] {
        &self.of_roots[self.root_range(root)]
    }

    /// Returns blocks that lead to all blocks that no root leads to, by their numbers: those that no other of these blocks
    /// points to, and one of each circle that is left then.
    #[must_use]
    pub fn unreached_heads(&self) -> Vec<u32> {
        let Some((mut seen, _)) = self.reached(None, &|| false) else { return Vec::new() };
        let all = self.table.len() as u32;
        let mut pointed = Bits::new(all as usize);
        for b in (0..all).filter(|b| !seen.has(*b as usize)) {
            let others = self.pointers_of(b as usize).iter().filter(|to| **to != b);
            others.for_each(|to| pointed.set(*to as usize));
        }
        let mut heads = Vec::new();
        let mut work = Vec::new();
        for is_circle in [false, true] {
            for b in 0..all {
                if seen.has(b as usize) || !is_circle && pointed.has(b as usize) {
                    continue;
                }
                heads.push(b);
                work.push(b);
                seen.set(b as usize);
                while let Some(from) = work.pop() {
                    for to in self.pointers_of(from as usize) {
                        if !seen.has(*to as usize) {
                            seen.set(*to as usize);
                            work.push(*to);
                        }
                    }
                }
            }
        }
        heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Edges, Root, Table};

    #[test]
    fn what_no_root_leads_to_hangs_on_few_blocks() {
        let heads = |pointers: &[(u32, u32)]| {
            let mut sorted = pointers.to_vec();
            sorted.sort_unstable();
            let edges = Edges {
                starts: (0..=8).map(|b| sorted.partition_point(|e| e.0 < b) as u32).collect(),
                to: sorted.iter().map(|e| e.1).collect(),
                roots: vec![Root::Kernel],
                above: Vec::new(),
                of_roots: vec![RootEdge { root: 0, to: 0, at: 0x10 }],
                classes: Vec::new(),
                tables: Vec::new(),
                left_out: 0,
            };
            let table: Table = (0..8u64).map(|i| (i * 16 + 0x1000, 16)).collect();
            let heap = Heap::new(table, edges, [], |at| Some((at as u32, 16)));
            assert_eq!((heap.address(7), heap.pointers_of_root(0)[0].to), (0x1070, 0));
            heap.unreached_heads()
        };
        assert_eq!(heads(&[(0, 1), (1, 2), (0, 3), (3, 4), (3, 5), (5, 6), (4, 7)]), [0u32; 0]);
        // A block that points to itself is no circle of several, and a held block may be pointed to, too.
        assert_eq!(heads(&[(1, 2), (2, 3), (4, 4), (4, 0), (6, 5), (7, 5)]), [1, 4, 6, 7]);
        // A circle of 1, 2 and 3, which has 4, and one that hangs on 5.
        assert_eq!(heads(&[(1, 2), (2, 3), (3, 1), (3, 4), (5, 6), (6, 7), (7, 6)]), [5, 1]);
    }
}
