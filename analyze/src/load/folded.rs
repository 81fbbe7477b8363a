//! The figures of blocks that were left out of a recording when its oldest part was folded.

use super::meta::Meta;
use prof_trace::records::Folded;

impl Meta {
    /// Adds a part of what was kept of the oldest part. Parts of another fold are none of this recording's.
    pub(super) fn fold(&mut self, new: Folded) {
        match &mut self.folded {
            Some(all) if all.folds == new.folds && all.until == new.until => {
                all.groups.extend(new.groups);
                all.sums.extend(new.sums);
            }
            Some(_) => self.bad_chunks += 1,
            None => self.folded = Some(new),
        }
    }

    /// Returns whether blocks are missing that the figures count: a filter finds none of them.
    #[must_use]
    pub fn lacks_blocks(&self) -> bool {
        self.stripped.is_some() || self.folded.is_some()
    }
}
