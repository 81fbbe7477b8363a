//! Corrects the order of frees and allocations whose times are a little too early.
//!
//! If a thread believes that it was the last to allocate or free the block itself, it reads the counter without waiting
//! for earlier loads; such times are odd (FORMAT.md, section 3). It can't know that other threads had the block in
//! between. Then its event can seem to precede the one that it follows. But in that case the block's earlier events are
//! recorded as well, and only one order of them is consistent.

use crate::load::{Op, OpKind};
use prof_trace::ticks::Ticks;

/// Greatest number of frees that wait for their allocations.
const MOST: usize = 64;

/// The frees that may have a time that is too early.
#[derive(Default)]
pub(super) struct Early {
    /// Number of ticks by which times may be too early; 0: never.
    within: u64,
    /// Frees of blocks that were not live: their allocation may follow.
    frees: Vec<Op>,
    /// No allocation after this time belongs to any of `frees`.
    until: Ticks,
}

impl Early {
    pub(super) fn new(within: u64) -> Self {
        Self { within, ..Self::default() }
    }

    /// Returns whether an event at `time` may really have happened after another thread's event at `other`.
    #[inline(always)]
    pub(super) fn may_follow(&self, time: Ticks, other: Ticks) -> bool {
        time.0 & 1 == 1 && other.since(time) < self.within
    }

    /// Remembers a free of a block that is not live, if its time may be too early.
    pub(super) fn push(&mut self, free: &Op) {
        if free.kind != OpKind::Free || !self.may_follow(free.time, free.time) {
            return;
        }
        let within = self.within;
        self.frees.retain(|f| free.time.since(f.time) < within);
        if self.frees.len() == MOST {
            self.frees.remove(0);
        }
        self.frees.push(*free);
        self.until = self.until.max(free.time.saturating_add(within));
    }

    /// Returns and removes the waiting free that ended the block that `op` allocates, if there is one.
    #[inline(always)]
    pub(super) fn of(&mut self, op: &Op) -> Option<Op> {
        if op.time >= self.until { None } else { self.find(op) }
    }

    #[cold]
    fn find(&mut self, op: &Op) -> Option<Op> {
        let is_it = |f: &Op| {
            f.addr == op.addr
                && f.thread_index != op.thread_index
                && self.may_follow(f.time, op.time)
        };
        let at = self.frees.iter().position(is_it)?;
        Some(self.frees.remove(at))
    }
}
