//! Reads the ring, in passes that are so short that a recording can be folded in between.

use super::{Collector, STACKS_EVERY, memory_stats};
use crate::folding::Folding;
use crate::output::Output;
use crate::pace::Brought;
use crate::threads::Threads;
use crate::tree::Tree;
use prof_trace::records::{Pass, kind};
use prof_trace::ring;
use prof_trace::ticks::Ticks;
use std::sync::atomic::Ordering::Relaxed;

/// A look at the ring, which one pass reads or several.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// When the look was made, in ticks of the recording and by `CLOCK_MONOTONIC` in ns.
    ticks: Ticks,
    clock_ns: u64,
    /// Bytes and segments that had been read before.
    before: (u64, u64),
    /// Number of threads that were seen for the first time.
    born: usize,
}

/// Outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Nothing was read: the recording may not grow until the fold that is under way has ended.
    Held,
    /// The look has more than this pass has read.
    More,
    /// The look was read to its end. `true`: the ring fills so fast that there is no time to sleep.
    Whole(bool),
}

impl Part {
    /// Returns whether the next pass should follow without a sleep.
    pub(super) fn is_busy(self) -> bool {
        matches!(self, Part::More | Part::Whole(true))
    }
}

impl Collector<'_> {
    /// Reads all that is in the ring, in several passes if the recording has to be folded meanwhile; returns true if the
    /// ring fills so fast that there is no time to sleep.
    pub fn pass(&mut self, always: bool) -> bool {
        // A look that is being read may be older than what is asked for.
        let mut looks = 1 + usize::from(self.reading.is_some());
        loop {
            match self.part(always) {
                Part::Whole(busy) => {
                    looks -= 1;
                    if looks == 0 {
                        return busy;
                    }
                }
                Part::More => _ = self.fold(),
                Part::Held => {
                    if !self.fold() {
                        std::thread::sleep(memory_stats::TICK);
                    }
                }
            }
        }
    }

    /// Makes one pass, unless it is to wait for a fold. It reads the ring, or a part of what was in it at the last look.
    pub(super) fn part(&mut self, always: bool) -> Part {
        let (raw, ticks, clock_ns) = self.epochs.look();
        if let Some(heart) = &self.heart {
            heart.beat(raw);
        }
        if self.folding.as_ref().is_some_and(|f| f.holds(&self.out)) {
            return Part::Held;
        }
        self.put_epochs();
        let reading = match self.reading {
            Some(reading) => reading,
            None => self.begin_reading(ticks, clock_ns),
        };
        let (used, new_threads) = self.read(&reading, always);
        self.check_writing();
        if new_threads && self.stacks_read.elapsed() > STACKS_EVERY.max(self.maps_took * 20) {
            self.look_at_maps();
        }
        if self.drain.is_under_way() {
            return Part::More;
        }
        Part::Whole(self.end_reading(used))
    }

    /// Looks at what is to be read, as of now: both clocks are given.
    fn begin_reading(&mut self, ticks: Ticks, clock_ns: u64) -> Reading {
        self.look_at_toggles();
        if self.watch.is_asked(&self.shared) {
            self.look_at_maps();
        }
        let before = (self.drain.bytes + self.drain.damaged, self.drain.ended);
        let used = self.shared.geometry().segments() - ring::free_count(&self.shared);
        let first = self.shared.segments_now().0;
        self.pace.hurry(used.saturating_sub(self.drain.open), first);
        self.drain.begin(&self.shared, &mut self.epochs, self.late.is_some());
        let reading = Reading { ticks, clock_ns, before, born: 0 };
        self.reading = Some(reading);
        reading
    }

    /// Returns the record of the next pass; `None` if it may not have one, as the events of the pass before are not all
    /// in the recording.
    fn record(&mut self, reading: &Reading, always: bool) -> Option<Pass> {
        if let (Some(late), Some(first)) = (self.late, self.drain.first())
            && first < late
        {
            return None;
        }
        self.late = None;
        let (number, ticks, clock_ns) = (self.pass, reading.ticks, reading.clock_ns);
        let all = Pass { number, ticks, clock_ns, rss_pages: 0, vss_pages: 0 };
        let Some(bound) = self.drain.bound().map(|bound| bound.max(self.passed).min(ticks)) else {
            let (rss_pages, vss_pages) =
                if always || self.pass == 0 { self.pages() } else { (0, 0) };
            return Some(Pass { rss_pages, vss_pages, ..all });
        };
        let per_sec = u128::from(self.epochs.clock().ticks_per_sec());
        let ago = u128::from(ticks - bound) * 1_000_000_000 / per_sec;
        Some(Pass { ticks: bound, clock_ns: clock_ns.saturating_sub(ago as u64), ..all })
    }

    /// Reads the next part of a look. Returns the number of segments in use, and whether there are new threads.
    fn read(&mut self, reading: &Reading, always: bool) -> (usize, bool) {
        let at = self.record(reading, always);
        let ticks = reading.ticks;
        let Self {
            shared, drain, threads, tree, modules, maps, target, out, epochs, files, ..
        } = self;
        // The look before has brought all their events into the file.
        threads.write_gone(out);
        modules.discover(shared);
        let new_modules = modules.has_new();
        // The pass record must precede its events, but is only written if there are any: at the first write within the
        // pass, or at its end.
        let mut first = true;
        let mut describe = |threads: &mut Threads, tree: &mut Tree, out: &mut Output| {
            if std::mem::take(&mut first)
                && let Some(at) = &at
            {
                out.put(kind::PASS, &at.encode());
            }
            threads.write(out);
            tree.new_modules.drain(..).for_each(|m| modules.want(m));
            if let Some(maps) = maps {
                files.find(maps, out);
                modules.write(shared, maps, target, ticks, always, out);
            }
            tree.write(out);
        };
        let used = drain.pass(shared, threads, tree, out, epochs, &mut describe);
        let born = threads.born();
        if always || !out.is_empty() || born > 0 || new_modules {
            describe(threads, tree, out);
        }
        if let Some(at) = at.filter(|_| !first) {
            self.pass += 1;
            self.passed = at.ticks;
        }
        if let Some(reading) = &mut self.reading {
            reading.born += born;
        }
        self.put_epochs();
        self.drain.flush(&self.shared, &mut self.out);
        (used, born > 0)
    }

    /// Adapts to what a look has brought, which was read to its end. Returns whether the next should follow at once.
    fn end_reading(&mut self, used: usize) -> bool {
        let Some(reading) = self.reading.take() else { return false };
        self.late = None;
        self.lend(used);
        let (first, now) = self.shared.segments_now();
        let free = first.saturating_sub(used.saturating_sub(self.drain.open));
        let folds = self.folding.as_ref().map(Folding::spent).unwrap_or_default();
        let (clock, events) = (self.epochs.clock(), self.drain.events);
        if let Some(distance) =
            self.fineness.look(&self.shared, clock, events, folds, reading.ticks)
        {
            self.out.put(kind::DISTANCE, &distance.encode());
        }
        self.pace.adapt(Brought {
            bytes: self.drain.bytes + self.drain.damaged - reading.before.0,
            ended: self.drain.ended - reading.before.1,
            segments: (first, free),
            room: now.saturating_sub(used),
            born: reading.born,
        })
    }

    /// Adds as many segments to the first ones as threads hold open, and some for threads to come; `used` is the number
    /// in use.
    fn lend(&mut self, used: usize) {
        let (first, now) = self.shared.segments_now();
        let all = self.shared.geometry().segments();
        if first == all {
            return;
        }
        let open = self.drain.open;
        // With few threads, the ring keeps the size that was asked for.
        let more = if open < first / 4 { 0 } else { 2 * open };
        let more = more.max(used.saturating_sub(first)).next_multiple_of(64).min(all - first);
        if first + more != now {
            self.shared.control().more_segments.store(more as u64, Relaxed);
        }
    }
}
