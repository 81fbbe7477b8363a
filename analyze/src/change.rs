//! Differences of figures: those of two recordings, or of two moments of one.

use crate::heap::BlockStats;
use serde::Serialize;

/// Differences: after minus before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Live bytes.
    pub live_bytes: i64,
    /// Live blocks.
    pub live_count: i64,
    /// Bytes ever allocated.
    pub allocated_bytes: i64,
    /// Blocks ever allocated, by reallocation or not.
    pub allocations: i64,
    /// Temporary blocks.
    pub temporary: i64,
}

/// Figures of one side of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_count: u64,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Blocks ever allocated, by reallocation or not.
    pub allocations: u64,
    /// Temporary blocks.
    pub temporary: u64,
}

impl Side {
    pub(crate) fn add(&mut self, f: &BlockStats) {
        self.live_bytes = self.live_bytes.wrapping_add(f.live_bytes);
        self.live_count += f.live_count;
        self.allocated_bytes = self.allocated_bytes.wrapping_add(f.allocated_bytes);
        self.allocations += f.allocations + f.reallocations;
        self.temporary += f.temporary;
    }

    pub(crate) fn to(&self, after: &Self) -> Change {
        let less = |a: u64, b: u64| b.wrapping_sub(a) as i64;
        Change {
            live_bytes: less(self.live_bytes, after.live_bytes),
            live_count: less(self.live_count, after.live_count),
            allocated_bytes: less(self.allocated_bytes, after.allocated_bytes),
            allocations: less(self.allocations, after.allocations),
            temporary: less(self.temporary, after.temporary),
        }
    }
}

impl Change {
    pub(crate) fn add(&mut self, o: &Self) {
        self.live_bytes = self.live_bytes.wrapping_add(o.live_bytes);
        self.live_count += o.live_count;
        self.allocated_bytes = self.allocated_bytes.wrapping_add(o.allocated_bytes);
        self.allocations += o.allocations;
        self.temporary += o.temporary;
    }
}
