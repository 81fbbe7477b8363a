//! Reads the figures of a recording that has no events (`--aggregate`): adds up its steps.

mod sum;

use crate::load::{Meta, StepAt};
use crate::progress::Step as Progress;
use prof_trace::derived::Zipped;
use prof_trace::records::Step;
use std::fs::File;
use std::os::unix::fs::FileExt;

pub(crate) use sum::{Steps, Summed};

/// Reads a step of a recording again; `None` if the file has changed since.
pub(crate) fn step(file: &File, at: &StepAt) -> Option<Step> {
    let mut payload = vec![0; at.at.len];
    file.read_exact_at(&mut payload, at.at.at).ok()?;
    if at.at.zipped {
        Step::decode(&Zipped::decode(&payload)?.unzip()?)
    } else {
        Step::decode(&payload)
    }
}

/// Passes the steps of a recording to `take`, in their order, until that returns false. Returns whether the job of this
/// thread was not cancelled.
pub(crate) fn each(file: &File, meta: &Meta, mut take: impl FnMut(&Step) -> bool) -> bool {
    let progress = Progress::begin("adding the figures up", meta.steps.len() as u64);
    for at in &meta.steps {
        if progress.is_cancelled() {
            return false;
        }
        progress.add(1);
        if step(file, at).is_some_and(|s| !take(&s)) {
            break;
        }
    }
    true
}

/// Returns the figures at the end of a recording; `None` if it has events.
pub(crate) fn sum(file: &File, meta: &Meta) -> Option<Summed> {
    if !meta.is_aggregated() {
        return None;
    }
    let mut sum = Summed::default();
    // If the job is cancelled, its caller throws this incomplete sum away.
    each(file, meta, |s| {
        sum.add(s);
        true
    });
    Some(sum)
}
