//! How fine a sample is: the distance between its points follows what the program allocates.
//!
//! Two ends pull at it. A leak of 100 MiB an hour is seen in two minutes only if some fifty of its blocks are picked,
//! which takes a point in each 64 KiB or less; so the distance stays below that, as long as what is recorded then
//! costs little. And what is recorded must stay little, however much the program allocates.
//!
//! It gets coarser at once, and finer only when the busiest time for some while allows it: a program that waits for
//! its next request is not to pay for the fine distance when that comes.

use prof_trace::records::Distance;
use prof_trace::shared::{Shared, flags};
use prof_trace::size::RATES;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Distances are powers of two between these exponents: 1 KiB ...
const FINEST: u32 = 10;
/// ... and as far as blocks can say.
const COARSEST: u32 = *RATES.end() as u32;
/// The distance that leaks are found with (32 KiB).
const LEAKS: u32 = 15;
/// Events a second, beginnings and ends of blocks, that a sample may have for leaks to be found: about a percent of a
/// processor's time. A program that allocates a gigabyte a second has as many at 32 KiB.
const MOST: f64 = 65_536.0;
/// The same where the distance is finer than leaks ask for, so that figures are good: some 4 KiB of recording a second.
const ENOUGH: f64 = 2_048.0;
/// Events are counted for so long before the rate is believed; it is what they are in that time.
const WINDOW: Duration = Duration::from_secs(1);
/// The distance does not become finer more often than that.
const PATIENCE: Duration = Duration::from_secs(5);
/// In which time what is remembered of the busiest time is halved.
const MEMORY: Duration = Duration::from_secs(10);
/// It becomes finer if there may be so many times as many events as have been seen.
const MARGIN: f64 = 1.5;

/// Chooses the distance.
#[derive(Clone, Copy, Debug, Default)]
struct Fineness {
    /// Events since the last window began, and for how long.
    events: u64,
    time: Duration,
    /// Events a second that a distance of a byte would have had, at the busiest time; it fades.
    busiest: f64,
    /// Since the distance was changed.
    steady: Duration,
}

/// Events a second at a distance that may be.
fn allowed(exponent: u32) -> f64 {
    if exponent < LEAKS { ENOUGH } else { MOST }
}

/// The smallest distance at which so busy a program has no more events than may be.
fn finest_for(busiest: f64) -> u32 {
    let fits = |e: &u32| busiest / (1u64 << e) as f64 <= allowed(*e);
    (FINEST..COARSEST).find(fits).unwrap_or(COARSEST)
}

impl Fineness {
    /// There were so many events in a time, at this distance in bytes. Returns another distance, if it is to change.
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
pub struct Chooser {
    fineness: Fineness,
    /// When it saw events last, and how many there had been.
    at: Instant,
    events: u64,
}

impl Chooser {
    /// From now on.
    pub fn new(now: Instant) -> Self {
        Self { fineness: Fineness::default(), at: now, events: 0 }
    }

    /// There have been so many events so far. Tells the hook of another distance, and returns it.
    pub fn look(&mut self, shared: &Shared, events: u64, ticks: u64) -> Option<Distance> {
        let now = Instant::now();
        let time = now - std::mem::replace(&mut self.at, now);
        let new = events.saturating_sub(std::mem::replace(&mut self.events, events));
        let c = shared.control();
        if c.flags.load(Relaxed) & flags::ADAPTS == 0 {
            return None;
        }
        let bytes = self.fineness.saw(new, time, c.sample_bytes.load(Relaxed))?;
        c.sample_bytes.store(bytes, Relaxed);
        Some(Distance { ticks, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of the distance while a program allocates so many bytes a second in blocks of `size`, for so many
    /// passes of 10 ms; the most events in a second that the last half of them had.
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
