//! Adds up steps.

use crate::heap::{Bucket, Counts, Course, Group, Totals, figures_of, to_figures, to_totals};
use prof_trace::records::{SIZE_FIGURES, StackStep, Step};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;

/// The figures of a recording up to one of its steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summed {
    /// The figures of all blocks.
    pub totals: Totals,
    /// The figures by stack, in the order in which the stacks first appeared.
    pub groups: Vec<Group>,
    /// Each group's blocks by class of size and of lifetime.
    pub classes: Vec<Classes>,
    /// For each size class with blocks: its greatest number of blocks and of bytes, and ticks of the latter.
    pub peaks: HashMap<u64, [u64; 3]>,
    /// The figures of all blocks over time.
    pub steps: Steps,
    /// Index of each group, by node.
    places: HashMap<u32, usize>,
    /// Number of steps that were added.
    pub read: usize,
}

/// A group's blocks by class of size and of lifetime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    /// The classes of size, with the figures of [`SizeStep`](prof_trace::records::SizeStep).
    pub sizes: Vec<(u8, [u64; SIZE_FIGURES])>,
    /// The classes of lifetime, with number and bytes of the blocks that have ended.
    pub lifetimes: Vec<(u8, [u64; 2])>,
}

impl Summed {
    /// Adds the next step.
    pub(crate) fn add(&mut self, step: &Step) {
        self.read += 1;
        if let Some(totals) = to_totals(&step.totals) {
            self.totals = totals;
        }
        for &[class, count, bytes, at] in &step.peaks {
            self.peaks.insert(class, [count, bytes, at]);
        }
        for s in &step.stacks {
            self.stack(s);
        }
        let f = &self.totals.figures;
        let [frees, least_bytes, most_bytes, least, most] = step.course;
        let counts = Counts {
            allocations: f.allocations,
            reallocations: f.reallocations,
            frees,
            ends: (f.allocations.wrapping_add(f.reallocations)).wrapping_sub(f.live_count),
            allocated_bytes: f.allocated_bytes,
            freed_bytes: f.allocated_bytes.wrapping_sub(f.live_bytes),
            temporary: f.temporary,
            ..Counts::default()
        };
        let (live, extents) =
            ((f.live_bytes, f.live_count), [(least_bytes, least), (most_bytes, most)]);
        self.steps.add([step.begin, step.end], counts, live, extents);
    }

    fn stack(&mut self, s: &StackStep) {
        let next = self.groups.len();
        let at = *self.places.entry(s.node).or_insert(next);
        if at == next {
            let first = s.first.unwrap_or_default();
            let (last, peak_ticks) = (first, first);
            self.groups.push(Group { node: s.node, first, last, peak_ticks, ..Group::default() });
            self.classes.push(Classes::default());
        }
        let g = &mut self.groups[at];
        let mut figures = figures_of(&g.figures);
        figures.iter_mut().zip(s.figures).for_each(|(n, d)| *n = n.wrapping_add(d));
        g.figures = to_figures(&figures);
        g.last = s.last.unwrap_or(g.last);
        g.peak_ticks = s.peak.unwrap_or(g.peak_ticks);
        let classes = &mut self.classes[at];
        for size in &s.sizes {
            add(&mut classes.sizes, size.class, size.figures);
        }
        for l in &s.lifetimes {
            add(&mut classes.lifetimes, l.class, [l.count, l.bytes]);
        }
    }

    /// Returns the index of the group with a node.
    pub(crate) fn place(&self, node: u32) -> Option<usize> {
        self.places.get(&node).copied()
    }
}

/// Adds figures to those of a class.
fn add<const N: usize>(to: &mut Vec<(u8, [u64; N])>, class: u8, figures: [u64; N]) {
    match to.iter_mut().find(|(c, _)| *c == class) {
        Some((_, sums)) => {
            sums.iter_mut().zip(figures).for_each(|(n, d)| *n = n.wrapping_add(d));
        }
        None => to.push((class, figures)),
    }
}

/// Makes a course of steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    course: Course,
    now: Bucket,
    /// Ticks of the longest step.
    pub longest: u64,
}

impl Steps {
    /// Adds a step from `begin` to `end`, with the counts, live bytes and blocks at its end, and the least and the most of these
    /// within it.
    pub(crate) fn add(
        &mut self,
        [begin, end]: [Ticks; 2],
        counts: Counts,
        live: (u64, u64),
        [least, most]: [(u64, u64); 2],
    ) {
        let long = end.since(begin);
        self.longest = self.longest.max(long);
        // The step counts in the column that its last tick belongs to.
        let time = end.saturating_sub(1).max(begin);
        let before = (self.now.bytes.last, self.now.blocks.last);
        if self.course.is_over(time) {
            self.course.advance(time, self.now.counts, before);
        }
        self.course.fall(least.0, least.1);
        self.course.rise(most.0, most.1);
        (self.now.bytes.last, self.now.blocks.last) = live;
        self.now.counts = counts;
    }

    /// Returns the course up to the last step.
    pub(crate) fn course(&self) -> Course {
        let mut course = self.course.clone();
        let live = (self.now.bytes.last, self.now.blocks.last);
        course.finish(self.now.counts, live, std::iter::empty());
        course
    }
}
