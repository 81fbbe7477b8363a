//! Filter of the blocks that are recorded.

/// Filter that decides which blocks are recorded: all, those in a range of sizes, or a random sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Mean distance, in allocated bytes, between two points of a Poisson process; a block is recorded if a
    /// point falls into it. 0: sampling by bytes is off.
    pub sample_bytes: u64,
    /// The distance follows the allocation rate of the program: [`Capture::sample_bytes`] is the first
    /// distance, and each block states its own (see [`crate::size::CodedSize::rate`]).
    pub adapts: bool,
    /// Number of successive allocations per thread of which one is recorded. 0 or 1: all are.
    pub sample_every: u64,
    /// Smallest block size recorded, in bytes.
    pub min_size: u64,
    /// Largest block size recorded, in bytes; `u64::MAX`: no limit.
    pub max_size: u64,
}

/// First sampling distance of a recording whose distance adapts.
pub const FIRST_DISTANCE: u64 = 32 << 10;

/// First sampling distance of a recording that has a budget: the smallest. A block of 16 bytes is recorded with a
/// probability of 99.97 %, a larger one all but certainly.
pub const BUDGET_DISTANCE: u64 = 2;

impl Default for Capture {
    fn default() -> Self {
        Self { sample_bytes: 0, adapts: false, sample_every: 0, min_size: 0, max_size: u64::MAX }
    }
}

impl Capture {
    /// Returns whether blocks are sampled, so that statistics are estimates.
    pub fn is_sampled(&self) -> bool {
        self.sample_bytes > 0 || self.sample_every > 1
    }

    /// Returns whether blocks of some sizes are left out.
    pub fn is_filtered(&self) -> bool {
        self.min_size > 0 || self.max_size < u64::MAX
    }

    /// Returns whether the settings are the same. A distance that adapts may have changed since.
    pub fn is_as(&self, other: &Self) -> bool {
        let sample_bytes = if self.adapts { other.sample_bytes } else { self.sample_bytes };
        Self { sample_bytes, ..*self } == *other
    }

    /// Returns whether every block is recorded.
    pub fn is_everything(&self) -> bool {
        !self.is_sampled() && !self.is_filtered()
    }
}
