//! Answers what others ask of the collector by the control page: looks at the target's memory, marks, and reports.

use super::{Collector, OnDump, SECOND};
use prof_trace::records::{MARKS, Mark, kind};
use prof_trace::ticks::Ticks;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

impl Collector<'_> {
    /// Makes the look that a detach has asked for and waits for: once recording is off, the target goes on to allocate
    /// and free, and what is live is not known any more.
    pub(super) fn answer(&mut self) {
        let asked = self.shared.control().looks_asked.load(Acquire);
        let done = &self.shared.control().looks_done;
        if self.smaps.asked().is_none() {
            if asked == done.load(Relaxed) {
                return;
            }
            // The target can write into this memory, so what it says costs no more than a look a second.
            let just = self.looked.is_some_and(|at| at.elapsed() < SECOND);
            if just || !self.smaps.ask(asked) {
                return done.store(asked, Release);
            }
        }
        let new = self.look_at_memory(false);
        if let Some(number) = self.smaps.answered() {
            self.looked = new.then(Instant::now);
            done.store(number, Release);
        }
    }

    /// Writes the mark that `prof mark` has asked for and waits for.
    pub(super) fn write_mark(&mut self) {
        let c = self.shared.control();
        let asked = c.marks_asked.load(Acquire);
        if asked == c.marks_done.load(Relaxed) {
            return;
        }
        // The target can write into this memory, so the number of marks that the collector writes itself is bounded.
        let ticks =
            if self.marks < MARKS { self.epochs.clock().now().max(Ticks(1)) } else { Ticks::ZERO };
        if ticks != Ticks::ZERO {
            self.marks += 1;
            let name = c.mark_name.iter().map(|b| b.load(Relaxed)).take_while(|b| *b != 0);
            let name = String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned();
            self.out.put(kind::MARK, &Mark { ticks, name }.encode());
            // It is in the file when `prof mark` ends.
            self.drain.flush(&self.shared, &mut self.out);
            self.out.flush();
        }
        c.mark_ticks.store(ticks.0, Relaxed);
        c.marks_done.store(asked, Release);
    }

    /// Writes what was recorded before the dump signals that have come, and passes them on: at most once a second, as
    /// whoever may send signals, and the target itself, can ask as often as they like. Later signals wait.
    pub(super) fn answer_dumps(&mut self) {
        let just = self.dumped.is_some_and(|at| at.elapsed() < SECOND);
        if self.on_dump.is_none()
            || just
            || self.shared.control().dumps_asked.load(Acquire) == self.dumps
        {
            return;
        }
        self.dumped = Some(Instant::now());
        // Two passes, as the first may leave a segment to the second (see `Drain::pass`).
        self.pass(false);
        self.pass(false);
        self.drain.flush(&self.shared, &mut self.out);
        self.out.flush();
        self.pass_on_dumps();
    }

    /// Passes on how many dump signals have come since the last time.
    pub(super) fn pass_on_dumps(&mut self) {
        let asked = self.shared.control().dumps_asked.load(Acquire);
        let new = asked.wrapping_sub(self.dumps);
        if let Some(OnDump(f)) = self.on_dump.as_mut().filter(|_| new != 0) {
            f(new);
        }
        self.dumps = asked;
    }
}
