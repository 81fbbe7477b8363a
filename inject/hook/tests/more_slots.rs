//! The first thread that finds no slot opens the second part of the slots.

#[allow(dead_code)]
mod common;

use common::Hook;
use prof_trace::shared::{Shared, flags};
use std::sync::Barrier;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::thread;

/// Number of slots of either part.
const PART: u64 = 64;
/// Number of threads at a time: more than the first part has slots for.
const THREADS: u64 = 100;

/// Has that many threads, which are there at the same time, allocate and free a block.
fn crowd(shared: Shared<'static>) {
    let all = Barrier::new(THREADS as usize);
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

/// Sets the access to the second part's states.
fn protect(shared: &Shared<'_>, access: i32) {
    let c = shared.control();
    let at = c.states_addr + c.states_count * c.states_stride;
    // SAFETY: the memory was mapped for the states, and no thread uses this part.
    let done = unsafe { libc::mprotect(at as *mut _, (PART * c.states_stride) as usize, access) };
    assert_eq!(done, 0);
}

#[test]
fn threads_without_a_slot_open_the_second_part() {
    let shared = common::install(0).shared;
    let c = shared.control();
    protect(&shared, libc::PROT_NONE);

    // There is no second part: what has no slot is lost, and counted.
    crowd(shared);
    let lost = shared.lost_without_slot();
    assert_eq!((lost, recorded(&shared)), (2 * (THREADS - PART), 2 * PART));

    // There is one, but no thread may make system calls.
    c.more_offered.store(PART, Relaxed);
    c.flags.fetch_and(!flags::SYSCALLS, AcqRel);
    // Threads that were turned away look again.
    c.slots_freed.fetch_add(1, AcqRel);
    crowd(shared);
    assert!(shared.lost_without_slot() > lost);
    assert_eq!(c.more_count.load(Relaxed), 0);

    // It is opened: nothing is lost.
    c.flags.fetch_or(flags::SYSCALLS, AcqRel);
    c.slots_freed.fetch_add(1, AcqRel);
    let (lost, before) = (shared.lost_without_slot(), recorded(&shared));
    crowd(shared);
    assert_eq!(c.more_count.load(Relaxed), PART);
    assert_eq!(shared.lost_without_slot(), lost);
    assert_eq!(recorded(&shared), before + 2 * THREADS);
}
