//! Leaves short-lived blocks out of a recording while it is made, but keeps the figures of all stacks.
//!
//! The events are merged and replayed as a reader does it, so the figures are those that a reader of all events would
//! get. What ends too soon is counted, and no more. What is as old as the threshold is found by a look through the live
//! blocks now and then, and written. So the recording lags behind by the threshold and the time between two looks, and is
//! in the order of time, with the passes of the collector in between.

use self::undecided::{Held, Undecided, What};
use super::kept::Kept;
use super::out::Passes;
use crate::heap::{Alive, Group, Replay, to_records};
use crate::load::{Merge, Op, Sink};
use prof_trace::event::{Codec, Event};
use prof_trace::records::{self, Pass, Target};
use prof_trace::sieve::{Figures, Sieve, Sieved};
use prof_trace::ticks::Ticks;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;

#[cfg(test)]
mod tests;
mod undecided;

/// Number of operations that are replayed at a time.
const BATCH: usize = 4096;

/// The live blocks are looked through after this part of the threshold, or later.
const PARTS: u64 = 8;
/// Time between two looks for each place in the table of live blocks, in nanoseconds: many times of what a look takes.
const A_PLACE: u128 = 128;
/// A look through so many places takes less time than a pass of the collector.
const FEW_PLACES: usize = 4096;

/// Selects the blocks that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CullOptions {
    /// Blocks that lived shorter than this are not written, in nanoseconds.
    pub threshold_ns: u64,
    /// Bytes of memory that may be taken by what is held back.
    pub pending: u64,
}

/// Leaves short-lived blocks out of a recording that is made.
pub struct Cull {
    options: CullOptions,
    ticks_per_sec: u64,
    merge: Merge,
    batch: Vec<Op>,
    replay: Replay<Undecided>,
    keep: Passes,
    /// The passes that are to be written, which wait for the events before them.
    passes: VecDeque<Pass>,
    /// Ticks of the last pass.
    last: Option<Ticks>,
    /// The time before which everything is to be written.
    goal: Ticks,
    kept: Kept,
    /// The numbers of the threads, by thread index.
    thread_numbers: Vec<u32>,
    /// The groups as they were told last, by node.
    told: HashMap<u32, Group>,
    finished: bool,
}

impl std::fmt::Debug for Cull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cull").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Cull {
    /// Creates one for a recording of `target`.
    pub fn new(target: &Target, options: CullOptions) -> Self {
        let ticks_per_sec = target.ticks_per_sec.max(1);
        let threshold = ticks(u128::from(options.threshold_ns), ticks_per_sec);
        let mut replay = Replay::new(Undecided::new(threshold, options.pending));
        replay.begin(&target.capture(), target.early);
        Self {
            options,
            ticks_per_sec,
            merge: Merge::default(),
            batch: Vec::with_capacity(BATCH),
            replay,
            keep: Passes::new(target),
            passes: VecDeque::new(),
            last: None,
            goal: Ticks::ZERO,
            kept: Kept::default(),
            thread_numbers: Vec::new(),
            told: HashMap::new(),
            finished: false,
        }
    }

    /// Replays the events from before `limit`, or all, and passes on what is old enough by then.
    fn replay(&mut self, limit: Option<Ticks>, to: &mut dyn Sieved) {
        let Self { merge, batch, replay, kept, passes, thread_numbers, goal, .. } = self;
        thread_numbers
            .extend_from_slice(merge.numbers().get(thread_numbers.len()..).unwrap_or_default());
        let mut gate = Gate { kept, passes, thread_numbers, to };
        let mut take = |batch: &mut Vec<Op>| {
            let Some(now) = batch.last().map(|op| op.time) else { return };
            replay.take(batch);
            batch.clear();
            let (undecided, alive) = replay.watch_and_alive();
            undecided.shorten(now, &alive, &mut gate);
        };
        merge.drain(limit, &mut |_, _| None, &mut |op| {
            batch.push(op);
            if batch.len() == BATCH {
                take(batch);
            }
        });
        take(batch);
        let (undecided, alive) = replay.watch_and_alive();
        let Some(limit) = limit else {
            undecided.release(Ticks::MAX, &alive, &mut gate);
            return;
        };
        let line = limit.saturating_sub(undecided.threshold);
        let places = alive.places().saturating_sub(FEW_PLACES) as u128;
        let a_look = ticks(places * A_PLACE, self.ticks_per_sec);
        let step = a_look.max(undecided.threshold / PARTS);
        if undecided.line() >= *goal && line.since(undecided.line()) >= step {
            *goal = line;
        }
        // The rest follows in the next passes: much at once would take memory, and time in which the ring fills up.
        if undecided.line() < *goal {
            undecided.release_part(*goal, &alive, &mut gate);
        }
    }
}

/// Returns the ticks of a time in nanoseconds, rounded up.
fn ticks(ns: u128, per_sec: u64) -> u64 {
    let ticks = (ns * u128::from(per_sec)).div_ceil(1_000_000_000);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

impl Sieve for Cull {
    fn events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        self.merge.push_encoded(thread, from, count, bytes);
    }

    fn takes_decoded(&self) -> bool {
        self.merge.takes_decoded()
    }

    fn decoded(&mut self, thread: u32, events: Vec<Event>) {
        self.merge.push_decoded(thread, events);
    }

    fn pass(&mut self, pass: &Pass, to: &mut dyn Sieved) {
        if self.keep.keep(pass) {
            self.passes.push_back(pass.clone());
        }
        if let Some(limit) = self.last.replace(pass.ticks) {
            self.replay(Some(limit), to);
        }
    }

    fn finish(&mut self, to: &mut dyn Sieved) {
        self.replay(None, to);
        self.finished = true;
    }

    fn about(&self) -> records::Stripped {
        records::Stripped {
            threshold_ns: self.options.threshold_ns,
            how: records::Stripped::CULLED,
            ..records::Stripped::default()
        }
    }

    fn counted(&self) -> u64 {
        self.merge.passed()
    }

    fn figures(&mut self) -> Vec<Figures> {
        let (undecided, told) = (&self.replay.watch, &mut self.told);
        let mut groups = self.replay.ageless_groups();
        groups.retain(|g| told.insert(g.node, *g) != Some(*g));
        let how = match self.finished {
            true => records::Stripped::CULLED_TO_THE_END,
            false => records::Stripped::CULLED,
        };
        let about = records::Stripped {
            threshold_ns: self.options.threshold_ns,
            blocks: undecided.culled.0,
            bytes: undecided.culled.1,
            how,
            early: undecided.early,
            ..records::Stripped::default()
        };
        let records = to_records(&about, &self.replay.totals(), &groups);
        records.into_iter().map(Figures::Whole).collect()
    }
}

/// Receives the events of blocks that are written, and puts them in the order in which they are written.
struct Gate<'a> {
    kept: &'a mut Kept,
    passes: &'a mut VecDeque<Pass>,
    /// The numbers of the threads, by thread index.
    thread_numbers: &'a [u32],
    to: &'a mut dyn Sieved,
}

impl Gate<'_> {
    fn write(&mut self) {
        let Self { kept, thread_numbers, to, .. } = self;
        let Ok(()) = kept.write::<Infallible>(|thread_index, events| {
            to.events(thread_numbers.get(thread_index as usize).copied().unwrap_or(0), events);
            Ok(())
        });
    }

    /// Passes on the collector's passes up to `ticks`.
    fn passes(&mut self, ticks: Ticks) {
        while let Some(pass) = self.passes.front().filter(|p| p.ticks <= ticks).cloned() {
            self.write();
            self.to.pass(&pass);
            self.passes.pop_front();
        }
    }

    /// Passes on an event.
    fn add(&mut self, h: &Held, alive: &Alive<'_>) {
        self.passes(h.order);
        let Held { time, addr, thread_index, stack, .. } = *h;
        let size = match h.what.begins() {
            true => self.kept.sized(thread_index, h.size, h.header, h.rate),
            false => 0.into(),
        };
        let (event, old) = match h.what {
            What::Alloc => (Event::Alloc { time, addr, size, node: alive.node(stack) }, addr),
            What::Realloc => {
                let ((old, time_before), node) = (h.old, alive.node(stack));
                (Event::Realloc { time_before, time, old, addr, size, node }, old)
            }
            What::Free | What::Implied => (Event::Free { time, addr, node: stack }, addr),
        };
        if self.kept.add(thread_index, event, old, h.temporary) {
            self.write();
        }
    }
}
