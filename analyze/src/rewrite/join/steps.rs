//! Joins recordings of figures alone (`--aggregate`): adds up their steps, in the order of time. One that still has events,
//! as it is shorter than its bound, becomes such a recording first.
//!
//! A step of the sum has all steps that end in the same interval. The most that all processes held within it is bounded from
//! above by the sum of the most of each, in the steps that overlap it. Of a stack, or a class of sizes, only a step in which
//! its maximum grew tells how much a process held at most; of others the greater of the figures at its two ends counts.

mod member;
mod sum;

use self::member::{Member, Steps};
use self::sum::StepSum;
use super::again::Again;
use super::{Joiner, Read};
use crate::analysis::read_all;
use crate::load::{LoadOptions, Op, OpKind, Sink, Stream};
use crate::rewrite::add_up::put;
use crate::rewrite::{Aggregate, AggregateOptions, RewriteError};
use prof_trace::capture::Capture;
use prof_trace::records::{Stripped, Target, WentOver, kind};
use prof_trace::sieve::Figures;
use prof_trace::ticks::Ticks;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::path::Path;

/// Shortest interval between two steps of the sum, in nanoseconds.
const SHORTEST: u64 = 1_000_000;
/// Interval if the recordings tell none, and that of a recording which has events.
const USUAL: u64 = 10_000_000_000;
/// Greatest number of intervals of the sum.
const MOST: u64 = 16_384;
/// Number of steps that are made of a recording with events before the interval doubles.
const MADE: usize = 4096;

/// Turns the events of a recording into steps.
struct Making {
    aggregate: Aggregate,
    width: u64,
    next: Option<Ticks>,
    /// There are blocks from before the attach, of which no figures are kept by step.
    has_before: bool,
    steps: VecDeque<(Ticks, Ticks, Vec<u8>)>,
}

impl Making {
    fn step(&mut self, until: Option<Ticks>) {
        let figures = self.aggregate.figures_until(until);
        let steps = figures.into_iter().filter_map(|f| match f {
            Figures::Step(step) => Some((step.begin, step.end, step.encode())),
            Figures::Whole(_) => None,
        });
        self.steps.extend(steps);
        if self.steps.len().is_multiple_of(MADE) {
            self.width = self.width.saturating_mul(2);
        }
    }
}

impl Sink for Making {
    fn begin(&mut self, _: &Capture, _: u64) {}

    fn take(&mut self, mut ops: &[Op]) {
        self.has_before |= ops.iter().any(|op| op.kind == OpKind::Found);
        while let Some(first) = ops.first() {
            let next = *self.next.get_or_insert(first.time.saturating_add(self.width));
            let n = ops.iter().take_while(|op| op.time < next).count();
            let (now, later) = ops.split_at(n);
            self.aggregate.take(now);
            ops = later;
            if let Some(later) = ops.first() {
                self.step(Some(next));
                let passed = later.time.since(next) / self.width;
                self.next = Some(next.saturating_add((passed + 1).saturating_mul(self.width)));
            }
        }
    }
}

/// Facts about the figures of a recording.
struct About {
    /// They are those of all of it.
    is_whole: bool,
    /// The end of its events, if these became figures at a bound.
    went_over: Option<WentOver>,
}

impl Joiner<'_, '_> {
    /// Adds all recordings, as figures alone.
    pub(super) fn add_steps(&mut self, all: &[(&Path, Target)]) -> Result<(), RewriteError> {
        self.one_node = Some(HashMap::new());
        let begin = Stripped { how: Stripped::AGGREGATED, ..Stripped::default() };
        self.to.put(kind::STRIPPED, &begin.encode())?;
        let (mut members, mut are_whole, mut over) = (Vec::new(), true, None);
        for (number, (path, target)) in (0..).zip(all) {
            let (member, about) = self.member(number, path, target)?;
            are_whole &= about.is_whole;
            if let Some(WentOver { ticks, events }) = about.went_over {
                let all: &mut WentOver = over.get_or_insert_default();
                all.ticks = all.ticks.max(ticks.wrapping_add(member.shift));
                all.events = all.events.saturating_add(events);
            }
            members.push(member);
        }
        if let Some(over) = over {
            self.to.put(kind::WENT_OVER, &over.encode())?;
        }
        self.put_steps(members)?;
        if are_whole {
            let end = Stripped { how: Stripped::AGGREGATED_TO_THE_END, ..begin };
            self.to.put(kind::STRIPPED, &end.encode())?;
        }
        Ok(())
    }

    /// Reads a recording, and writes all of it but its figures.
    fn member(
        &mut self,
        number: u64,
        path: &Path,
        target: &Target,
    ) -> Result<(Member, About), RewriteError> {
        let mut stream = Stream::open(path, &LoadOptions::default())?;
        let again = Again::new(number, path, stream.same_file()?)?;
        let shift = super::shift(&self.first, target);
        let mut making = Making {
            aggregate: Aggregate::new(target, AggregateOptions { every_ns: USUAL }),
            width: self.ticks(USUAL),
            next: None,
            has_before: false,
            steps: VecDeque::new(),
        };
        read_all(&mut stream, &mut making)?;
        let meta = stream.meta();
        let steps = match meta.is_aggregated() {
            true => Steps::InFile(again, meta.steps.iter().copied().collect()),
            false if meta.lacks_blocks() => return Err(again.replaced()),
            false if making.has_before => {
                return Err(RewriteError::Different(format!(
                    "{} has blocks from before the attach (--census), of which others have no figures (--aggregate)",
                    path.display()
                )));
            }
            false => {
                making.step(None);
                Steps::Made(making.steps)
            }
        };
        let last = steps.last().unwrap_or(target.start_ticks).wrapping_add(shift);
        let (analysis, ids) =
            self.describe(number, stream, shift, &Read { last, ..Read::default() })?;
        let meta = analysis.meta();
        let how = meta.stripped.as_ref().map(|s| s.how);
        let is_whole = how.is_none_or(|how| how == Stripped::AGGREGATED_TO_THE_END);
        let about = About { is_whole, went_over: meta.went_over.clone() };
        Ok((Member::new(steps, shift, ids), about))
    }

    /// Returns an interval in ticks.
    fn ticks(&self, ns: u64) -> u64 {
        let ticks = u128::from(ns) * u128::from(self.first.ticks_per_sec.max(1)) / 1_000_000_000;
        (ticks as u64).max(1)
    }

    /// Writes the sums of the steps of all recordings.
    fn put_steps(&mut self, mut members: Vec<Member>) -> Result<(), RewriteError> {
        let start = members.iter().filter_map(Member::next_begin).min().unwrap_or_default();
        let end = members.iter().filter_map(Member::last).max().unwrap_or_default();
        let least = members.iter().filter_map(Member::width).min();
        let width = least.unwrap_or(self.ticks(USUAL)).max(self.ticks(SHORTEST));
        let width = width.max(end.since(start).div_ceil(MOST));
        let mut queue: BinaryHeap<Reverse<(Ticks, usize)>> = members
            .iter()
            .enumerate()
            .filter_map(|(i, m)| Some(Reverse((m.next_end()?, i))))
            .collect();
        let (mut sum, mut interval) = (StepSum::new(start), 0);
        while let Some(Reverse((end, i))) = queue.pop() {
            let now = end.since(start).saturating_sub(1) / width;
            if now > interval {
                interval = now;
                self.put_sum(&mut sum, &mut members)?;
            }
            let member = &mut members[i];
            let step = member.take()?;
            let next = member.next_end();
            sum.add(i, &step, member.shift, next.is_none());
            queue.extend(next.map(|next| Reverse((next, i))));
        }
        self.put_sum(&mut sum, &mut members)
    }

    /// Ends an interval. Steps that have begun in it, and end later, count with the most and the least that they have.
    fn put_sum(&mut self, sum: &mut StepSum, members: &mut [Member]) -> Result<(), RewriteError> {
        for (i, member) in members.iter_mut().enumerate() {
            if member.next_begin().is_some_and(|begin| begin < sum.end) {
                sum.widen(i, &member.ahead()?.course);
            }
        }
        match sum.finish() {
            Some(step) => put(&step, &mut self.to),
            None => Ok(()),
        }
    }
}
