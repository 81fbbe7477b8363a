//! Which blocks are recorded.

/// What a recording leaves out: nothing, blocks outside of a range of sizes, or all but a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Mean distance, in allocated bytes, between two points of a Poisson process; a block is
    /// recorded if a point falls into it. 0: no such sampling.
    pub sample_bytes: u64,
    /// One of so many allocations in a row of each thread is recorded. 0 or 1: all.
    pub sample_every: u64,
    /// Smaller blocks are not recorded.
    pub min_size: u64,
    /// Larger blocks are not recorded; `u64::MAX`: no limit.
    pub max_size: u64,
}

impl Default for Capture {
    fn default() -> Self {
        Self { sample_bytes: 0, sample_every: 0, min_size: 0, max_size: u64::MAX }
    }
}

impl Capture {
    /// Blocks are picked by chance or count: figures are estimates.
    pub fn is_sampled(&self) -> bool {
        self.sample_bytes > 0 || self.sample_every > 1
    }

    /// Blocks of some sizes are left out.
    pub fn is_filtered(&self) -> bool {
        self.min_size > 0 || self.max_size < u64::MAX
    }

    /// Nothing is left out.
    pub fn is_everything(&self) -> bool {
        !self.is_sampled() && !self.is_filtered()
    }
}
