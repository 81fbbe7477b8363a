//! Frees and allocations whose times are a little too early.
//!
//! A thread reads the counter without waiting for what it has loaded before where it was itself the last
//! one to get or to give back that block, as far as it knows; such times are odd (FORMAT.md, section 3). It
//! does not know when others had the block in between. Then its event can seem to come before the one that it
//! follows; but then, too, the block's earlier events are in the recording, and no other order of them makes
//! sense.

use crate::load::{Op, OpKind};

/// No more frees wait for their allocations at a time.
const MOST: usize = 64;

/// Frees that may have come too early.
#[derive(Default)]
pub(super) struct Early {
    /// By how many ticks times may be too early; 0: not at all.
    within: u64,
    /// Frees of blocks that were not live: of those one may follow.
    frees: Vec<Op>,
    /// No allocation after this time belongs to any of them.
    until: u64,
}

impl Early {
    pub(super) fn new(within: u64) -> Self {
        Self { within, ..Self::default() }
    }

    /// Whether an event at `time`, if it is too early, may have happened after one of another thread at
    /// `other`.
    #[inline(always)]
    pub(super) fn may_follow(&self, time: u64, other: u64) -> bool {
        time & 1 == 1 && other.saturating_sub(time) < self.within
    }

    /// Remembers a free of a block that is not live, if it can be too early.
    pub(super) fn push(&mut self, free: &Op) {
        if free.kind != OpKind::Free || !self.may_follow(free.time, free.time) {
            return;
        }
        let within = self.within;
        self.frees.retain(|f| free.time.saturating_sub(f.time) < within);
        if self.frees.len() == MOST {
            self.frees.remove(0);
        }
        self.frees.push(*free);
        self.until = self.until.max(free.time.saturating_add(within));
    }

    /// The free that the block handed out by `op` has ended with already, if there is one.
    #[inline(always)]
    pub(super) fn of(&mut self, op: &Op) -> Option<Op> {
        if op.time >= self.until { None } else { self.find(op) }
    }

    #[cold]
    fn find(&mut self, op: &Op) -> Option<Op> {
        let is_it =
            |f: &Op| f.addr == op.addr && f.lane != op.lane && self.may_follow(f.time, op.time);
        let at = self.frees.iter().position(is_it)?;
        Some(self.frees.remove(at))
    }
}
