//! The ring gets full while a thread changes between many deep stacks, which each segment has to name anew.

#[allow(dead_code)]
mod common;

use common::{Hook, install};
use prof_hook::state::Thread;
use prof_trace::ring;
use prof_trace::shared::{Shared, Slot};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Frames of a stack, below those of its thread: few enough for the stack to be remembered, of which the words count.
const DEEP: usize = 6;
/// Number of calls after which the thread has had all stacks, and looks for them among those that it has had.
const WARM: usize = 20_000;

/// How often the ring gets full, and calls before and after.
const ROUNDS: usize = 50;
const CALLS: usize = 4;
const ROUND: usize = 2 * CALLS;

/// Allocates below frames of a size of its own, so that the stack shares no frame with others.
#[inline(never)]
fn down<const SIZE: usize>(hook: &Hook, depth: usize) {
    let room = black_box([0u64; SIZE]);
    match depth {
        0 => hook.free(hook.malloc(black_box(24))),
        _ => down::<SIZE>(hook, depth - 1),
    }
    black_box(&room);
}

macro_rules! table {
    ($($n:literal)*) => { [$(down::<{ 1 + 2 * $n }>, down::<{ 2 + 2 * $n }>),*] };
}

/// Each is a stack. Lookups of so many find most of them.
const STACKS: [fn(&Hook, usize); 24] = table!(
    0 1 2 3 4 5 6 7 8 9 10 11
);

/// Makes the calling thread's segment all but full, so that it has room for an event and not for the name of a stack, and every
/// stack one that the segment has not named yet. Returns the free segments, which it takes.
fn fill(shared: &Shared<'static>) -> Vec<usize> {
    let c = shared.control();
    for i in 0..c.states_count {
        // SAFETY: the states are mapped, and this is the only thread that calls the hook.
        let t = unsafe { &mut *((c.states_addr + i * c.states_stride) as *mut Thread) };
        if !t.head.is_null() {
            (t.pos, t.named) = (ring::SEGMENT_FULL, 0);
            t.epoch += 1;
        }
    }
    std::iter::from_fn(|| ring::take(shared, 0)).collect()
}

#[test]
fn a_stack_without_room_for_its_name_is_lost_and_nothing_else() {
    let shared = install(0).shared;
    // A thread of its own has fewer frames than that of a test.
    std::thread::spawn(move || change_between_stacks(shared)).join().expect("it ends");
}

fn change_between_stacks(shared: Shared<'static>) {
    let hook = Hook::of(shared);
    // The collector is at work, as far as the hook can tell.
    shared.control().heartbeat.store(u64::MAX / 2, Relaxed);
    let sum = |of: fn(&Slot) -> &AtomicU64| -> u64 {
        shared.used_slots().map(|s| of(s).load(Relaxed)).sum()
    };
    let mut seed = 88_172_645_463_325_252u64;
    let (mut taken, mut drained, mut lost) = (Vec::new(), 0, 0);
    // All calls are made at one place, as another one has other stacks.
    for n in 0..WARM + ROUNDS * ROUND {
        match n.checked_sub(WARM).map(|k| k % ROUND) {
            Some(0) => {
                let full = !taken.is_empty();
                taken.drain(..).for_each(|index| ring::give_back(&shared, index));
                drained += if full { hook.drain().len() as u64 } else { 0 };
            }
            Some(CALLS) => {
                lost = sum(|s| &s.lost);
                taken = fill(&shared);
            }
            // Of the first call, the allocation finds no room for its stack, and no event behind it finds any.
            Some(k) if k > CALLS => assert_eq!(sum(|s| &s.lost) - lost, 2 * (k - CALLS) as u64),
            _ => {}
        }
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        STACKS[(seed >> 20) as usize % STACKS.len()](&hook, DEEP);
    }
    // The ring has what was counted: nothing was written where no segment was.
    assert_eq!(drained + hook.drain().len() as u64, sum(|s| &s.events));
}
