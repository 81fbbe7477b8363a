//! Finds threads that have ended, from their slots and the kernel.

use prof_trace::shared::Shared;
use prof_trace::slots::{self, Owner};
use std::collections::{BTreeMap, BTreeSet};

/// The threads that are alive.
#[derive(Debug)]
pub(crate) struct Census {
    alive: BTreeSet<u32>,
    latest: BTreeMap<u32, u32>,
}

/// Returns whether serial `a` was assigned after `b`. Serials may wrap in a very long recording.
fn is_newer(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < u32::MAX / 2
}

impl Census {
    /// Takes a census of the threads that have slots; `is_alive` returns whether a thread with this ID exists now.
    pub(crate) fn take(shared: &Shared, is_alive: impl Fn(u32) -> bool) -> Self {
        let mut latest = BTreeMap::new();
        for s in shared.used_slots() {
            if let Some(Owner { tid, serial, .. }) = slots::owner(s) {
                let l = latest.entry(tid).or_insert(serial);
                if is_newer(serial, *l) {
                    *l = serial;
                }
            }
        }
        let alive = latest.keys().copied().filter(|t| is_alive(*t)).collect();
        Self { alive, latest }
    }

    /// Returns whether the thread with this ID and serial has ended.
    pub(crate) fn has_ended(&self, tid: u32, serial: u32, is_alive: impl Fn(u32) -> bool) -> bool {
        match self.latest.get(&tid) {
            Some(l) if *l == serial => !self.alive.contains(&tid),
            // Either another thread has the ID now, or it had the ID before this thread started, after the census.
            Some(l) => is_newer(*l, serial),
            None => !is_alive(tid),
        }
    }

    /// Returns the number of threads that were looked for.
    pub(crate) fn asked(&self) -> usize {
        self.latest.len()
    }

    /// Marks the slots of threads that have ended, so that new threads can take them; returns the number of slots.
    pub(crate) fn free_slots(&self, shared: &Shared) -> usize {
        let mut freed = 0;
        for s in shared.used_slots() {
            let Some(owner) = slots::owner(s) else { continue };
            // A thread that is not in the census started after it.
            if self.has_ended(owner.tid, owner.serial, |_| true) {
                freed += usize::from(slots::mark_dead(s, owner));
            }
        }
        freed
    }
}
