//! Growth and allocations a second, by stack or thread.
use prof_trace::ticks::Ticks;

/// Time over which rates are averaged: older changes weigh less and less.
const MEAN_NS: f64 = 3e9;

/// The rates of one stack or thread, and the figures that they were computed from.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    live: u64,
    allocations: u64,
    growth: f32,
    rate: f32,
}

/// Keeps the rates of a list that only grows.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    known: Vec<Known>,
    /// The moment of the last figures, in nanoseconds.
    at: Option<Ticks>,
}

impl Pace {
    /// Takes live bytes and allocations of each at a moment, in nanoseconds. What was not there before begins at 0,
    /// except at the first moment, from which on is counted.
    pub fn take(&mut self, now: Ticks, figures: impl Iterator<Item = (u64, u64)>) {
        let dt = self.at.map(|at| now.since(at) as f64);
        if dt == Some(0.0) {
            return;
        }
        let first = dt.is_none();
        let dt = dt.unwrap_or(1.0);
        // The weight of what is new; the first moment has none.
        let new = if first { 0.0 } else { 1.0 - (-dt / MEAN_NS).exp() };
        let second = dt / 1e9;
        for (i, (live, allocations)) in figures.enumerate() {
            if i == self.known.len() {
                self.known.push(Known::default());
            }
            let k = &mut self.known[i];
            let growth = (live as f64 - k.live as f64) / second;
            let rate = allocations.saturating_sub(k.allocations) as f64 / second;
            k.growth += ((growth - f64::from(k.growth)) * new) as f32;
            k.rate += ((rate - f64::from(k.rate)) * new) as f32;
            // An average only comes near 0: what is too small to be shown is none.
            if live == k.live && k.growth.abs() < 0.5 {
                k.growth = 0.0;
            }
            if allocations == k.allocations && k.rate < 0.05 {
                k.rate = 0.0;
            }
            (k.live, k.allocations) = (live, allocations);
        }
        self.at = Some(now);
    }

    /// Returns growth in bytes a second, and allocations a second.
    pub fn of(&self, i: usize) -> (f32, f32) {
        self.known.get(i).map_or((0.0, 0.0), |k| (k.growth, k.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_near_what_is_so_and_end() {
        let mut pace = Pace::default();
        pace.take(Ticks::ZERO, [(1000, 10)].into_iter());
        assert_eq!(pace.of(0), (0.0, 0.0));
        for s in 1..30u64 {
            let all = [(1000 + s * 500, 10 + s * 20), (s * 100, s)];
            pace.take(Ticks(s * 1_000_000_000), all.into_iter());
        }
        let (growth, rate) = pace.of(0);
        assert!((growth - 500.0).abs() < 1.0 && (rate - 20.0).abs() < 0.1, "{growth} {rate}");
        let (growth, _) = pace.of(1);
        assert!((growth - 100.0).abs() < 1.0, "{growth}");
        for s in 30..90u64 {
            pace.take(Ticks(s * 1_000_000_000), [(0, 590), (0, 29)].into_iter());
        }
        assert_eq!(pace.of(0), (0.0, 0.0));
        assert_eq!(pace.of(7), (0.0, 0.0));
    }
}
