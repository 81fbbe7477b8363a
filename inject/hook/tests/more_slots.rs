//! Threads that find no slot wait for the second part of the slots, all together once.

#[allow(dead_code)]
mod common;

use common::Hook;
use prof_trace::shared::{Control, MORE_IN_VAIN, MORE_WANTED, Shared};
use std::sync::Barrier;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread;

/// Number of slots of either part.
const PART: u64 = 64;
/// Number of threads at a time: more than the first part has slots for.
const THREADS: usize = 100;

/// Has that many threads, which are there at the same time, allocate and free a block.
fn crowd(shared: Shared<'static>) {
    let all = Barrier::new(THREADS);
    thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                let hook = Hook::of(shared);
                hook.free(hook.malloc(24));
                all.wait();
            });
        }
    });
}

fn recorded(shared: &Shared<'_>) -> u64 {
    shared.used_slots().map(|s| s.events.load(Relaxed)).sum()
}

/// Waits until a thread asks for the second part.
fn when_asked(c: &Control) {
    while c.more_asked.load(Acquire) & MORE_WANTED == 0 {
        thread::yield_now();
    }
}

#[test]
fn threads_without_a_slot_wait_once_for_the_second_part() {
    let hook = common::install(0);
    let shared = hook.shared;
    let c = shared.control();
    // The collector is alive for as long as this test lasts.
    c.heartbeat.store(u64::MAX / 2, Relaxed);
    c.wait_ns.store(50_000_000, Relaxed);

    // Nobody makes room: what has no slot is lost, and counted.
    c.more_offered.store(PART, Relaxed);
    crowd(shared);
    assert_ne!(c.more_asked.load(Relaxed) & MORE_WANTED, 0);
    assert_ne!(c.more_asked.load(Relaxed) & MORE_IN_VAIN, 0, "a thread would wait in vain again");
    let lost = shared.lost_without_slot();
    assert_eq!(lost, 2 * (THREADS as u64 - PART));
    assert_eq!(recorded(&shared), 2 * PART);

    // The wait is not over, but there will be no second part: nobody waits for it any more.
    c.wait_ns.store(60_000_000_000, Relaxed);
    c.more_asked.store(0, Relaxed);
    c.slots_freed.fetch_add(1, AcqRel);
    thread::scope(|s| {
        s.spawn(|| {
            when_asked(c);
            c.more_asked.fetch_or(MORE_IN_VAIN, Release);
        });
        crowd(shared);
    });
    let more_lost = shared.lost_without_slot() - lost;
    assert!(more_lost > 0, "there was room");

    // Somebody makes one, when a thread asks: nothing is lost.
    let (lost, before) = (shared.lost_without_slot(), recorded(&shared));
    c.more_asked.store(0, Relaxed);
    // Threads that were turned away look again.
    c.slots_freed.fetch_add(1, AcqRel);
    thread::scope(|s| {
        s.spawn(|| {
            when_asked(c);
            c.more_count.store(PART, Release);
        });
        crowd(shared);
    });
    assert_eq!(shared.lost_without_slot(), lost);
    assert_eq!(recorded(&shared), before + 2 * THREADS as u64);
}
