//! Computes the totals of a recording while it grows.

use super::analysis::{Analysis, Source};
use super::course::Course;
use super::live::Block;
use super::replay::{Group, Replay, Totals};
use crate::Error;
use crate::load::{Kernel, LoadOptions, Meta, Stream, open_file};
use crate::query::{Span, Timeline, by_course, resident};
use std::path::Path;

/// Reads a growing recording incrementally. Its totals describe a moment shortly before the collector's last pass, up
/// to which the order of events is final.
pub struct Follower {
    stream: Stream,
    replay: Replay,
}

/// The state of a [`Follower`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of events read, including those that still wait for their turn and are not in `totals`.
    pub events: u64,
    /// Number of events lost.
    pub lost: u64,
    /// Length of the recording in bytes.
    pub bytes: u64,
    /// Figures of all blocks.
    pub totals: Totals,
    /// Whether the recording was finished.
    pub finished: bool,
}

impl Follower {
    /// Opens a recording.
    ///
    /// # Errors
    /// If the file can't be read, or is not a recording that this version understands.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let stream = Stream::open(path, &LoadOptions::default())?;
        Ok(Self { stream, replay: Replay::default() })
    }

    /// Reads what was added since the last call.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn poll(&mut self) -> Result<Progress, Error> {
        self.stream.advance(&mut self.replay)?;
        let finished = self.stream.meta().end.is_some();
        if finished {
            self.stream.finish(&mut self.replay)?;
        }
        let counters = &self.stream.meta().counters;
        Ok(Progress {
            events: self.stream.events().max(counters.events),
            lost: counters.lost,
            bytes: self.stream.bytes_read(),
            totals: self.replay.totals(),
            finished,
        })
    }

    /// Returns the records other than events, as far as they were read.
    pub fn meta(&self) -> &Meta {
        self.stream.meta()
    }

    /// Returns the nanoseconds from the start of the recording to the last moment that was read.
    pub fn duration_ns(&self) -> u64 {
        self.meta().clock.ns(self.end_ticks())
    }

    fn end_ticks(&self) -> u64 {
        self.meta().end_ticks(self.replay.totals().last_ticks)
    }

    /// Returns the figures of all blocks over time.
    pub fn course(&self) -> Course {
        self.replay.course()
    }

    /// Returns the figures of all blocks in columns of time. It takes a pass over the live blocks, and no other.
    pub fn timeline(&self, span: &Span) -> Timeline {
        let meta = self.meta();
        let edges = span.edges(&meta.clock, self.end_ticks());
        let mut timeline = by_course(&self.course(), &edges, &meta.clock);
        timeline.edges_ns = (0..edges.len()).map(|i| span.edge_ns(i)).collect();
        if let Some((rss, vss)) = resident(meta, &edges) {
            (timeline.rss, timeline.vss) = (Some(rss), Some(vss));
        }
        timeline
    }

    /// Returns the figures by stack.
    pub fn groups(&self) -> Vec<Group> {
        self.replay.groups()
    }

    /// Returns the live blocks with their addresses, in no particular order. Their groups are indices into
    /// [`Self::groups`].
    pub fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        self.replay.live()
    }

    /// Returns the number in the recording of a thread, given its index.
    pub fn thread_of(&self, lane: u32) -> Option<u32> {
        self.stream.thread_of(lane)
    }

    /// Returns the ticks of the last moment that was read.
    pub fn now_ticks(&self) -> u64 {
        self.end_ticks()
    }

    /// Returns the analysis of what was read so far, for reports with names. The records are copied, but nothing is
    /// read again.
    ///
    /// # Errors
    /// If the file can't be opened.
    pub fn analysis(&self) -> Result<Analysis, Error> {
        let file = open_file(self.stream.path())?;
        let source = Source::of(&self.stream, file);
        Ok(Analysis::new(source, self.replay.totals(), self.groups()))
    }

    /// Returns the last reading of the target's memory.
    pub fn kernel(&self) -> Option<Kernel> {
        self.stream.meta().kernel
    }

    /// Returns the moment that the figures describe, in nanoseconds since the start of the recording.
    pub fn now_ns(&self) -> u64 {
        self.duration_ns()
    }
}
