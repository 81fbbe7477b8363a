//! When the collector looks again: at the ring, for threads that have ended, and at all else.

use prof_trace::shared::SEGMENT_SIZE;
use std::time::{Duration, Instant};

/// Once a second: the target's size, counters, names, who is alive.
const SECOND: Duration = Duration::from_secs(1);
/// The shortest and the longest sleep between two passes.
const SLEEP: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));
/// New bytes per pass that sleeping aims at.
const PER_PASS: u64 = 512 << 10;
/// The part of the ring's segments, likewise: threads that end leave nearly empty ones.
const PART: u64 = 16;
/// The shortest time between two looks for ended threads, and the longest where there is need.
const SHORT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(50));
/// New threads after which it is time to look for ended ones.
const MANY_THREADS: usize = 256;
/// What is done now and then takes at most one part in so many of the time.
const SPARE: u32 = 8;

/// What a pass has brought.
#[derive(Clone, Copy, Debug)]
pub struct Brought {
    /// Bytes of events.
    pub bytes: u64,
    /// Segments that were read to their end.
    pub ended: u64,
    /// Segments that the ring was asked to have, and how many of them are free or will be at once.
    pub segments: (usize, usize),
    /// Segments that can still be taken.
    pub room: usize,
    /// Threads that were seen for the first time.
    pub born: usize,
}

/// When the collector looks again.
#[derive(Debug)]
pub struct Pace {
    sleep: Duration,
    /// When what is done once a second was done, and how long it took.
    second: (Instant, Duration),
    /// The same for the last look for threads that have ended, but less if it was worth it.
    buried: (Instant, Duration),
    /// How long to wait from there to the next, at least.
    gap: Duration,
    /// Segments or slots run out.
    short: bool,
    /// New threads since.
    born: usize,
}

impl Pace {
    /// Makes one that begins now.
    pub fn new() -> Self {
        let now = (Instant::now(), Duration::ZERO);
        Self { sleep: SLEEP.0, second: now, buried: now, gap: SHORT.0, short: false, born: 0 }
    }

    /// Returns how long to sleep now.
    pub fn sleep(&self) -> Duration {
        self.sleep
    }

    /// Returns whether it is time for what is done once a second.
    pub fn is_second(&self) -> bool {
        self.second.0.elapsed() >= SECOND.max(self.second.1 * SPARE)
    }

    /// Notes that what is done once a second is done, and when it was begun.
    pub fn note_second(&mut self, began: Instant) {
        self.second = (Instant::now(), began.elapsed());
    }

    /// Returns whether it is time to look for ended threads, since segments or slots run out, which theirs may help
    /// with. For tens of thousands of threads it takes long to find out which are alive.
    pub fn is_time_to_bury(&self) -> bool {
        self.short && self.buried.0.elapsed() >= self.gap.max(self.buried.1 * SPARE)
    }

    /// Notes that this look is done, when it was begun, and how many of all threads it has found ended.
    pub fn note_buried(&mut self, began: Instant, found: usize, all: usize) {
        let took = began.elapsed();
        // Who finds many is not too often there, however long it takes.
        let worth_it = found * 4 > all;
        self.buried = (Instant::now(), if worth_it { took / SPARE } else { took });
        // Threads that stay and hold all there is are not asked again and again.
        self.gap = if found > 0 { SHORT.0 } else { (self.gap * 2).min(SHORT.1) };
        self.born = 0;
        self.short = false;
    }

    /// Adapts the sleep to what the last one has brought, and to the room that is left. Returns whether there is no
    /// time to sleep.
    pub fn adapt(&mut self, b: Brought) -> bool {
        let (first, free) = b.segments;
        self.born += b.born;
        self.short = free < first / 4 || self.born > MANY_THREADS;
        if self.born > MANY_THREADS {
            self.gap = SHORT.0;
        }
        // At a gigabyte per second the room must not fill up in one sleep.
        let room = Duration::from_nanos((b.room * SEGMENT_SIZE) as u64);
        let longest = SLEEP.1.min(room).max(SLEEP.0 * 4);
        let much = b.bytes > PER_PASS || b.ended * PART > first as u64 || b.born > MANY_THREADS / 4;
        self.sleep = if much { self.sleep / 2 } else { self.sleep * 5 / 4 };
        self.sleep = self.sleep.clamp(SLEEP.0, longest);
        b.bytes > (first * SEGMENT_SIZE / 16) as u64 || b.ended > first as u64 / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Brought =
        Brought { bytes: 0, ended: 0, segments: (4096, 4096), room: 4096, born: 0 };

    #[test]
    fn passes_come_sooner_where_threads_begin_or_end() {
        let mut p = Pace::new();
        for _ in 0..100 {
            assert!(!p.adapt(NOTHING));
        }
        assert_eq!(p.sleep(), SLEEP.1);
        for much in [Brought { ended: 300, ..NOTHING }, Brought { born: 65, ..NOTHING }] {
            let before = p.sleep();
            assert!(!p.adapt(much), "there is time");
            assert_eq!(p.sleep(), before / 2);
        }
        assert!(p.adapt(Brought { ended: 1025, ..NOTHING }), "a quarter of the ring at once");
    }

    #[test]
    fn ended_threads_are_looked_for_where_many_are_born() {
        let mut p = Pace::new();
        let began = Instant::now();
        p.buried.0 -= SECOND;
        p.adapt(Brought { born: MANY_THREADS, ..NOTHING });
        assert!(!p.is_time_to_bury());
        p.adapt(Brought { born: 1, ..NOTHING });
        assert!(p.is_time_to_bury());
        p.note_buried(began, 200, 257);
        assert!(!p.is_time_to_bury() && p.gap == SHORT.0);
        // Threads that stay, and hold all there is.
        for _ in 0..5 {
            p.adapt(Brought { segments: (4096, 0), ..NOTHING });
            assert!(p.short);
            p.note_buried(began, 0, 4096);
        }
        assert_eq!(p.gap, SHORT.1);
    }
}
