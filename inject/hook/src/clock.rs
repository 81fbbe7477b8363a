//! What time it is, in ticks.

use crate::state::Thread;
use crate::sys;
use core::sync::atomic::Ordering::{Relaxed, Release};
use prof_arch::native::capture;
use prof_trace::shared::{FIRST_THREAD, Shared, clock};

/// Whether times say in their lowest bit how they were read: 1 if without waiting for loads. Only where a
/// tick is so short that nobody can do anything with a block within two. Of a thread that was alone the bit
/// says nothing: nobody else's events are near.
const MARKED: bool = capture::LOADS_IN_ORDER;

/// A counter that was read in order.
#[inline(always)]
fn even(time: u64) -> u64 {
    if MARKED { time & !1 } else { time }
}

/// Ticks before something that publishes memory (a free). Later stores stay behind it, as they are
/// done in order; earlier loads must stay before it, since one of them may have fetched the block's
/// address from the thread that allocated it.
#[inline(always)]
pub fn before(shared: &Shared) -> u64 {
    after(shared)
}

/// Ticks after something that acquired memory (an allocation): earlier loads stay before it.
#[inline(always)]
pub fn after(shared: &Shared) -> u64 {
    if let Some(time) = alone(shared) { time } else { ordered(shared) }
}

/// Ticks if only one thread has been seen: nobody else can have given memory back or handed it
/// out, and the counter is read without waiting for loads, in a third of the time. A second thread
/// counts itself before its first event, so whoever gets memory from it sees that count as well, where
/// the processor does loads in order. Two such readings may change places within an instruction or two:
/// see [`not_before`].
#[inline(always)]
pub fn alone(shared: &Shared) -> Option<u64> {
    let c = shared.control();
    let alone = is_open(shared)
        && capture::LOADS_IN_ORDER
        && c.next_thread.load(Relaxed) <= FIRST_THREAD + 1;
    alone.then(capture::counter)
}

/// Ticks of a block's begin or end in this thread, not before `last`. Where the thread was also the last one
/// to give the block back, or to get it, the counter is read without waiting for loads, and the time says
/// so: nobody else has had the block since, or readers can tell (FORMAT.md, section 3).
#[inline(always)]
pub fn of_block(shared: &Shared, t: &mut Thread, owned: bool) -> u64 {
    let time =
        if MARKED && owned && is_open(shared) { capture::counter() | 1 } else { ordered(shared) };
    let last = t.codec.time;
    // The lowest bit stays.
    if time < last { went_back(shared, t, time, last + ((last ^ time) & 1)) } else { time }
}

/// Whether the processor's counter is the clock, and may be read.
#[inline(always)]
fn is_open(shared: &Shared) -> bool {
    shared.control().clock.load(Relaxed) == clock::COUNTER
}

/// From here on reading the counter is an error to the calling thread and those that it makes
/// (`PR_SET_TSC`): no thread does. What they have read before is in order with what follows.
#[cold]
pub fn close(shared: &Shared) {
    let c = shared.control();
    if is_open(shared) {
        c.heartbeat.fetch_max(capture::counter_after_loads(), Relaxed);
        c.clock.store(clock::COARSE, Release);
    }
}

/// Something that no other thread has: where a sequence of random numbers begins.
pub fn seed(shared: &Shared) -> u64 {
    if is_open(shared) { capture::counter() } else { slow(shared) }
}

#[inline(always)]
fn ordered(shared: &Shared) -> u64 {
    if is_open(shared) { even(capture::counter_after_loads()) } else { slow(shared) }
}

/// A time of the thread that is to follow its last one in its order.
#[inline(always)]
pub fn not_before(shared: &Shared, t: &mut Thread, time: u64) -> u64 {
    let last = t.codec.time;
    if time < last { went_back(shared, t, time, last) } else { time }
}

/// What stands for a time that is before the thread's last: `instead`, if it is by no more than two readings may
/// change places. If the counter itself has gone back (the machine was suspended, or moved to another), times go
/// on from there in another segment: the collector tells by a segment's first time since when that is so.
#[cold]
fn went_back(shared: &Shared, t: &mut Thread, time: u64, instead: u64) -> u64 {
    if instead - time <= shared.control().ticks_per_sec >> WENT_BACK {
        return instead;
    }
    t.pos = usize::MAX;
    time
}

/// More than this part of a second, as a power of two, is none that two readings change places by.
const WENT_BACK: u32 = 10;

/// `CLOCK_MONOTONIC` in nanoseconds, by the vDSO's function where there is one. Where that could end in a
/// system call, and none may be made, when the collector last looked: then the order of passes is all
/// that there is.
#[cold]
#[inline(never)]
fn slow(shared: &Shared) -> u64 {
    let c = shared.control();
    let source = c.clock.load(Relaxed);
    if source == clock::COARSE {
        return even(c.heartbeat.load(Relaxed));
    }
    let makes_calls = source != clock::VDSO;
    if makes_calls && !sys::allowed(shared) {
        return c.heartbeat.load(Relaxed);
    }
    if c.vdso_clock != 0 {
        let mut t = [0usize; 2];
        // SAFETY: the injector took the address of the function from the vDSO's own symbol table; it uses
        // no TLS and writes the two words.
        let r = unsafe {
            let f: extern "C" fn(i32, *mut usize) -> i32 =
                core::mem::transmute(c.vdso_clock as usize as *const ());
            f(1, t.as_mut_ptr())
        };
        if r == 0 {
            return (t[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(t[1] as u64);
        }
    }
    if makes_calls { sys::clock() } else { c.heartbeat.load(Relaxed) }
}

/// Whether the time goes on while nobody collects.
pub fn goes_on(shared: &Shared) -> bool {
    match shared.control().clock.load(Relaxed) {
        clock::COARSE => false,
        clock::SYSCALL => sys::allowed(shared),
        _ => true,
    }
}
