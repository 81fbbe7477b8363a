//! Calls of hooked functions: what is done before and after the original.
//!
//! A call is recorded once, at the outermost hooked function ([`Slot::inner_sp`] is set while the original
//! runs). A free is recorded before the original runs, since another thread may get the memory while it does;
//! an allocation is recorded after.

use crate::header::LOCATIONS;
use crate::mapping::{Shared, add};
use crate::original::{function, pass};
use crate::record::{event, has_room};
use crate::stack::{call_undisturbed, capture};
use crate::state::Thread;
use crate::{
    block_header, calls, clock, extent, fork, header, left, memory, modules, owner, sample, sys,
    thread,
};
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::Marks;
use prof_arch::native::bridge::places;
use prof_arch::native::capture::{Call, Go};
use prof_arch::native::syscall::nr;
use prof_trace::modules::doubt;
use prof_trace::samples;
use prof_trace::shared::{
    Control, FUNCTIONS, Function, Kind, Locations, MARKS_AT, SAMPLE_MARKS, Slot, flags,
};
use prof_trace::ticks::Ticks;

prof_arch::hook_entry!(
    /// Entry of malloc and of all others that return a new block.
    alloc, before_alloc, after_alloc);
prof_arch::hook_entry!(
    /// Entry of realloc and reallocarray.
    realloc, before_realloc, after_realloc);
prof_arch::hook_entry!(
    /// Entry of free.
    free, before_free, after_nothing);
prof_arch::hook_entry!(
    /// Entry of operator delete and others that may call free.
    delete, before_delete, after_delete);
prof_arch::hook_entry!(
    /// Entry of the dynamic linker's `_dl_debug_state`.
    loader, before_loader, after_nothing);
prof_arch::hook_entry!(
    /// Entry of prctl and syscall.
    sandbox, before_sandbox, fork::after_fork);

/// Location of the marks of recorded blocks, for the entries below.
const MARKS: Marks = Marks {
    base: offset_of!(Locations, shared),
    first: MARKS_AT,
    count: SAMPLE_MARKS,
    granule: samples::MARKED as usize,
    void: offset_of!(Control, samples_full),
    original: offset_of!(Function, original),
};

// Entries used if not all blocks are recorded: most calls continue with the original at once.
prof_arch::pass_entry!(
    /// Entry of malloc, where it calls no other hooked function.
    pass_malloc, goes_on_malloc, alloc);
prof_arch::pass_entry!(
    /// Entry of free.
    pass_free, goes_on_free, free, LOCATIONS, MARKS);
prof_arch::pass_entry!(
    /// Entry of operator delete and others that may call free.
    pass_delete, goes_on_free, delete, LOCATIONS, MARKS);

/// Returns whether the thread may record this call: it is neither inside the hook nor inside an original.
///
/// A mark is stale if its frame is below the stack pointer: longjmp or an exception has left the frame. If a
/// signal handler runs on another stack, this can't be told. At worst it has interrupted an original, whose
/// further nested calls are then recorded as calls of their own.
#[inline(always)]
fn outermost(slot: &Slot, t: &mut Thread, sp: u64) -> bool {
    let (busy, inner) = (slot.busy_sp.load(Relaxed), slot.inner_sp.load(Relaxed));
    if busy | inner == 0 {
        return true;
    }
    stale(slot, t, sp, busy, inner)
}

#[cold]
#[inline(never)]
pub(crate) fn stale(slot: &Slot, t: &mut Thread, sp: u64, busy: u64, inner: u64) -> bool {
    if busy != 0 {
        // A signal has interrupted the hook's own code, and its handler allocates. The interrupted work must
        // not be disturbed, unless the thread has left it by a jump. It has if it now runs at the mark or
        // above, where no handler on this stack is while the frame is live, or if the frame is gone.
        let shared = header::shared();
        let above = sp >= busy && sp - busy < 1 << 16;
        if (above && !sys::is_on_signal_stack(shared, sp)) || !left::is_there(shared, busy) {
            // A handler that interrupts this finds the mark of a frame that exists.
            slot.busy_sp.store(sp, Relaxed);
            left::start_over(shared, slot, t);
            slot.busy_sp.store(0, Relaxed);
            slot.inner_sp.store(0, Relaxed);
            add(&slot.abandoned, 1);
            return true;
        }
        add(&slot.reentered, 1);
        unseen(shared);
        return false;
    }
    if inner & CALL != 0 {
        // That original calls no allocator, so a signal handler has interrupted it, or it was left by a jump.
        if sp >= inner & !CALL {
            slot.inner_sp.store(0, Relaxed);
            add(&slot.abandoned, 1);
        }
        return true;
    }
    // This holds at the same place as well: what the original itself calls is further down, so this is
    // another call after one that was left by an exception.
    let at = inner & !NAMED;
    if sp >= at || (inner & NAMED != 0 && was_left(t, sp, at)) {
        slot.inner_sp.store(0, Relaxed);
        add(&slot.abandoned, 1);
        return true;
    }
    false
}

/// Flag in [`Slot::inner_sp`]: exceptions may pass through the original.
pub(crate) const NAMED: u64 = 1;

/// Flag in [`Slot::inner_sp`]: the original changes mappings. Calls of an allocator ignore the flag; a detach reads it.
pub(crate) const CALL: u64 = 2;

/// Returns whether the frame of a named function's original, called at stack pointer `at`, is gone: an
/// exception, a jump or the thread's cancellation has left it. While the frame lasts, a word in it holds the
/// bridge's address. That word may stay longer where nothing overwrites it; later calls are then taken for
/// nested ones.
fn was_left(t: &Thread, sp: u64, at: u64) -> bool {
    let shared = header::shared();
    let stable = &shared.control().stable;
    if stable.bridge == 0 {
        return false;
    }
    let (bottom, place) = places(at, stable.bridge_frame);
    if sp > bottom {
        return true;
    }
    if extent::is_known(t, place) {
        // SAFETY: the word is on a stack that this thread is known to have.
        return unsafe { memory::load(place) } != stable.bridge;
    }
    let mut word = [0; 8];
    memory::read(shared, place, &mut word) && u64::from_ne_bytes(word) != stable.bridge
}

#[inline(always)]
pub(crate) fn count(slot: &Slot, f: &Function) {
    if let Some(c) = slot.calls.get((f.index as usize).min(FUNCTIONS - 1)) {
        add(c, 1);
    }
}

/// Returns the bytes that a call requests. Saturates if a product overflows, as such a call fails.
#[inline(always)]
fn requested(kind: u32, args: &[u64; 6]) -> u64 {
    const CALLOC: u32 = Kind::Calloc as u32;
    const MEMALIGN: u32 = Kind::Memalign as u32;
    const POSIX_MEMALIGN: u32 = Kind::PosixMemalign as u32;
    const REALLOC_ARRAY: u32 = Kind::ReallocArray as u32;
    const REALLOC: u32 = Kind::Realloc as u32;
    const RESIZE: u32 = Kind::Resize as u32;
    const NAMED_REALLOC: u32 = Kind::NamedRealloc as u32;
    match kind {
        CALLOC => args[0].saturating_mul(args[1]),
        MEMALIGN | REALLOC | RESIZE | NAMED_REALLOC => args[1],
        POSIX_MEMALIGN => args[2],
        REALLOC_ARRAY => args[1].saturating_mul(args[2]),
        _ => args[0],
    }
}

pub(crate) extern "C" fn before_alloc(call: &mut Call) -> Go {
    let f = function(call);
    let shared = header::shared();
    let Some((slot, t)) = thread::current(shared) else { return pass(f) };
    let sp = call.regs.sp;
    if !outermost(slot, t, sp) {
        return pass(f);
    }
    let t = if selecting(shared)
        && !sample::selects(shared.control(), slot, t, requested(f.kind, &call.args))
    {
        // Nested calls are not sampled: that would select too many blocks.
        core::ptr::null_mut()
    } else {
        core::ptr::from_mut(t)
    };
    slot.inner_sp.store(sp, Relaxed);
    call.note = [core::ptr::from_ref(slot) as u64, t as u64];
    if f.nothrow != 0 {
        // Calls the form that does not throw, as an exception must not pass through this frame. Its tag
        // argument is an empty object, whose address is not used.
        let tag = if f.kind == Kind::New as u32 { 1 } else { 2 };
        call.args[tag] = core::ptr::from_ref(f) as u64;
        return Go { target: f.nothrow, stay: 1 };
    }
    Go { target: f.original, stay: 1 }
}

/// Returns the address of the original if an allocation of `size` bytes is certainly not recorded; 0 if
/// [`before_alloc`] has to decide.
#[inline(always)]
fn goes_on_malloc(size: u64, f: &Function) -> u64 {
    let shared = header::shared();
    let Some(slot) = thread::slot_at_once(shared) else { return 0 };
    // A nested call is not counted.
    let outer = slot.busy_sp.load(Relaxed) | slot.inner_sp.load(Relaxed) == 0;
    if outer && sample::plainly_passes(shared.control(), slot, size) { f.original } else { 0 }
}

/// Returns the address of the original if the freed block is not in the recording, whichever thread frees it; 0 if
/// [`before_free`] has to decide.
#[inline(always)]
fn goes_on_free(addr: u64, f: &Function) -> u64 {
    let shared = header::shared();
    let full = shared.control().samples_full.load(Relaxed) != 0;
    if !full && samples::is_absent(shared, addr) { f.original } else { 0 }
}

/// Returns whether not all blocks are recorded.
#[inline(always)]
fn selecting(shared: &Shared) -> bool {
    shared.control().flags.load(Relaxed) & flags::SELECT != 0
}

/// Notes that a block is recorded, so that its free will be recorded, too.
#[inline(always)]
fn select(shared: &Shared, addr: u64) {
    if selecting(shared) && !samples::insert(shared, addr) {
        shared.control().samples_full.store(1, Relaxed);
    }
}

/// Returns whether the free of this block is recorded, and takes the block out of the set.
#[inline(always)]
pub(crate) fn is_selected(shared: &Shared, addr: u64) -> bool {
    !selecting(shared)
        || samples::remove(shared, addr)
        || shared.control().samples_full.load(Relaxed) != 0
}

/// Returns the slot that [`before_alloc`] has noted, and the thread state if the allocation is to be recorded.
#[inline(always)]
fn noted(call: &Call) -> (&'static Slot, Option<&'static mut Thread>) {
    // SAFETY: `before_alloc` of the same call has set both from references, the second perhaps to null.
    unsafe { (&*(call.note[0] as *const Slot), (call.note[1] as *mut Thread).as_mut()) }
}

/// Clears the note in the frame once the original has returned. A detach searches memory for frames that have
/// a note, as no other trace leads to frames on the stack of a fiber.
#[inline(always)]
pub(crate) fn returned(call: &mut Call) {
    // SAFETY: a field of a valid reference. Volatile, as the compiler sees no reader.
    unsafe { (&raw mut call.note[0]).write_volatile(0) };
}

pub(crate) extern "C" fn after_alloc(call: &mut Call) -> u64 {
    if !header::attached() {
        return 0; // this is a child that was forked meanwhile
    }
    let f = function(call);
    let (slot, t) = noted(call);
    returned(call);
    slot.inner_sp.store(0, Relaxed);
    let mut addr = call.result;
    if f.kind == Kind::PosixMemalign as u32 {
        if addr as u32 != 0 {
            return 0;
        }
        // SAFETY: the call has succeeded, so its first argument points to the result.
        addr = unsafe { (call.args[0] as *const usize).read_unaligned() } as u64;
    }
    if addr == 0 {
        // A throwing operator new found no memory; the throwing form has to report it.
        return if f.nothrow != 0 { f.original } else { 0 };
    }
    let Some(t) = t else { return 0 };
    let shared = header::shared();
    slot.busy_sp.store(call.regs.sp, Relaxed);
    let time = match clock::alone(shared) {
        Some(time) => clock::not_before(shared, t, time),
        None => {
            let owned = t.owned.get(owner::key(shared, addr));
            clock::of_block(shared, t, owned)
        }
    };
    record_alloc(shared, slot, t, call, time, addr);
    count(slot, f);
    clock::spend(shared, slot, time);
    slot.busy_sp.store(0, Relaxed);
    0
}

#[inline(always)]
fn record_alloc(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call, time: Ticks, addr: u64) {
    let f = function(call);
    let Some(node) = stack_node(shared, slot, t, call) else {
        return t.owned.forget(owner::key(shared, addr));
    };
    select(shared, addr);
    let size = block_header::look(f, t, addr, requested(f.kind, &call.args));
    let written = event(shared, slot, t, |c, at| {
        // SAFETY: `event` passes a place of MAX_EVENT bytes.
        unsafe { c.put_alloc(at, time, addr, size, node) }
    });
    if !written {
        t.owned.forget(owner::key(shared, addr));
        t.rate = 0;
    }
}

/// Returns the node of the call's stack, in a segment with room for an event. If there is none, returns
/// `None` and counts a lost event.
#[inline(always)]
pub(crate) fn stack_node(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call) -> Option<u32> {
    let stack = if has_room(shared, slot, t) { capture(shared, slot, t, call) } else { None };
    let Some(stack) = stack else {
        add(&slot.lost, 1);
        return None;
    };
    if stack.cut {
        add(&slot.truncated, 1);
    }
    Some(stack.node)
}

/// Returns the node of a free's stack; 0 if frees are recorded without stacks.
#[inline(always)]
fn free_node(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call) -> Option<u32> {
    if shared.control().flags.load(Relaxed) & flags::FREE_STACKS == 0 {
        return Some(0);
    }
    stack_node(shared, slot, t, call)
}

#[inline(always)]
fn put_free(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call, time: Ticks, addr: u64) {
    let written = match free_node(shared, slot, t, call) {
        Some(node) => event(shared, slot, t, |c, at| {
            // SAFETY: `event` passes a place of MAX_EVENT bytes.
            unsafe { c.put_free(at, time, addr, node) }
        }),
        None => false,
    };
    if !written {
        unseen(shared);
    }
}

/// Invalidates all ownership caches, because a free was lost.
#[cold]
fn unseen(shared: &Shared) {
    shared.control().unseen.fetch_add(1, Relaxed);
}

/// Flag that `before_realloc` leaves in argument 4, which neither the original nor unwinding uses.
pub(crate) const OLD_IS_SELECTED: u64 = 1;

extern "C" fn before_realloc(call: &mut Call) -> Go {
    let go = before_alloc(call);
    if go.stay != 0 {
        let shared = header::shared();
        let (_, t) = noted(call);
        // The call overwrites `result`, so the thread state goes to another unused argument.
        call.args[3] = t.map_or(0, |t| core::ptr::from_mut(t) as u64);
        // Another thread may get the old block as soon as the original runs.
        let old = call.args[0];
        call.args[4] = if old != 0 && is_selected(shared, old) { OLD_IS_SELECTED } else { 0 };
        call.note[1] = clock::before(shared).0;
    }
    go
}

pub(crate) extern "C" fn after_realloc(call: &mut Call) -> u64 {
    if !header::attached() {
        return 0;
    }
    let before = call.note[1];
    call.note[1] = call.args[3];
    let f = function(call);
    let shared = header::shared();
    let (slot, new) = noted(call);
    returned(call);
    slot.inner_sp.store(0, Relaxed);
    let (old, addr) = (call.args[0], call.result);
    let had = call.args[4] == OLD_IS_SELECTED;
    let size = requested(f.kind, &call.args);
    // A size of 0 frees the block.
    if addr == 0 && (old == 0 || size != 0) {
        // The call has failed, and the old block remains.
        if had {
            select(shared, old);
        }
        return 0;
    }
    let is_new = addr != 0 && new.is_some();
    if !is_new && !had {
        return 0;
    }
    // If only the free of the old block is to be recorded, `before_alloc` has left no state.
    let state = new.or_else(|| thread::current(shared).map(|(_, t)| t));
    let Some(t) = state else { return 0 };
    slot.busy_sp.store(call.regs.sp, Relaxed);
    let before = clock::not_before(shared, t, Ticks(before));
    let time = clock::after(shared).max(before);
    count(slot, f);
    t.owned.forget(owner::key(shared, old));
    if !is_new {
        put_free(shared, slot, t, call, before, old);
    } else if old == 0 {
        t.owned.get(owner::key(shared, addr));
        record_alloc(shared, slot, t, call, time, addr);
    } else {
        // This is recorded even if the old block is not: reallocations are counted.
        let node = stack_node(shared, slot, t, call);
        let written = node.is_some_and(|node| {
            select(shared, addr);
            let size = block_header::look(f, t, addr, size);
            event(shared, slot, t, |c, at| {
                // SAFETY: `event` passes a place of MAX_EVENT bytes.
                unsafe { c.put_realloc(at, before, time, old, addr, size, node) }
            })
        });
        if written {
            t.owned.get(owner::key(shared, addr));
        } else {
            t.rate = 0;
            unseen(shared);
        }
    }
    clock::spend(shared, slot, time);
    slot.busy_sp.store(0, Relaxed);
    0
}

/// Records a free; returns `None` if the call is not to be recorded.
#[inline(always)]
fn record_free(call: &mut Call, f: &Function, addr: u64) -> Option<&'static Slot> {
    if addr == 0 {
        return None;
    }
    let shared = header::shared();
    let quiet = shared.control().quiet;
    if call.regs.pc.wrapping_sub(quiet.addr) < quiet.len {
        return None;
    }
    // This check comes first, as it ends most calls if not all blocks are recorded. It does not disturb
    // nested calls: what they free is not in the set, or not any more.
    if !is_selected(shared, addr) {
        return None;
    }
    // Read as early as possible, so that the reading overlaps with what follows.
    let early = clock::alone(shared);
    let Some((slot, t)) = thread::current(shared) else {
        unseen(shared);
        return None;
    };
    let sp = call.regs.sp;
    if !outermost(slot, t, sp) {
        return None;
    }
    slot.busy_sp.store(sp, Relaxed);
    let time = match early {
        // The first event of a thread is excluded: the thread may not have been counted yet when it read the clock.
        Some(time) if !t.head.is_null() => clock::not_before(shared, t, time),
        _ => {
            let owned = t.owned.give(owner::key(shared, addr));
            clock::of_block(shared, t, owned)
        }
    };
    put_free(shared, slot, t, call, time, addr);
    count(slot, f);
    clock::spend(shared, slot, time);
    slot.busy_sp.store(0, Relaxed);
    Some(slot)
}

extern "C" fn before_free(call: &mut Call) -> Go {
    let f = function(call);
    record_free(call, f, call.args[0]);
    pass(f)
}

extern "C" fn before_delete(call: &mut Call) -> Go {
    let f = function(call);
    free_and_stay(call, f, call.args[0])
}

/// Records a free by a function that may itself call a hooked one.
#[inline(always)]
pub(crate) fn free_and_stay(call: &mut Call, f: &Function, block: u64) -> Go {
    let Some(slot) = record_free(call, f, block) else { return pass(f) };
    slot.inner_sp.store(call.regs.sp, Relaxed);
    call.note[0] = core::ptr::from_ref(slot) as u64;
    Go { target: f.original, stay: 1 }
}

pub(crate) extern "C" fn after_delete(call: &mut Call) -> u64 {
    if header::attached() {
        // SAFETY: set from a reference by `before_delete` of the same call.
        unsafe { (*(call.note[0] as *const Slot)).inner_sp.store(0, Relaxed) };
        returned(call);
    }
    0
}

pub(crate) extern "C" fn after_nothing(_: &mut Call) -> u64 {
    0
}

extern "C" fn before_loader(call: &mut Call) -> Go {
    let f = function(call);
    let shared = header::shared();
    if let Some((slot, t)) = thread::current(shared)
        && slot.busy_sp.load(Relaxed) == 0
    {
        slot.busy_sp.store(call.regs.sp, Relaxed);
        let top = t.scratch();
        // SAFETY: the scratch stack is this thread's, and not in use, as the thread was not inside the hook.
        let done = unsafe { call_undisturbed(shared, sync, core::ptr::null_mut(), top) };
        slot.busy_sp.store(0, Relaxed);
        if !done {
            doubt(shared.control());
        }
    } else {
        doubt(shared.control());
    }
    pass(f)
}

/// Option of prctl: from then on reading the processor's counter raises SIGSEGV.
const PR_SET_TSC: u32 = 26;
const PR_TSC_SIGSEGV: u32 = 2;
/// Option of prctl, and the mode in which only four system calls are left; the operation of seccomp(2) for it.
const PR_SET_SECCOMP: u32 = 22;
const SECCOMP_MODE_STRICT: u32 = 1;
const SECCOMP_SET_MODE_STRICT: u32 = 0;

/// Restricts the hook before the target restricts itself: from here on unexpected system calls, or readings
/// of the processor's counter, may kill the target. This comes before the call, since a filter may be for
/// threads that are just allocating.
extern "C" fn before_sandbox(call: &mut Call) -> Go {
    let f = function(call);
    let what = call.args[0];
    if what == f.asks || (f.size_arg != 0 && what == u64::from(f.size_arg)) {
        header::shared().control().flags.fetch_and(!flags::CALLS, Relaxed);
    }
    // The arguments are those of `prctl`, or of `syscall` with prctl's number in front.
    let [number, option, value, ..] = call.args;
    let asked = if f.size_arg != 0 { (number, option) } else { (option, value) };
    let is_prctl = f.size_arg != 0 || number == nr::PRCTL;
    if is_prctl && (asked.0 as u32, asked.1 as u32) == (PR_SET_TSC, PR_TSC_SIGSEGV) {
        clock::close(header::shared());
    }
    let is_strict = match is_prctl {
        true => (asked.0 as u32, asked.1 as u32) == (PR_SET_SECCOMP, SECCOMP_MODE_STRICT),
        // `syscall` with seccomp's number.
        false => number == f.asks && option as u32 == SECCOMP_SET_MODE_STRICT,
    };
    if is_strict {
        clock::stop(header::shared());
    }
    if is_prctl && asked.0 as u32 == calls::PR_SET_VMA {
        let first = if f.size_arg != 0 { 1 } else { 2 };
        calls::name(call, argument(call, first), argument(call, first + 3));
    }
    // Only `syscall` can fork; argument 0 of prctl is an option.
    if f.size_arg == 0 && fork::is_fork(&call.args) {
        return fork::before_fork(call);
    }
    pass(f)
}

/// Returns an argument of prctl or syscall.
fn argument(call: &Call, index: usize) -> u64 {
    /// Number of arguments in registers.
    const IN_REGISTERS: usize = if cfg!(target_arch = "arm") { 4 } else { 6 };
    if index < IN_REGISTERS {
        return call.args.get(index).copied().unwrap_or(0);
    }
    // SAFETY: the function reads this argument itself, from the caller's stack.
    unsafe { memory::load(call.regs.sp + (index - IN_REGISTERS) as u64 * memory::WORD) }
}

unsafe extern "C" fn sync(_: *mut ()) {
    modules::sync(header::shared());
}
