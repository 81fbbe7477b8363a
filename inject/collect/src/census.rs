//! Which threads have ended, as far as their slots and the kernel say.

use prof_trace::shared::Shared;
use prof_trace::slots::{self, Owner};
use std::collections::{BTreeMap, BTreeSet};

/// Who is alive.
#[derive(Debug)]
pub struct Census {
    alive: BTreeSet<u32>,
    latest: BTreeMap<u32, u32>,
}

/// Whether serial `a` was handed out after `b`. They may wrap in a very long recording.
fn is_newer(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < u32::MAX / 2
}

impl Census {
    /// Of the threads that have slots; `is_alive` tells whether there is a thread with this id now.
    pub fn take(shared: &Shared, is_alive: impl Fn(u32) -> bool) -> Self {
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

    /// Whether the thread with this id and serial has ended.
    pub fn has_ended(&self, tid: u32, serial: u32, is_alive: impl Fn(u32) -> bool) -> bool {
        match self.latest.get(&tid) {
            Some(l) if *l == serial => !self.alive.contains(&tid),
            // Another thread has the id now, or had it before this one came, after the census.
            Some(l) => is_newer(*l, serial),
            None => !is_alive(tid),
        }
    }

    /// Marks the slots of threads that have ended, so that new threads can take them; whether there were any.
    pub fn free_slots(&self, shared: &Shared) -> bool {
        let mut any = false;
        for s in shared.used_slots() {
            let Some(owner) = slots::owner(s) else { continue };
            // One that is not in the census came after it.
            if self.has_ended(owner.tid, owner.serial, |_| true) {
                any |= slots::mark_dead(s, owner);
            }
        }
        any
    }
}
