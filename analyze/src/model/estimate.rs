//! Figures of a sampled recording.
//!
//! Each block is in the recording with a probability `p` that is known from its size. A figure that
//! adds a value up over blocks is estimated without bias by the sum of value / p over those that
//! are there (Horvitz and Thompson), with a variance of which the sum of (1 - p) / p² · value² is
//! an unbiased estimate, as blocks are picked independently.

use super::live::Block;
use super::replay::Figures;
use prof_trace::capture::Capture;

/// Standard errors of estimated figures; all 0 if they are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Of [`Figures::live_count`].
    pub live_count: u64,
    /// Of [`Figures::live_bytes`].
    pub live_bytes: u64,
    /// Of [`Figures::peak_count`], as it was at that moment.
    pub peak_count: u64,
    /// Of [`Figures::peak_bytes`], as it was at that moment.
    pub peak_bytes: u64,
    /// Of [`Figures::allocations`].
    pub allocations: u64,
    /// Of [`Figures::reallocations`].
    pub reallocations: u64,
    /// Of [`Figures::allocated_bytes`].
    pub allocated_bytes: u64,
    /// Of the number of frees, in the totals.
    pub frees: u64,
}

/// Probability with which a block of a size is recorded, among those of the recorded sizes.
pub fn probability(capture: &Capture, size: u64) -> f64 {
    if capture.sample_bytes > 0 {
        -(-(size.max(1) as f64) / capture.sample_bytes as f64).exp_m1()
    } else {
        1.0 / capture.sample_every.max(1) as f64
    }
}

/// A sum over blocks, and its variance.
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

    /// Takes a value away that belongs to another block than those that were added.
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
    /// Blocks that came to their end, freed or reallocated.
    ended: Sum,
    blocks: u64,
}

impl Estimate {
    /// Returns whether more bytes are live than ever.
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
            // No rounding errors add up.
            (self.live_count, self.live_bytes) = Default::default();
        }
    }

    /// Blocks given back other than by reallocation: a reallocation of which only the old block is
    /// recorded looks like a free, so what is counted is ends less reallocations.
    fn frees(&self) -> Sum {
        Sum {
            value: (self.ended.value - self.reallocations.value).max(0.0),
            variance: self.ended.variance + self.reallocations.variance,
        }
    }

    fn put(&self, f: &mut Figures) {
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

/// The estimates beside a replay of a sampled recording.
#[derive(Debug)]
pub(crate) struct Estimates {
    capture: Capture,
    totals: Estimate,
    groups: Vec<Estimate>,
    peak_ticks: u64,
}

impl Estimates {
    pub(crate) fn new(capture: Capture) -> Self {
        Self { capture, totals: Estimate::default(), groups: Vec::new(), peak_ticks: 0 }
    }

    pub(crate) fn begin(&mut self, b: &Block, again: bool) {
        let p = probability(&self.capture, b.size());
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
        let p = probability(&self.capture, b.size());
        if let Some(g) = self.groups.get_mut(b.group as usize) {
            g.lose(b.size(), p);
        }
        self.totals.lose(b.size(), p);
    }

    /// Puts the estimates of all blocks in place of what was counted. Returns frees, the ticks of
    /// the peak, and the errors.
    pub(crate) fn totals(&self, f: &mut Figures) -> (u64, u64, Errors) {
        self.totals.put(f);
        (self.totals.frees().rounded(), self.peak_ticks, self.totals.errors())
    }

    /// The same for a group; returns the errors.
    pub(crate) fn group(&self, group: usize, f: &mut Figures) -> Errors {
        let Some(g) = self.groups.get(group) else { return Errors::default() };
        g.put(f);
        g.errors()
    }
}
