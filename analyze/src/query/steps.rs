//! Sums of short steps of time, for timelines without sorting.
use prof_trace::ticks::Ticks;

/// Greatest number of short steps of time.
const STEPS: u64 = 1 << 16;

/// Sums of a column. They wrap in made-up recordings.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums<N> {
    pub allocations: N,
    pub reallocations: N,
    pub frees: N,
    pub ends: N,
    pub allocated_bytes: N,
    pub freed_bytes: N,
    pub temporary: N,
    pub leaked_bytes: N,
    pub leaked_blocks: N,
    /// Blocks from before the recording, and their bytes.
    pub found: N,
    pub found_bytes: N,
}

/// The type of sums: whole numbers, or estimates.
pub(super) trait Number: Copy + Default + Send {
    fn of(value: u64, weight: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn rounded(self) -> u64;
}

impl Number for u64 {
    #[inline(always)]
    fn of(value: u64, _: f64) -> Self {
        value
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
    fn rounded(self) -> u64 {
        self
    }
}

impl Number for f64 {
    #[inline(always)]
    fn of(value: u64, weight: f64) -> Self {
        value as f64 * weight
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self - other
    }
    fn rounded(self) -> u64 {
        self.max(0.0).round() as u64
    }
}

impl<N: Number> Sums<N> {
    pub(super) fn add(&mut self, o: &Self) {
        let pairs = [
            (&mut self.allocations, o.allocations),
            (&mut self.reallocations, o.reallocations),
            (&mut self.frees, o.frees),
            (&mut self.ends, o.ends),
            (&mut self.allocated_bytes, o.allocated_bytes),
            (&mut self.freed_bytes, o.freed_bytes),
            (&mut self.temporary, o.temporary),
            (&mut self.leaked_bytes, o.leaked_bytes),
            (&mut self.leaked_blocks, o.leaked_blocks),
            (&mut self.found, o.found),
            (&mut self.found_bytes, o.found_bytes),
        ];
        for (a, b) in pairs {
            *a = a.plus(b);
        }
    }
}

/// Short steps of time within the edges of the columns.
pub(super) struct Steps<'a> {
    pub edges: &'a [Ticks],
    /// The first ticks of the first step.
    pub from: Ticks,
    /// Exponent of the width of a step in ticks.
    pub shift: u32,
    /// For each step the column of its first ticks.
    pub columns: Vec<u32>,
}

impl<'a> Steps<'a> {
    /// Divides the time between the edges, as far as the recording has any.
    pub(super) fn new(edges: &'a [Ticks], start: Ticks, end: Ticks) -> Self {
        let from = edges[0].max(start.min(end));
        let to = edges[edges.len() - 1].min(end.saturating_add(1)).max(from.saturating_add(1));
        let mut shift = 0;
        while (to - 1 - from) >> shift >= STEPS {
            shift += 1;
        }
        let count = ((to - 1 - from) >> shift) as usize + 1;
        let mut column = 0;
        let columns = (0..count as u64).map(|i| {
            let at = from.saturating_add(i << shift);
            while column + 2 < edges.len() && edges[column + 1] <= at {
                column += 1;
            }
            column as u32
        });
        Self { edges, from, shift, columns: columns.collect() }
    }

    /// Returns the step and the column of a time within the edges.
    #[inline(always)]
    pub(super) fn at(&self, ticks: Ticks) -> (usize, usize) {
        let step = (ticks.since(self.from) >> self.shift) as usize;
        let step = step.min(self.columns.len() - 1);
        let mut column = self.columns[step] as usize;
        while column + 2 < self.edges.len() && self.edges[column + 1] <= ticks {
            column += 1;
        }
        // A time before the first step, of a damaged recording, can lie in an earlier column than that.
        while column > 0 && self.edges[column] > ticks {
            column -= 1;
        }
        (step, column)
    }
}
