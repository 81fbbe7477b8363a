//! The figures of a set of blocks, as data.

use crate::heap::{BlockStats, Errors, Group};
use prof_trace::capture::Capture;
use serde::Serialize;

/// The figures of a set of blocks, see [`BlockStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockStatsData {
    /// Number of live blocks.
    pub live_count: u64,
    /// Standard error of `live_count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_count_stderr: Option<u64>,
    /// Bytes of the live blocks.
    pub live_bytes: u64,
    /// Standard error of `live_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_bytes_stderr: Option<u64>,
    /// Greatest number of blocks live at any time.
    pub peak_count: u64,
    /// Standard error of `peak_count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_count_stderr: Option<u64>,
    /// Greatest number of bytes live at any time.
    pub peak_bytes: u64,
    /// Standard error of `peak_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes_stderr: Option<u64>,
    /// Number of allocations, other than reallocations.
    pub allocations: u64,
    /// Standard error of `allocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations_stderr: Option<u64>,
    /// Number of reallocations.
    pub reallocations: u64,
    /// Standard error of `reallocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reallocations_stderr: Option<u64>,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Standard error of `allocated_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes_stderr: Option<u64>,
    /// Number of temporary blocks; `None` if not all blocks are recorded.
    pub temporary: Option<u64>,
    /// Number of blocks from before the attach, which are no allocations, and older than they seem.
    #[serde(skip_serializing_if = "is_zero")]
    pub before_attach: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The figures that can be summed over sets of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SumData {
    /// Number of live blocks.
    pub live_count: u64,
    /// Standard error of `live_count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_count_stderr: Option<u64>,
    /// Bytes of the live blocks.
    pub live_bytes: u64,
    /// Standard error of `live_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_bytes_stderr: Option<u64>,
    /// Number of allocations, other than reallocations.
    pub allocations: u64,
    /// Standard error of `allocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations_stderr: Option<u64>,
    /// Number of reallocations.
    pub reallocations: u64,
    /// Standard error of `reallocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reallocations_stderr: Option<u64>,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Standard error of `allocated_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes_stderr: Option<u64>,
    /// Number of temporary blocks; `None` if not all blocks are recorded.
    pub temporary: Option<u64>,
}

impl BlockStatsData {
    pub(super) fn new(capture: Capture, group: &Group) -> Self {
        let error = |of: fn(&Errors) -> u64| capture.is_sampled().then(|| of(&group.errors));
        let f = &group.figures;
        Self {
            live_count: f.live_count,
            live_count_stderr: error(|e| e.live_count),
            live_bytes: f.live_bytes,
            live_bytes_stderr: error(|e| e.live_bytes),
            peak_count: f.peak_count,
            peak_count_stderr: error(|e| e.peak_count),
            peak_bytes: f.peak_bytes,
            peak_bytes_stderr: error(|e| e.peak_bytes),
            allocations: f.allocations,
            allocations_stderr: error(|e| e.allocations),
            reallocations: f.reallocations,
            reallocations_stderr: error(|e| e.reallocations),
            allocated_bytes: f.allocated_bytes,
            allocated_bytes_stderr: error(|e| e.allocated_bytes),
            temporary: capture.is_everything().then_some(f.temporary),
            before_attach: f.found,
        }
    }
}

/// Sums up figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Adder {
    figures: BlockStats,
    /// Variances of live blocks and bytes, of allocations, reallocations and allocated bytes. Variances are additive,
    /// as blocks are picked independently.
    variances: [f64; 5],
}

impl Adder {
    pub(crate) fn add(&mut self, g: &Group) {
        let (f, o, e) = (&mut self.figures, &g.figures, &g.errors);
        f.live_count += o.live_count;
        f.live_bytes = f.live_bytes.wrapping_add(o.live_bytes);
        f.allocations += o.allocations;
        f.reallocations += o.reallocations;
        f.allocated_bytes = f.allocated_bytes.wrapping_add(o.allocated_bytes);
        f.temporary += o.temporary;
        let errors =
            [e.live_count, e.live_bytes, e.allocations, e.reallocations, e.allocated_bytes];
        for (v, e) in self.variances.iter_mut().zip(errors) {
            *v += (e as f64).powi(2);
        }
    }

    pub(super) fn join(&mut self, other: &Self) {
        let whole = Group { figures: other.figures, ..Group::default() };
        self.add(&whole);
        self.variances.iter_mut().zip(other.variances).for_each(|(a, b)| *a += b);
    }

    pub(crate) fn figures(&self) -> &BlockStats {
        &self.figures
    }

    pub(super) fn data(&self, capture: Capture) -> SumData {
        let error =
            |i: usize| capture.is_sampled().then(|| self.variances[i].sqrt().round() as u64);
        let f = &self.figures;
        SumData {
            live_count: f.live_count,
            live_count_stderr: error(0),
            live_bytes: f.live_bytes,
            live_bytes_stderr: error(1),
            allocations: f.allocations,
            allocations_stderr: error(2),
            reallocations: f.reallocations,
            reallocations_stderr: error(3),
            allocated_bytes: f.allocated_bytes,
            allocated_bytes_stderr: error(4),
            temporary: capture.is_everything().then_some(f.temporary),
        }
    }
}

impl SumData {
    pub(crate) fn of<'a>(capture: Capture, groups: impl IntoIterator<Item = &'a Group>) -> Self {
        let mut sum = Adder::default();
        groups.into_iter().for_each(|g| sum.add(g));
        sum.data(capture)
    }
}
