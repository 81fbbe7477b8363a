//! Adapts the fineness of a sample: the distance between its points follows what the program allocates.
//!
//! A leak of 100 MiB an hour shows in two minutes only if some fifty of its blocks are sampled, so the distance must be
//! 64 KiB or less. The cost of recording must stay small, so the distance must grow with the allocation rate.
//!
//! The distance becomes coarser at once, and finer only when the busiest time of the last while allows it. Otherwise a
//! program that waits for requests would pay for a fine distance at each of them.

use crate::budget::Meter;
use crate::clock::Clock;
use prof_trace::records::Distance;
use prof_trace::shared::{Shared, flags};
use prof_trace::size::RATES;
use prof_trace::ticks::Ticks;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Exponent of the smallest distance: 1 KiB.
const FINEST: u32 = 10;
/// Exponent of the largest distance that a block can state.
pub(crate) const COARSEST: u32 = *RATES.end() as u32;
/// Exponent of the distance at which leaks are found (32 KiB).
const LEAKS: u32 = 15;
/// Most events a second (allocations and frees) at a distance of [`LEAKS`] and above: about 1 % of a processor's time. A
/// program that allocates a gigabyte a second has as many at 32 KiB.
const MOST: f64 = 65_536.0;
/// Most events a second at a finer distance, which only makes figures more exact: some 4 KiB of recording a second.
const ENOUGH: f64 = 2_048.0;
/// Time over which events are counted to get their rate.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);
/// Shortest time between two steps to a finer distance.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Half-life of the remembered highest rate.
pub(crate) const MEMORY: Duration = Duration::from_secs(10);
/// Factor by which the rate must stay below its limit for the distance to become finer.
const MARGIN: f64 = 1.5;

/// Chooses the distance.
#[derive(Clone, Copy, Debug, Default)]
struct Fineness {
    /// Number of events since the window began, and its length so far.
    events: u64,
    time: Duration,
    /// Highest rate of events, scaled to a distance of 1 byte. It fades with [`MEMORY`].
    busiest: f64,
    /// Time since the last change of the distance.
    steady: Duration,
}

/// Returns the most events a second at a distance with this exponent.
fn allowed(exponent: u32) -> f64 {
    if exponent < LEAKS { ENOUGH } else { MOST }
}

/// Returns the exponent of the smallest distance at which a program of this rate stays within its limit.
fn finest_for(busiest: f64) -> u32 {
    let fits = |e: &u32| busiest / (1u64 << e) as f64 <= allowed(*e);
    (FINEST..COARSEST).find(fits).unwrap_or(COARSEST)
}

impl Fineness {
    /// Counts events that came within `time` at this distance in bytes. Returns the new distance if it is to change.
    fn saw(&mut self, events: u64, time: Duration, distance: u64) -> Option<u64> {
        self.events += events;
        self.time += time;
        self.steady += time;
        let now = distance.max(1).ilog2().clamp(FINEST, COARSEST);
        // A burst need not be waited out.
        let much = (allowed(now) * WINDOW.as_secs_f64() * 2.0) as u64;
        if self.time < WINDOW && self.events < much {
            return None;
        }
        let seconds = self.time.max(WINDOW).as_secs_f64();
        let seen = self.events as f64 / seconds * (1u64 << now) as f64;
        let faded = self.busiest * 0.5f64.powf(seconds / MEMORY.as_secs_f64());
        self.busiest = seen.max(faded);
        (self.events, self.time) = (0, Duration::ZERO);
        let coarser = finest_for(seen);
        let next = if coarser > now {
            coarser
        } else if self.steady >= PATIENCE && finest_for(self.busiest * MARGIN) < now {
            now - 1
        } else {
            return None;
        };
        self.steady = Duration::ZERO;
        Some(1 << next)
    }
}

/// Chooses it for a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser {
    fineness: Fineness,
    /// The budget that decides instead, if there is one.
    meter: Option<Meter>,
    /// When events were counted last, and their total then.
    at: Instant,
    events: u64,
}

impl Chooser {
    /// From now on.
    pub(crate) fn new(now: Instant) -> Self {
        Self { fineness: Fineness::default(), meter: None, at: now, events: 0 }
    }

    /// Lets the budget of a meter decide.
    pub(crate) fn keep_to(&mut self, meter: Meter) {
        self.meter = Some(meter);
    }

    /// Takes the total of events, and of the processor time of folds, so far. If the distance is to change, publishes it to the
    /// hook and returns it.
    pub(crate) fn look(
        &mut self,
        shared: &Shared,
        clock: Clock,
        events: u64,
        folds: Duration,
        ticks: Ticks,
    ) -> Option<Distance> {
        let now = Instant::now();
        let time = now - std::mem::replace(&mut self.at, now);
        let new = events.saturating_sub(std::mem::replace(&mut self.events, events));
        let c = shared.control();
        if c.flags.load(Relaxed) & flags::ADAPTS == 0 {
            return None;
        }
        let bytes = match &mut self.meter {
            Some(meter) => meter.look(shared, clock, events, folds)?,
            None => self.fineness.saw(new, time, c.sample_bytes.load(Relaxed))?,
        };
        c.sample_bytes.store(bytes, Relaxed);
        Some(Distance { ticks, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the control of the distance for a program that allocates so many bytes a second in blocks of `size`, for so
    /// many passes of 10 ms; the most events in a second that the last half of them had.
    fn run(
        fineness: &mut Fineness,
        distance: &mut u64,
        rate: f64,
        size: f64,
        passes: usize,
    ) -> f64 {
        let (mut most, mut second) = (0f64, 0.0);
        for i in 0..passes {
            let picked = 1.0 - (-size / *distance as f64).exp();
            let events = 2.0 * rate / size * picked * 0.01;
            second += events;
            if i % 100 == 99 {
                most = if i >= passes / 2 { most.max(second) } else { 0.0 };
                second = 0.0;
            }
            if let Some(next) =
                fineness.saw(events.round() as u64, Duration::from_millis(10), *distance)
            {
                *distance = next;
            }
        }
        most
    }

    #[test]
    fn leaks_are_found_and_no_program_pays_too_much() {
        for (rate, size, expect) in [
            // A program that does little is recorded finely, a busy one so that leaks are found ...
            (1e5, 64.0, 1 << 10),
            (1e6, 64.0, 1 << 11),
            (1e7, 64.0, 1 << 14),
            (1e8, 64.0, 1 << 15),
            (1e9, 64.0, 1 << 15),
            // ... and beyond a gigabyte a second as well as it can be.
            (1e10, 64.0, 1 << 19),
            // Large blocks are picked whatever the distance is, up to their size.
            (1e9, 1e6, 1 << 15),
            (1e12, 1e6, 1 << 25),
        ] {
            let (mut fineness, mut distance) = (Fineness::default(), 32 << 10);
            let most = run(&mut fineness, &mut distance, rate, size, 6000);
            assert_eq!(distance, expect, "{rate} bytes a second in blocks of {size}");
            assert!(most <= MOST, "{most} events a second");
            let before = distance;
            run(&mut fineness, &mut distance, rate, size, 6000);
            assert_eq!(distance, before, "it stays where it is: {rate}, {size}");
        }
    }

    #[test]
    fn bursts_are_answered_at_once_and_remembered() {
        let (mut fineness, mut distance) = (Fineness::default(), 32 << 10);
        run(&mut fineness, &mut distance, 1e4, 64.0, 3000);
        assert_eq!(distance, 1 << FINEST);
        // 10 ms of it are enough to tell.
        run(&mut fineness, &mut distance, 1e9, 64.0, 2);
        assert!(distance >= 1 << 13, "{distance}");
        run(&mut fineness, &mut distance, 1e9, 64.0, 300);
        assert_eq!(distance, 1 << 15);
        // Ten seconds later it may come again.
        run(&mut fineness, &mut distance, 1e4, 64.0, 1000);
        assert!(distance >= 1 << 14, "{distance}");
        run(&mut fineness, &mut distance, 1e4, 64.0, 20_000);
        assert_eq!(distance, 1 << FINEST);
    }

    #[test]
    fn what_the_target_wrote_there_does_no_harm() {
        for distance in [0, 1, 3, u64::MAX] {
            let mut fineness = Fineness::default();
            for _ in 0..10 {
                let next = fineness.saw(u64::MAX >> 8, Duration::from_secs(1), distance);
                assert!(next.is_none_or(|n| (1 << FINEST..=1 << COARSEST).contains(&n)));
            }
        }
    }
}
