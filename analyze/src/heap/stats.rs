//! Figures of a set of blocks.

/// Figures of a set of blocks: of all, or of those of one stack.
///
/// A block belongs to the stack that allocated it; a reallocated one, from then on, to the stack that called `realloc`.
/// So `allocations`, `reallocations`, `allocated_bytes`, `live_count`, `live_bytes` and `temporary` of all groups add
/// up to those of the totals. Peaks don't: each is the maximum of its own set, and they occur at different times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// Number of blocks live at the end of the recording.
    pub live_count: u64,
    /// Bytes of these blocks, as requested.
    pub live_bytes: u64,
    /// Greatest number of blocks live at any time.
    pub peak_count: u64,
    /// Greatest number of bytes live at any time.
    pub peak_bytes: u64,
    /// Number of allocations, other than reallocations.
    pub allocations: u64,
    /// Number of reallocations: each ends one block and begins another.
    pub reallocations: u64,
    /// Bytes ever allocated: the sizes of all allocations, and the new sizes of all reallocations.
    pub allocated_bytes: u64,
    /// Number of blocks whose free was the next event of the thread that allocated them. It is 0 if not all blocks are
    /// recorded, as the next event is not known then.
    pub temporary: u64,
    /// Number of blocks from before the recording that a census has found. They are no allocations.
    pub found: u64,
    /// Bytes of these blocks, as far as the program can use them.
    pub found_bytes: u64,
}

impl BlockStats {
    /// Returns the number of all blocks there ever were.
    #[inline(always)]
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.allocations.wrapping_add(self.reallocations).wrapping_add(self.found)
    }

    /// Returns the bytes of all blocks there ever were.
    #[inline(always)]
    #[must_use]
    pub fn begun_bytes(&self) -> u64 {
        self.allocated_bytes.wrapping_add(self.found_bytes)
    }

    /// Returns the figures with maxima that are no higher than those of `all`, of which these blocks are a part.
    #[must_use]
    pub(crate) fn within(&self, all: &Self) -> Self {
        Self {
            peak_count: self.peak_count.min(all.peak_count),
            peak_bytes: self.peak_bytes.min(all.peak_bytes),
            ..*self
        }
    }

    /// Adds the figures of other blocks. Maxima of the sum are at most the sums of the maxima.
    pub(crate) fn join(&mut self, other: &Self) {
        for (sum, n) in [
            (&mut self.live_count, other.live_count),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.peak_count, other.peak_count),
            (&mut self.peak_bytes, other.peak_bytes),
            (&mut self.allocations, other.allocations),
            (&mut self.reallocations, other.reallocations),
            (&mut self.allocated_bytes, other.allocated_bytes),
            (&mut self.temporary, other.temporary),
            (&mut self.found, other.found),
            (&mut self.found_bytes, other.found_bytes),
        ] {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Adds a block. Returns whether the live bytes have reached a new peak.
    // A made-up recording can have sizes up to 2^56, so sums wrap.
    #[inline(always)]
    pub(crate) fn gain(&mut self, size: u64) -> bool {
        self.allocated_bytes = self.allocated_bytes.wrapping_add(size);
        self.rise(size)
    }

    /// Adds a block from before the recording.
    pub(crate) fn find(&mut self, size: u64) -> bool {
        self.found += 1;
        self.found_bytes = self.found_bytes.wrapping_add(size);
        self.rise(size)
    }

    #[inline(always)]
    fn rise(&mut self, size: u64) -> bool {
        self.live_count += 1;
        self.live_bytes = self.live_bytes.wrapping_add(size);
        self.peak_count = self.peak_count.max(self.live_count);
        let higher = self.live_bytes > self.peak_bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        higher
    }

    /// Takes a block away.
    #[inline(always)]
    pub(crate) fn lose(&mut self, size: u64) {
        self.live_count -= 1;
        self.live_bytes = self.live_bytes.wrapping_sub(size);
    }
}
