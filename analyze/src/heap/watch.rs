//! Observes the single blocks of a replay.

use super::live::Block;
use crate::load::Op;
use prof_trace::capture::Capture;
use prof_trace::ticks::Ticks;

/// The way a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The block was freed.
    Freed,
    /// The block was passed to `realloc`.
    Reallocated,
    /// The free was not recorded: another block at its address implies it.
    Implied,
}

/// The end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Ticks.
    pub time: Ticks,
    /// Thread index of the thread that ended it.
    pub thread_index: u32,
    /// Stack node of the free, if that was recorded; else 0.
    pub node: u32,
    /// The way it ended.
    pub fate: Fate,
    /// Whether the block counts in [`BlockStats::temporary`](super::BlockStats::temporary).
    pub temporary: bool,
}

/// Observes the single blocks of a replay.
pub trait Watch {
    /// Whether the replay keeps the figures over time.
    const HAS_COURSE: bool = true;

    /// Called before the first block, with the blocks that are recorded.
    fn start(&mut self, _capture: &Capture) {}

    /// Returns whether the observer keeps data about the block that begins: then the block [is noted](Block::is_noted).
    fn notes(&self, op: &Op) -> bool;

    /// Called when a noted block begins; an earlier block at its address has ended.
    fn begin(&mut self, op: &Op);

    /// Called when any block begins, with the index of its group.
    #[inline(always)]
    fn starts(&mut self, _group: u32, _op: &Op) {}

    /// Called when a block from before the recording is found, with the index of its group. It is noted as others are.
    fn found(&mut self, group: u32, op: &Op);

    /// Called when a block ends.
    fn end(&mut self, addr: u64, block: &Block, end: End);

    /// Called when a thread frees a block that is not known to be live.
    fn unknown(&mut self, op: &Op);

    /// Called when that block is from before the recording, or from a time when recording was off.
    fn before(&mut self, op: &Op);
}

/// Observes nothing.
impl Watch for () {
    #[inline(always)]
    fn notes(&self, _: &Op) -> bool {
        false
    }

    #[inline(always)]
    fn begin(&mut self, _: &Op) {}

    fn found(&mut self, _: u32, _: &Op) {}

    #[inline(always)]
    fn end(&mut self, _: u64, _: &Block, _: End) {}

    #[inline(always)]
    fn unknown(&mut self, _: &Op) {}

    #[inline(always)]
    fn before(&mut self, _: &Op) {}
}
