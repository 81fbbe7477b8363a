//! Sums over all mappings, over time.

use super::Kind;
use super::kind::KINDS;
use prof_trace::records::MappingUse;
use prof_trace::ticks::Ticks;

/// Greatest number of moments that are kept.
const MOST: usize = 1 << 13;

/// Sums over all mappings but prof's own at a moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ticks.
    pub ticks: Ticks,
    /// Ticks when use was counted: all sums but the address space are of that moment.
    pub counted: Ticks,
    /// Address space.
    pub address_space: u64,
    /// Resident.
    pub rss: u64,
    /// Resident and anonymous.
    pub anonymous: u64,
    /// Resident and written to.
    pub dirty: u64,
    /// Resident and as in its file.
    pub clean: u64,
    /// Swapped out.
    pub swap: u64,
    /// In huge pages.
    pub huge: u64,
    /// Resident, by kind, in the order of [`Kind::ALL`].
    pub by_kind: [u64; KINDS],
}

impl Totals {
    pub(super) fn add(&mut self, kind: Kind, u: &MappingUse) {
        let pairs = [
            (&mut self.rss, u.rss),
            (&mut self.anonymous, u.anonymous),
            (&mut self.dirty, u.shared_dirty.saturating_add(u.private_dirty)),
            (&mut self.clean, u.shared_clean.saturating_add(u.private_clean)),
            (&mut self.swap, u.swap),
            (&mut self.huge, u.huge),
            (&mut self.by_kind[kind as usize], u.rss),
        ];
        for (to, n) in pairs {
            *to = to.saturating_add(n);
        }
    }

    /// Returns the resident bytes of a kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> u64 {
        self.by_kind[kind as usize]
    }
}

/// The sums over time. A recording may have any number of looks, so these are thinned out evenly.
#[derive(Debug, Default)]
pub(super) struct Course {
    all: Vec<Totals>,
    every: u32,
    seen: u64,
    last: Option<Totals>,
}

impl Course {
    pub(super) fn push(&mut self, t: Totals) {
        let due = self.seen.trailing_zeros() >= self.every || self.seen == 0;
        self.seen += 1;
        self.last = Some(t);
        if !due {
            return;
        }
        self.all.push(t);
        if self.all.len() >= MOST {
            let mut i = 0;
            self.all.retain(|_| {
                i += 1;
                i % 2 == 1
            });
            self.every += 1;
        }
    }

    /// Drops all sums: they were taken before use was counted.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns the sums in the order of time, with the last ones.
    pub(super) fn finish(mut self) -> Vec<Totals> {
        if let Some(last) = self.last.filter(|l| self.all.last() != Some(l)) {
            self.all.push(last);
        }
        self.all.sort_by_key(|t| t.ticks);
        // A count that takes long is written after lists that were read meanwhile, which have the use of the one before.
        let mut newest = Totals::default();
        for t in &mut self.all {
            if t.counted >= newest.counted {
                newest = *t;
            } else {
                let Totals { ticks, address_space, .. } = *t;
                *t = Totals { ticks, address_space, ..newest };
            }
        }
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_were_read_during_a_count_have_its_use() {
        let of = |ticks, counted, rss| Totals {
            ticks: Ticks(ticks),
            counted: Ticks(counted),
            rss,
            address_space: ticks,
            ..Totals::default()
        };
        let mut course = Course::default();
        for t in [of(1, 1, 5), of(3, 1, 5), of(4, 1, 5), of(2, 2, 9), of(6, 2, 9)] {
            course.push(t);
        }
        let wanted = [of(1, 1, 5), of(2, 2, 9), of(3, 2, 9), of(4, 2, 9), of(6, 2, 9)];
        assert_eq!(course.finish(), wanted);
    }
}
