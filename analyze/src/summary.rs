//! The present figures of a recording and of its target, without stacks.

use crate::heap::Totals;
use crate::load::{LoadOptions, Sample};
use crate::unseen::{self, Unseen, WorkerData};
use crate::{Analysis, Error};
use prof_os::workers::Worker;
use prof_trace::capture::Capture;
use std::path::Path;

/// The figures of a recording for `prof status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of events read.
    pub events: u64,
    /// Number of events lost.
    pub lost: u64,
    /// Figures of all blocks.
    pub totals: Totals,
    /// Whether recording was on at the end of what was read.
    pub on: bool,
    /// Nanoseconds from the start of the recording to the last time recording was switched on or off.
    pub since_ns: u64,
    /// Duration of the recording in nanoseconds, pauses included.
    pub duration_ns: u64,
    /// Whether the recording stays behind its target, as events are held back (`--cull`) or added up (`--aggregate`).
    pub lags: bool,
    /// When the recording began, in nanoseconds since 1970.
    pub began_ns: u64,
    /// Number of periods in which recording was on.
    pub parts: usize,
    /// Whether the recording was finished.
    pub complete: bool,
    /// Number of bytes of the file that were read.
    pub bytes: u64,
    /// The recorded part of the blocks.
    pub capture: Capture,
    /// Whether events are compressed.
    pub compressed: bool,
    /// Why the recording ended, if it has.
    pub end_reason: Option<String>,
    /// Number of events and of other entries that the hook had written when the recording got its counters last.
    pub counted: u64,
    /// Signs that the recording misses memory, if there are any.
    pub unseen: Option<Unseen>,
    /// The target's worker processes.
    pub workers: Vec<WorkerData>,
    /// Name and time of each mark, in nanoseconds since the start, in the order of their numbers.
    pub marks: Vec<(String, u64)>,
}

/// Present figures of a target, which are not in its recording.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// The target's memory and processor time; the ticks are ignored.
    pub sample: Option<Sample>,
    /// The target's worker processes.
    pub workers: Vec<Worker>,
}

/// Analyses a recording for its totals only, together with present figures of its target.
///
/// # Errors
/// As [`Analysis::from_file`].
pub fn live_summary(path: &Path, now: &Now) -> Result<Summary, Error> {
    let a = Analysis::from_file(path, &LoadOptions::default())?;
    let (on, since) = a.meta().state();
    let seen = &a.meta().process;
    let workers = match now.workers.is_empty() {
        true => unseen::workers(seen.workers(), path),
        false => unseen::workers(&seen.seen_again(&now.workers), path),
    };
    Ok(Summary {
        end_reason: a.meta().end.as_ref().map(|e| e.reason.clone()),
        unseen: Unseen::of(&a, now.sample),
        workers,
        marks: a
            .meta()
            .marks
            .iter()
            .map(|m| (m.name.clone(), a.meta().clock.ns(m.ticks)))
            .collect(),
        events: a.events(),
        lost: a.meta().counters.lost,
        counted: a.meta().counters.events,
        totals: *a.totals(),
        on,
        since_ns: a.meta().clock.ns(since),
        duration_ns: a.duration_ns(),
        lags: a.meta().lacks_figures(),
        began_ns: a.meta().target.wall_ns,
        parts: a.parts().len(),
        complete: a.complete(),
        bytes: a.bytes(),
        capture: a.capture(),
        compressed: a.is_packed(),
    })
}
