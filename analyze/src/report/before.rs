//! The figures of a census: blocks from before the recording.

use crate::Analysis;
use crate::load::is_before;
use prof_trace::values::text::{bytes, count, duration};
use serde::Serialize;

/// Blocks that were live before the recording began, as far as they are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BeforeData {
    /// Number of blocks.
    pub count: u64,
    /// Bytes of these that the program can use.
    pub bytes: u64,
    /// Number of those that are live at the moment of the figures.
    pub live_count: u64,
    /// Bytes of these.
    pub live_bytes: u64,
    /// The moment of the census, in nanoseconds since the start.
    pub at_ns: u64,
    /// Time for which the process was stopped for it, in nanoseconds; 0: not known.
    pub stop_ns: u64,
}

impl BeforeData {
    /// Returns what is known; `None` if no census was taken.
    pub(super) fn new(analysis: &Analysis) -> Option<Self> {
        let census = analysis.meta().census?;
        let all = analysis.totals().figures;
        let groups = analysis.groups().iter().filter(|g| is_before(g.node));
        let live = groups.map(|g| (g.figures.live_count, g.figures.live_bytes));
        let (live_count, live_bytes) = live.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        Some(Self {
            count: all.found,
            bytes: all.found_bytes,
            live_count,
            live_bytes,
            at_ns: analysis.meta().clock.ns(census.ticks),
            stop_ns: census.stop_ns,
        })
    }

    /// Returns it as a line of text.
    pub(super) fn text(&self) -> String {
        // A recording of several processes does not have it.
        let stop = match self.stop_ns {
            0 => String::new(),
            ns => format!(", by a census that stopped the process for {}", duration(ns)),
        };
        format!(
            "{} in {} from before the attach{stop}; {} in {} are live",
            bytes(self.bytes),
            count(self.count, "block", "blocks"),
            bytes(self.live_bytes),
            count(self.live_count, "block", "blocks"),
        )
    }
}
