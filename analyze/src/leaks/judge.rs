//! Computes the verdict on one stack.

use super::series::{MOMENTS, Series};
use serde::Serialize;

/// Class of a stack, by how the memory that it holds changes over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Nothing points to some of the memory any more: a scan of the process has proved it.
    Proved,
    /// The memory grows in every interval.
    Growing,
    /// The memory grew, and was freed only when the program ended.
    FreedAtTheEnd,
    /// New blocks replace blocks from before the recording, as far as the frees of these show.
    Turnover,
    /// The memory is bounded: it has stopped growing, or rises and falls.
    Saturating,
    /// The memory was allocated early and has not changed since.
    Static,
    /// The memory is too little, or too new, to judge.
    TooYoung,
}

impl Class {
    /// All classes, the worst first.
    pub const ALL: [Class; 7] = [
        Class::Proved,
        Class::Growing,
        Class::FreedAtTheEnd,
        Class::Turnover,
        Class::Saturating,
        Class::Static,
        Class::TooYoung,
    ];

    /// Returns the name in output and options.
    pub fn name(self) -> &'static str {
        match self {
            Class::Proved => "proved",
            Class::Growing => "growing",
            Class::FreedAtTheEnd => "freed-at-the-end",
            Class::Turnover => "turnover",
            Class::Saturating => "saturating",
            Class::Static => "static",
            Class::TooYoung => "too-young",
        }
    }
}

/// Confidence in a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The verdict may well be wrong.
    Low,
    /// The verdict is likely.
    Medium,
    /// All intervals agree, and there are many blocks.
    High,
}

/// The verdict on one stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    pub class: Class,
    pub confidence: Confidence,
    /// Bytes added between two moments, in the weakest interval; 0 if the stack is not growing.
    pub weakest: f64,
    /// Bytes added between two moments, on average.
    pub mean: f64,
}

/// Numbers of intervals into which the time is divided to compare growth.
const INTERVALS: [usize; 2] = [8, 4];
/// A stack that exists at fewer moments is too young.
const SEEN: usize = 24;
/// Least number of kept blocks that make a trend.
const KEPT: u64 = 16;
/// Least ratio of the growth in the weakest interval to the mean growth.
const STEADY: f64 = 0.2;

/// Growth of a sampled stack below this number of standard errors may be chance.
const CHANCE: f64 = 4.0;
/// Least growth in standard errors for medium confidence; 25 sampled blocks of a leak have it.
const LIKELY: f64 = 5.0;
/// Least growth in standard errors for high confidence; 49 sampled blocks of a leak have it.
const CERTAIN: f64 = 7.0;
/// Expected distance of the least of eight normally distributed values from their mean, in standard deviations.
const WEAKEST_OF_EIGHT: f64 = 1.42;

/// Judges a series. `early`: the stack allocated already in the first half of the time.
pub(super) fn judge(s: &Series, early: bool) -> Verdict {
    let none = |class, confidence| Verdict { class, confidence, weakest: 0.0, mean: 0.0 };
    let begin = s.held.iter().position(|h| *h > 0).unwrap_or(MOMENTS);
    let seen = &s.held[begin..];
    let (Some(&first), Some(&last)) = (seen.first(), seen.last()) else {
        // The stack has allocated for long, but none of its blocks ever became old.
        return match early {
            true => none(Class::Saturating, Confidence::Medium),
            false => none(Class::TooYoung, Confidence::Low),
        };
    };
    if seen.len() < SEEN {
        // The stack is not new, and freed what it held for longer: its memory rises and falls.
        let bounded = early && comes_down(seen);
        let class = if bounded { Class::Saturating } else { Class::TooYoung };
        return none(class, Confidence::Low);
    }
    let most = seen.iter().copied().max().unwrap_or(0);
    let steps = seen.windows(2).filter(|w| w[0] != w[1]).count();
    // A burst of allocations may be only partly done at the first moment.
    let first = seen.get(1).copied().unwrap_or(first).max(first);
    if steps == 0 || (first as f64) >= most as f64 * 0.98 && last as f64 >= most as f64 * 0.98 {
        let class = if last > 0 { Class::Static } else { Class::Saturating };
        let sure = if begin <= MOMENTS / 8 { Confidence::High } else { Confidence::Medium };
        return none(class, sure);
    }
    // Growth in steps longer than an eighth of the time may still be seen in every quarter.
    for intervals in INTERVALS {
        let (weakest, mean) = growth(seen, intervals);
        let grown = mean * (seen.len() - 1) as f64;
        let chance = grown < CHANCE * s.noise.sqrt();
        if mean <= 0.0 || weakest < mean * STEADY || s.kept < KEPT || chance {
            continue;
        }
        let class = if s.freed_after as f64 >= last as f64 * 0.9 {
            Class::FreedAtTheEnd
        } else {
            Class::Growing
        };
        let confidence = match weakest / mean {
            r if s.noise > 0.0 => of_sample(r, grown / s.noise.sqrt(), intervals == INTERVALS[0]),
            _ if intervals != INTERVALS[0] => Confidence::Low,
            r if r >= 0.6 && s.kept >= 64 => Confidence::High,
            r if r >= 0.35 && s.kept >= 32 => Confidence::Medium,
            _ => Confidence::Low,
        };
        return Verdict { class, confidence, weakest, mean };
    }
    bounded(seen, last, most)
}

/// Returns the confidence in the growth of a sampled stack. `weakest`: ratio of the growth in the weakest interval to the
/// mean. `errors`: the growth in standard errors. `finely`: it grew in each of eight intervals.
fn of_sample(weakest: f64, errors: f64, finely: bool) -> Confidence {
    let chance = WEAKEST_OF_EIGHT * (INTERVALS[0] as f64).sqrt() / errors;
    match finely {
        true if errors >= CERTAIN && weakest + chance >= 0.6 => Confidence::High,
        true if errors >= LIKELY => Confidence::Medium,
        false if errors >= CERTAIN => Confidence::Medium,
        _ => Confidence::Low,
    }
}

/// Returns whether the series fell to half of its height so far, or below.
fn comes_down(seen: &[u64]) -> bool {
    let mut high = 0;
    seen.iter().any(|&h| {
        high = high.max(h);
        h <= high / 2
    })
}

/// Returns the growth between two moments: in the weakest interval, and on average.
fn growth(seen: &[u64], intervals: usize) -> (f64, f64) {
    let place = |i: usize| i * (seen.len() - 1) / intervals;
    let at = |i: usize| seen[place(i)] as f64;
    let slope = |i: usize| (at(i + 1) - at(i)) / (place(i + 1) - place(i)).max(1) as f64;
    let weakest = (0..intervals).map(slope).fold(f64::MAX, f64::min);
    let mean = (at(intervals) - at(0)) / (seen.len() - 1) as f64;
    (weakest.max(0.0), mean)
}

/// Judges a series that does not grow all the time: it has stopped growing, or grows in longer steps.
fn bounded(seen: &[u64], last: u64, most: u64) -> Verdict {
    let none = |class, confidence| Verdict { class, confidence, weakest: 0.0, mean: 0.0 };
    // Turnover varies a little for ever, but doubling would have doubled by now.
    let half = seen[..seen.len() / 2].iter().copied().max().unwrap_or(0);
    if most as f64 <= half as f64 * 1.25 {
        return none(Class::Saturating, Confidence::High);
    }
    // Collect the moments at which the series was higher than ever before.
    let mut high = 0;
    let mut records = Vec::new();
    for (i, &h) in seen.iter().enumerate() {
        if h as f64 > high as f64 * 1.02 {
            records.push(i);
            high = h;
        }
    }
    let newest = records.last().copied().unwrap_or(0);
    let gap = records.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(1);
    let plateau = seen.len() - 1 - newest;
    // A buffer that doubles waits twice as long before each step.
    if plateau * 2 < gap * 5 && last as f64 > most as f64 * 0.9 {
        return none(Class::TooYoung, Confidence::Low);
    }
    let confidence = match plateau {
        p if p >= seen.len() / 2 => Confidence::High,
        p if p >= seen.len() / 4 => Confidence::Medium,
        _ => Confidence::Low,
    };
    none(Class::Saturating, confidence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::ticks::Ticks;

    fn series(kept: u64, held: impl Fn(usize) -> u64) -> Series {
        let held: [u64; MOMENTS] = std::array::from_fn(held);
        Series {
            held,
            counts: held.map(|h| h / 8),
            sizes: (8, 8),
            live_bytes: held[MOMENTS - 1],
            live_blocks: kept,
            freed_after: 0,
            kept,
            noise: 0.0,
            first: 0,
            first_ticks: Ticks::ZERO,
        }
    }

    fn class(s: &Series) -> Class {
        judge(s, true).class
    }

    #[test]
    fn the_weakest_interval_decides() {
        let v = judge(&series(100, |i| 1000 * i as u64), true);
        assert_eq!((v.class, v.confidence), (Class::Growing, Confidence::High));
        assert!((v.weakest - 1000.0).abs() < 1.0 && (v.mean - 1000.0).abs() < 1.0);
        // The same sum in the end, but no growth in the last quarter.
        assert_eq!(class(&series(100, |i| 1000 * i.min(48) as u64)), Class::Saturating);
        // A burst, and slow growth.
        let burst = series(100, |i| if i < 32 { 10 * i as u64 } else { 9000 + 10 * i as u64 });
        let v = judge(&burst, true);
        assert_ne!(v.class, Class::Growing);
        // Growth in steps of a sixth of the time.
        let v = judge(&series(100, |i| 1000 * (i as u64 / 11)), true);
        assert_eq!((v.class, v.confidence), (Class::Growing, Confidence::Low));
        // A doubled rate for a while is still growth; the slower half counts.
        let faster = |i: usize| (i.min(32) * 1000 + i.saturating_sub(32) * 2000) as u64;
        let v = judge(&series(100, faster), true);
        assert_eq!(v.class, Class::Growing);
        assert!((v.weakest - 1000.0).abs() < 60.0, "{v:?}");
    }

    #[test]
    fn what_is_bounded_is_no_leak() {
        assert_eq!(class(&series(100, |i| (i as u64 * 7919) % 5000 + 20_000)), Class::Saturating);
        // A cache during its turnover, whose highest value is at the very end.
        assert_eq!(
            class(&series(100, |i| 20_000 + i as u64 * 31 % 700 + i as u64 * 8)),
            Class::Saturating
        );
        assert_eq!(class(&series(1, |_| 4096)), Class::Static);
        assert_eq!(class(&series(32, |i| if i == 0 { 30_000 } else { 32_000 })), Class::Static);
        assert_eq!(class(&series(32, |i| 32_000.min(12_000 * i as u64 + 1))), Class::Saturating);
        assert_eq!(
            class(&series(100, |i| 10_000 - 10_000 / (1 + i as u64 * i as u64))),
            Class::Saturating
        );
        assert_eq!(class(&series(100, |i| if i < 30 { 500 } else { 0 })), Class::Saturating);
    }

    #[test]
    fn what_is_freed_at_the_end_grew_before() {
        let mut s = series(100, |i| 1000 * i as u64);
        s.freed_after = s.held[MOMENTS - 1];
        assert_eq!(class(&s), Class::FreedAtTheEnd);
        let mut s = series(1, |_| 1000);
        s.freed_after = 1000;
        assert_eq!(class(&s), Class::Static);
    }

    #[test]
    fn little_evidence_is_too_young() {
        assert_eq!(judge(&series(0, |_| 0), false).class, Class::TooYoung);
        assert_eq!(judge(&series(0, |_| 0), true).class, Class::Saturating);
        let late = series(100, |i| if i < 50 { 0 } else { 100 * i as u64 });
        assert_eq!(class(&late), Class::TooYoung);
        // Short-lived blocks that became old because the machine stalled for a moment.
        let stalled = series(100, |i| if i == 50 { 5000 } else { 0 });
        assert_eq!(
            (class(&stalled), judge(&stalled, false).class),
            (Class::Saturating, Class::TooYoung)
        );
        // A vector that doubles may do so again.
        let doubling = series(7, |i| 64u64 << (i + 1).ilog2());
        assert_eq!(class(&doubling), Class::TooYoung);
        let few = series(5, |i| 100 * (i as u64 / 13));
        assert_eq!(class(&few), Class::TooYoung);
    }
}
