//! Decides when the collector looks again: at the ring, for ended threads, and at everything else.

use prof_trace::shared::SEGMENT_SIZE;
use std::time::{Duration, Instant};

/// Shortest interval of the slow tasks: the target's size, counters, names of threads, and which threads live.
const SECOND: Duration = Duration::from_secs(1);
/// Shortest and longest sleep between two passes.
const SLEEP: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));
/// Number of new bytes per pass that the sleep is adapted to.
const PER_PASS: u64 = 512 << 10;
/// A pass that ends one of this many parts of the ring's segments shortens the sleep as well: the segments of short
/// threads are nearly empty.
const PART: u64 = 16;
/// Shortest interval between two looks for ended threads, and the one to which looks that find none lengthen it.
const SHORT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(50));
/// Number of new threads after which the collector looks for ended ones.
const MANY_THREADS: usize = 256;
/// By how much the collector's priority is raised while it is behind (in units of `nice`), and for how long after.
const HURRY: (i32, Duration) = (10, SECOND);
/// A collector takes a session of its own, if it may, where one of this many parts of the segments waits for it, or the
/// target has had more threads than this: all of them may be busy.
const SESSION: (usize, usize) = (64, 16);
/// The slow tasks, and the looks for ended threads, each take at most one of about this many parts of the time.
const SPARE: u32 = 8;

/// The result of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brought {
    /// Number of bytes of events.
    pub bytes: u64,
    /// Number of segments that were read to their end.
    pub ended: u64,
    /// Number of segments that the ring was asked to have, and how many of these are free or will be soon.
    pub segments: (usize, usize),
    /// Number of segments that threads can still take.
    pub room: usize,
    /// Number of threads that were seen for the first time.
    pub born: usize,
}

/// The times and the load that decide when the collector looks again.
#[derive(Debug)]
pub(crate) struct Pace {
    sleep: Duration,
    /// End of the last slow tasks, and their duration.
    second: (Instant, Duration),
    /// End of the last look for ended threads, and its duration, shortened if the look found many.
    buried: (Instant, Duration),
    /// Shortest time from that look to the next.
    gap: Duration,
    /// Whether free segments or slots may run out soon.
    short: bool,
    /// Number of new threads since that look.
    born: usize,
    /// Priority that the collector was started with, and when it was last behind, if its priority is raised.
    priority: i32,
    behind: Option<Instant>,
    /// Number of threads so far.
    threads: usize,
    /// The process may still move to a session of its own.
    may_leave: bool,
}

impl Pace {
    /// Creates a pace whose intervals begin now.
    pub(crate) fn new() -> Self {
        let now = (Instant::now(), Duration::ZERO);
        Self {
            sleep: SLEEP.0,
            second: now,
            buried: now,
            gap: SHORT.0,
            short: false,
            born: 0,
            priority: priority(),
            behind: None,
            threads: 0,
            may_leave: false,
        }
    }

    /// Lets this process move to a session of its own when it falls behind. Where the kernel gives each session the same
    /// share of the processors (autogroup), it gets half of them beside a program with dozens of busy threads.
    pub(crate) fn let_leave(&mut self) {
        self.may_leave = true;
    }

    /// Raises the collector's priority, if that is permitted, while more than a quarter of the segments wait for it, and
    /// for a second after. A program that keeps all processors busy with new threads leaves it next to none otherwise.
    pub(crate) fn hurry(&mut self, waiting: usize, first: usize) {
        let now = Instant::now();
        if self.may_leave && (waiting > first / SESSION.0 || self.threads > SESSION.1) {
            self.may_leave = false;
            // It fails for the leader of a process group: then this process has its session's share.
            let _ = nix::unistd::setsid();
        }
        if waiting > first / 4 {
            if self.behind.is_none() {
                set_priority(self.priority - HURRY.0);
            }
            self.behind = Some(now);
        } else if self.behind.is_some_and(|at| now - at > HURRY.1) {
            set_priority(self.priority);
            self.behind = None;
        }
    }

    /// Returns how long to sleep before the next pass.
    pub(crate) fn sleep(&self) -> Duration {
        self.sleep
    }

    /// Returns whether the slow tasks are due.
    pub(crate) fn is_second(&self) -> bool {
        self.second.0.elapsed() >= SECOND.max(self.second.1 * SPARE)
    }

    /// Notes that the slow tasks have just been done, and when they began.
    pub(crate) fn note_second(&mut self, began: Instant) {
        self.second = (Instant::now(), began.elapsed());
    }

    /// Returns whether to look for ended threads. It is only worth the time when segments or slots may run out, which
    /// ended threads could free: with tens of thousands of threads, the look takes long.
    pub(crate) fn is_time_to_bury(&self) -> bool {
        self.short && self.buried.0.elapsed() >= self.gap.max(self.buried.1 * SPARE)
    }

    /// Notes that a look for ended threads has just been done, when it began, and how many of `all` threads had ended.
    pub(crate) fn note_buried(&mut self, began: Instant, found: usize, all: usize) {
        let took = began.elapsed();
        // A look that finds many is worth its time, so it counts as shorter than it was.
        let worth_it = found * 4 > all;
        self.buried = (Instant::now(), if worth_it { took / SPARE } else { took });
        // If no thread has ended, living ones hold the segments: look less and less often.
        self.gap = if found > 0 { SHORT.0 } else { (self.gap * 2).min(SHORT.1) };
        self.born = 0;
        self.short = false;
    }

    /// Adapts the sleep to what the last pass has read, and to the room that is left. Returns true if the next pass
    /// should follow without a sleep.
    pub(crate) fn adapt(&mut self, b: Brought) -> bool {
        let (first, free) = b.segments;
        self.born += b.born;
        self.threads = self.threads.saturating_add(b.born);
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

/// Returns the priority of the calling thread.
fn priority() -> i32 {
    // SAFETY: the call takes no pointers. It can't fail for the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the priority of the calling thread, if that is permitted.
fn set_priority(to: i32) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, to.max(-20)) };
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
    fn priority_is_raised_while_segments_wait() {
        let own = priority();
        let mut p = Pace::new();
        p.hurry(1024, 4096);
        assert_eq!((priority(), p.behind), (own, None));
        p.hurry(1025, 4096);
        let raised = priority();
        // It may not be permitted.
        assert!(raised == own || raised == (own - HURRY.0).max(-20), "{raised}");
        p.hurry(0, 4096);
        assert_eq!(priority(), raised, "not at once");
        p.behind = p.behind.map(|at| at - 2 * SECOND);
        p.hurry(0, 4096);
        assert_eq!((priority(), p.behind), (own, None));
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
        // Living threads hold all segments.
        for _ in 0..5 {
            p.adapt(Brought { segments: (4096, 0), ..NOTHING });
            assert!(p.short);
            p.note_buried(began, 0, 4096);
        }
        assert_eq!(p.gap, SHORT.1);
    }
}
