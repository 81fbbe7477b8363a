//! Keeps the resident set and the address space of the target over time.

use crate::heap::Extent;
use prof_trace::ticks::Ticks;

/// The target's memory as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Bytes of the resident set.
    pub rss_bytes: u64,
    /// Bytes of the address space.
    pub vss_bytes: u64,
    /// Ticks of the reading.
    pub ticks: Ticks,
}

/// Readings of the resident set and of the address space: one, or several that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Ticks of the first of them.
    pub first: Ticks,
    /// Ticks of the last of them.
    pub ticks: Ticks,
    /// Resident set in bytes.
    pub rss: Extent,
    /// Address space in bytes.
    pub vss: Extent,
}

impl Reading {
    fn follow(&mut self, next: &Self) {
        self.ticks = next.ticks;
        self.rss.follow(&next.rss);
        self.vss.follow(&next.vss);
    }
}

/// The resident set over time. A recording may have any number of passes, so readings are put together evenly.
#[derive(Clone, Debug, Default)]
pub struct Resident {
    readings: Vec<Reading>,
    /// 2^`every` passes are put together.
    every: u32,
    seen: u64,
}

/// Greatest number of readings of the resident set that are kept.
const RESIDENT: usize = 4096;

impl Resident {
    pub(super) fn push(&mut self, ticks: Ticks, rss: u64, vss: u64) {
        let of = |v: u64| Extent { min: v, max: v, last: v };
        let reading = Reading { first: ticks, ticks, rss: of(rss), vss: of(vss) };
        let begins = self.seen.trailing_zeros() >= self.every || self.seen == 0;
        self.seen += 1;
        match self.readings.last_mut() {
            Some(last) if !begins => last.follow(&reading),
            _ => self.readings.push(reading),
        }
        if self.readings.len() > RESIDENT {
            let pair = |p: &[Reading]| {
                let mut first = p[0];
                p[1..].iter().for_each(|r| first.follow(r));
                first
            };
            self.readings = self.readings.chunks(2).map(pair).collect();
            self.every += 1;
        }
    }

    /// Returns the readings, in the order of time.
    #[must_use]
    pub fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// Returns the smallest resident set between two moments, in bytes.
    #[must_use]
    pub fn least(&self, from: Ticks, to: Ticks) -> Option<u64> {
        let within = |r: &&Reading| r.first >= from && r.ticks <= to;
        self.readings.iter().filter(within).map(|r| r.rss.min).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_readings_are_put_together_and_none_is_lost() {
        let mut r = Resident::default();
        for i in 0..50_000u64 {
            r.push(Ticks(i * 10), if i == 777 { 9 } else { 1000 + i }, 2 * i);
        }
        let all = r.readings();
        assert!(all.len() <= RESIDENT && all.len() > RESIDENT / 2);
        assert_eq!((all[0].first, all[all.len() - 1].ticks), (Ticks::ZERO, Ticks(499_990)));
        assert!(all.is_sorted_by(|a, b| a.ticks < b.first && a.vss.last < b.vss.min));
        assert_eq!(
            (r.least(Ticks::ZERO, Ticks(499_990)), r.least(Ticks(100_000), Ticks(499_990))),
            (Some(9), Some(11_000))
        );
        assert_eq!(all.iter().map(|a| a.rss.max).max(), Some(50_999));
        assert_eq!(r.least(Ticks(3), Ticks(4)), None);
    }
}
