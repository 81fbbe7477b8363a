//! Answers questions about recordings that have figures by stack in place of blocks (`--aggregate`).
//!
//! Figures at a moment are those at the end of the last step before it, and what rises and falls within a step is known
//! of all blocks together and of single stacks alone: the peak of several stacks is the most that they had at the end
//! of a step, or the greatest of their own peaks.

use super::block_stats::{By, Level, NOTHING, Sum};
use super::plan::Query;
use super::spread::{LIFETIMES, Spread, Tally};
use super::timeline::{Timeline, by_course};
use crate::aggregate::{Steps, Summed, each, sum};
use crate::heap::{Counts, Group, Totals};
use crate::index::ScanError;
use prof_trace::records::{OF_SIZE, StackStep, Step};
use prof_trace::ticks::Ticks;

/// The figures of classes of stacks or sizes at the end of a step.
pub(super) struct Figured {
    pub sums: Vec<Sum>,
    pub levels: Vec<Level>,
    /// The selected blocks together.
    pub all: Level,
    /// The figures of all blocks, if all are selected.
    pub totals: Option<Totals>,
    /// Ticks when the step ends.
    pub at: Ticks,
}

impl Query<'_> {
    /// Returns whether the recording has no blocks, but figures by stack.
    pub(crate) fn is_aggregated(&self) -> bool {
        self.index.analysis().meta().is_aggregated()
    }

    /// Calls `take` with the figures before each step and with the step, until it returns false; returns the figures
    /// after the last step.
    pub(crate) fn steps(
        &self,
        mut take: impl FnMut(&Summed, &Step) -> bool,
    ) -> Result<Summed, ScanError> {
        let analysis = self.index.analysis();
        let mut sum = Summed::default();
        let done = each(analysis.file(), analysis.meta(), |step| {
            let goes_on = take(&sum, step);
            if goes_on {
                sum.add(step);
            }
            goes_on
        });
        if done { Ok(sum) } else { Err(ScanError::Cancelled) }
    }

    /// Returns the ticks up to which steps count for a moment: the end of the last step that is not later. For the
    /// moment of the peak, it is the end of the step with more live bytes, of the two around it.
    fn step_at(&self, until: Ticks) -> Result<Ticks, ScanError> {
        let meta = self.index.analysis().meta();
        let next = meta.steps.partition_point(|s| s.end <= until);
        let before = next.checked_sub(1).map_or(Ticks::ZERO, |i| meta.steps[i].end);
        let (Some(behind), true) = (
            meta.steps.get(next).map(|s| s.end),
            until == self.index.analysis().totals().peak_ticks,
        ) else {
            return Ok(before);
        };
        let mut live = [0; 2];
        let last = self.steps(|sum, step| {
            if step.end <= before {
                return true;
            }
            live[0] = sum.totals.figures.live_bytes;
            step.end <= behind
        })?;
        live[1] = last.totals.figures.live_bytes;
        Ok(if live[1] > live[0] { behind } else { before })
    }

    /// Returns the figures of classes at a moment.
    ///
    /// # Errors
    /// If the classes are those of threads, which are not known, or the job of this thread is cancelled.
    pub(super) fn figured(
        &self,
        by: By<'_>,
        count: usize,
        until: Ticks,
    ) -> Result<Figured, ScanError> {
        if matches!(by, By::Threads) {
            return Err(ScanError::NoBlocks);
        }
        let at = self.step_at(until)?;
        let mut levels = vec![Level::default(); count];
        let mut all = Level::default();
        let (mut touched, mut end) = (Vec::new(), Ticks::ZERO);
        let sum = self.steps(|before, step| {
            if step.end > at {
                return false;
            }
            // A step of very many stacks is several records with the same end: a moment is the end of the last.
            if step.end != end {
                all.note(end);
                touched.drain(..).for_each(|class: usize| levels[class].note(end));
                end = step.end;
            }
            for (group, s) in groups_of(before, step) {
                if !self.has_group(group) {
                    continue;
                }
                all.shift(s.figures[0], s.figures[1]);
                live_of(by, group, s, |class, [blocks, bytes]| {
                    if let Some(level) = levels.get_mut(class) {
                        level.shift(blocks, bytes);
                        touched.push(class);
                    }
                });
            }
            true
        })?;
        all.note(end);
        touched.drain(..).for_each(|class| levels[class].note(end));
        let sums = self.sums_of(&sum, by, &mut levels, count);
        for (_, g) in sum.groups.iter().enumerate().filter(|(i, _)| self.has_group(*i)) {
            // What all have had is no less than what one has had.
            all.raise(g.figures.peak_count, g.figures.peak_bytes, g.peak_ticks);
        }
        let whole = self.is_all();
        if whole && matches!(by, By::Sizes) {
            for (class, &[blocks, bytes, at]) in &sum.peaks {
                if let Some(level) = levels.get_mut(*class as usize) {
                    level.raise(blocks, bytes, Ticks(at));
                }
            }
        }
        if whole {
            let t = &sum.totals;
            all.raise(t.figures.peak_count, t.figures.peak_bytes, t.peak_ticks);
        }
        let totals = whole.then_some(sum.totals);
        Ok(Figured { sums, levels, all, totals, at })
    }

    /// Returns the sums of classes, and raises the peaks of classes of stacks to those of their stacks.
    fn sums_of(&self, sum: &Summed, by: By<'_>, levels: &mut [Level], count: usize) -> Vec<Sum> {
        let mut sums = vec![NOTHING; count];
        for (i, (g, classes)) in sum.groups.iter().zip(&sum.classes).enumerate() {
            if !self.has_group(i) {
                continue;
            }
            if let By::Sizes = by {
                for (class, figures) in &classes.sizes {
                    let mut of = Group { first: g.first, last: g.last, ..Group::default() };
                    let mut all = [0; 8];
                    OF_SIZE.iter().zip(figures).for_each(|(at, n)| all[*at] = *n);
                    of.figures = crate::heap::to_figures(&all);
                    if let Some(sum) = sums.get_mut(usize::from(*class)) {
                        sum.group(&of);
                    }
                }
                continue;
            }
            let class = by.class(i as u64, 0, 0);
            if let (Some(sum), Some(level)) = (sums.get_mut(class), levels.get_mut(class)) {
                sum.group(g);
                level.raise(g.figures.peak_count, g.figures.peak_bytes, g.peak_ticks);
            }
        }
        sums
    }

    /// Returns the distributions of the selected blocks at a moment. Sizes are known by class alone.
    pub(super) fn aggregated_spread(&self, until: Ticks) -> Result<Spread, ScanError> {
        let at = self.step_at(until)?;
        let sum = self.steps(|_, step| step.end <= at)?;
        let mut spread = Spread::default();
        for (i, (g, classes)) in sum.groups.iter().zip(&sum.classes).enumerate() {
            if !self.has_group(i) {
                continue;
            }
            let f = &g.figures;
            let put = |t: &mut Tally, count: u64, bytes: u64| {
                t.count = t.count.wrapping_add(count);
                t.bytes = t.bytes.wrapping_add(bytes);
            };
            for (class, [count, bytes]) in &classes.lifetimes {
                let class = usize::from(*class).min(LIFETIMES.len());
                put(&mut spread.lifetimes[class], *count, *bytes);
            }
            put(&mut spread.lifetimes[LIFETIMES.len() + 1], f.live_count, f.live_bytes);
            let begun = f.allocations.wrapping_add(f.reallocations);
            put(&mut spread.other_sizes, begun, f.allocated_bytes);
        }
        Ok(spread)
    }

    /// Returns the live bytes of the selected blocks at moments, which ascend: at the end of the last step before each.
    pub(crate) fn live_at(&self, moments: &[Ticks]) -> Result<Vec<u64>, ScanError> {
        let mut all = Vec::with_capacity(moments.len());
        let mut live = 0u64;
        self.steps(|before, step| {
            let past = moments[all.len()..].iter().take_while(|t| **t < step.end).count();
            all.resize(all.len() + past, live);
            for (group, s) in groups_of(before, step) {
                if self.has_group(group) {
                    live = live.wrapping_add(s.figures[1]);
                }
            }
            true
        })?;
        all.resize(moments.len(), live);
        Ok(all)
    }

    /// Returns the timeline of the selected blocks.
    pub(super) fn aggregated_timeline(&self, edges: &[Ticks]) -> Result<Timeline, ScanError> {
        let analysis = self.index.analysis();
        let clock = &analysis.meta().clock;
        let (course, longest) = if self.is_all() {
            let sum = sum(analysis.file(), analysis.meta()).unwrap_or_default();
            (sum.steps.course(), sum.steps.longest)
        } else {
            self.course_of_some()?
        };
        let mut t = by_course(&course, edges, clock);
        let start = analysis.meta().target.start_ticks;
        t.within_ns = t.within_ns.max(clock.between(start, start.saturating_add(longest))).max(1);
        Ok(t)
    }

    /// Returns the course of the selected stacks, and the ticks of the longest step.
    fn course_of_some(&self) -> Result<(crate::heap::Course, u64), ScanError> {
        let mut steps = Steps::default();
        let (mut now, mut live) = (Counts::default(), (0u64, 0u64));
        // The step whose records are being added up, and what was live before it.
        let mut open: Option<([Ticks; 2], (u64, u64))> = None;
        let mut put = |(times, was): ([Ticks; 2], (u64, u64)), now: Counts, live: (u64, u64)| {
            let least = (was.0.min(live.0), was.1.min(live.1));
            let most = (was.0.max(live.0), was.1.max(live.1));
            steps.add(times, now, live, [least, most]);
        };
        self.steps(|before, step| {
            if open.is_none_or(|(times, _)| times[1] != step.end) {
                let next = Some(([step.begin, step.end], live));
                std::mem::replace(&mut open, next).into_iter().for_each(|o| put(o, now, live));
            }
            for (group, s) in groups_of(before, step) {
                if self.has_group(group) {
                    count(&mut now, &mut live, s);
                }
            }
            true
        })?;
        open.into_iter().for_each(|o| put(o, now, live));
        Ok((steps.course(), steps.longest))
    }

    /// Returns for each of `count` classes the live bytes at the end of each column.
    pub(super) fn aggregated_timelines(
        &self,
        edges: &[Ticks],
        by: By<'_>,
        count: usize,
    ) -> Result<Vec<Vec<u64>>, ScanError> {
        if matches!(by, By::Threads) {
            return Err(ScanError::NoBlocks);
        }
        let width = edges.len() - 1;
        let mut all = vec![vec![0u64; width]; count];
        self.steps(|before, step| {
            // The column that the last tick of the step belongs to, as in the timeline of all.
            let last = step.end.saturating_sub(1);
            let column = edges.partition_point(|e| *e <= last).saturating_sub(1);
            for (group, s) in groups_of(before, step) {
                if column >= width || !self.has_group(group) {
                    continue;
                }
                live_of(by, group, s, |class, [_, bytes]| {
                    if let Some(values) = all.get_mut(class) {
                        values[column] = values[column].wrapping_add(bytes);
                    }
                });
            }
            true
        })?;
        for values in &mut all {
            let mut live = 0u64;
            for v in values {
                live = live.wrapping_add(*v);
                *v = live;
            }
        }
        Ok(all)
    }
}

/// Returns the stacks of a step with the indices of their groups, given the figures before it.
fn groups_of<'a>(
    before: &'a Summed,
    step: &'a Step,
) -> impl Iterator<Item = (usize, &'a StackStep)> {
    let mut new = before.groups.len();
    step.stacks.iter().map(move |s| {
        let group = before.place(s.node).unwrap_or_else(|| {
            new += 1;
            new - 1
        });
        (group, s)
    })
}

/// Tells by how much live blocks and bytes of each class have changed in a stack's step.
fn live_of(by: By<'_>, group: usize, s: &StackStep, mut tell: impl FnMut(usize, [u64; 2])) {
    match by {
        By::Sizes => {
            s.sizes.iter().for_each(|c| tell(c.class.into(), [c.figures[0], c.figures[1]]));
        }
        by => tell(by.class(group as u64, 0, 0), [s.figures[0], s.figures[1]]),
    }
}

/// Adds a stack's step to counts, and to live bytes and blocks.
fn count(to: &mut Counts, live: &mut (u64, u64), s: &StackStep) {
    let [count, bytes, _, _, allocations, reallocations, allocated, temporary] = s.figures;
    let add = |to: &mut u64, n: u64| *to = to.wrapping_add(n);
    let ended = allocations.wrapping_add(reallocations).wrapping_sub(count);
    add(&mut to.allocations, allocations);
    add(&mut to.reallocations, reallocations);
    add(&mut to.allocated_bytes, allocated);
    add(&mut to.freed_bytes, allocated.wrapping_sub(bytes));
    add(&mut to.ends, ended);
    add(&mut to.temporary, temporary);
    // How blocks of a stack have ended is not known; each reallocation has ended one, of some stack.
    to.frees = to.ends.saturating_sub(to.reallocations);
    add(&mut live.0, bytes);
    add(&mut live.1, count);
}
