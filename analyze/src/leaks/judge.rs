//! The verdict on one stack.

use super::series::{MOMENTS, Series};
use serde::Serialize;

/// What becomes of the memory that a stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// It grows, in every interval.
    Growing,
    /// It grew as well, and was given back only when everything ended.
    FreedAtTheEnd,
    /// Its blocks take the place of ones from before the recording, as far as these have been given back.
    Turnover,
    /// It is bounded: it has stopped growing, or comes and goes.
    Saturating,
    /// It was taken early and has not changed since.
    Static,
    /// There is too little of it, or it is too new.
    TooYoung,
}

impl Class {
    /// All of them, the worst first.
    pub const ALL: [Class; 6] = [
        Class::Growing,
        Class::FreedAtTheEnd,
        Class::Turnover,
        Class::Saturating,
        Class::Static,
        Class::TooYoung,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Class::Growing => "growing",
            Class::FreedAtTheEnd => "freed-at-the-end",
            Class::Turnover => "turnover",
            Class::Saturating => "saturating",
            Class::Static => "static",
            Class::TooYoung => "too-young",
        }
    }
}

/// How sure a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// It may well be otherwise.
    Low,
    /// It is likely.
    Medium,
    /// All intervals say the same, and there are many blocks.
    High,
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    pub class: Class,
    pub confidence: Confidence,
    /// Bytes that were added from one moment to the next, in the weakest interval; 0 if it is not
    /// growing.
    pub weakest: f64,
    /// The same on average.
    pub mean: f64,
}

/// Numbers of intervals whose growth is compared.
const INTERVALS: [usize; 2] = [8, 4];
/// A stack that is seen at fewer moments is too young.
const SEEN: usize = 24;
/// So many blocks that were kept make a trend.
const KEPT: u64 = 16;
/// The weakest interval of a growth has at least this part of the mean.
const STEADY: f64 = 0.2;

/// Judges what a stack held; `early`: it allocated already in the first half.
pub(super) fn judge(s: &Series, early: bool) -> Verdict {
    let none = |class, confidence| Verdict { class, confidence, weakest: 0.0, mean: 0.0 };
    let begin = s.held.iter().position(|h| *h > 0).unwrap_or(MOMENTS);
    let seen = &s.held[begin..];
    let (Some(&first), Some(&last)) = (seen.first(), seen.last()) else {
        // None of its blocks was ever old, although there have been some for long.
        return match early {
            true => none(Class::Saturating, Confidence::Medium),
            false => none(Class::TooYoung, Confidence::Low),
        };
    };
    if seen.len() < SEEN {
        // It is not new, and what it held for longer was given back: it comes and goes.
        let bounded = early && comes_down(seen);
        let class = if bounded { Class::Saturating } else { Class::TooYoung };
        return none(class, Confidence::Low);
    }
    let most = seen.iter().copied().max().unwrap_or(0);
    let steps = seen.windows(2).filter(|w| w[0] != w[1]).count();
    // What is taken at once may be on its way at the first of the moments.
    let first = seen.get(1).copied().unwrap_or(first).max(first);
    if steps == 0 || (first as f64) >= most as f64 * 0.98 && last as f64 >= most as f64 * 0.98 {
        let class = if last > 0 { Class::Static } else { Class::Saturating };
        let sure = if begin <= MOMENTS / 8 { Confidence::High } else { Confidence::Medium };
        return none(class, sure);
    }
    // What grows in steps that are longer than an eighth may still do so in every quarter.
    for intervals in INTERVALS {
        let (weakest, mean) = growth(seen, intervals);
        if mean <= 0.0 || weakest < mean * STEADY || s.kept < KEPT {
            continue;
        }
        let class = if s.freed_after as f64 >= last as f64 * 0.9 {
            Class::FreedAtTheEnd
        } else {
            Class::Growing
        };
        let confidence = match weakest / mean {
            _ if intervals != INTERVALS[0] => Confidence::Low,
            r if r >= 0.6 && s.kept >= 64 => Confidence::High,
            r if r >= 0.35 && s.kept >= 32 => Confidence::Medium,
            _ => Confidence::Low,
        };
        return Verdict { class, confidence, weakest, mean };
    }
    bounded(seen, last, most)
}

/// Whether it was at half of its height, or below, after that.
fn comes_down(seen: &[u64]) -> bool {
    let mut high = 0;
    seen.iter().any(|&h| {
        high = high.max(h);
        h <= high / 2
    })
}

/// Growth from a moment to the next: of the weakest interval, and on average.
fn growth(seen: &[u64], intervals: usize) -> (f64, f64) {
    let place = |i: usize| i * (seen.len() - 1) / intervals;
    let at = |i: usize| seen[place(i)] as f64;
    let slope = |i: usize| (at(i + 1) - at(i)) / (place(i + 1) - place(i)).max(1) as f64;
    let weakest = (0..intervals).map(slope).fold(f64::MAX, f64::min);
    let mean = (at(intervals) - at(0)) / (seen.len() - 1) as f64;
    (weakest.max(0.0), mean)
}

/// One that does not grow all the time: has it stopped, or does it only take longer steps?
fn bounded(seen: &[u64], last: u64, most: u64) -> Verdict {
    let none = |class, confidence| Verdict { class, confidence, weakest: 0.0, mean: 0.0 };
    // What turns over goes up and down a little for ever; what doubles is twice as high by now.
    let half = seen[..seen.len() / 2].iter().copied().max().unwrap_or(0);
    if most as f64 <= half as f64 * 1.25 {
        return none(Class::Saturating, Confidence::High);
    }
    // Moments at which it was higher than ever before.
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
    // What doubles each time waits twice as long each time.
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
            first: 0,
            first_ticks: 0,
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
        // The same in the end, but nothing in the last quarter.
        assert_eq!(class(&series(100, |i| 1000 * i.min(48) as u64)), Class::Saturating);
        // A burst, and a trickle.
        let burst = series(100, |i| if i < 32 { 10 * i as u64 } else { 9000 + 10 * i as u64 });
        let v = judge(&burst, true);
        assert_ne!(v.class, Class::Growing);
        // In steps of a sixth of the time.
        let v = judge(&series(100, |i| 1000 * (i as u64 / 11)), true);
        assert_eq!((v.class, v.confidence), (Class::Growing, Confidence::Low));
        // Twice as fast for a while is still growth; what counts is the slower half.
        let faster = |i: usize| (i.min(32) * 1000 + i.saturating_sub(32) * 2000) as u64;
        let v = judge(&series(100, faster), true);
        assert_eq!(v.class, Class::Growing);
        assert!((v.weakest - 1000.0).abs() < 60.0, "{v:?}");
    }

    #[test]
    fn what_is_bounded_is_no_leak() {
        assert_eq!(class(&series(100, |i| (i as u64 * 7919) % 5000 + 20_000)), Class::Saturating);
        // A cache in the middle of its turns, with its highest point at the very end.
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
        // Short-lived blocks that a machine which stood still made old for a moment.
        let stalled = series(100, |i| if i == 50 { 5000 } else { 0 });
        assert_eq!(
            (class(&stalled), judge(&stalled, false).class),
            (Class::Saturating, Class::TooYoung)
        );
        // A vector that doubles: it may do so again.
        let doubling = series(7, |i| 64u64 << (i + 1).ilog2());
        assert_eq!(class(&doubling), Class::TooYoung);
        let few = series(5, |i| 100 * (i as u64 / 13));
        assert_eq!(class(&few), Class::TooYoung);
    }
}
