//! What time it is, in ticks.

use crate::sys;
use prof_arch::native::capture;
use prof_trace::shared::{Shared, clock};

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
    if shared.control().clock == clock::COUNTER {
        capture::counter_after_loads()
    } else {
        slow(shared)
    }
}

#[cold]
#[inline(never)]
fn slow(shared: &Shared) -> u64 {
    let c = shared.control();
    if c.clock == clock::VDSO && c.vdso_clock != 0 {
        let mut t = [0u64; 2];
        // SAFETY: the injector took the address of `__vdso_clock_gettime` from the vDSO's own symbol
        // table; the function uses no TLS and writes the two words.
        let r = unsafe {
            let f: extern "C" fn(i32, *mut u64) -> i32 =
                core::mem::transmute(c.vdso_clock as usize as *const ());
            f(1, t.as_mut_ptr())
        };
        if r == 0 {
            return t[0].wrapping_mul(1_000_000_000).wrapping_add(t[1]);
        }
    }
    sys::clock()
}
