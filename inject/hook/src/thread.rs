//! Finds the state of the calling thread, in a table keyed on the thread pointer.

use crate::left;
use crate::mapping::{Shared, add};
use crate::state::Thread;
use crate::sys;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use prof_arch::native::capture::thread_pointer;
use prof_trace::shared::{Slot, TURNED_AWAY};
use prof_trace::slots::{self, Claim, ProbeSequence};

/// Returns the calling thread's slot and state; `None` if there is no room for it.
#[inline(always)]
pub fn current(shared: &Shared) -> Option<(&'static Slot, &'static mut Thread)> {
    let tp = thread_pointer();
    let (start, mask) = place(shared, tp);
    let index = start & mask;
    let s = shared.slot(index)?;
    if s.tp.load(Relaxed) == tp && slots::is_of(s, || libc_tid(shared, tp)) {
        return Some((s, state(shared, index)));
    }
    find(shared, tp, start, mask)
}

/// Returns the calling thread's slot, if it has one and the first probe finds it.
#[inline(always)]
pub fn slot_at_once(shared: &Shared) -> Option<&'static Slot> {
    let tp = thread_pointer();
    let (start, mask) = place(shared, tp);
    let s = shared.slot(start & mask)?;
    (s.tp.load(Relaxed) == tp && slots::is_of(s, || libc_tid(shared, tp))).then_some(s)
}

/// Returns the slot index of the calling thread, if it has a slot or is just taking one. Nothing is changed,
/// as the thread may be inside the hook already.
pub fn place_of_own(shared: &Shared) -> Option<usize> {
    let tp = thread_pointer();
    let (start, mask) = place(shared, tp);
    slots::find(shared, tp, probes(shared, start, mask), || {
        libc_tid(shared, tp).filter(|t| *t != 0)
    })
}

/// Returns where the search for a thread's slot begins, and the mask of the table's indices.
#[inline(always)]
fn place(shared: &Shared, tp: u64) -> (usize, usize) {
    let mask = (shared.control().states_count as usize).wrapping_sub(1);
    (((tp >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize, mask)
}

/// Returns the slots that a thread looks at, in order.
fn probes(shared: &Shared, start: usize, mask: usize) -> ProbeSequence {
    // The states of the second part can be used from the moment on at which this number is set.
    let more = shared.control().more_count.load(Acquire) as usize;
    ProbeSequence::new(start, mask.wrapping_add(1), more)
}

/// Opens the second part of the slots' states, which has no access until a thread finds no slot in the first. Several threads may do
/// it at a time. Returns whether it is open.
fn open_more(shared: &Shared) -> bool {
    let c = shared.control();
    let offered = c.more_offered.load(Relaxed);
    if offered == 0 || !sys::allowed(shared) {
        return false;
    }
    let at = c.states_addr + c.states_count * c.states_stride;
    if !sys::open(at, offered * c.states_stride) {
        return false;
    }
    // A thread that sees this number may use the states.
    c.more_count.store(offered, Release);
    // Threads that had found no slot look again.
    c.slots_freed.fetch_add(1, Release);
    true
}

/// Returns the thread id that libc keeps beside the thread pointer; `None` if the offset is unknown.
#[inline(always)]
fn libc_tid(shared: &Shared, tp: u64) -> Option<u32> {
    let offset = shared.control().tid_offset;
    if offset == i32::MIN {
        return None;
    }
    let at = tp.wrapping_add(offset as i64 as u64) as *const u32;
    // SAFETY: the injector has found the ids of the target's threads at this offset from their thread
    // pointers, so it lies inside libc's thread descriptor.
    Some(unsafe { at.read_volatile() })
}

/// Returns the calling thread's id as far as libc keeps it, without a system call.
pub fn own_tid(shared: &Shared) -> Option<u32> {
    libc_tid(shared, thread_pointer())
}

#[inline(always)]
fn state(shared: &Shared, index: usize) -> &'static mut Thread {
    let c = shared.control();
    let at = c.states_addr as usize + index * c.states_stride as usize;
    // SAFETY: the state is among those that the injector mapped and that are open (`index` < `states_count + more_count`). Only
    // the thread that owns this slot comes here, and only one call at a time uses the state: the others see
    // `busy_sp` or `inner_sp` set.
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
    let c = shared.control();
    // Read before the search: a slot that is freed meanwhile then invalidates the note.
    let freed = c.slots_freed.load(Acquire);
    let key = (tp ^ freed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let away = c.turned_away.get(start % TURNED_AWAY)?;
    // libc does not know a thread that was made without it; the thread pointer decides.
    let tid = || libc_tid(shared, tp).filter(|t| *t != 0);
    if away.key.load(Relaxed) != key {
        let all = probes(shared, start, mask);
        let mut claim = slots::claim(shared, tp, all, tid);
        if claim == Claim::None && !all.has_more() && open_more(shared) {
            claim = slots::claim(shared, tp, probes(shared, start, mask), tid);
        }
        match claim {
            Claim::Own(index) => return Some((shared.slot(index)?, state(shared, index))),
            Claim::New(index) => {
                let s = shared.slot(index)?;
                take(shared, s, tp, index);
                return Some((s, state(shared, index)));
            }
            Claim::Busy => {}
            Claim::None => away.key.store(key, Relaxed),
        }
    }
    away.lost.fetch_add(1, Relaxed);
    None
}

/// Takes a slot, of those that nobody has taken yet, for the only thread of a process. It has had this slot in its parent, and
/// may have been interrupted where it refers to slot and state.
pub fn keep(shared: &Shared, index: usize) {
    let Some(s) = shared.slot(index) else { return };
    shared.note_slot(index);
    take(shared, s, thread_pointer(), index);
}

/// Sets the claimed slot up for this thread.
fn take(shared: &Shared, s: &'static Slot, tp: u64, index: usize) {
    let tid = libc_tid(shared, tp).filter(|t| *t != 0).unwrap_or_else(sys::gettid);
    slots::name(s, tp, tid, shared.control().next_thread.fetch_add(1, Relaxed));
    // A thread may have ended while a call that it began continues on a fiber's stack.
    let was_busy = s.busy_sp.swap(0, Relaxed) != 0;
    if s.inner_sp.swap(0, Relaxed) != 0 || was_busy {
        add(&s.abandoned, 1);
    }
    s.distance.store(0, Relaxed);
    s.random.store(0, Relaxed);
    state(shared, index).reset(s, index as u32);
    if was_busy {
        left::distrust(state(shared, index));
    }
    slots::publish(s);
}
