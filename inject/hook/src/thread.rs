//! Finding the state of the calling thread: a table keyed on the thread pointer.

use crate::state::Thread;
use crate::sys;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use prof_arch::native::capture::thread_pointer;
use prof_trace::shared::{Shared, Slot, slot};

/// Slots that are looked at before giving up.
const PROBES: usize = 64;

/// The calling thread's slot and state; `None` if there is no room for it.
#[inline(always)]
pub fn current(shared: &Shared) -> Option<(&'static Slot, &'static mut Thread)> {
    let tp = thread_pointer();
    let c = shared.control();
    let mask = (c.states_count as usize).wrapping_sub(1);
    let start = (tp >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 40;
    let index = start & mask;
    let s = shared.slot(index)?;
    if s.tp.load(Relaxed) == tp && is_ours(shared, s, tp) {
        return Some((s, state(shared, index)));
    }
    find(shared, tp, start, mask)
}

/// Whether the slot with our thread pointer was taken by this thread, and not by one that has
/// ended and whose memory we got.
#[inline(always)]
fn is_ours(shared: &Shared, s: &Slot, tp: u64) -> bool {
    if s.state.load(Relaxed) != slot::LIVE {
        return false;
    }
    match libc_tid(shared, tp) {
        Some(tid) => tid == s.tid.load(Relaxed),
        None => true,
    }
}

/// The thread id that libc keeps beside the thread pointer.
#[inline(always)]
fn libc_tid(shared: &Shared, tp: u64) -> Option<u32> {
    let offset = shared.control().tid_offset;
    if offset == i32::MIN {
        return None;
    }
    let at = tp.wrapping_add(offset as i64 as u64) as *const u32;
    // SAFETY: the injector has found the thread ids of the target's threads at this offset from
    // their thread pointers: it lies inside libc's thread descriptor.
    Some(unsafe { at.read_volatile() })
}

#[inline(always)]
fn state(shared: &Shared, index: usize) -> &'static mut Thread {
    let c = shared.control();
    let at = c.states_addr as usize + index * c.states_stride as usize;
    // SAFETY: inside the states that the injector mapped (`index` < `states_count`); only the
    // thread that owns the slot with this index comes here, and one call at a time does, since
    // the others see `busy_sp` or `inner_sp` set before they use it.
    unsafe { &mut *(at as *mut Thread) }
}

#[cold]
#[inline(never)]
fn find(
    shared: &Shared,
    tp: u64,
    start: usize,
    mask: usize,
) -> Option<(&'static Slot, &'static mut Thread)> {
    // First an entry with our thread pointer, since that may be ours or our predecessor's.
    for i in 0..PROBES.min(mask + 1) {
        let index = (start + i) & mask;
        let s = shared.slot(index)?;
        let key = s.tp.load(Acquire);
        if key == 0 {
            break;
        }
        if key == tp {
            if is_ours(shared, s, tp) {
                return Some((s, state(shared, index)));
            }
            // Claimed first: once it is marked dead, a thread without a slot may want it, too.
            if s.state.swap(slot::FREE, AcqRel) != slot::FREE {
                take(shared, s, tp, index);
                return Some((s, state(shared, index)));
            }
        }
    }
    for i in 0..PROBES.min(mask + 1) {
        let index = (start + i) & mask;
        let s = shared.slot(index)?;
        let free = s.tp.compare_exchange(0, tp, AcqRel, Relaxed).is_ok();
        if free || s.state.compare_exchange(slot::DEAD, slot::FREE, AcqRel, Relaxed).is_ok() {
            take(shared, s, tp, index);
            return Some((s, state(shared, index)));
        }
    }
    shared.control().lost_no_slot.fetch_add(1, Relaxed);
    None
}

/// Makes the slot this thread's.
fn take(shared: &Shared, s: &'static Slot, tp: u64, index: usize) {
    let tid = libc_tid(shared, tp).filter(|t| *t != 0).unwrap_or_else(sys::gettid);
    s.tid.store(tid, Relaxed);
    s.serial.store(shared.control().next_thread.fetch_add(1, Relaxed), Relaxed);
    s.busy_sp.store(0, Relaxed);
    s.inner_sp.store(0, Relaxed);
    s.distance.store(0, Relaxed);
    s.random.store(0, Relaxed);
    state(shared, index).reset(s, index as u32);
    s.tp.store(tp, Relaxed);
    s.state.store(slot::LIVE, Release);
}

/// Leaves the scratch stack of the calling thread for good.
pub fn give_up() -> ! {
    let shared = crate::header::shared();
    loop {
        if let Some((_, t)) = current(&shared) {
            // SAFETY: what panics runs on the scratch stack of its thread.
            unsafe { prof_arch::native::capture::leave_stack(t.scratch()) };
        }
    }
}
