//! Figures that a recording has in place of events.

use super::meta::{Meta, SymbolsAt};
use prof_trace::records::Stripped;
use prof_trace::ticks::Ticks;

/// Location of the figures of a recording without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepAt {
    pub at: SymbolsAt,
    /// Ticks from which on, and up to which, events are counted.
    pub begin: Ticks,
    pub end: Ticks,
}

impl Meta {
    /// Replaces what an earlier record says of all blocks and of the same stacks.
    pub(super) fn strip(&mut self, new: Stripped) {
        let all = self.stripped.get_or_insert_default();
        for group in new.groups.as_chunks::<{ Stripped::GROUP }>().0 {
            let at = *self.stripped_at.entry(group[0]).or_insert(all.groups.len());
            match all.groups.get_mut(at..at + Stripped::GROUP) {
                Some(old) => old.copy_from_slice(group),
                None => all.groups.extend(group),
            }
        }
        let groups = std::mem::take(&mut all.groups);
        *all = Stripped { groups, ..new };
    }

    /// Returns the option by which a recording has figures by stack in place of events.
    #[must_use]
    pub fn figures_by(&self) -> &'static str {
        if self.went_over.is_some() { "--on-limit aggregate" } else { "--aggregate" }
    }

    /// Returns the number of records of figures of a recording without events.
    #[must_use]
    pub fn steps_len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether the recording was joined from those of several processes: it names none, and is not the kernel's.
    #[must_use]
    pub fn is_of_several(&self) -> bool {
        self.target.pid == 0 && !self.is_of_kernel()
    }

    /// Returns whether figures are missing that are written in place of blocks: they do not reach to the end of the recording.
    #[must_use]
    pub fn lacks_figures(&self) -> bool {
        let hows = [Stripped::CULLED, Stripped::AGGREGATED];
        self.stripped.as_ref().is_some_and(|s| hows.contains(&s.how))
    }

    /// Returns whether the recording has figures by stack in place of events (`--aggregate`).
    #[must_use]
    pub fn is_aggregated(&self) -> bool {
        self.stripped.as_ref().is_some_and(|s| {
            matches!(s.how, Stripped::AGGREGATED | Stripped::AGGREGATED_TO_THE_END)
        })
    }
}
