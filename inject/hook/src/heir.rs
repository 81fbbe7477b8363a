//! Shared memory for a child that is to be recorded from its fork on.
//!
//! The thread that forks maps it, and fills it in as prof has filled in its own: functions, modules and settings are the child's,
//! too. The child moves it to where its parent has its own, and records at once, as code, stubs and hook are copies of its
//! parent's. A collector comes later, and finds it by the mapping (see [`prof_trace::shared::HEIR_AT`]). The parent unmaps it
//! behind the fork.

use crate::mapping::Shared;
use crate::{clock, header, sys, thread, toggle};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use prof_arch::native::capture::copy_forward;
use prof_trace::modules::doubt;
use prof_trace::ring;
use prof_trace::shared::{
    Control, FLAG_COOKIE, FUNCTIONS, Function, HEIR_AT, HEIR_LEAD, MODULES, Module, flags, state,
};

/// Address of the mapping of the one such memory that the process has at a time, for whichever thread forks; [`BUSY`] while one
/// is mapped or unmapped. The child of another thread inherits that mapping, and this number by which it is found.
static THERE: AtomicU64 = AtomicU64::new(0);
/// Length of the mapping.
static LEN: AtomicU64 = AtomicU64::new(0);
/// Index of the slot of the thread that forks; `usize::MAX`: it has none.
static SLOT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Value of [`THERE`] that is no address.
const BUSY: u64 = 1;

/// Returns whether children are to be recorded from their fork on.
pub(crate) fn are_wanted(shared: &Shared) -> bool {
    const NEEDED: u32 = flags::HEIRS | flags::SYSCALLS;
    shared.control().flags.load(Relaxed) & NEEDED == NEEDED
}

/// Makes the memory for a child. Returns the address of its mapping; 0 if recording is paused, children are short at this time,
/// another thread forks at the moment, or there is no address space. The child is then as one that is not to be recorded.
pub(crate) fn make(shared: &Shared) -> u64 {
    let c = shared.control();
    let is_on = header::flag()[0].load(Relaxed) == 1 && c.state.load(Relaxed) == state::ATTACHED;
    // A library that the linker has loaded is removed by a call of the linker, for which there is no stack in the child.
    if !is_on || c.library.load(Relaxed) != 0 {
        return 0;
    }
    let until = c.no_heirs_until.load(Relaxed);
    if until != 0 && clock::before(shared).0 < until {
        return 0;
    }
    if THERE.compare_exchange(0, BUSY, AcqRel, Relaxed).is_err() {
        return 0;
    }
    // The child begins with one thread, so the states of the second part, most of the address space, are left out.
    let ring_len = (c.states_addr - shared.base() as u64) + c.states_count * c.states_stride;
    let slot = thread::place_of_own(shared);
    let has_state = slot.is_none_or(|index| (index as u64) < c.states_count);
    let len = HEIR_LEAD + ring_len;
    let at = if has_state { sys::map_shared(HEIR_AT - HEIR_LEAD, len) } else { 0 };
    LEN.store(len, Relaxed);
    SLOT.store(slot.unwrap_or(usize::MAX), Relaxed);
    THERE.store(at, Release);
    if at != 0 {
        fill(shared, at + HEIR_LEAD, ring_len);
    }
    at
}

/// Fills in the memory at `at`, of this length.
fn fill(shared: &Shared, at: u64, len: u64) {
    let (base, c) = (shared.base() as u64, shared.control());
    let copy = |from: u64, len: u64| {
        let to = at + (from - base);
        // SAFETY: the range is inside the shared memory; the new memory is as long, and nobody else uses it.
        unsafe { copy_forward(to as *mut u8, from as *const u8, len as usize) };
    };
    copy(base, size_of::<Control>() as u64);
    let functions = (c.functions.load(Relaxed) as usize).min(FUNCTIONS);
    copy(base + Shared::function_offset(0) as u64, (functions * size_of::<Function>()) as u64);
    // SAFETY: the mapping has all parts but some states, and stays until the child or this thread unmaps it.
    let new = unsafe { Shared::new(at as *mut u8, shared.geometry()) };
    let modules = (c.modules.load(Acquire) as usize).min(MODULES);
    for i in 0..modules {
        let (Some(m), Some(to)) = (shared.module(i), new.module(i)) else { break };
        // An entry that another thread is filling in stays unfinished in the child.
        let ready = m.ready.load(Acquire);
        copy(core::ptr::from_ref(m) as u64, size_of::<Module>() as u64);
        to.ready.store(ready, Relaxed);
    }
    // The tables of all modules that were ready are complete.
    let next = c.tables_next.load(Acquire).min(c.tables_at.wrapping_add(c.tables_len));
    copy(base + c.tables_at, next.saturating_sub(c.tables_at));
    // SAFETY: nobody else knows of the memory yet.
    let control = unsafe { new.control_mut() };
    control.modules.store(modules as u32, Relaxed);
    control.ring_len.store(len, Relaxed);
    // The child makes it an attached process's, once: a child of a handler in the child may come here with the same memory.
    control.state.store(state::SETUP, Relaxed);
    ring::fill(&new);
    doubt(control);
    // The last step before the fork: what this thread does later is not the child's.
    control.make_heir(clock::before(shared));
}

/// Unmaps the memory in the parent, behind the fork.
pub(crate) fn discard(at: u64) {
    if at != 0 {
        THERE.store(BUSY, Release);
        sys::unmap(at, LEN.load(Relaxed));
        THERE.store(0, Release);
    }
}

/// Takes the memory into use in the child, `at` its mapping; 0: there is none.
pub(crate) fn inherit(at: u64) {
    let len = LEN.load(Relaxed);
    let there = THERE.swap(0, AcqRel);
    // The memory was mapped for the child of another thread, which forks at the same time.
    if there > BUSY && there != at {
        sys::unmap(there, len);
    }
    if at == 0 {
        return;
    }
    // A handler that forks in here would have its child go on without the memory.
    let mask = sys::block_always();
    adopt(at, len);
    if let Some(mask) = mask {
        sys::unblock_signals(&mask);
    }
}

/// Moves the memory at `at` to its place, and turns recording on.
fn adopt(at: u64, len: u64) {
    let state_at = (at + HEIR_LEAD + core::mem::offset_of!(Control, state) as u64) as *mut u32;
    // SAFETY: the field is in the memory that the parent has mapped and filled in for this child.
    let state = unsafe { AtomicU32::from_ptr(state_at) };
    if state.compare_exchange(state::SETUP, state::ATTACHED, AcqRel, Relaxed).is_err() {
        sys::unmap(at, len);
        return;
    }
    let shared = header::shared();
    let place = shared.base() as u64;
    if !sys::move_free(at + HEIR_LEAD, len - HEIR_LEAD, place) {
        sys::unmap(at, len);
        return;
    }
    sys::unmap(at, HEIR_LEAD);
    let main_tid = (place + core::mem::offset_of!(Control, main_tid) as u64) as *mut u32;
    // SAFETY: the field is in the memory that was just moved there, and no other thread of the process exists.
    unsafe { AtomicU32::from_ptr(main_tid) }.store(sys::getpid(), Relaxed);
    thread::keep(shared, SLOT.load(Relaxed));
    let [on, cookie] = header::flag();
    cookie.store(FLAG_COOKIE, Relaxed);
    toggle::note(shared, 1);
    on.store(1, Release);
}
