//! How the bytes of live blocks change while the allocator is looked at.

/// Number of equal steps that the time is divided into.
const STEPS: u64 = 4096;

/// Bytes of live blocks over a short time.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    /// First and last tick; without them nothing is counted.
    time: Option<(u64, u64)>,
    /// Bytes live at the first tick.
    base: u64,
    /// Bytes allocated and freed in each step.
    steps: Vec<[u64; 2]>,
}

impl Course {
    /// Creates the course of a period without blocks.
    pub(super) fn of(time: Option<(u64, u64)>) -> Self {
        let steps = time.map_or(0, |_| STEPS as usize);
        Self { time, base: 0, steps: vec![[0; 2]; steps] }
    }

    /// Returns the period.
    pub(super) fn time(&self) -> Option<(u64, u64)> {
        self.time
    }

    fn step(&self, ticks: u64) -> Option<usize> {
        let (from, to) = self.time.filter(|t| (t.0..=t.1).contains(&ticks))?;
        let all = u128::from(to - from) + 1;
        Some((u128::from(ticks - from) * u128::from(STEPS) / all) as usize)
    }

    /// Adds a block that lives from `begin` until before `end`.
    pub(super) fn add(&mut self, begin: u64, end: u64, bytes: u64) {
        let Some((from, _)) = self.time else { return };
        if begin < from {
            if end <= from {
                return;
            }
            self.base = self.base.saturating_add(bytes);
        }
        for (ticks, what) in [(begin, 0), (end, 1)] {
            if let Some(step) = self.step(ticks).and_then(|i| self.steps.get_mut(i)) {
                step[what] = step[what].saturating_add(bytes);
            }
        }
    }

    /// Adds the blocks of another course of the same period.
    pub(super) fn merge(&mut self, other: &Self) {
        self.base = self.base.saturating_add(other.base);
        for (to, from) in self.steps.iter_mut().zip(&other.steps) {
            *to = [to[0].saturating_add(from[0]), to[1].saturating_add(from[1])];
        }
    }

    /// Returns bounds on the bytes that were live at any moment of a part of the period. The order within a step is
    /// not known.
    pub(super) fn between(&self, (from, to): (u64, u64)) -> (u64, u64) {
        let (mut now, mut least, mut most) = (self.base, u64::MAX, 0);
        let (first, last) = (self.step(from).unwrap_or(0), self.step(to).unwrap_or(usize::MAX));
        for (i, [more, less]) in self.steps.iter().enumerate().take_while(|s| s.0 <= last) {
            if i >= first {
                least = least.min(now.saturating_sub(*less));
                most = most.max(now.saturating_add(*more));
            }
            now = now.saturating_add(*more).saturating_sub(*less);
        }
        (least.min(now), most.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_contain_what_was_live_at_each_moment() {
        let (mut seed, mut all) = (7u64, Vec::new());
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..5000 {
            let begin = next(100_000);
            all.push((begin, begin + next(20_000), 1 + next(500)));
        }
        let time = (30_000, 70_000);
        let (mut one, mut other) = (Course::of(Some(time)), Course::of(Some(time)));
        for (i, b) in all.iter().enumerate() {
            let to = if i % 2 == 0 { &mut one } else { &mut other };
            to.add(b.0, b.1, b.2);
        }
        one.merge(&other);
        let live =
            |at: u64| -> u64 { all.iter().filter(|b| b.0 <= at && at < b.1).map(|b| b.2).sum() };
        for (from, to) in [(30_000, 70_000), (41_000, 41_500), (69_000, 70_000), (50_000, 50_000)] {
            let (least, most) = one.between((from, to));
            let found: Vec<u64> = (from..=to).map(live).collect();
            let (low, high) = (found.iter().min().copied(), found.iter().max().copied());
            let (low, high) = (low.expect("moments"), high.expect("moments"));
            assert!(least <= low && high <= most, "{least}..{most} for {low}..{high}");
            // A step has ten ticks: 2 or 3 blocks.
            assert!(low - least < 15_000 && most - high < 15_000, "{least}..{most}: {low}..{high}");
        }
    }

    #[test]
    fn any_times_give_an_answer() {
        let mut all = Course::of(Some((0, u64::MAX)));
        all.add(0, u64::MAX, u64::MAX);
        all.add(5, 4, u64::MAX);
        all.merge(&all.clone());
        assert!(all.between((0, u64::MAX)).1 == u64::MAX);
        let mut none = Course::of(None);
        none.add(1, 2, 3);
        assert_eq!(none.between((0, 9)), (0, 0));
    }
}
