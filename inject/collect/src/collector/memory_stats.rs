//! Reads what the kernel and the allocator report of the target's memory, and writes it into the recording.

use super::slow::areas;
use super::{Collector, FAMILY_GAP, has_other_allocator};
use crate::smaps::{Known, LAST};
use prof_os::stat::Stat;
use prof_os::workers::workers;
use prof_trace::records::{Process, kind};
use prof_trace::shared::state;
use prof_trace::ticks::Ticks;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
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
    pub(super) fn note_mappings(&mut self, begun: Ticks) {
        let Some(maps) = &self.maps else { return };
        let ours: Vec<(u64, u64)> =
            areas(&self.shared).map(|a| (a.0, a.0.saturating_add(a.1))).collect();
        let now = self.epochs.clock().now();
        if let Some(changes) = self.mapped.look(&maps.all, &ours, begun, now) {
            self.out.put(kind::MAPPINGS, &changes.encode());
        }
    }

    /// Looks at the target's memory, and collects events meanwhile.
    pub(super) fn look_while_on(&mut self) {
        if !self.smaps.ask(0) {
            return;
        }
        let deadline = Instant::now() + LAST;
        loop {
            self.part(false);
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
        let Some(stat) = Stat::living(pid).filter(|_| private != 0) else {
            return; // it is ending, and has no memory any more
        };
        let children = if self.family_next <= Instant::now() {
            self.family_next = Instant::now() + self.family_gap;
            self.family_gap = (self.family_gap * 2).min(FAMILY_GAP);
            let workers = workers(pid).into_iter();
            workers.flat_map(|w| [w.pid.as_u32().into(), w.start, w.rss]).collect()
        } else {
            Vec::new()
        };
        let ticks = self.epochs.clock().now();
        let p = Process { ticks, private, cpu_ms: stat.cpu_ms(), children };
        self.out.put(kind::PROCESS, &p.encode());
    }
}
