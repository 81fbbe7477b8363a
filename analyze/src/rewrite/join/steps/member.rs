//! The steps of one of the recordings whose figures are added up.

use super::super::again::Again;
use super::super::code::Ids;
use crate::aggregate;
use crate::load::StepAt;
use crate::rewrite::RewriteError;
use prof_trace::records::Step;
use prof_trace::ticks::Ticks;
use std::collections::VecDeque;

/// The steps that are left of a recording.
pub(super) enum Steps {
    /// Steps that are read again from a file.
    InFile(Again, VecDeque<StepAt>),
    /// Steps that were made of events: begin and end of each, and the step as it is encoded.
    Made(VecDeque<(Ticks, Ticks, Vec<u8>)>),
}

impl Steps {
    /// Returns begin and end of each.
    fn spans(&self) -> Box<dyn DoubleEndedIterator<Item = [Ticks; 2]> + '_> {
        match self {
            Self::InFile(_, left) => Box::new(left.iter().map(|s| [s.begin, s.end])),
            Self::Made(left) => Box::new(left.iter().map(|s| [s.0, s.1])),
        }
    }

    /// Returns when the last one ends.
    pub(super) fn last(&self) -> Option<Ticks> {
        self.spans().next_back().map(|[_, end]| end)
    }

    /// Reads the next one; if there is none, the step is empty.
    fn read(&mut self) -> Result<Step, RewriteError> {
        match self {
            Self::InFile(again, left) => {
                let Some(at) = left.pop_front() else { return Ok(Step::default()) };
                // A step that could be read before is another file's now if it can't.
                aggregate::step(&again.open()?, &at).ok_or_else(|| again.replaced())
            }
            Self::Made(left) => {
                let step = left.pop_front().and_then(|s| Step::decode(&s.2));
                Ok(step.unwrap_or_default())
            }
        }
    }
}

/// A recording whose steps are added up.
pub(super) struct Member {
    steps: Steps,
    /// The next step, if it was read.
    ahead: Option<Step>,
    /// Ticks that are added to its times.
    pub shift: u64,
    ids: Ids,
}

impl Member {
    /// Creates one with all its steps left.
    pub(super) fn new(steps: Steps, shift: u64, ids: Ids) -> Self {
        Self { steps, ahead: None, shift, ids }
    }

    /// Returns begin and end of the next step, in the time of all recordings.
    fn next(&self) -> Option<[Ticks; 2]> {
        match &self.ahead {
            Some(step) => Some([step.begin, step.end]),
            None => self.steps.spans().next().map(|s| s.map(|t| t.wrapping_add(self.shift))),
        }
    }

    /// Returns when its next step begins, in the time of all recordings.
    pub(super) fn next_begin(&self) -> Option<Ticks> {
        self.next().map(|[begin, _]| begin)
    }

    /// Returns when its next step ends, in the time of all recordings.
    pub(super) fn next_end(&self) -> Option<Ticks> {
        self.next().map(|[_, end]| end)
    }

    /// Returns when its last step ends, in the time of all recordings.
    pub(super) fn last(&self) -> Option<Ticks> {
        self.steps.last().map(|end| end.wrapping_add(self.shift))
    }

    /// Returns the average length of its steps in ticks, but for the last one, which may be cut short; `None`: there are too
    /// few.
    pub(super) fn width(&self) -> Option<u64> {
        let mut ends = self.steps.spans().map(|[_, end]| end);
        let (first, mut n) = (ends.next()?, 0u64);
        let (mut before, mut last) = (first, first);
        // A step with many stacks is in several parts, with the same end.
        for end in ends.filter(|end| *end > first) {
            if end > last {
                (before, last) = (last, end);
                n += 1;
            }
        }
        before.since(first).checked_div(n.saturating_sub(1))
    }

    /// Returns the next step, in the time and with the stacks of all recordings.
    pub(super) fn ahead(&mut self) -> Result<&Step, RewriteError> {
        let step = match self.ahead.take() {
            Some(step) => step,
            None => self.read()?,
        };
        Ok(self.ahead.insert(step))
    }

    /// Does the same, and goes on to the one behind it.
    pub(super) fn take(&mut self) -> Result<Step, RewriteError> {
        match self.ahead.take() {
            Some(step) => Ok(step),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Result<Step, RewriteError> {
        let mut step = self.steps.read()?;
        let later = |t: &mut Ticks| *t = t.wrapping_add(self.shift);
        later(&mut step.begin);
        later(&mut step.end);
        step.peaks.iter_mut().for_each(|p| p[3] = p[3].wrapping_add(self.shift));
        for s in &mut step.stacks {
            s.node = self.ids.of(s.node);
            [&mut s.first, &mut s.last, &mut s.peak].into_iter().flatten().for_each(later);
        }
        Ok(step)
    }
}
