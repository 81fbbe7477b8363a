//! What time it is, in ticks.

use crate::sys;
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::capture;
use prof_trace::shared::{FIRST_THREAD, Shared, clock};

/// Ticks before something that publishes memory (a free). Later stores stay behind it, as they are
/// done in order; earlier loads must stay before it, since one of them may have fetched the block's
/// address from the thread that allocated it.
#[inline(always)]
pub fn before(shared: &Shared) -> u64 {
    after(shared)
}

/// Ticks after something that acquired memory (an allocation): earlier loads stay before it.
///
/// As long as only one thread has been seen, nobody else can have given that memory back or handed it
/// out, and the counter is read without waiting for loads, in a third of the time. A second thread
/// counts itself before its first event, so whoever gets memory from it sees that count as well, where
/// the processor does loads in order. Two such readings may change places within an instruction or two:
/// see [`not_before`].
#[inline(always)]
pub fn after(shared: &Shared) -> u64 {
    let c = shared.control();
    if c.clock != clock::COUNTER {
        return slow(shared);
    }
    if capture::LOADS_IN_ORDER && c.next_thread.load(Relaxed) <= FIRST_THREAD + 1 {
        capture::counter()
    } else {
        capture::counter_after_loads()
    }
}

/// A time of the thread that is to follow another one in its order.
#[inline(always)]
pub fn not_before(time: u64, last: u64) -> u64 {
    if time < last { last } else { time }
}

#[cold]
#[inline(never)]
fn slow(shared: &Shared) -> u64 {
    let c = shared.control();
    if c.clock == clock::VDSO && c.vdso_clock != 0 {
        let mut t = [0usize; 2];
        // SAFETY: the injector took the address of `__vdso_clock_gettime` from the vDSO's own symbol
        // table; the function uses no TLS and writes the two words.
        let r = unsafe {
            let f: extern "C" fn(i32, *mut usize) -> i32 =
                core::mem::transmute(c.vdso_clock as usize as *const ());
            f(1, t.as_mut_ptr())
        };
        if r == 0 {
            return (t[0] as u64).wrapping_mul(1_000_000_000).wrapping_add(t[1] as u64);
        }
    }
    sys::clock()
}
