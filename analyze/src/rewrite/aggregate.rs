//! Makes a recording of figures alone, while events come in: no block is written, but what each stack holds and has had.
//!
//! The events are merged and replayed as a reader does it, so the figures are those that a reader of all events would
//! get. They are written in steps, each as the difference to the one before. Memory is taken by the live blocks and the
//! stacks; a step of many stacks is written less often, so that the file grows at a bounded rate.

use crate::heap::{Block, BlockStats, End, Group, Replay, Watch, figures_of, totals_of};
use crate::load::{Merge, Op, OpKind, Sink};
use crate::query::{LIFETIMES, SIZE_CLASSES, size_class};
use prof_trace::event::{Codec, Event};
use prof_trace::records::{
    FIGURES, LifetimeStep, Pass, SizeStep, StackStep, Step, Stripped, Target,
};
use prof_trace::sieve::{Figures, Sieve, Sieved};
use prof_trace::ticks::Ticks;
use std::time::Duration;

/// Number of operations that are replayed at a time.
const BATCH: usize = 4096;
/// Greatest number of stacks in a record, so that it fits into a chunk.
const STACKS: usize = 100_000;
/// Bytes a second that the figures by stack may take in the long run: 30 days are 740 MiB.
const RATE: u64 = 300;
/// Bytes that they may take besides, so that a short recording has every step.
const FREE: u64 = 64 << 20;
/// Part of the greatest length of a file that they may take besides, if that is less.
const PART: u64 = 16;
/// Greatest number of stack nodes, of which nearly all may have figures of their own.
const NODES: usize = 1 << 19;

/// Options of a recording of figures alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateOptions {
    /// Least interval between two steps, in nanoseconds.
    pub every_ns: u64,
}

/// Turns the events of a recording that is made into figures by stack.
pub struct Aggregate {
    options: AggregateOptions,
    merge: Merge,
    batch: Vec<Op>,
    replay: Replay<Histograms>,
    /// The figures of the groups as they were told last.
    told: Vec<BlockStats>,
    /// Ticks of the last pass.
    last: Option<Ticks>,
    /// The pass that is written next, and when the last one was, by the kernel's clock.
    pass: Option<Pass>,
    passed: Option<u64>,
    /// When this began, and the present time, by the kernel's clock.
    began: Option<u64>,
    now: u64,
    /// Ticks when the next step begins, and up to which events are counted.
    begin: Ticks,
    until: Ticks,
    /// Bytes of the figures by stack so far, and those that they may take besides [`RATE`].
    written: u64,
    free: u64,
    /// The last figures had stacks.
    had_stacks: bool,
    finished: bool,
}

impl std::fmt::Debug for Aggregate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aggregate").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Aggregate {
    /// Creates one for a recording of `target`.
    pub fn new(target: &Target, options: AggregateOptions) -> Self {
        let mut replay = Replay::new(Histograms::new(target.ticks_per_sec));
        let capture = target.capture();
        replay.watch.partial = !capture.is_everything();
        replay.begin(&capture, target.early);
        Self {
            options,
            merge: Merge::default(),
            batch: Vec::with_capacity(BATCH),
            replay,
            told: Vec::new(),
            last: None,
            pass: None,
            passed: None,
            began: None,
            now: 0,
            begin: target.start_ticks,
            until: target.start_ticks,
            written: 0,
            free: FREE,
            had_stacks: false,
            finished: false,
        }
    }

    /// Writes figures by stack less often where the file may have so many bytes at most.
    #[must_use]
    pub fn within(mut self, most: u64) -> Self {
        self.free = FREE.min(most / PART);
        self
    }

    /// Replays the events from before `limit`, or all.
    fn replay(&mut self, limit: Option<Ticks>) {
        let Self { merge, batch, replay, .. } = self;
        merge.drain(limit, &mut |_, _| None, &mut |op| {
            batch.push(op);
            if batch.len() == BATCH {
                replay.take(batch);
                batch.clear();
            }
        });
        replay.take(batch);
        batch.clear();
        merge.forget_ended().into_iter().for_each(|index| replay.forget_thread(index));
        self.until = limit.unwrap_or(self.replay.totals().last_ticks).max(self.until);
    }

    /// Counts operations, in their order, in place of events.
    pub(super) fn take(&mut self, ops: &[Op]) {
        self.replay.take(ops);
    }

    /// Returns the figures at a time up to which all operations were counted; `None`: at the end.
    pub(super) fn figures_until(&mut self, until: Option<Ticks>) -> Vec<Figures> {
        self.until = until.unwrap_or(self.replay.totals().last_ticks).max(self.until);
        self.finished = until.is_none();
        self.figures()
    }

    /// Returns whether figures by stack would make the recording grow faster than they may.
    fn is_too_early(&self) -> bool {
        let ns = self.now.saturating_sub(self.began.unwrap_or(self.now));
        self.written > self.free + ns / 1_000_000_000 * RATE
    }

    /// Returns what has changed by stack since the last call, by ascending node.
    fn stacks(&mut self) -> Vec<StackStep> {
        let changed = std::mem::take(&mut self.replay.watch.changed);
        self.told.resize(self.replay.nodes().len(), BlockStats::default());
        let stacks = changed.iter().filter_map(|&group| {
            let now = self.replay.ageless_group(group)?;
            let before = std::mem::replace(&mut self.told[group as usize], now.figures);
            Some(change(&now, &before, &mut self.replay.watch.groups[group as usize]))
        });
        let mut stacks: Vec<StackStep> = stacks.collect();
        stacks.sort_unstable_by_key(|s| s.node);
        stacks
    }
}

/// Returns how a group has changed, and takes what is known of its classes.
fn change(now: &Group, before: &BlockStats, classes: &mut Classes) -> StackStep {
    let (new, old) = (figures_of(&now.figures), figures_of(before));
    let mut figures = [0; FIGURES];
    figures.iter_mut().zip(new.iter().zip(old)).for_each(|(d, (n, o))| *d = n.wrapping_sub(o));
    let begun = |f: &BlockStats| f.allocations + f.reallocations;
    classes.is_changed = false;
    StackStep {
        node: now.node,
        figures,
        first: (begun(before) == 0).then_some(now.first),
        last: (begun(before) != begun(&now.figures)).then_some(now.last),
        peak: (before.peak_bytes != now.figures.peak_bytes).then_some(now.peak_ticks),
        sizes: std::mem::take(&mut classes.sizes),
        lifetimes: std::mem::take(&mut classes.lifetimes),
    }
}

impl Sieve for Aggregate {
    fn events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        self.merge.push_encoded(thread, from, count, bytes);
    }

    fn takes_decoded(&self) -> bool {
        self.merge.takes_decoded()
    }

    fn decoded(&mut self, thread: u32, events: Vec<Event>) {
        self.merge.push_decoded(thread, events);
    }

    fn left(&mut self, threads: &[u64]) {
        self.merge.leave(threads);
    }

    fn pass(&mut self, pass: &Pass, to: &mut dyn Sieved) {
        self.began.get_or_insert(pass.clock_ns);
        self.now = pass.clock_ns;
        let is_due = |at: u64| pass.clock_ns.saturating_sub(at) >= self.options.every_ns;
        // A reader needs passes for the clock and the resident memory alone.
        if self.passed.is_none_or(|at| is_due(at) && pass.rss_pages != 0) {
            to.pass(pass);
            (self.passed, self.pass) = (Some(pass.clock_ns), None);
        } else if pass.rss_pages != 0 {
            self.pass = Some(pass.clone());
        }
        if let Some(limit) = self.last.replace(pass.ticks) {
            self.replay(Some(limit));
        }
    }

    fn finish(&mut self, to: &mut dyn Sieved) {
        self.replay(None);
        self.finished = true;
        if let Some(pass) = self.pass.take() {
            to.pass(&pass);
        }
    }

    fn about(&self) -> Stripped {
        Stripped { how: Stripped::AGGREGATED, ..Stripped::default() }
    }

    fn counted(&self) -> u64 {
        self.merge.passed()
    }

    fn figures(&mut self) -> Vec<Figures> {
        self.had_stacks = self.finished || !self.is_too_early();
        let stacks = if self.had_stacks { self.stacks() } else { Vec::new() };
        let step = Step {
            begin: self.begin,
            end: self.until,
            totals: totals_of(&self.replay.totals()),
            course: self.replay.take_course(),
            peaks: self.replay.watch.peaks(),
            stacks: Vec::new(),
        };
        self.begin = self.until;
        let record =
            |stacks: &[StackStep]| Figures::Step(Step { stacks: stacks.to_vec(), ..step.clone() });
        let mut all: Vec<Figures> = match &*stacks {
            [] => vec![record(&[])],
            stacks => stacks.chunks(STACKS).map(record).collect(),
        };
        if self.finished {
            let how = Stripped::AGGREGATED_TO_THE_END;
            all.push(Figures::Whole(Stripped { how, ..self.about() }));
        }
        all
    }

    fn wrote(&mut self, bytes: u64) {
        if self.had_stacks {
            self.written = self.written.saturating_add(bytes);
        }
    }

    fn every(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.options.every_ns))
    }

    fn most_nodes(&self) -> usize {
        NODES
    }

    fn has_only_figures(&self) -> bool {
        true
    }
}

/// Changes of a group's blocks by class since the group was written last.
#[derive(Debug, Default)]
struct Classes {
    sizes: Vec<SizeStep>,
    lifetimes: Vec<LifetimeStep>,
    /// The group is among those that have changed.
    is_changed: bool,
}

/// Counts blocks by classes of size and of lifetime.
struct Histograms {
    groups: Vec<Classes>,
    /// The groups that have changed since they were told last.
    changed: Vec<u32>,
    /// Upper limits of the classes of lifetimes, in ticks.
    lifetimes: [u64; LIFETIMES.len()],
    /// The figures of all blocks by class of size, with the ticks of their peaks, and whether these have changed.
    sizes: Vec<(BlockStats, u64, bool)>,
    /// Some blocks are not recorded, so that no block is known to be temporary.
    partial: bool,
}

impl Histograms {
    fn new(ticks_per_sec: u64) -> Self {
        let ticks =
            |ns: u64| (u128::from(ns) * u128::from(ticks_per_sec.max(1))).div_ceil(1_000_000_000);
        Self {
            groups: Vec::new(),
            changed: Vec::new(),
            lifetimes: LIFETIMES.map(|ns| u64::try_from(ticks(ns)).unwrap_or(u64::MAX)),
            sizes: vec![(BlockStats::default(), 0, false); SIZE_CLASSES],
            partial: false,
        }
    }

    /// Returns the classes of a group, which has changed.
    #[inline(always)]
    fn of(&mut self, group: u32) -> &mut Classes {
        let at = group as usize;
        if at >= self.groups.len() {
            self.groups.resize_with(at + 1, Classes::default);
        }
        let classes = &mut self.groups[at];
        if !classes.is_changed {
            classes.is_changed = true;
            self.changed.push(group);
        }
        classes
    }

    /// Returns the size classes whose peaks have changed since the last call, with their peaks.
    fn peaks(&mut self) -> Vec<[u64; 4]> {
        let mut all = Vec::new();
        for (class, (f, at, is_changed)) in self.sizes.iter_mut().enumerate() {
            if std::mem::take(is_changed) {
                all.push([class as u64, f.peak_count, f.peak_bytes, *at]);
            }
        }
        all
    }
}

impl Classes {
    #[inline(always)]
    fn size(&mut self, class: usize) -> &mut [u64; 6] {
        let class = class as u8;
        let at = match self.sizes.iter().position(|s| s.class == class) {
            Some(at) => at,
            None => {
                self.sizes.push(SizeStep { class, figures: [0; 6] });
                self.sizes.len() - 1
            }
        };
        &mut self.sizes[at].figures
    }

    #[inline(always)]
    fn lifetime(&mut self, class: usize) -> &mut LifetimeStep {
        let class = class as u8;
        let at = match self.lifetimes.iter().position(|s| s.class == class) {
            Some(at) => at,
            None => {
                self.lifetimes.push(LifetimeStep { class, count: 0, bytes: 0 });
                self.lifetimes.len() - 1
            }
        };
        &mut self.lifetimes[at]
    }
}

impl Watch for Histograms {
    #[inline(always)]
    fn notes(&self, _: &Op) -> bool {
        false
    }

    fn begin(&mut self, _: &Op) {}

    #[inline(always)]
    fn starts(&mut self, group: u32, op: &Op) {
        let class = size_class(op.size);
        let again = u64::from(op.kind == OpKind::ReallocNew);
        let [count, bytes, allocations, reallocations, allocated, _] = self.of(group).size(class);
        *count = count.wrapping_add(1);
        *bytes = bytes.wrapping_add(op.size);
        *allocations += 1 - again;
        *reallocations += again;
        *allocated = allocated.wrapping_add(op.size);
        let (f, at, is_changed) = &mut self.sizes[class];
        let (peak_bytes, peak_count) = (f.peak_bytes, f.peak_count);
        if f.gain(op.size) {
            *at = op.time.0;
        }
        *is_changed |= (peak_bytes, peak_count) != (f.peak_bytes, f.peak_count);
    }

    fn found(&mut self, group: u32, op: &Op) {
        let class = size_class(op.size);
        let [count, bytes, ..] = self.of(group).size(class);
        *count = count.wrapping_add(1);
        *bytes = bytes.wrapping_add(op.size);
        let (f, at, is_changed) = &mut self.sizes[class];
        if f.find(op.size) {
            *at = op.time.0;
        }
        *is_changed = true;
    }

    #[inline(always)]
    fn end(&mut self, _: u64, b: &Block, end: End) {
        let (size, class) = (b.size(), size_class(b.size()));
        let ticks = end.time.since(b.time);
        let lifetime = self.lifetimes.partition_point(|limit| *limit <= ticks);
        let temporary = u64::from(end.temporary && !self.partial);
        let classes = self.of(b.group);
        let [count, bytes, .., temporaries] = classes.size(class);
        *count = count.wrapping_sub(1);
        *bytes = bytes.wrapping_sub(size);
        *temporaries += temporary;
        let l = classes.lifetime(lifetime);
        l.count += 1;
        l.bytes = l.bytes.wrapping_add(size);
        self.sizes[class].0.lose(size);
    }

    fn unknown(&mut self, _: &Op) {}

    fn before(&mut self, _: &Op) {}
}
