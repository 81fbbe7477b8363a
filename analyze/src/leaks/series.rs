//! Computes the bytes that each stack held over time.

use crate::heap::weight;
use crate::index::{Block, Column, Index, ScanError, flags};
use crate::load::Part;
use crate::query::{Query, Selection};
use prof_trace::capture::Capture;
use prof_trace::ticks::Ticks;

/// Number of moments at which stacks are sampled.
pub(super) const MOMENTS: usize = 64;

/// The memory that one stack held over time.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// Bytes at each moment, of blocks that were not young then.
    pub held: [u64; MOMENTS],
    /// Number of these blocks.
    pub counts: [u64; MOMENTS],
    /// Size of the smallest and of the largest block.
    pub sizes: (u64, u64),
    /// Bytes and number of blocks that are live at the end of the recording, including young ones.
    pub live_bytes: u64,
    pub live_blocks: u64,
    /// Bytes held at the last moment that were freed later.
    pub freed_after: u64,
    /// Number of blocks that became old: in all, and after the first half of the time.
    pub kept: u64,
    /// Variance of the growth due to sampling; 0: not sampled.
    pub noise: f64,
    /// Recorded time in ticks when the first block was allocated.
    pub first: u64,
    /// Ticks, pauses included, when the first block was allocated.
    pub first_ticks: Ticks,
}

pub(super) const NOTHING: Series = Series {
    held: [0; MOMENTS],
    counts: [0; MOMENTS],
    sizes: (u64::MAX, 0),
    live_bytes: 0,
    live_blocks: 0,
    freed_after: 0,
    kept: 0,
    noise: 0.0,
    first: u64::MAX,
    first_ticks: Ticks::MAX,
};

/// The time in which recording was on. Pauses do not count, as nothing is known of them.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    /// Start and end of each part, and the ticks recorded before it.
    parts: Vec<(Ticks, Ticks, u64)>,
    /// Recorded ticks of all parts.
    pub total: u64,
}

impl Recorded {
    /// Creates it from parts in ascending order, up to `end`. Without parts, recording was on from `start`.
    pub(super) fn new(parts: &[Part], start: Ticks, end: Ticks) -> Self {
        let mut recorded = Self { parts: Vec::new(), total: 0 };
        for p in parts {
            recorded.add(p.start, p.end.min(end));
        }
        if parts.is_empty() {
            recorded.add(start, end);
        }
        recorded
    }

    fn add(&mut self, start: Ticks, end: Ticks) {
        let start = self.parts.last().map_or(start, |p| p.1.max(start));
        self.parts.push((start, end.max(start), self.total));
        self.total += end.since(start);
    }

    /// Converts the end of a block to recorded time; `u64::MAX`, of a live block, stays.
    pub(super) fn end(&self, ticks: Ticks) -> u64 {
        if ticks == Ticks::MAX { u64::MAX } else { self.before(ticks) }
    }

    /// Returns the recorded ticks before a moment.
    pub(super) fn before(&self, ticks: Ticks) -> u64 {
        let next = self.parts.partition_point(|p| p.0 <= ticks);
        match self.parts[..next].last() {
            Some((start, end, before)) => before + (ticks.min(*end) - *start),
            None => 0,
        }
    }
}

/// The moments at which stacks are sampled.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    /// The moments, in ticks of recorded time.
    pub at: [u64; MOMENTS],
    /// Blocks are young for this many ticks.
    pub young: u64,
    pub recorded: Recorded,
    /// Number of moments per tick.
    rate: f64,
}

/// Returns the number of moments per tick between the first and the last moment.
fn rate(first: u64, last: u64) -> f64 {
    (MOMENTS - 1) as f64 / (last - first).max(1) as f64
}

impl Moments {
    /// Spaces the moments evenly, from when blocks can be old enough to shortly before the end, so that blocks freed
    /// when the program ends are noticed.
    pub(super) fn new(recorded: Recorded, young: u64, before_end: f64) -> Self {
        let last = recorded.total - (recorded.total as f64 * before_end) as u64;
        let first = young.min(last);
        let step = |i: usize| (last - first) as u128 * i as u128 / (MOMENTS as u128 - 1);
        let at = std::array::from_fn(|i| first + step(i) as u64);
        Self { at, young, recorded, rate: rate(first, last) }
    }

    /// Returns moments with another limit for young blocks.
    pub(super) fn older(&self, young: u64) -> Self {
        let last = self.at[MOMENTS - 1];
        let first = young.min(last);
        let step = |i: usize| (last - first) as u128 * i as u128 / (MOMENTS as u128 - 1);
        let at = std::array::from_fn(|i| first + step(i) as u64);
        Self { at, young, recorded: self.recorded.clone(), rate: rate(first, last) }
    }

    /// Returns the first moment at or after these ticks.
    #[inline]
    pub(super) fn from(&self, ticks: u64) -> usize {
        // The moments are evenly spaced, so the guess is wrong by one at most, due to rounding.
        let guess = ticks.saturating_sub(self.at[0]) as f64 * self.rate;
        let mut i = (guess as usize).min(MOMENTS);
        while i < MOMENTS && self.at[i] < ticks {
            i += 1;
        }
        while i > 0 && self.at[i - 1] >= ticks {
            i -= 1;
        }
        i
    }

    /// Returns whether all of a block of rows are too short-lived to count at any moment.
    pub(super) fn are_brief(&self, rows: &Block<'_>) -> bool {
        rows.longest() < self.young
    }

    /// Returns whether a block is too short-lived to count at any moment.
    #[inline]
    pub(super) fn is_brief(&self, begin: Ticks, end: Ticks) -> bool {
        // Recorded time is no longer than the time in ticks.
        end.since(begin) < self.young
    }
}

#[derive(Default)]
struct State {
    selection: Selection,
    columns: [Vec<u64>; 6],
    series: Vec<Option<Box<Series>>>,
}

/// Returns the series by group; `None` for a group without selected blocks.
pub(super) fn series(
    index: &Index,
    query: &Query<'_>,
    moments: &Moments,
) -> Result<Vec<Option<Box<Series>>>, ScanError> {
    let groups = index.analysis().groups();
    let capture = index.analysis().capture();
    // Of brief blocks only their first allocation counts, which is known of all blocks of a stack.
    let known = query.is_of_stacks();
    let state = || State { series: vec![None; groups.len()], ..State::default() };
    let states = index.scan(state, |s, block| {
        if known && moments.are_brief(block) {
            return Some(());
        }
        collect(s, query, block, moments, &capture)
    })?;
    let mut states = states.into_iter().map(|s| s.series);
    let mut all = states.next().unwrap_or_default();
    for other in states {
        for (a, b) in all.iter_mut().zip(other) {
            match (a.as_mut(), b) {
                (Some(a), Some(b)) => a.add(&b),
                (None, b) => *a = b,
                _ => {}
            }
        }
    }
    for (s, g) in all.iter_mut().zip(groups) {
        if let Some(s) = s.as_mut() {
            s.sum_up();
            if known {
                s.first = s.first.min(moments.recorded.before(g.first));
            }
        }
    }
    Ok(all)
}

/// A block with its recorded times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub begin: u64,
    pub end: u64,
    pub size: u64,
    /// Weight of a sampled block; 1 otherwise.
    pub stands_for: f64,
    pub live: bool,
}

impl Series {
    /// Adds a block; `held` and `counts` contain differences until [`Series::sum_up`].
    pub(super) fn take(&mut self, row: &Row, moments: &Moments) {
        let (blocks, size) =
            (row.stands_for.round() as u64, (row.size as f64 * row.stands_for).round() as u64);
        self.first = self.first.min(row.begin);
        if row.live {
            self.live_blocks += blocks;
            self.live_bytes = self.live_bytes.wrapping_add(size);
        }
        let from = moments.from(row.begin.saturating_add(moments.young));
        let to = moments.from(row.end);
        if from >= to {
            return;
        }
        self.kept += 1;
        // A block that is held at both the first and the last moment, or at neither, does not affect the growth.
        if (from == 0) != (to == MOMENTS) {
            let w = row.stands_for;
            self.noise += w * (w - 1.0) * (row.size as f64).powi(2);
        }
        self.sizes = (self.sizes.0.min(row.size), self.sizes.1.max(row.size));
        self.held[from] = self.held[from].wrapping_add(size);
        self.counts[from] = self.counts[from].wrapping_add(blocks);
        if to < MOMENTS {
            self.held[to] = self.held[to].wrapping_sub(size);
            self.counts[to] = self.counts[to].wrapping_sub(blocks);
        } else if row.end != u64::MAX {
            self.freed_after = self.freed_after.wrapping_add(size);
        }
    }

    /// Turns the differences into sums.
    pub(super) fn sum_up(&mut self) {
        for steps in [&mut self.held, &mut self.counts] {
            let mut sum = 0u64;
            for step in steps {
                sum = sum.wrapping_add(*step);
                *step = sum;
            }
        }
    }

    /// Adds another series; both must contain differences, or both sums.
    pub(super) fn add(&mut self, other: &Self) {
        for (a, b) in self.held.iter_mut().zip(other.held) {
            *a = a.wrapping_add(b);
        }
        for (a, b) in self.counts.iter_mut().zip(other.counts) {
            *a = a.wrapping_add(b);
        }
        self.sizes = (self.sizes.0.min(other.sizes.0), self.sizes.1.max(other.sizes.1));
        self.live_bytes = self.live_bytes.wrapping_add(other.live_bytes);
        self.live_blocks += other.live_blocks;
        self.freed_after = self.freed_after.wrapping_add(other.freed_after);
        self.kept += other.kept;
        self.noise += other.noise;
        self.first = self.first.min(other.first);
        self.first_ticks = self.first_ticks.min(other.first_ticks);
    }
}

fn collect(
    s: &mut State,
    query: &Query<'_>,
    block: &mut Block<'_>,
    moments: &Moments,
    capture: &Capture,
) -> Option<()> {
    query.select(block, &mut s.selection)?;
    if s.selection.rows.is_empty() {
        return Some(());
    }
    const READ: [Column; 6] =
        [Column::Begin, Column::End, Column::Size, Column::Group, Column::Flags, Column::Rate];
    for (c, values) in READ.into_iter().zip(&mut s.columns) {
        block.read(c, values)?;
    }
    let [begins, ends, sizes, groups, flag, rates] = &s.columns;
    for &i in &s.selection.rows {
        let i = i as usize;
        let series = s.series.get_mut(groups[i] as usize)?;
        let series = series.get_or_insert_with(|| Box::new(NOTHING));
        if moments.is_brief(Ticks(begins[i]), Ticks(ends[i])) && begins[i] >= series.first_ticks.0 {
            continue;
        }
        series.first_ticks = series.first_ticks.min(Ticks(begins[i]));
        // A sampled block represents others as well.
        let stands_for = weight(capture, sizes[i], rates[i] as u8);
        let row = Row {
            begin: moments.recorded.before(Ticks(begins[i])),
            end: moments.recorded.end(Ticks(ends[i])),
            size: sizes[i],
            stands_for,
            live: flag[i] & flags::LIVE != 0,
        };
        series.take(&row, moments);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_moment_is_found_as_by_looking_at_all() {
        for (total, young) in
            [(0, 0), (1, 0), (63, 1), (64, 5), (1_000_003, 777), (u64::MAX / 3, 9)]
        {
            let part = [Part { start: Ticks::ZERO, end: Ticks(total) }];
            let m = Moments::new(Recorded::new(&part, Ticks::ZERO, Ticks(total)), young, 0.05);
            let around = m.at.iter().flat_map(|t| [t.saturating_sub(1), *t, t + 1]);
            for t in around.chain([0, u64::MAX, total / 7]) {
                assert_eq!(m.from(t), m.at.partition_point(|a| *a < t), "{t} of {total}");
            }
        }
    }

    #[test]
    fn pauses_do_not_count() {
        let parts = [
            Part { start: Ticks(100), end: Ticks(200) },
            Part { start: Ticks(1000), end: Ticks(1100) },
        ];
        let r = Recorded::new(&parts, Ticks(50), Ticks(1080));
        assert_eq!(r.total, 180);
        let at = [0, 100, 150, 200, 500, 1000, 1050, 1080, 2000];
        assert_eq!(at.map(|t| r.before(Ticks(t))), [0, 0, 50, 100, 100, 100, 150, 180, 180]);
        let m = Moments::new(r, 20, 0.1);
        assert_eq!((m.at[0], m.at[MOMENTS - 1]), (20, 162));
        // Invalid parts of a made-up recording.
        let parts = [
            Part { start: Ticks(100), end: Ticks(50) },
            Part { start: Ticks(10), end: Ticks::MAX },
        ];
        let r = Recorded::new(&parts, Ticks::ZERO, Ticks(300));
        assert_eq!((r.total, r.before(Ticks::MAX)), (200, 200));
        assert_eq!(Recorded::new(&[], Ticks(7), Ticks(10)).before(Ticks(9)), 2);
    }
}
