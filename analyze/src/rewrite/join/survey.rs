//! Joins recordings of which some lack blocks that their figures count: reads each of them twice, first for the figures, which
//! stand in front of the events, and then for the events.

use super::again::Again;
use super::figures::{FiguresOfAll, FiguresOfOne};
use super::{Joiner, Joining, Numbers, Read, shift};
use crate::analysis::read_all;
use crate::heap::{Replay, restore};
use crate::load::{LoadOptions, Op, OpKind, Sink, Stream, class_of};
use crate::rewrite::RewriteError;
use prof_trace::capture::Capture;
use prof_trace::records::{Folded, Target, kind};
use prof_trace::ticks::Ticks;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A recording whose events are to be written.
struct Surveyed {
    again: Again,
    /// Offset behind the part that was read.
    end: u64,
    numbers: Numbers,
}

/// Reads the figures of a recording.
#[derive(Default)]
struct Reading {
    replay: Replay,
    read: Read,
}

impl Sink for Reading {
    fn begin(&mut self, capture: &Capture, early: u64) {
        self.replay.begin(capture, early);
    }

    fn fold(&mut self, folded: &Folded) {
        self.replay.fold(folded);
    }

    fn take(&mut self, ops: &[Op]) {
        for op in ops {
            match op.kind {
                OpKind::Found => {
                    self.read.most_class = self.read.most_class.max(class_of(op.node));
                }
                _ => self.read.last = self.read.last.max(op.time),
            }
        }
        self.replay.take(ops);
    }
}

impl Joiner<'_, '_> {
    /// Adds all recordings. `is_folded` says that blocks of the oldest part of some are missing.
    pub(super) fn add_with_figures(
        &mut self,
        all: &[(&Path, Target)],
        is_folded: bool,
    ) -> Result<(), RewriteError> {
        self.one_node = Some(HashMap::new());
        let mut figures = FiguresOfAll::new(self.first.capture().is_sampled(), all.len());
        let mut in_order: Vec<_> = (0..).zip(all).collect();
        in_order.sort_by_key(|(_, (_, t))| t.start_ticks.wrapping_add(shift(&self.first, t)));
        let mut surveyed = Vec::new();
        for (number, (path, target)) in in_order {
            surveyed.push(self.survey(number, path, target, is_folded, &mut figures)?);
        }
        let (folded, stripped) = figures.finish();
        for part in folded {
            self.to.put_zipped(kind::FOLDED, &part.encode())?;
        }
        for part in stripped {
            self.to.put_zipped(kind::STRIPPED, &part.encode())?;
        }
        surveyed.into_iter().try_for_each(|s| self.events_of(s))
    }

    /// Adds the figures of a recording, and writes all of it but its events.
    fn survey(
        &mut self,
        number: u64,
        path: &Path,
        target: &Target,
        is_folded: bool,
        figures: &mut FiguresOfAll,
    ) -> Result<Surveyed, RewriteError> {
        let mut stream = Stream::open(path, &LoadOptions::default())?;
        let again = Again::new(number, path, stream.same_file()?)?;
        let numbers = self.numbers(number, target);
        let mut reading = Reading::default();
        read_all(&mut stream, &mut reading)?;
        let Reading { replay, mut read } = reading;
        let shift = numbers.shift;
        read.last = read.last.wrapping_add(shift);
        read.threads = (0..).take_while(|i| stream.thread_of(*i).is_some()).count() as u32;
        let end = stream.bytes_read();
        let (mut totals, mut groups) = (replay.totals(), replay.ageless_groups());
        let course = is_folded.then(|| replay.course());
        drop(replay);
        let (analysis, ids) = self.describe(number, stream, shift, &read)?;
        let meta = analysis.meta();
        if meta.is_aggregated() || (meta.folded.is_some() && !is_folded) {
            return Err(again.replaced());
        }
        if let Some(s) = &meta.stripped {
            restore(s, &mut totals, &mut groups);
        }
        let begin = target.start_ticks.wrapping_add(shift);
        let until = meta.end_ticks(Ticks::ZERO).wrapping_add(shift).max(read.last);
        let span = [begin, if meta.end.is_some() { until } else { Ticks::MAX }];
        figures.add(&FiguresOfOne { meta, totals, groups, ids: &ids, shift, span }, course);
        Ok(Surveyed { again, end, numbers })
    }

    /// Writes the events of a recording.
    fn events_of(&mut self, s: Surveyed) -> Result<(), RewriteError> {
        let file = s.again.open()?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let mut stream = Stream::open(&path, &LoadOptions::default())?;
        let mut events = Joining::new(&mut self.to, s.numbers);
        stream.advance_by(s.end.saturating_sub(stream.bytes_read()), &mut events)?;
        stream.finish(&mut events)?;
        Ok(events.finish()?)
    }
}
