//! Keeps the course of all figures over time, while operations are replayed.
//!
//! Time is cut into at most [`MOST`] buckets of equal width, a power of two of ticks. When a recording outgrows them,
//! two become one, so a short recording has a bucket for each tick, and a long one at least 8,192. Counts are kept as
//! totals up to the end of a bucket: the sum over any number of buckets is then one subtraction.
use prof_trace::ticks::Ticks;

/// Greatest number of buckets.
pub(crate) const MOST: usize = 16_384;

/// The smallest, the largest and the last value within a bucket. The value that a bucket begins with belongs to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
    /// The value at the end.
    pub last: u64,
}

impl Extent {
    fn still(value: u64) -> Self {
        Self { min: value, max: value, last: value }
    }

    /// Sets the value at the end.
    fn end(&mut self, value: u64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.last = value;
    }

    /// Adds the bucket that follows.
    pub(crate) fn follow(&mut self, next: &Self) {
        self.min = self.min.min(next.min);
        self.max = self.max.max(next.max);
        self.last = next.last;
    }
}

/// Counts from the start of the recording on. They wrap in made-up recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of allocations, other than reallocations.
    pub allocations: u64,
    /// Number of reallocations.
    pub reallocations: u64,
    /// Number of recorded frees of known blocks.
    pub frees: u64,
    /// Number of blocks that ended in any way.
    pub ends: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes of the blocks that ended.
    pub freed_bytes: u64,
    /// Number of temporary blocks that were freed.
    pub temporary: u64,
    /// Bytes of blocks that are never freed.
    pub leaked_bytes: u64,
    /// Number of these blocks.
    pub leaked_blocks: u64,
}

/// A bucket of the course.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Live bytes.
    pub bytes: Extent,
    /// Live blocks.
    pub blocks: Extent,
    /// Counts up to the end of the bucket.
    pub counts: Counts,
}

impl Bucket {
    /// Returns a bucket that follows, in which nothing happens.
    pub(crate) fn still(&self) -> Self {
        let (bytes, blocks) = (Extent::still(self.bytes.last), Extent::still(self.blocks.last));
        Self { bytes, blocks, counts: self.counts }
    }

    /// Adds the bucket that follows.
    pub(crate) fn follow(&mut self, next: &Self) {
        self.bytes.follow(&next.bytes);
        self.blocks.follow(&next.blocks);
        self.counts = next.counts;
    }
}

/// The figures of all blocks over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Ticks at which the first bucket begins.
    start: Ticks,
    /// Exponent of the width of a bucket in ticks.
    shift: u32,
    /// Distance in ticks from `start` to the end of the last bucket.
    end: u64,
    buckets: Vec<Bucket>,
    /// The last bucket, whose counts are not known yet.
    now: Bucket,
    /// The last bucket, if all in it was known before the operations of its time came.
    settled: Option<Box<Bucket>>,
}

impl Course {
    /// Creates a course from buckets; returns `None` if they can't be those of a course.
    pub(crate) fn of(start: Ticks, shift: u32, buckets: Vec<Bucket>) -> Option<Self> {
        let fits = buckets.len() <= MOST && shift < 64;
        fits.then(|| Self { start, shift, buckets, ..Self::default() })
    }

    /// Returns a course that goes on behind one that was finished at a time. Operations from before that time change
    /// nothing in it if a bucket ends there; else they are those of the last bucket.
    pub(crate) fn resumed(mut before: Self, until: Ticks) -> Option<Self> {
        let now = before.buckets.pop()?;
        let end = (before.buckets.len() as u64 + 1).checked_mul(1u64.checked_shl(before.shift)?)?;
        let settled = (before.start.saturating_add(end) == until).then(|| Box::new(now));
        Some(Self { end, now, settled, ..before })
    }

    /// Returns a finished course with at most this many buckets, which are wider.
    pub(crate) fn coarser(mut self, most: usize) -> Self {
        while self.buckets.len() > most.max(1) {
            let pairs = self.buckets.chunks(2).map(|pair| {
                let mut first = pair[0];
                pair.iter().skip(1).for_each(|second| first.follow(second));
                first
            });
            self.buckets = pairs.collect();
            self.shift += 1;
        }
        self
    }

    /// Returns the ticks at which the first bucket begins.
    pub fn start(&self) -> Ticks {
        self.start
    }

    /// Returns the exponent of the width of a bucket in ticks.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns the finished buckets, from `start` on without gaps.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns whether an event at that time belongs to a later bucket, so that [`Self::advance`] must be called first.
    #[inline(always)]
    pub(crate) fn is_over(&self, time: Ticks) -> bool {
        // Events that were read behind damage may be older than the start; they belong to the present bucket.
        time.since(self.start) >= self.end
    }

    /// Notes live bytes and blocks that an event of the present bucket has made more.
    #[inline(always)]
    pub(crate) fn rise(&mut self, bytes: u64, blocks: u64) {
        self.now.bytes.max = self.now.bytes.max.max(bytes);
        self.now.blocks.max = self.now.blocks.max.max(blocks);
    }

    /// Notes live bytes and blocks that an event of the present bucket has made less.
    #[inline(always)]
    pub(crate) fn fall(&mut self, bytes: u64, blocks: u64) {
        self.now.bytes.min = self.now.bytes.min.min(bytes);
        self.now.blocks.min = self.now.blocks.min.min(blocks);
    }

    /// Ends the present bucket with these counts, live bytes and blocks, and begins the one of `time`.
    #[cold]
    #[inline(never)]
    pub(crate) fn advance(&mut self, time: Ticks, counts: Counts, live: (u64, u64)) {
        if self.end == 0 {
            (self.start, self.end) = (time, 1);
            return;
        }
        self.end_bucket(counts, live);
        let after = time.since(self.start);
        while after >> self.shift >= MOST as u64 {
            self.fold();
        }
        let at = (after >> self.shift) as usize;
        while self.buckets.len() < at {
            self.buckets.push(self.now);
            self.now = self.now.still();
        }
        self.end = (at as u64 + 1) << self.shift;
    }

    fn end_bucket(&mut self, counts: Counts, (bytes, blocks): (u64, u64)) {
        if let Some(settled) = self.settled.take() {
            self.now = *settled;
        }
        self.now.counts = counts;
        self.now.bytes.end(bytes);
        self.now.blocks.end(blocks);
    }

    /// Returns the extents of live bytes and blocks, and begins anew with the present ones.
    pub(crate) fn restart(&mut self, (bytes, blocks): (u64, u64)) -> (Extent, Extent) {
        self.end_bucket(Counts::default(), (bytes, blocks));
        let mut all = self.buckets.first().copied().unwrap_or(self.now);
        self.buckets.iter().skip(1).chain([&self.now]).for_each(|b| all.follow(b));
        let (now, buckets) = (self.now.still(), std::mem::take(&mut self.buckets));
        *self = Self { now, buckets, ..Self::default() };
        self.buckets.clear();
        (all.bytes, all.blocks)
    }

    /// Makes one bucket of two.
    fn fold(&mut self) {
        let pairs = self.buckets.len() / 2;
        if self.buckets.len() % 2 == 1
            && let Some(mut first) = self.buckets.pop()
        {
            first.follow(&self.now);
            self.now = first;
        }
        for i in 0..pairs {
            let mut first = self.buckets[2 * i];
            first.follow(&self.buckets[2 * i + 1]);
            self.buckets[i] = first;
        }
        self.buckets.truncate(pairs);
        self.shift += 1;
    }

    /// Ends the last bucket with these counts, live bytes and blocks, and adds what was never freed: for each block the
    /// ticks of its allocation, its bytes, and the number of blocks that it stands for.
    pub(crate) fn finish(
        &mut self,
        counts: Counts,
        now: (u64, u64),
        live: impl Iterator<Item = (Ticks, f64, f64)>,
    ) {
        if self.end == 0 {
            return;
        }
        self.end_bucket(counts, now);
        self.buckets.push(self.now);
        let mut leaked = vec![(0f64, 0f64); self.buckets.len()];
        for (time, bytes, blocks) in live {
            let at = (time.since(self.start) >> self.shift) as usize;
            let at = at.min(leaked.len() - 1);
            leaked[at] = (leaked[at].0 + bytes, leaked[at].1 + blocks);
        }
        let mut sum = (0f64, 0f64);
        for (bucket, of) in self.buckets.iter_mut().zip(leaked) {
            sum = (sum.0 + of.0, sum.1 + of.1);
            bucket.counts.leaked_bytes = sum.0.round() as u64;
            bucket.counts.leaked_blocks = sum.1.round() as u64;
        }
    }
}
