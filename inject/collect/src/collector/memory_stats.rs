//! Reads what the kernel and the allocator report of the target's memory, and writes it into the recording.

use super::slow::areas;
use super::{Collector, FAMILY_GAP, OnDump, SECOND, has_other_allocator};
use crate::smaps::{Known, LAST};
use prof_os::stat::Stat;
use prof_os::workers::workers;
use prof_trace::records::{MARKS, Mark, Process, kind};
use prof_trace::shared::state;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Longest interval at which the ring is emptied while somebody waits for a look.
pub(super) const TICK: Duration = Duration::from_millis(1);

impl Collector<'_> {
    /// Reads the resident memory of each mapping from the kernel. It does so rarely, and on another thread unless the
    /// recording ends. Returns whether there is a new record.
    pub(super) fn look_at_memory(&mut self, now: bool) -> bool {
        let shared = self.shared;
        let known = || Known {
            ours: areas(&shared).map(|a| (a.0, a.0.saturating_add(a.1))).collect(),
            threads: shared
                .used_slots()
                .map(|s| (s.tp.load(Relaxed), s.tid.load(Relaxed).into()))
                .collect(),
            others: has_other_allocator(&shared),
        };
        let seen = match now {
            true => self.smaps.now(&known(), self.epochs.clock()),
            false => self.smaps.poll(known, self.epochs.clock()),
        };
        let Some(seen) = seen else { return false };
        self.out.put(kind::MEMORY, &seen.memory.encode());
        self.out.put(kind::ALLOCATORS, &seen.allocators.encode());
        let used = self.mapped.count(seen.used, seen.stacks, seen.begun, seen.memory.ticks);
        self.out.put(kind::MAPPINGS, &used.encode());
        true
    }

    /// Writes the changes in the list of mappings that was read between two ticks.
    pub(super) fn note_mappings(&mut self, begun: u64) {
        let Some(maps) = &self.maps else { return };
        let ours: Vec<(u64, u64)> =
            areas(&self.shared).map(|a| (a.0, a.0.saturating_add(a.1))).collect();
        let now = self.epochs.clock().now();
        if let Some(changes) = self.mapped.look(&maps.all, &ours, begun, now) {
            self.out.put(kind::MAPPINGS, &changes.encode());
        }
    }

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
        let ticks = if self.marks < MARKS { self.epochs.clock().now().max(1) } else { 0 };
        if ticks != 0 {
            self.marks += 1;
            let name = c.mark_name.iter().map(|b| b.load(Relaxed)).take_while(|b| *b != 0);
            let name = String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned();
            self.out.put(kind::MARK, &Mark { ticks, name }.encode());
            // It is in the file when `prof mark` ends.
            self.drain.flush(&self.shared, &mut self.out);
            self.out.flush();
        }
        c.mark_ticks.store(ticks, Relaxed);
        c.marks_done.store(asked, Release);
    }

    /// Writes what was recorded before the dump signals that have come, and passes them on.
    pub(super) fn answer_dumps(&mut self) {
        if self.on_dump.is_none() || self.shared.control().dumps_asked.load(Acquire) == self.dumps {
            return;
        }
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

    /// Looks at the target's memory, and collects events meanwhile.
    pub(super) fn look_while_on(&mut self) {
        if !self.smaps.ask(0) {
            return;
        }
        let deadline = Instant::now() + LAST;
        loop {
            self.pass(false);
            let new = self.look_at_memory(false);
            if self.smaps.answered().is_some() {
                self.looked = new.then(Instant::now);
                return;
            }
            if Instant::now() > deadline || self.target.wait(TICK) {
                return;
            }
        }
    }

    /// Reads the kernel's figures of the process each second, and those of its workers less often.
    pub(super) fn look_at_process(&mut self) {
        let state = self.shared.control().state.load(Acquire);
        if matches!(state, state::DETACHED | state::DETACHING) {
            return; // prof's own memory comes and goes
        }
        let pid = self.target.pid();
        let private = self.target.private();
        let Some(stat) = Stat::living(pid.cast_signed()).filter(|_| private != 0) else {
            return; // it is ending, and has no memory any more
        };
        let children = if self.family_next <= Instant::now() {
            self.family_next = Instant::now() + self.family_gap;
            self.family_gap = (self.family_gap * 2).min(FAMILY_GAP);
            let workers = workers(pid.cast_signed()).into_iter();
            workers.flat_map(|w| [w.pid as u64, w.start, w.rss]).collect()
        } else {
            Vec::new()
        };
        let ticks = self.epochs.clock().now();
        let p = Process { ticks, private, cpu_ms: stat.cpu_ms(), children };
        self.out.put(kind::PROCESS, &p.encode());
    }
}
