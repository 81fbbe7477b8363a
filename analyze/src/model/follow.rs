//! Computes the totals of a recording while it grows.

use super::replay::{Group, Replay, Totals};
use crate::Error;
use crate::load::{Kernel, LoadOptions, Stream};
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

    /// Returns the figures by stack, as the replay has kept them.
    pub fn groups(&self) -> Vec<Group> {
        self.replay.groups()
    }

    /// Returns the last reading of the target's memory.
    pub fn kernel(&self) -> Option<Kernel> {
        self.stream.meta().kernel
    }

    /// Returns the moment that the figures describe, in nanoseconds since the start of the recording.
    pub fn now_ns(&self) -> u64 {
        let meta = self.stream.meta();
        meta.clock.ns(meta.end_ticks(self.replay.totals().last_ticks))
    }
}
