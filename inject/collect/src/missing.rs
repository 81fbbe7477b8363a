//! The calls in a ring that a recording lacks.

use prof_trace::call::{Part, RawCall};
use prof_trace::ticks::Ticks;

/// The calls of a thread that a collector has not written before it died, though it has written events behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// End of the thread's last recorded call, in ticks of the recording; `None`: none was recorded.
    pub after: Option<Ticks>,
    /// Offset of the recording's times to those in the ring.
    pub offset: u64,
}

impl Missing {
    /// Returns those of a segment's calls that the recording lacks. Their times are the ring's.
    pub(crate) fn of(self, calls: &mut Vec<Part>) -> Vec<Part> {
        let mut found: Vec<Part> = Vec::new();
        // Texts stay only with the call behind them.
        let mut texts = 0;
        for part in calls.drain(..) {
            let Part::Call(raw, node) = part else {
                found.push(part);
                texts += 1;
                continue;
            };
            let time = raw.time.wrapping_add(self.offset);
            if self.after.is_none_or(|after| time > after) {
                found.push(Part::Call(RawCall { time, ..raw }, node));
            } else {
                found.truncate(found.len() - texts);
            }
            texts = 0;
        }
        found.truncate(found.len() - texts);
        found
    }
}
