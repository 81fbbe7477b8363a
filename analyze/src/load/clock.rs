//! Converts ticks to nanoseconds since the start of the recording.

use prof_trace::records::{Pass, Target};
use prof_trace::ticks::Ticks;

/// Kept samples are at least 1/`SPACING` of a second apart, so that the microseconds between reading the two clocks are
/// negligible.
const SPACING: u64 = 4;
/// Number of samples at which every other one is dropped.
const MOST: usize = 4096;

/// Maps ticks to `CLOCK_MONOTONIC`, from the collector's readings of both: linearly between the samples, at the nominal
/// rate outside of them.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    start: Ticks,
    per_sec: u64,
    spacing: u64,
    samples: Vec<(Ticks, u64)>,
    last: Option<(Ticks, u64)>,
}

impl Clock {
    pub(crate) fn new(target: &Target) -> Self {
        let per_sec = if target.ticks_per_sec == 0 { 1_000_000_000 } else { target.ticks_per_sec };
        Self { start: target.start_ticks, per_sec, spacing: per_sec / SPACING, ..Self::default() }
    }

    /// Adds the reading of a pass. Returns false if it does not change the mapping.
    pub(crate) fn sample(&mut self, pass: &Pass) -> bool {
        let s = (pass.ticks, pass.clock_ns);
        if let Some(l) = self.last.or(self.samples.last().copied())
            && (s.0 <= l.0 || s.1 < l.1)
        {
            return false; // clocks don't go back
        }
        match self.samples.last() {
            Some(p) if s.0 - p.0 < self.spacing => {
                self.last = Some(s);
                false
            }
            _ => {
                self.last = None;
                self.samples.push(s);
                if self.samples.len() == MOST {
                    let mut i = 0;
                    self.samples.retain(|_| (i += 1, i % 2 == 1).1);
                    self.spacing = self.spacing.saturating_mul(2);
                }
                true
            }
        }
    }

    /// Converts a distance in ticks to nanoseconds, at the nominal rate.
    fn nominal(&self, ticks: u64) -> u64 {
        let ns = ticks as u128 * 1_000_000_000 / self.per_sec.max(1) as u128;
        ns.min(u64::MAX as u128) as u64
    }

    /// Returns `CLOCK_MONOTONIC` at `ticks`, interpolated or extrapolated.
    pub(crate) fn absolute(&self, ticks: Ticks) -> u64 {
        let (Some(&first), Some(&final_)) = (self.samples.first(), self.samples.last()) else {
            return self.nominal(ticks.0);
        };
        if ticks <= first.0 {
            return first.1.saturating_sub(self.nominal(first.0 - ticks));
        }
        if ticks >= final_.0 {
            return final_.1.saturating_add(self.nominal(ticks - final_.0));
        }
        let i = self.samples.partition_point(|s| s.0 <= ticks);
        let (a, b) = (self.samples[i - 1], self.samples[i]);
        let part = (ticks - a.0) as u128 * (b.1 - a.1) as u128 / (b.0 - a.0).max(1) as u128;
        a.1.saturating_add(part as u64)
    }

    /// Returns the nanoseconds from the start of the recording to `ticks`; 0 if they lie before it.
    pub fn ns(&self, ticks: Ticks) -> u64 {
        self.absolute(ticks).saturating_sub(self.absolute(self.start))
    }

    /// Returns the nanoseconds from one moment to a later one; 0 if it is earlier.
    pub fn between(&self, from: Ticks, to: Ticks) -> u64 {
        self.absolute(to).saturating_sub(self.absolute(from))
    }

    /// Returns the first ticks that are not before `ns` nanoseconds since the start.
    pub(crate) fn first_at(&self, ns: u64) -> Ticks {
        Ticks(first(|t| self.ns(Ticks(t)) >= ns))
    }

    /// Returns the last ticks that are not after `ns` nanoseconds since the start.
    pub(crate) fn last_at(&self, ns: u64) -> Ticks {
        Ticks(first(|t| self.ns(Ticks(t)) > ns)).saturating_sub(1)
    }
}

/// Returns the smallest number that satisfies a condition, which must then hold for all larger ones.
fn first(holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(start: u64, ticks_per_sec: u64) -> Clock {
        Clock::new(&Target { start_ticks: Ticks(start), ticks_per_sec, ..Default::default() })
    }

    fn pass(ticks: u64, clock_ns: u64) -> Pass {
        Pass { ticks: Ticks(ticks), clock_ns, ..Default::default() }
    }

    #[test]
    fn without_samples_the_nominal_rate_holds() {
        let c = clock(1000, 2_000_000_000);
        assert_eq!((c.ns(Ticks(1000)), c.ns(Ticks(1200)), c.ns(Ticks(10))), (0, 100, 0));
        assert_eq!(clock(0, 0).ns(Ticks::MAX), u64::MAX);
    }

    #[test]
    fn samples_correct_the_rate() {
        // The nominal rate is 2 ticks per nanosecond, the samples' is 4.
        let mut c = clock(1000, 2_000_000_000);
        c.sample(&pass(1000, 50));
        c.sample(&pass(4_000_001_000, 1_000_000_050));
        assert_eq!(c.ns(Ticks(2_000_001_000)), 500_000_000);
        assert_eq!(c.between(Ticks(1000), Ticks(401_000)), 100_000);
        c.sample(&pass(7, 7)); // nonsense: back in time
        assert_eq!(c.ns(Ticks(2_000_001_000)), 500_000_000);
    }

    #[test]
    fn many_samples_stay_few() {
        let mut c = clock(0, 1_000_000_000);
        for i in 0..20_000u64 {
            c.sample(&pass(i * 1_000_000_000, i * 1_000_000_000 + 7));
        }
        assert!(c.samples.len() < MOST);
        assert_eq!(c.ns(Ticks(12_345_678_900_000)), 12_345_678_900_000);
    }
}
