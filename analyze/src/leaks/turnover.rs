//! Computes growth net of turnover: new blocks that replace blocks from before the recording do not count.
//!
//! A cache that was full before the attach looks like a leak: its new blocks are recorded, but the old ones that they
//! replace are not. The frees of the old ones are recorded, and the size of most is known (see [`super::parts`]). In
//! each interval they are subtracted from the growth in their size class.

use super::judge::{Class, Confidence, Verdict, judge};
use super::parts::{CLASSES, Parts};
use super::series::{MOMENTS, Series};

/// Number of intervals in which growth and frees are compared.
const INTERVALS: usize = 8;
/// Largest relative difference, in total, at which growth and frees are considered equal.
const SAME: f64 = 0.15;
/// Largest relative difference in each interval at which they are considered equal.
const SAME_EACH: f64 = 0.35;
/// A verdict stays as it is if at least this part of the growth is left.
const MOSTLY: f64 = 0.6;
/// Part of the growth up to which what is left may be a coincidence.
const LITTLE: f64 = 0.1;
/// Least growth in bytes that has to show in the resident set.
const SHOWS: f64 = 4.0 * (1 << 20) as f64;

/// Freed blocks from before the recording that are subtracted from the growth of one part of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Credit {
    /// Freed blocks of the part's size class that it is credited with, by interval.
    sure: [f64; INTERVALS],
    /// Freed blocks of unknown size that it is credited with, by interval.
    maybe: [f64; INTERVALS],
}

impl Credit {
    pub(super) fn add(&mut self, other: &Self) {
        for i in 0..INTERVALS {
            self.sure[i] += other.sure[i];
            self.maybe[i] += other.maybe[i];
        }
    }

    /// Reduces the credit such that steady growth remains: growth in intervals without frees replaces nothing, and is
    /// assumed in the other intervals as well. This needs enough intervals without frees.
    fn leave_steady(&mut self, grown: &[f64; INTERVALS]) {
        let credit = |c: &Self, i: usize| c.sure[i] + c.maybe[i];
        let alone = (0..INTERVALS).filter(|i| credit(self, *i) <= grown[*i] * LITTLE);
        let mut alone: Vec<f64> = alone.map(|i| grown[i]).collect();
        if alone.len() < INTERVALS / 2 {
            return;
        }
        alone.sort_by(f64::total_cmp);
        let steady = alone[alone.len() / 2];
        for ((sure, maybe), grown) in self.sure.iter_mut().zip(&mut self.maybe).zip(grown) {
            let all = *sure + *maybe;
            let most = (grown - steady).max(0.0);
            if all > most {
                *sure *= most / all;
                *maybe *= most / all;
            }
        }
    }

    /// Returns the number of freed blocks of known size.
    pub(super) fn blocks(&self) -> u64 {
        self.sure.iter().sum::<f64>().round() as u64
    }
}

/// Facts about the whole process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct World {
    /// Growth of the resident set in bytes.
    pub resident: Option<f64>,
    /// The remaining growth is about equal to the freed blocks of unknown size.
    pub balanced: bool,
}

fn edge(i: usize) -> usize {
    i * (MOMENTS - 1) / INTERVALS
}

fn steps(at: impl Fn(usize) -> f64) -> [f64; INTERVALS] {
    std::array::from_fn(|i| (at(edge(i + 1)) - at(edge(i))).max(0.0))
}

fn growth(s: &Series) -> [f64; INTERVALS] {
    steps(|i| s.counts[i] as f64)
}

/// Matches growth with frees; returns the credit of each part, in the order of the parts.
pub(super) fn credits(parts: &Parts, world: &mut World) -> Vec<Credit> {
    let keys: Vec<usize> = parts.by.keys().map(|k| k.1 as usize).collect();
    let grown: Vec<[f64; INTERVALS]> = parts.by.values().map(growth).collect();
    let mut credits = vec![Credit::default(); grown.len()];
    let mut open = steps(|i| parts.unsized_freed[i] as f64);
    for class in 0..CLASSES {
        let freed = steps(|i| parts.freed[class][i] as f64);
        if freed.iter().all(|f| *f == 0.0) {
            continue;
        }
        let of: Vec<usize> = (0..grown.len()).filter(|u| keys[*u] == class).collect();
        let same: Vec<usize> = of.iter().copied().filter(|u| is_same(&grown[*u], &freed)).collect();
        if let [one] = same[..] {
            credits[one].sure = grown[one];
            continue;
        }
        let all = steps(|i| parts.all[class][i] as f64);
        for i in 0..INTERVALS {
            let sum: f64 = of.iter().map(|u| grown[*u][i]).sum();
            let part = freed[i] / sum.max(all[i]).max(1.0);
            for u in &of {
                credits[*u].sure[i] = grown[*u][i] * part.min(1.0);
            }
            open[i] += (freed[i] - sum.max(all[i])).max(0.0);
        }
    }
    let rest = |u: usize, credits: &[Credit], i: usize| grown[u][i] - credits[u].sure[i];
    let (mut left, mut unknown) = (0.0, 0.0);
    for (i, open) in open.iter().enumerate() {
        let sum: f64 = (0..grown.len()).map(|u| rest(u, &credits, i)).sum();
        let part = (open / sum.max(1.0)).min(1.0);
        for u in 0..grown.len() {
            credits[u].maybe[i] = rest(u, &credits, i) * part;
        }
        left += sum;
        unknown += open;
    }
    for (c, g) in credits.iter_mut().zip(&grown) {
        c.leave_steady(g);
    }
    world.balanced = left > unknown * 0.5 && left < unknown * (1.0 + SAME);
    credits
}

/// Returns whether growth and frees are considered equal: in total, and in each interval.
fn is_same(grown: &[f64; INTERVALS], freed: &[f64; INTERVALS]) -> bool {
    let (g, f) = (grown.iter().sum::<f64>(), freed.iter().sum::<f64>());
    let near = |(g, f): (&f64, &f64)| (g - f).abs() <= f * SAME_EACH + 3.0 * f.sqrt() + 2.0;
    (g - f).abs() <= f * SAME && grown.iter().zip(freed).all(near)
}

/// Judges a series, net of its credit.
pub(super) fn assess(s: &Series, early: bool, credit: &Credit, world: &World) -> Verdict {
    let whole = judge(s, early);
    let grown: f64 = growth(s).iter().sum();
    let left = |c: f64| if grown > 0.0 { (1.0 - c / grown).max(0.0) } else { 1.0 };
    let sure: f64 = credit.sure.iter().sum();
    let maybe: f64 = credit.maybe.iter().sum();
    let grows = |v: &Verdict| matches!(v.class, Class::Growing | Class::FreedAtTheEnd);
    let mut v = whole;
    if left(sure) < 0.95 {
        let net = judge(&less(s, credit), early);
        let most = if left(sure) >= MOSTLY { whole.confidence } else { Confidence::Medium };
        v = match (grows(&whole), grows(&net)) {
            (_, true) if left(sure) < LITTLE => turnover(),
            (true, true) => Verdict { confidence: net.confidence.min(most), ..net },
            (false, true) if net.confidence > Confidence::Low => {
                Verdict { confidence: net.confidence.min(Confidence::Medium), ..net }
            }
            // Much was freed at once, but the stack grew before and after.
            (true, false) if left(sure) >= MOSTLY => {
                Verdict { confidence: Confidence::Low, ..whole }
            }
            (true, false) => turnover(),
            (false, _) => whole,
        };
    }
    if !grows(&v) {
        return v;
    }
    let bytes = s.held[MOMENTS - 1] as f64 - s.held[0] as f64;
    let flat = world.resident.is_some_and(|r| bytes >= SHOWS && r < bytes * 0.25);
    let unsure = left(sure + maybe) < MOSTLY;
    match (flat, unsure) {
        (true, true) => turnover(),
        (false, true) if world.balanced => turnover(),
        (true, false) | (false, true) => Verdict { confidence: Confidence::Low, ..v },
        (false, false) => v,
    }
}

fn turnover() -> Verdict {
    Verdict { class: Class::Turnover, confidence: Confidence::Medium, weakest: 0.0, mean: 0.0 }
}

fn less(s: &Series, credit: &Credit) -> Series {
    let last = MOMENTS - 1;
    let each = s.held[last] as f64 / s.counts[last].max(1) as f64;
    let mut net = s.clone();
    let (mut sum, mut i) = (0.0, 0);
    for at in 0..MOMENTS {
        while i < INTERVALS && at > edge(i + 1) {
            sum += credit.sure[i];
            i += 1;
        }
        let part = match i {
            INTERVALS => 0.0,
            i => (at - edge(i)) as f64 / (edge(i + 1) - edge(i)) as f64 * credit.sure[i],
        };
        net.held[at] = (s.held[at] as f64 - (sum + part) * each).max(0.0) as u64;
    }
    let kept = net.held[last] as f64 / s.held[last].max(1) as f64;
    net.freed_after = (s.freed_after as f64 * kept) as u64;
    net
}
