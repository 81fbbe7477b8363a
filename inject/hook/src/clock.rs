//! Time stamps, in ticks.

use crate::mapping::Shared;
use crate::state::Thread;
use crate::sys;
use core::sync::atomic::Ordering::{Relaxed, Release};
use prof_arch::native::capture;
use prof_trace::shared::{FIRST_THREAD, Slot, clock, flags};
use prof_trace::ticks::Ticks;

/// Whether the lowest bit of a time stamp says how it was read: 1 if without waiting for loads. Only where a
/// tick is so short that no thread can do anything with a block within two. For a thread that was alone the
/// bit means nothing: no other thread's events are near.
const MARKED: bool = capture::LOADS_IN_ORDER;

/// Returns the time stamp of a counter that was read in order.
#[inline(always)]
fn even(time: Ticks) -> Ticks {
    if MARKED { Ticks(time.0 & !1) } else { time }
}

/// Returns the time before an operation that publishes memory (a free). Later stores stay behind the reading,
/// as they are done in order; earlier loads must stay before it, since one of them may have fetched the
/// block's address from the thread that allocated it.
#[inline(always)]
pub fn before(shared: &Shared) -> Ticks {
    after(shared)
}

/// Returns the time after an operation that acquires memory (an allocation): earlier loads stay before the
/// reading.
#[inline(always)]
pub fn after(shared: &Shared) -> Ticks {
    if let Some(time) = alone(shared) { time } else { ordered(shared) }
}

/// Returns the time if only one thread has been seen. No other thread can then have freed memory or returned
/// any, so the counter is read without waiting for loads, in a third of the time. A second thread counts
/// itself before its first event, so that whoever gets memory from it sees that count, where the processor
/// does loads in order. Two such readings may change places within an instruction or two: see [`not_before`].
#[inline(always)]
pub fn alone(shared: &Shared) -> Option<Ticks> {
    let c = shared.control();
    let alone = is_open(shared)
        && capture::LOADS_IN_ORDER
        && c.next_thread.load(Relaxed) <= FIRST_THREAD + 1;
    alone.then(|| Ticks(capture::counter()))
}

/// Returns the time of a block's allocation or free in this thread, not before its last time. If the thread
/// was also the last one to free or get the block (`owned`), the counter is read without waiting for loads,
/// and the time is odd: no other thread has had the block since, or readers can tell (FORMAT.md, section 3).
#[inline(always)]
pub fn of_block(shared: &Shared, t: &mut Thread, owned: bool) -> Ticks {
    let time = if MARKED && owned && is_open(shared) {
        Ticks(capture::counter() | 1)
    } else {
        ordered(shared)
    };
    let last = t.codec.time;
    // The lowest bit is kept.
    if time < last { went_back(shared, t, time, last + ((last.0 ^ time.0) & 1)) } else { time }
}

/// Returns whether the clock is the processor's counter, and the hook may read it.
#[inline(always)]
fn is_open(shared: &Shared) -> bool {
    shared.control().clock.load(Relaxed) == clock::COUNTER
}

/// Stops all use of the processor's counter: from here on reading it is an error to the calling thread and to
/// the threads that it creates (`PR_SET_TSC`). Times read before are in order with later ones.
#[cold]
pub fn close(shared: &Shared) {
    if is_open(shared) {
        stop(shared);
    }
}

/// Stops all use of any clock, as [`close`] does of the counter: in seccomp's strict mode the kernel forbids the counter, too,
/// and each call that a clock may need.
#[cold]
pub fn stop(shared: &Shared) {
    let c = shared.control();
    if is_open(shared) {
        c.heartbeat.fetch_max(capture::counter_after_loads(), Relaxed);
    }
    c.clock.store(clock::COARSE, Release);
}

/// Longest time of an event that counts as the hook's work, in ticks. A longer event has waited for a processor, a
/// page, or room in the ring.
const MOST_SPENT: u64 = 1 << 17;

/// Adds the time since `start` to what the thread's events have taken, if that is asked for. Only the processor's counter
/// is exact enough, and quick.
#[inline(always)]
pub fn spend(shared: &Shared, slot: &Slot, start: Ticks) {
    if shared.control().flags.load(Relaxed) & flags::COSTS != 0 && is_open(shared) {
        let took = Ticks(capture::counter()).since(start).min(MOST_SPENT);
        slot.spent.store(slot.spent.load(Relaxed).wrapping_add(took), Relaxed);
    }
}

/// Returns a value that no other thread has, as a seed for random numbers.
pub fn seed(shared: &Shared) -> u64 {
    if is_open(shared) { capture::counter() } else { slow(shared).0 }
}

#[inline(always)]
fn ordered(shared: &Shared) -> Ticks {
    if is_open(shared) { even(Ticks(capture::counter_after_loads())) } else { slow(shared) }
}

/// Returns a time of the thread that follows its last one.
#[inline(always)]
pub fn not_before(shared: &Shared, t: &mut Thread, time: Ticks) -> Ticks {
    let last = t.codec.time;
    if time < last { went_back(shared, t, time, last) } else { time }
}

/// Handles a time before the thread's last. If the difference is one by which two readings may change places,
/// returns `instead`. Otherwise the counter itself has gone back (suspend, migration): returns `time`, and
/// ends the segment. The collector learns from the first time of a segment since when that is so.
#[cold]
fn went_back(shared: &Shared, t: &mut Thread, time: Ticks, instead: Ticks) -> Ticks {
    if instead - time <= shared.control().ticks_per_sec.load(Relaxed) >> WENT_BACK {
        return instead;
    }
    t.pos = usize::MAX;
    time
}

/// Two readings change places by at most a second shifted right by this.
const WENT_BACK: u32 = 10;

/// Returns `CLOCK_MONOTONIC` in nanoseconds, by the vDSO's function where there is one. Where that could need
/// a system call and none is allowed, returns the time of the collector's last look: threads are then ordered
/// by its passes alone.
#[cold]
#[inline(never)]
fn slow(shared: &Shared) -> Ticks {
    let c = shared.control();
    let source = c.clock.load(Relaxed);
    if source == clock::COARSE {
        return even(Ticks(c.heartbeat.load(Relaxed)));
    }
    let makes_calls = source != clock::VDSO;
    if makes_calls && !sys::allowed(shared) {
        return Ticks(c.heartbeat.load(Relaxed));
    }
    if c.vdso_clock != 0 {
        let mut t = [0usize; 2];
        // SAFETY: the injector took the address from the vDSO's own symbol table. The function uses no TLS
        // and writes the two words of `t`.
        let r = unsafe {
            let f: extern "C" fn(i32, *mut usize) -> i32 =
                core::mem::transmute(c.vdso_clock as usize as *const ());
            f(1, t.as_mut_ptr())
        };
        if r == 0 {
            return Ticks((t[0] as u64).wrapping_mul(1_000_000_000)).wrapping_add(t[1] as u64);
        }
    }
    Ticks(if makes_calls { sys::clock() } else { c.heartbeat.load(Relaxed) })
}

/// Returns whether time advances while no collector runs.
pub fn goes_on(shared: &Shared) -> bool {
    match shared.control().clock.load(Relaxed) {
        clock::COARSE => false,
        clock::SYSCALL => sys::allowed(shared),
        _ => true,
    }
}
