//! Computes figures over time.
//!
//! For all blocks the index has them ready (see [`crate::heap::Course`]). For some of them one pass over the index
//! adds up, in short steps of time, what begins and ends in each: that needs no order. Only what rises and falls within
//! one step is then missing from the smallest and largest values; sums, and the values at the ends of columns, are
//! exact.

use super::block_stats::By;
use super::plan::{Query, Selection, tick_from, tick_to};
use super::steps::{Number, Steps, Sums};
use crate::heap::{Course, Extent, weight};
use crate::index::{Block, Column, Index, ScanError, flags};
use crate::load::{Clock, Meta};
use prof_trace::capture::Capture;
use prof_trace::ticks::Ticks;

/// A part of the recording's time, divided into columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Nanoseconds from the start of the recording to the start of the span.
    pub from_ns: u64,
    /// Nanoseconds from the start of the recording to the end of the span, which belongs to it.
    pub to_ns: u64,
    /// Number of columns of equal duration, from 1 to [`MOST_COLUMNS`].
    pub width: usize,
}

/// Greatest number of columns of a timeline; more are not computed.
pub const MOST_COLUMNS: usize = 1 << 16;

impl Span {
    /// Returns the whole time of a recording.
    pub fn whole(index: &Index, width: usize) -> Self {
        Self { from_ns: 0, to_ns: index.analysis().duration_ns(), width }
    }

    /// Returns the nanoseconds at which a column begins; for the number of columns, at which the last one ends.
    pub fn edge_ns(&self, column: usize) -> u64 {
        let long = u128::from(self.to_ns.saturating_sub(self.from_ns));
        let part = long * column as u128 / self.width.max(1) as u128;
        self.from_ns.saturating_add(part as u64)
    }

    /// Returns the first ticks of each column, and those behind the last one.
    pub(crate) fn edges(&self, clock: &Clock, end: Ticks) -> Vec<Ticks> {
        let width = self.width.clamp(1, MOST_COLUMNS);
        let span = Self { width, ..*self };
        let whole = span.to_ns >= clock.ns(end);
        let mut edges: Vec<Ticks> = (0..width)
            .map(|i| match span.edge_ns(i) {
                0 => Ticks::ZERO,
                ns => tick_from(clock, ns),
            })
            .collect();
        // Times behind the end of the recording, of damaged ones, belong to its last moment.
        let last = if whole { Ticks::MAX } else { tick_to(clock, span.to_ns).saturating_add(1) };
        edges.push(last.max(edges[width - 1]));
        edges
    }
}

/// The smallest, the largest and the last value of each column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Band {
    /// The smallest value of each column.
    pub min: Vec<u64>,
    /// The largest value of each column.
    pub max: Vec<u64>,
    /// The value at the end of each column.
    pub last: Vec<u64>,
}

impl Band {
    /// Appends a column.
    pub(crate) fn push(&mut self, e: Extent) {
        self.min.push(e.min);
        self.max.push(e.max);
        self.last.push(e.last);
    }
}

/// Figures over time; all vectors have one value for each column of the span. They are estimates if the recording is
/// sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Nanoseconds at which the columns begin, and at which the last one ends.
    pub edges_ns: Vec<u64>,
    /// Live bytes.
    pub live_bytes: Band,
    /// Live blocks.
    pub live_blocks: Band,
    /// Number of allocations, other than reallocations.
    pub allocations: Vec<u64>,
    /// Number of reallocations.
    pub reallocations: Vec<u64>,
    /// Number of recorded frees of known blocks.
    pub frees: Vec<u64>,
    /// Number of blocks that ended in any way. Live blocks change by allocations and reallocations less these, and by those
    /// that a census has found.
    pub ends: Vec<u64>,
    /// Bytes allocated.
    pub allocated_bytes: Vec<u64>,
    /// Bytes of the blocks that ended. Live bytes change by the allocated bytes less these.
    pub freed_bytes: Vec<u64>,
    /// Number of temporary blocks that were freed; 0 if not all blocks are recorded.
    pub temporary: Vec<u64>,
    /// Bytes of the blocks that were allocated in the column and are never freed.
    pub leaked_bytes: Vec<u64>,
    /// Number of these blocks.
    pub leaked_blocks: Vec<u64>,
    /// Bytes and number of the blocks that were allocated before the span and are never freed.
    pub leaked_before: (u64, u64),
    /// Resident set of the process in bytes, if the recording has it. A column without a reading has the value before.
    pub rss: Option<Band>,
    /// Address space of the process in bytes, if the recording has it.
    pub vss: Option<Band>,
    /// A change that lasts shorter may be missing from the smallest and largest values; 0: none is. A
    /// timeline of all blocks may assign what happens so close to the edge of a column to the next one.
    pub within_ns: u64,
}

/// Sums of a thread that goes through the index.
struct Adding<N> {
    selection: Selection,
    columns: [Vec<u64>; 5],
    /// Change of live bytes and blocks in each step.
    steps: Vec<[N; 2]>,
    sums: Vec<Sums<N>>,
    /// Live bytes and blocks at the start of the span.
    before: [N; 2],
    leaked_before: [N; 2],
}

impl<N: Number> Adding<N> {
    fn new(steps: usize, columns: usize) -> Self {
        Self {
            selection: Selection::default(),
            columns: Default::default(),
            steps: vec![[N::default(); 2]; steps],
            sums: vec![Sums::default(); columns],
            before: [N::default(); 2],
            leaked_before: [N::default(); 2],
        }
    }

    fn join(&mut self, o: &Self) {
        for (a, b) in self.steps.iter_mut().zip(&o.steps) {
            *a = [a[0].plus(b[0]), a[1].plus(b[1])];
        }
        self.sums.iter_mut().zip(&o.sums).for_each(|(a, b)| a.add(b));
        let pairs = [(&mut self.before, o.before), (&mut self.leaked_before, o.leaked_before)];
        for (a, b) in pairs {
            *a = [a[0].plus(b[0]), a[1].plus(b[1])];
        }
    }
}

impl Query<'_> {
    /// Computes the figures of the selected blocks over time. `exact`: no change may be missing from the smallest and
    /// largest values, which takes several times as long.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn timeline(&self, span: &Span, exact: bool) -> Result<Timeline, ScanError> {
        let analysis = self.index.analysis();
        let (clock, end) = (&analysis.meta().clock, analysis.end_ticks());
        let edges = span.edges(clock, end);
        let mut timeline = match self.of_course(&edges, exact) {
            _ if self.is_aggregated() => self.aggregated_timeline(&edges)?,
            Some(t) => t,
            None if analysis.capture().is_sampled() => self.by_steps::<f64>(&edges)?,
            None => self.by_steps::<u64>(&edges)?,
        };
        if exact && timeline.within_ns > 0 && !self.is_aggregated() {
            self.put_in_order(&edges, &mut timeline)?;
        }
        timeline.edges_ns = (0..edges.len()).map(|i| span.edge_ns(i)).collect();
        if let Some((rss, vss)) = resident(analysis.meta(), &edges) {
            (timeline.rss, timeline.vss) = (Some(rss), Some(vss));
        }
        Ok(timeline)
    }

    /// Returns the timeline of all blocks, if they are selected and the buckets of the course are fine enough.
    fn of_course(&self, edges: &[Ticks], exact: bool) -> Option<Timeline> {
        if !self.is_all() {
            return None;
        }
        let analysis = self.index.analysis();
        let course = self.index.course();
        let (first, last) = (edges[0].max(course.start()), edges[edges.len() - 1]);
        let last = last.min(analysis.end_ticks().saturating_add(1));
        let a_column = last.since(first) / (edges.len() as u64 - 1);
        let fine = course.shift() == 0 || (!exact && a_column >> course.shift() > 0);
        fine.then(|| by_course(course, edges, &analysis.meta().clock))
    }

    fn by_steps<N: Number>(&self, edges: &[Ticks]) -> Result<Timeline, ScanError> {
        let analysis = self.index.analysis();
        let start = analysis.meta().target.start_ticks;
        let steps = Steps::new(edges, start, analysis.end_ticks());
        let state = || Adding::<N>::new(steps.columns.len(), edges.len() - 1);
        let states = self.index.scan(state, |s, block| self.add_to_steps(s, block, &steps))?;
        let mut states = states.into_iter();
        let mut all = states.next().unwrap_or_else(state);
        states.for_each(|s| all.join(&s));
        let mut t = total(&all, &steps, analysis.capture());
        let step = steps.from.saturating_add(1 << steps.shift);
        t.within_ns = analysis.meta().clock.between(steps.from, step).max(1);
        Ok(t)
    }

    fn add_to_steps<N: Number>(
        &self,
        s: &mut Adding<N>,
        block: &mut Block<'_>,
        steps: &Steps<'_>,
    ) -> Option<()> {
        let (from, to) = (steps.edges[0], steps.edges[steps.edges.len() - 1]);
        if block.range(Column::Begin).0 >= to.0 || block.range(Column::End).1 < from.0 {
            return Some(());
        }
        self.select(block, &mut s.selection)?;
        if s.selection.rows.is_empty() {
            return Some(());
        }
        let capture = self.index.analysis().capture();
        let sampled = capture.is_sampled();
        const READ: [Column; 5] =
            [Column::Begin, Column::End, Column::Size, Column::Flags, Column::Rate];
        for (c, values) in READ.into_iter().zip(&mut s.columns).take(4 + usize::from(sampled)) {
            block.read(c, values)?;
        }
        let [begins, ends, sizes, flag, rates] = &s.columns;
        for &i in &s.selection.rows {
            let i = i as usize;
            let (begin, end, size, flag) = (begins[i], ends[i], sizes[i], flag[i]);
            if begin >= to.0 || end < from.0 {
                continue;
            }
            let weight = if sampled { weight(&capture, size, rates[i] as u8) } else { 1.0 };
            let (one, bytes) = (N::of(1, weight), N::of(size, weight));
            let never = end == u64::MAX;
            if begin < from.0 {
                s.before = [s.before[0].plus(bytes), s.before[1].plus(one)];
                if never {
                    let b = &mut s.leaked_before;
                    *b = [b[0].plus(bytes), b[1].plus(one)];
                }
            } else {
                let (step, column) = steps.at(Ticks(begin));
                let d = &mut s.steps[step];
                *d = [d[0].plus(bytes), d[1].plus(one)];
                let sum = &mut s.sums[column];
                if flag & flags::FOUND != 0 {
                    sum.found = sum.found.plus(one);
                    sum.found_bytes = sum.found_bytes.plus(bytes);
                } else {
                    let again = flag & flags::REALLOCATED != 0;
                    let count = if again { &mut sum.reallocations } else { &mut sum.allocations };
                    *count = count.plus(one);
                    sum.allocated_bytes = sum.allocated_bytes.plus(bytes);
                }
                if never {
                    sum.leaked_bytes = sum.leaked_bytes.plus(bytes);
                    sum.leaked_blocks = sum.leaked_blocks.plus(one);
                }
            }
            if end < to.0 && !never {
                let (step, column) = steps.at(Ticks(end));
                let d = &mut s.steps[step];
                *d = [d[0].minus(bytes), d[1].minus(one)];
                let sum = &mut s.sums[column];
                sum.ends = sum.ends.plus(one);
                sum.freed_bytes = sum.freed_bytes.plus(bytes);
                if flag & (flags::IMPLIED | flags::CONTINUED) == 0 {
                    sum.frees = sum.frees.plus(one);
                    if flag & flags::TEMPORARY != 0 {
                        sum.temporary = sum.temporary.plus(one);
                    }
                }
            }
        }
        Some(())
    }

    /// Replaces smallest and largest values by those of the order of time.
    fn put_in_order(&self, edges: &[Ticks], t: &mut Timeline) -> Result<(), ScanError> {
        let capture = self.index.analysis().capture();
        let width = edges.len() - 1;
        let (mut live, mut at) = ([0f64; 2], 0);
        let mut bands = [vec![None; width], vec![None; width]];
        let whole = |live: [f64; 2]| live.map(|v| v.max(0.0).round() as u64);
        let still = |value: u64| Some(Extent { min: value, max: value, last: value });
        self.in_order(edges[width].saturating_sub(1), |e| {
            while at < width && edges[at + 1] <= e.time() {
                at += 1;
                if at < width {
                    (0..2).for_each(|k| bands[k][at] = still(whole(live)[k]));
                }
            }
            let weight = weight(&capture, e.size, e.rate);
            let sign = if e.begins() { 1.0 } else { -1.0 };
            let before = live;
            live = [live[0] + sign * e.size as f64 * weight, live[1] + sign * weight];
            if e.time() < edges[0] || at >= width {
                return;
            }
            for (k, band) in bands.iter_mut().enumerate() {
                let first = still(whole(before)[k]);
                let mut now = band[at].or(first).unwrap_or_default();
                let next = whole(live)[k];
                now.follow(&Extent { min: next, max: next, last: next });
                band[at] = Some(now);
            }
        })?;
        for (k, band) in [&mut t.live_bytes, &mut t.live_blocks].into_iter().enumerate() {
            for (i, extent) in bands[k].iter().enumerate() {
                // Nothing happens in a column that has none, and so its last value is its only one.
                let quiet = (band.last[i], band.last[i]);
                (band.min[i], band.max[i]) = extent.map_or(quiet, |e| (e.min, e.max));
            }
        }
        t.within_ns = 0;
        Ok(())
    }

    /// Returns for each of `count` classes the live bytes at the end of each column.
    ///
    /// # Errors
    /// If the index can't be read, or the job of this thread is cancelled.
    pub fn timelines(
        &self,
        span: &Span,
        by: By<'_>,
        count: usize,
    ) -> Result<Vec<Vec<u64>>, ScanError> {
        let analysis = self.index.analysis();
        let edges = span.edges(&analysis.meta().clock, analysis.end_ticks());
        if self.is_aggregated() {
            return self.aggregated_timelines(&edges, by, count);
        }
        let steps = Steps::new(&edges, analysis.meta().target.start_ticks, analysis.end_ticks());
        let (capture, width) = (analysis.capture(), edges.len() - 1);
        let state =
            || (Selection::default(), <[Vec<u64>; 6]>::default(), vec![0f64; count * width]);
        let to = edges[width];
        let states = self.index.scan(state, |(selection, columns, sums), block| {
            if block.range(Column::Begin).0 >= to.0 {
                return Some(());
            }
            self.select(block, selection)?;
            if selection.rows.is_empty() {
                return Some(());
            }
            const READ: [Column; 6] = [
                Column::Begin,
                Column::End,
                Column::Size,
                Column::Group,
                Column::ThreadIndex,
                Column::Rate,
            ];
            for (c, values) in READ.into_iter().zip(&mut *columns) {
                block.read(c, values)?;
            }
            let [begins, ends, sizes, groups, thread_indexes, rates] = &*columns;
            for &i in &selection.rows {
                let i = i as usize;
                let class = by.class(groups[i], thread_indexes[i], sizes[i]);
                if class >= count || begins[i] >= to.0 {
                    continue;
                }
                let bytes = sizes[i] as f64 * weight(&capture, sizes[i], rates[i] as u8);
                sums[class * width + steps.at(Ticks(begins[i].max(edges[0].0))).1] += bytes;
                if ends[i] < to.0 {
                    sums[class * width + steps.at(Ticks(ends[i].max(edges[0].0))).1] -= bytes;
                }
            }
            Some(())
        })?;
        let mut all = vec![Vec::with_capacity(width); count];
        for (class, values) in all.iter_mut().enumerate() {
            let mut live = 0f64;
            for i in 0..width {
                live += states.iter().map(|s| s.2[class * width + i]).sum::<f64>();
                values.push(live.max(0.0).round() as u64);
            }
        }
        Ok(all)
    }
}

/// Makes a timeline of the sums of steps and columns.
fn total<N: Number>(all: &Adding<N>, steps: &Steps<'_>, capture: Capture) -> Timeline {
    let width = steps.edges.len() - 1;
    let mut t = Timeline::default();
    let mut level = [all.before; 2]; // at the end of the step, and of the column
    let mut steps_at = 0;
    let mut sum = Sums::<N>::default();
    let mut before = sum;
    for (column, s) in all.sums.iter().enumerate().take(width) {
        let start = level[1].map(N::rounded);
        let bytes = s.allocated_bytes.plus(s.found_bytes);
        level[1][0] = level[1][0].plus(bytes).minus(s.freed_bytes);
        let begun = s.allocations.plus(s.reallocations).plus(s.found);
        level[1][1] = level[1][1].plus(begun).minus(s.ends);
        let last = level[1].map(N::rounded);
        let of = |k: usize| Extent {
            min: start[k].min(last[k]),
            max: start[k].max(last[k]),
            last: last[k],
        };
        let mut extents = [of(0), of(1)];
        while steps.columns.get(steps_at).is_some_and(|c| *c as usize <= column) {
            // The last step of a column may reach into the next one.
            let inside = steps.columns.get(steps_at + 1).is_some_and(|c| *c as usize == column);
            let d = all.steps[steps_at];
            level[0] = [level[0][0].plus(d[0]), level[0][1].plus(d[1])];
            for (e, value) in extents.iter_mut().zip(level[0].map(N::rounded)) {
                if inside {
                    (e.min, e.max) = (e.min.min(value), e.max.max(value));
                }
            }
            steps_at += 1;
        }
        t.live_bytes.push(extents[0]);
        t.live_blocks.push(extents[1]);
        sum.add(s);
        push_sums(&mut t, &before, &sum, capture);
        before = sum;
    }
    t.leaked_before = (all.leaked_before[0].rounded(), all.leaked_before[1].rounded());
    if capture.is_sampled() {
        apart(&mut t.frees, 0);
    }
    t
}

/// Converts estimated numbers of frees up to the end of each column to those within each, given the number before. A
/// reallocation of which only the old block is recorded looks like a free until the estimate of reallocations catches
/// up (see `Estimates`), so a number may be smaller than one before: then the earlier one was too large.
fn apart(frees: &mut [u64], before: u64) {
    let mut least = u64::MAX;
    for n in frees.iter_mut().rev() {
        least = least.min(*n);
        *n = least;
    }
    let mut before = before.min(least);
    for n in frees {
        (before, *n) = (*n, *n - before);
    }
}

/// Appends the sums of a column. Estimates are rounded so that the rounded columns add up to the rounded total.
fn push_sums<N: Number>(t: &mut Timeline, before: &Sums<N>, sum: &Sums<N>, capture: Capture) {
    let of = |value: fn(&Sums<N>) -> N| value(sum).rounded().wrapping_sub(value(before).rounded());
    t.allocations.push(of(|s| s.allocations));
    t.reallocations.push(of(|s| s.reallocations));
    t.frees.push(match capture.is_sampled() {
        true => sum.ends.minus(sum.reallocations).rounded(),
        false => of(|s| s.frees),
    });
    t.ends.push(of(|s| s.ends));
    t.allocated_bytes.push(of(|s| s.allocated_bytes));
    t.freed_bytes.push(of(|s| s.freed_bytes));
    t.temporary.push(if capture.is_everything() { of(|s| s.temporary) } else { 0 });
    t.leaked_bytes.push(of(|s| s.leaked_bytes));
    t.leaked_blocks.push(of(|s| s.leaked_blocks));
}

/// Makes a timeline of the course of all blocks: a bucket belongs to the column in which it begins.
pub(crate) fn by_course(course: &Course, edges: &[Ticks], clock: &Clock) -> Timeline {
    let mut t = Timeline::default();
    let (start, shift, buckets) = (course.start(), course.shift(), course.buckets());
    let begins = |i: usize| start.saturating_add((i as u64) << shift);
    let mut at = (0..buckets.len()).take_while(|i| begins(*i) < edges[0]).count();
    let mut before = if at > 0 { buckets[at - 1] } else { Default::default() };
    t.leaked_before = (before.counts.leaked_bytes, before.counts.leaked_blocks);
    let frees_before = before.counts.frees;
    for edge in &edges[1..] {
        let mut now = before.still();
        let mut first = true;
        while at < buckets.len() && (begins(at) < *edge || *edge == Ticks::MAX) {
            match std::mem::take(&mut first) {
                true => now = buckets[at],
                false => now.follow(&buckets[at]),
            }
            at += 1;
        }
        t.live_bytes.push(now.bytes);
        t.live_blocks.push(now.blocks);
        let (c, b) = (&now.counts, &before.counts);
        let of = u64::wrapping_sub;
        t.allocations.push(of(c.allocations, b.allocations));
        t.reallocations.push(of(c.reallocations, b.reallocations));
        t.frees.push(c.frees);
        t.ends.push(of(c.ends, b.ends));
        t.allocated_bytes.push(of(c.allocated_bytes, b.allocated_bytes));
        t.freed_bytes.push(of(c.freed_bytes, b.freed_bytes));
        t.temporary.push(of(c.temporary, b.temporary));
        t.leaked_bytes.push(of(c.leaked_bytes, b.leaked_bytes));
        t.leaked_blocks.push(of(c.leaked_blocks, b.leaked_blocks));
        before = now;
    }
    apart(&mut t.frees, frees_before);
    if shift > 0 {
        t.within_ns = clock.between(start, start.saturating_add(1 << shift)).max(1);
    }
    t
}

/// Returns the bands of the resident set and of the address space, if the recording has them.
pub(crate) fn resident(meta: &Meta, edges: &[Ticks]) -> Option<(Band, Band)> {
    let readings = meta.resident.readings();
    let first = readings.first()?;
    let mut at = readings.iter().take_while(|r| r.ticks < edges[0]).count();
    let before = if at > 0 { &readings[at - 1] } else { first };
    let still = |v: u64| Extent { min: v, max: v, last: v };
    let mut values = [before.rss.last, before.vss.last];
    let mut bands = [Band::default(), Band::default()];
    for edge in &edges[1..] {
        let mut now: [Option<Extent>; 2] = [None, None];
        while let Some(r) = readings.get(at).filter(|r| r.ticks < *edge) {
            for (now, r) in now.iter_mut().zip([&r.rss, &r.vss]) {
                match now {
                    Some(now) => now.follow(r),
                    None => *now = Some(*r),
                }
            }
            at += 1;
        }
        for (k, now) in now.into_iter().enumerate() {
            let extent = now.unwrap_or(still(values[k]));
            values[k] = extent.last;
            bands[k].push(extent);
        }
    }
    let [rss, vss] = bands;
    Some((rss, vss))
}
