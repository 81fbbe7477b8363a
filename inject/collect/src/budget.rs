//! Keeps what recording costs within a budget, by the distance between the points of a sample.
//!
//! The cost is the processor time of the collector's process and the time that the hook takes in the target's threads.
//! Both follow the number of recorded events, which a distance twice as large halves, but for a fixed part of the
//! collector: its looks at the ring and at the target. What the hook takes for calls that are not in the sample, some 10 ns
//! for an allocation and its free, is not measured and does not depend on the distance.

use crate::clock::Clock;
use crate::fineness::{COARSEST, MEMORY, PATIENCE, WINDOW};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use prof_os::Pid;
use prof_trace::shared::{Shared, clock};
use prof_trace::size::RATES;
use std::ops::AddAssign;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Exponent of the smallest distance.
const FINEST: u32 = *RATES.start() as u32;
/// Factor by which the expected cost must stay below the budget for the distance to become finer.
const MARGIN: f64 = 1.25;
/// Part of the budget that recorded events may use in any case, however much the collector needs without them.
const LEAST_PART: f64 = 0.1;
/// Most steps of a factor of two by which the distance grows at once.
const MOST_STEPS: u32 = 8;
/// Part of the budget within a window at which the cost is judged before the window ends.
const BURST: f64 = 2.0;
/// The least that the target's own time in a window counts as: one that waits has none to compare with.
const OWN_LEAST: Duration = Duration::from_millis(20);

/// Time of the hook for a recorded event before it reads the clock, in nanoseconds.
const ENTRY_NS: u64 = 20;
/// Time of the hook for a recorded event where it can't be measured, as the clock is not the processor's counter.
const EVENT_NS: u64 = 100;

/// Bounds of what recording may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Most processor time of the collector and the hook together, in millionths of one processor.
    pub cpu: Option<u64>,
    /// Most time of the hook, in millionths of the processor time that the target uses itself.
    pub overhead: Option<u64>,
}

/// Processor time that was spent in a period.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Length of the period.
    time: Duration,
    /// Processor time of the collector.
    collector: Duration,
    /// Time of the hook in all threads.
    hook: Duration,
    /// Processor time of the target, the hook's included.
    target: Duration,
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.collector += other.collector;
        self.hook += other.hook;
        self.target += other.target;
    }
}

/// The cost of a period, in parts of the budget: 1 if it is used up.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// The collector's part.
    collector: f64,
    /// Part of what depends on the number of events, the collector's included.
    all: f64,
}

/// Chooses the distance.
#[derive(Clone, Copy, Debug)]
struct Keeper {
    budget: Budget,
    window: Spent,
    /// The least that the collector has cost, which is what it costs without events.
    fixed: f64,
    /// Highest cost of events, scaled to a distance of 1 byte. It fades with [`MEMORY`].
    busiest: f64,
    /// Time since the last change of the distance.
    steady: Duration,
}

impl Keeper {
    fn new(budget: Budget) -> Self {
        Self {
            budget,
            window: Spent::default(),
            fixed: f64::INFINITY,
            busiest: 0.0,
            steady: Duration::ZERO,
        }
    }

    /// Returns what the window has cost so far, as if it were over.
    fn cost(&self) -> Cost {
        let w = &self.window;
        let part = |spent: Duration, of: Duration, limit: Option<u64>| {
            let limit = limit.map_or(f64::INFINITY, |l| of.as_secs_f64() * l.max(1) as f64 / 1e6);
            spent.as_secs_f64() / limit
        };
        let time = w.time.max(WINDOW);
        let own = w.target.saturating_sub(w.hook).max(OWN_LEAST);
        let collector = part(w.collector, time, self.budget.cpu);
        let hook = part(w.hook, time, self.budget.cpu);
        Cost { collector, all: (collector + hook).max(part(w.hook, own, self.budget.overhead)) }
    }

    /// Takes what was spent at this distance in bytes. Returns the new distance if it is to change.
    fn saw(&mut self, spent: Spent, distance: u64) -> Option<u64> {
        self.window += spent;
        self.steady += spent.time;
        let now = distance.max(1).ilog2().clamp(FINEST, COARSEST);
        let cost = self.cost();
        if self.window.time < WINDOW && cost.all < BURST {
            return None;
        }
        let seconds = self.window.time.max(WINDOW).as_secs_f64();
        let is_whole = self.window.time >= WINDOW;
        self.window = Spent::default();
        if is_whole {
            self.fixed = self.fixed.min(cost.collector);
        }
        let fixed = self.fixed.min(1.0 - LEAST_PART);
        let of_events = (cost.all - fixed).max(0.0);
        let faded = self.busiest * 0.5f64.powf(seconds / MEMORY.as_secs_f64());
        self.busiest = (of_events * (1u64 << now) as f64).max(faded);
        let next = if cost.all > 1.0 {
            let steps = (of_events / (1.0 - fixed)).log2().ceil();
            (now + (steps as u32).clamp(1, MOST_STEPS)).min(COARSEST)
        } else {
            let finer = now.saturating_sub(1).max(FINEST);
            let expected = fixed + self.busiest / (1u64 << finer) as f64;
            if self.steady < PATIENCE || expected * MARGIN > 1.0 {
                return None;
            }
            finer
        };
        if next == now {
            return None;
        }
        self.steady = Duration::ZERO;
        Some(1 << next)
    }
}

/// Returns the time that the hook has taken for so many recorded events, in all threads. It is measured if
/// [`flags::COSTS`](prof_trace::shared::flags::COSTS) is set and the clock is the processor's counter; else it is estimated
/// from the number of events.
pub(crate) fn hook_time(shared: &Shared, clock: Clock, events: u64) -> Duration {
    let each = |ns: u64| Duration::from_nanos(events.saturating_mul(ns));
    if !clock::is_counter(shared.control().clock.load(Relaxed)) {
        return each(EVENT_NS);
    }
    let ticks = shared.used_slots().map(|s| s.spent.load(Relaxed)).fold(0u64, u64::wrapping_add);
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(clock.ticks_per_sec().max(1));
    each(ENTRY_NS) + Duration::from_nanos(ns.min(u64::MAX.into()) as u64)
}

/// Measures what is spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    keeper: Keeper,
    /// The target's clock of processor time.
    target_clock: Option<ClockId>,
    /// When was measured last, and what had been spent until then.
    at: Instant,
    before: Option<Spent>,
    /// Processor time of folds that has been seen, and the part of it that was not judged yet.
    folds: Duration,
    owed: Duration,
}

/// Time over which the processor time of a fold is judged: they are short, come again and again, and take the same time whatever
/// the distance is at that moment.
const SPREAD: Duration = Duration::from_secs(120);

impl Meter {
    /// Returns a meter of the recording of process `pid`. Its first look only begins to measure.
    pub(crate) fn new(budget: Budget, pid: Pid) -> Self {
        let target_clock = clock_getcpuclockid(pid.into()).ok();
        let (keeper, at, none) = (Keeper::new(budget), Instant::now(), Duration::ZERO);
        Self { keeper, target_clock, at, before: None, folds: none, owed: none }
    }

    /// Returns all that was spent until now, with so many events; `time` is left out.
    fn total(&self, shared: &Shared, clock: Clock, events: u64) -> Spent {
        let cpu = |id: ClockId| clock_gettime(id).map_or(Duration::ZERO, Into::into);
        Spent {
            time: Duration::ZERO,
            collector: cpu(ClockId::CLOCK_PROCESS_CPUTIME_ID),
            hook: hook_time(shared, clock, events),
            target: self.target_clock.map_or(Duration::ZERO, cpu),
        }
    }

    /// Returns the part of the processor time of folds that is judged now, `time` after the last one. All of it is in the end.
    fn share_of_folds(&mut self, folds: Duration, time: Duration) -> Duration {
        self.owed += folds.saturating_sub(std::mem::replace(&mut self.folds, folds));
        let part = (time.as_secs_f64() / SPREAD.as_secs_f64()).min(1.0);
        let share = self.owed.mul_f64(part);
        self.owed = self.owed.saturating_sub(share);
        share
    }

    /// Measures what was spent since the last look, when so many events had been recorded in all, and folds had taken so much
    /// processor time. Returns the new distance if it is to change.
    pub(crate) fn look(
        &mut self,
        shared: &Shared,
        clock: Clock,
        events: u64,
        folds: Duration,
    ) -> Option<u64> {
        let (now, total) = (Instant::now(), self.total(shared, clock, events));
        let time = now - std::mem::replace(&mut self.at, now);
        let share = self.share_of_folds(folds, time);
        let before = self.before.replace(total)?;
        let spent = Spent {
            time,
            collector: total.collector.saturating_sub(before.collector) + share,
            // The target can write to the counter that this comes from.
            hook: total.hook.saturating_sub(before.hook).min(time.saturating_mul(1 << 10)),
            target: total.target.saturating_sub(before.target),
        };
        self.keeper.saw(spent, shared.control().sample_bytes.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_fold_is_judged_little_by_little_and_whole() {
        let mut meter = Meter::new(Budget::default(), Pid::this());
        let (second, mut all) = (Duration::from_secs(1), Duration::ZERO);
        let first = meter.share_of_folds(Duration::from_secs(6), second);
        assert_eq!(first, Duration::from_millis(50), "1 s of 120 s");
        all += first;
        for n in 0..3000u64 {
            let folds = Duration::from_secs(if n < 500 { 6 } else { 8 });
            let share = meter.share_of_folds(folds, second);
            assert!(share < Duration::from_millis(70));
            all += share;
        }
        assert!(all > Duration::from_millis(7990) && all <= Duration::from_secs(8), "{all:?}");
    }

    /// Runs the control for so many passes of 10 ms. A program spends `hook` seconds a second on events, and the collector
    /// `collector` and a fixed part, if all blocks of `size` bytes are recorded. Returns the mean cost of the last half, in
    /// parts of a processor.
    fn run(
        keeper: &mut Keeper,
        distance: &mut u64,
        events: f64,
        size: f64,
        fixed: f64,
        passes: usize,
    ) -> f64 {
        let mut sum = 0.0;
        for i in 0..passes {
            let picked = 1.0 - (-size / *distance as f64).exp();
            let hook = events * picked * 80e-9;
            let collector = fixed + events * picked * 20e-9;
            let part = |s: f64| Duration::from_secs_f64(s * 0.01);
            let spent = Spent {
                time: part(1.0),
                collector: part(collector),
                hook: part(hook),
                target: part(0.5 + hook),
            };
            if i >= passes / 2 {
                sum += hook + collector;
            }
            if let Some(next) = keeper.saw(spent, *distance) {
                *distance = next;
            }
        }
        sum / (passes - passes / 2) as f64
    }

    const CPU: Budget = Budget { cpu: Some(20_000), overhead: None };

    #[test]
    fn the_cost_stays_below_the_budget_and_uses_it() {
        for (events, size, fixed, cost) in [
            // A program that does little is recorded whole.
            (1e4, 64.0, 0.002, 0.003..0.0031),
            // A busy one uses the most of the budget that a power of two allows.
            (1e6, 64.0, 0.002, 0.006..0.02),
            (1e7, 64.0, 0.002, 0.006..0.02),
            (1e7, 64.0, 0.0, 0.005..0.02),
            (1e6, 1e5, 0.005, 0.006..0.02),
        ] {
            let (mut keeper, mut distance) = (Keeper::new(CPU), 2);
            let seen = run(&mut keeper, &mut distance, events, size, fixed, 12_000);
            assert!(cost.contains(&seen), "{events} events of {size} bytes: {seen} at {distance}");
        }
    }

    #[test]
    fn overhead_is_a_share_of_the_targets_own_time() {
        let budget = Budget { cpu: None, overhead: Some(10_000) };
        let (mut keeper, mut distance) = (Keeper::new(budget), 2);
        // 1 % of half a processor.
        run(&mut keeper, &mut distance, 1e6, 64.0, 0.5, 12_000);
        let hook = 1e6 * (1.0 - (-64.0 / distance as f64).exp()) * 80e-9;
        assert!((0.0015..0.005).contains(&hook), "{hook} at {distance}");
    }

    #[test]
    fn a_burst_is_answered_at_once_and_remembered() {
        let (mut keeper, mut distance) = (Keeper::new(CPU), 2);
        run(&mut keeper, &mut distance, 1e3, 64.0, 0.001, 1000);
        assert_eq!(distance, 2);
        // At 10 million events a second, the budget of two seconds is gone in 40 ms.
        run(&mut keeper, &mut distance, 1e7, 64.0, 0.001, 5);
        assert!(distance >= 4, "{distance}");
        run(&mut keeper, &mut distance, 1e7, 64.0, 0.001, 500);
        let busy = distance;
        assert!(busy >= 1 << 11, "{distance}");
        run(&mut keeper, &mut distance, 1e3, 64.0, 0.001, 500);
        assert!(distance >= busy / 4, "{distance}: it may come again");
        run(&mut keeper, &mut distance, 1e3, 64.0, 0.001, 30_000);
        assert_eq!(distance, 2);
    }

    #[test]
    fn a_budget_that_cannot_be_kept_leads_to_the_coarsest_distance() {
        let (mut keeper, mut distance) = (Keeper::new(CPU), 2);
        run(&mut keeper, &mut distance, 1e3, 64.0, 0.5, 20_000);
        assert_eq!(distance, 1 << COARSEST);
        for distance in [0, 1, 3, u64::MAX] {
            let much = Duration::from_secs(1 << 20);
            let spent = Spent { time: much, collector: much, hook: much, target: much };
            let next = Keeper::new(CPU).saw(spent, distance);
            assert!(next.is_none_or(|n| (1 << FINEST..=1 << COARSEST).contains(&n)));
        }
    }
}
