//! Estimates the figures of a sampled recording.
//!
//! Each block is recorded with a probability `p` that is known from its size. A sum of a value over all blocks is
//! estimated without bias by the sum of value / p over the recorded ones (Horvitz-Thompson). As blocks are picked
//! independently, the sum of (1 - p) / p² · value² is an unbiased estimate of its variance.

use super::course::Counts;
use super::live::Block;
use super::stats::BlockStats;
use prof_trace::capture::Capture;
use prof_trace::records::Folded;
use prof_trace::ticks::Ticks;

/// Standard errors of estimated figures; all are 0 if the figures are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Standard error of [`BlockStats::live_count`].
    pub live_count: u64,
    /// Standard error of [`BlockStats::live_bytes`].
    pub live_bytes: u64,
    /// Standard error of [`BlockStats::peak_count`], at that moment.
    pub peak_count: u64,
    /// Standard error of [`BlockStats::peak_bytes`], at that moment.
    pub peak_bytes: u64,
    /// Standard error of [`BlockStats::allocations`].
    pub allocations: u64,
    /// Standard error of [`BlockStats::reallocations`].
    pub reallocations: u64,
    /// Standard error of [`BlockStats::allocated_bytes`].
    pub allocated_bytes: u64,
    /// Standard error of the number of frees, in the totals.
    pub frees: u64,
}

/// Returns the probability with which a block of a size is recorded, if that size is recorded at all. `rate` is the
/// exponent of the sampling distance that the block states (see [`prof_trace::size::CodedSize::rate`]); 0: the recording's distance.
pub fn probability(capture: &Capture, size: u64, rate: u8) -> f64 {
    if capture.sample_bytes > 0 {
        let mean = if rate > 0 { 1 << rate.min(63) } else { capture.sample_bytes };
        -(-(size.max(1) as f64) / mean as f64).exp_m1()
    } else {
        1.0 / capture.sample_every.max(1) as f64
    }
}

/// Returns the number of the program's blocks that a recorded block represents.
pub fn weight(capture: &Capture, size: u64, rate: u8) -> f64 {
    if capture.is_sampled() { 1.0 / probability(capture, size, rate) } else { 1.0 }
}

/// An estimated sum over blocks, and its variance.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    value: f64,
    variance: f64,
}

impl Sum {
    #[inline(always)]
    pub(crate) fn add(&mut self, value: f64, p: f64) {
        self.value += value / p;
        self.variance += (1.0 - p) / (p * p) * value * value;
    }

    #[inline(always)]
    fn sub(&mut self, value: f64, p: f64) {
        self.value -= value / p;
        self.variance -= (1.0 - p) / (p * p) * value * value;
    }

    /// Subtracts the value of a block that is independent of those that were added.
    pub(crate) fn correct(&mut self, value: f64, p: f64) {
        self.value -= value / p;
        self.variance += (1.0 - p) / (p * p) * value * value;
    }

    pub(crate) fn join(&mut self, other: &Self) {
        self.value += other.value;
        self.variance += other.variance;
    }

    pub(crate) fn rounded(self) -> u64 {
        self.value.round() as u64
    }

    pub(crate) fn error(self) -> u64 {
        self.variance.max(0.0).sqrt().round() as u64
    }
}

/// Estimates of the figures of a set of blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    live_count: Sum,
    live_bytes: Sum,
    peak_count: Sum,
    peak_bytes: Sum,
    allocations: Sum,
    reallocations: Sum,
    allocated_bytes: Sum,
    /// Blocks that ended by a free or a reallocation.
    ended: Sum,
    blocks: u64,
}

impl Estimate {
    /// Adds a block that begins. Returns whether more bytes are live than ever before.
    fn gain(&mut self, size: u64, p: f64, again: bool) -> bool {
        let value = size as f64;
        self.blocks += 1;
        self.live_count.add(1.0, p);
        self.live_bytes.add(value, p);
        self.allocated_bytes.add(value, p);
        if again { &mut self.reallocations } else { &mut self.allocations }.add(1.0, p);
        if self.live_count.value > self.peak_count.value {
            self.peak_count = self.live_count;
        }
        let higher = self.live_bytes.value > self.peak_bytes.value;
        if higher {
            self.peak_bytes = self.live_bytes;
        }
        higher
    }

    fn lose(&mut self, size: u64, p: f64) {
        self.blocks -= 1;
        self.live_count.sub(1.0, p);
        self.live_bytes.sub(size as f64, p);
        self.ended.add(1.0, p);
        if self.blocks == 0 {
            // Without live blocks the sums are exactly 0: this keeps rounding errors from accumulating.
            (self.live_count, self.live_bytes) = Default::default();
        }
    }

    /// Returns the estimated number of frees. A reallocation of which only the old block is recorded looks like a free,
    /// so it is computed as ends less reallocations.
    fn frees(&self) -> Sum {
        Sum {
            value: (self.ended.value - self.reallocations.value).max(0.0),
            variance: self.ended.variance + self.reallocations.variance,
        }
    }

    /// Returns the sums that stay when the live blocks of `left` are taken away, and both peaks.
    fn without(&self, left: &Self) -> [u64; Folded::SUMS] {
        let less = |a: &Sum, b: &Sum| Sum {
            value: (a.value - b.value).max(0.0),
            variance: (a.variance - b.variance).max(0.0),
        };
        let sums = [
            self.peak_count,
            self.peak_bytes,
            less(&self.allocations, &left.allocations),
            less(&self.reallocations, &left.reallocations),
            less(&self.allocated_bytes, &left.allocated_bytes),
            less(&self.ended, &left.ended),
        ];
        let mut all = [0; Folded::SUMS];
        for (to, sum) in all.chunks_exact_mut(2).zip(sums) {
            to.copy_from_slice(&[sum.value.to_bits(), sum.variance.to_bits()]);
        }
        all
    }

    /// Reads such sums. Those of made-up recordings may be anything.
    fn seeded(bits: &[u64; Folded::SUMS]) -> Self {
        let number = |bits: u64| Some(f64::from_bits(bits)).filter(|f| f.is_finite() && *f >= 0.0);
        let sum = |i: usize| Sum {
            value: number(bits[2 * i]).unwrap_or_default(),
            variance: number(bits[2 * i + 1]).unwrap_or_default(),
        };
        Self {
            peak_count: sum(0),
            peak_bytes: sum(1),
            allocations: sum(2),
            reallocations: sum(3),
            allocated_bytes: sum(4),
            ended: sum(5),
            ..Self::default()
        }
    }

    fn put(&self, f: &mut BlockStats) {
        f.live_count = self.live_count.rounded();
        f.live_bytes = self.live_bytes.rounded();
        f.peak_count = self.peak_count.rounded();
        f.peak_bytes = self.peak_bytes.rounded();
        f.allocations = self.allocations.rounded();
        f.reallocations = self.reallocations.rounded();
        f.allocated_bytes = self.allocated_bytes.rounded();
    }

    fn errors(&self) -> Errors {
        Errors {
            live_count: self.live_count.error(),
            live_bytes: self.live_bytes.error(),
            peak_count: self.peak_count.error(),
            peak_bytes: self.peak_bytes.error(),
            allocations: self.allocations.error(),
            reallocations: self.reallocations.error(),
            allocated_bytes: self.allocated_bytes.error(),
            frees: self.frees().error(),
        }
    }
}

/// The estimates that accompany the replay of a sampled recording.
#[derive(Debug)]
pub(crate) struct Estimates {
    capture: Capture,
    totals: Estimate,
    groups: Vec<Estimate>,
    peak_ticks: Ticks,
}

impl Estimates {
    pub(crate) fn new(capture: Capture) -> Self {
        Self { capture, totals: Estimate::default(), groups: Vec::new(), peak_ticks: Ticks::ZERO }
    }

    /// Returns the sums for all blocks, and then for each of `count` groups, as [`Folded::sums`] has them; of what the blocks
    /// in `left` add to them nothing, but of peaks the greater.
    pub(crate) fn sums_without(&self, left: &Self, count: usize) -> Vec<u64> {
        let none = Estimate::default();
        let of = |e: &Self, i: Option<usize>| match i {
            None => e.totals,
            Some(i) => e.groups.get(i).copied().unwrap_or(none),
        };
        let all = std::iter::once(None).chain((0..count).map(Some));
        all.flat_map(|i| of(self, i).without(&of(left, i))).collect()
    }

    /// Goes on from sums as [`Folded::sums`] has them; `groups` are the indices of the groups in their order.
    pub(crate) fn seed(&mut self, sums: &[u64], groups: &[u32], peak_ticks: Ticks) {
        let mut sums = sums.as_chunks::<{ Folded::SUMS }>().0.iter().map(Estimate::seeded);
        self.totals = sums.next().unwrap_or_default();
        self.peak_ticks = peak_ticks;
        for (group, sum) in groups.iter().zip(sums) {
            let at = *group as usize;
            if at >= self.groups.len() {
                self.groups.resize(at + 1, Estimate::default());
            }
            self.groups[at] = sum;
        }
    }

    /// Returns a copy whose groups are these, given their indices here.
    pub(crate) fn reordered(&self, groups: impl Iterator<Item = Option<u32>>) -> Self {
        let of = |at: Option<u32>| at.and_then(|at| self.groups.get(at as usize)).copied();
        let groups = groups.map(|at| of(at).unwrap_or_default()).collect();
        Self { capture: self.capture, totals: self.totals, groups, peak_ticks: self.peak_ticks }
    }

    /// Returns the ticks of the peak of live bytes.
    pub(crate) fn peak_ticks(&self) -> Ticks {
        self.peak_ticks
    }

    pub(crate) fn begin(&mut self, b: &Block, again: bool) {
        let p = probability(&self.capture, b.size(), b.rate());
        let at = b.group as usize;
        if at >= self.groups.len() {
            self.groups.resize(at + 1, Estimate::default());
        }
        self.groups[at].gain(b.size(), p, again);
        if self.totals.gain(b.size(), p, again) {
            self.peak_ticks = b.time;
        }
    }

    pub(crate) fn end(&mut self, b: &Block) {
        let p = probability(&self.capture, b.size(), b.rate());
        if let Some(g) = self.groups.get_mut(b.group as usize) {
            g.lose(b.size(), p);
        }
        self.totals.lose(b.size(), p);
    }

    /// Returns the number of the program's blocks that a block represents.
    pub(crate) fn weight(&self, b: &Block) -> f64 {
        1.0 / probability(&self.capture, b.size(), b.rate())
    }

    /// Returns live bytes and blocks.
    pub(crate) fn live(&self) -> (u64, u64) {
        (self.totals.live_bytes.rounded(), self.totals.live_count.rounded())
    }

    /// Returns the counts of all blocks so far.
    pub(crate) fn counts(&self) -> Counts {
        let t = &self.totals;
        let allocated = t.allocated_bytes.rounded();
        Counts {
            allocations: t.allocations.rounded(),
            reallocations: t.reallocations.rounded(),
            frees: t.frees().rounded(),
            ends: t.ended.rounded(),
            allocated_bytes: allocated,
            freed_bytes: allocated.saturating_sub(t.live_bytes.rounded()),
            ..Counts::default()
        }
    }

    /// Replaces counted totals by estimates. Returns the number of frees, the ticks of the peak, and the errors.
    pub(crate) fn totals(&self, f: &mut BlockStats) -> (u64, Ticks, Errors) {
        self.totals.put(f);
        (self.totals.frees().rounded(), self.peak_ticks, self.totals.errors())
    }

    /// Replaces the counted figures of a group by estimates; returns the errors.
    pub(crate) fn group(&self, group: usize, f: &mut BlockStats) -> Errors {
        let Some(g) = self.groups.get(group) else { return Errors::default() };
        g.put(f);
        g.errors()
    }
}
