//! Frees and allocations whose times are a little too early.
//!
//! A thread reads the counter without waiting for what it has loaded before where it was itself the last
//! one to get or to give back that block, as far as it knows (FORMAT.md, section 3). It does not know when
//! others had the block in between. Then its event can seem to come before the one that it follows; but then,
//! too, the block's earlier events are all in the recording, and no other order of them makes sense.

use crate::load::{Op, OpKind};

/// Bits of [`Early::crossed`].
const BITS: usize = 1 << 20;
/// No more frees wait for their allocations at a time.
const MOST: usize = 64;

/// Frees that may have come too early, and what tells them from others.
#[derive(Default)]
pub(super) struct Early {
    /// By how many ticks times may be too early; 0: not at all.
    within: u64,
    /// Frees of blocks that were not live: of those one may follow.
    frees: Vec<Op>,
    /// No allocation after this time belongs to any of them.
    until: u64,
    /// A bit for each address that a thread other than its owner has ever given back, by a hash of the
    /// address; empty: none.
    crossed: Vec<u64>,
}

/// Where the bit of an address is: index and mask.
#[inline(always)]
fn bit(addr: u64) -> (usize, u64) {
    let n = (addr >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS.ilog2());
    (n as usize / 64, 1 << (n % 64))
}

impl Early {
    pub(super) fn new(within: u64) -> Self {
        Self { within, ..Self::default() }
    }

    /// Whether an event at `time` may have happened after one of another thread at `other`.
    #[inline(always)]
    pub(super) fn is_near(&self, time: u64, other: u64) -> bool {
        other.saturating_sub(time) < self.within
    }

    /// A thread gives back a block of another one.
    #[inline(always)]
    pub(super) fn cross(&mut self, addr: u64) {
        if self.within == 0 {
            return;
        }
        if self.crossed.is_empty() {
            self.crossed = vec![0; BITS / 64];
        }
        let (at, mask) = bit(addr);
        self.crossed[at] |= mask;
    }

    /// Whether the free of a block that is not live, or was handed out later, can be too early: the thread
    /// had the block before, and another one gave it back.
    pub(super) fn can_be(&self, op: &Op) -> bool {
        let (at, mask) = bit(op.addr);
        op.kind == OpKind::Free && self.crossed.get(at).is_some_and(|w| w & mask != 0)
    }

    /// Remembers a free that [can be](Early::can_be) too early.
    pub(super) fn push(&mut self, free: &Op) {
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
            |f: &Op| f.addr == op.addr && f.lane != op.lane && self.is_near(f.time, op.time);
        let at = self.frees.iter().position(is_it)?;
        Some(self.frees.remove(at))
    }
}
