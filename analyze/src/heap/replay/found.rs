//! Blocks from before the recording, as a census has found them.

use super::{Block, Replay, Watch};
use crate::load::{Op, is_before};

/// The places of blocks that may begin later than their place does.
///
/// An allocator that keeps no record of where in its place an aligned block begins (mimalloc) has the census give the
/// whole place. The free of such a block has an address inside of the place.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Addresses at which the places begin.
    starts: Vec<u64>,
    sorted: bool,
}

impl Places {
    fn add(&mut self, at: u64) {
        self.sorted = self.starts.is_empty() || self.sorted && self.starts.last() < Some(&at);
        self.starts.push(at);
    }

    /// Returns the last place that begins in front of an address.
    fn before(&mut self, at: u64) -> Option<u64> {
        if !self.sorted {
            self.starts.sort_unstable();
            self.sorted = true;
        }
        let next = self.starts.partition_point(|start| *start < at);
        next.checked_sub(1).map(|i| self.starts[i])
    }
}

impl<W: Watch> Replay<W> {
    /// Takes a block from before the recording. Where not all blocks are recorded, their frees are not known either.
    #[cold]
    pub(super) fn find(&mut self, op: &Op) {
        if op.addr == 0 || self.partial || self.live.get(op.addr).is_some() {
            self.totals.nonsense += u64::from(op.addr == 0);
            return;
        }
        // A block with a header of glibc's begins behind that. Of one without, only the place may be known.
        if op.header == 0 {
            self.places.add(op.addr);
        }
        let group = self.group(op.node, op.time);
        let block = Block::new(op, group, self.watch.notes(op));
        self.live.insert(op.addr, block);
        self.watch.found(group, op);
        if self.figures[group as usize].find(op.size) {
            self.times[group as usize].peak = op.time;
        }
        if self.totals.figures.find(op.size) {
            self.totals.peak_ticks = op.time;
        }
        self.rise();
    }

    /// Handles the end of a block at an address at which none begins: it may be one that a census has found, and that
    /// begins later than its place.
    #[cold]
    pub(super) fn end_inside(&mut self, op: &Op) {
        match self.place_around(op) {
            Some(addr) => self.end(&Op { addr, ..*op }),
            None => self.not_live(op),
        }
    }

    /// Returns where the live place from before the recording begins in which an operation's address lies.
    fn place_around(&mut self, op: &Op) -> Option<u64> {
        let start = self.places.before(op.addr)?;
        let block = self.live.get(start)?;
        let is_found = self.nodes.get(block.group as usize).is_some_and(|n| is_before(*n));
        (is_found && block.time <= op.time && op.addr - start < block.size()).then_some(start)
    }
}
