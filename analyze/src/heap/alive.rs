//! The live blocks of a replay, for its observer.

use super::live::{Block, Live};
use prof_trace::ticks::Ticks;

/// The live blocks, and the stacks of their groups.
#[derive(Clone, Copy)]
pub(crate) struct Alive<'a> {
    live: &'a Live<Block>,
    nodes: &'a [u32],
}

impl<'a> Alive<'a> {
    pub(super) fn new(live: &'a Live<Block>, nodes: &'a [u32]) -> Self {
        Self { live, nodes }
    }

    /// Returns the number of places in the table, all of which are looked at for [`Self::times`].
    pub(crate) fn places(&self) -> usize {
        self.live.places()
    }

    /// Returns the addresses of all blocks and the times of their allocation, in no particular order.
    pub(crate) fn times(&self) -> impl Iterator<Item = (u64, Ticks)> {
        self.live.iter().map(|(addr, b)| (addr, b.time))
    }

    /// Prefetches the place of an address.
    pub(crate) fn prefetch(&self, addr: u64) {
        self.live.prefetch(addr);
    }

    /// Returns the block at an address.
    pub(crate) fn get(&self, addr: u64) -> Option<Block> {
        self.live.get(addr)
    }

    /// Returns the stack node of a group.
    pub(crate) fn node(&self, group: u32) -> u32 {
        self.nodes.get(group as usize).copied().unwrap_or_default()
    }
}
