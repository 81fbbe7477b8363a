//! The calls of hooked functions: before and after the original.
//!
//! A call counts once, at the outermost hooked function ([`Slot::inner_sp`] is set while the
//! original runs). Memory that is given back is recorded before the original runs, since another
//! thread may get it while it does; memory that is handed out is recorded after.

use crate::header::HEADER;
use crate::record::{add, event, has_room};
use crate::stack::{call_undisturbed, capture};
use crate::state::Thread;
use crate::{
    chunk, clock, extent, fork, header, left, memory, modules, owner, sample, sys, thread,
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
    Control, FUNCTIONS, Function, HookHeader, Kind, MARKS_AT, SAMPLE_MARKS, Shared, Slot, flags,
};

prof_arch::hook_entry!(
    /// malloc and everything that hands out a new block.
    alloc, before_alloc, after_alloc);
prof_arch::hook_entry!(
    /// realloc, reallocarray.
    realloc, before_realloc, after_realloc);
prof_arch::hook_entry!(
    /// free.
    free, before_free, after_nothing);
prof_arch::hook_entry!(
    /// operator delete and others that may end in free.
    delete, before_delete, after_delete);
prof_arch::hook_entry!(
    /// The dynamic linker's list of modules changes.
    loader, before_loader, after_nothing);
prof_arch::hook_entry!(
    /// prctl and syscall.
    sandbox, before_sandbox, fork::after_fork);

/// The marks of memory in which recorded blocks begin.
const MARKS: Marks = Marks {
    base: offset_of!(HookHeader, shared),
    first: MARKS_AT,
    count: SAMPLE_MARKS,
    granule: samples::MARKED as usize,
    void: offset_of!(Control, samples_full),
    original: offset_of!(Function, original),
};

// Where not all blocks are recorded: most calls go on at once.
prof_arch::pass_entry!(
    /// malloc, where it ends in no other hooked function.
    pass_malloc, goes_on_malloc, alloc);
prof_arch::pass_entry!(
    /// free.
    pass_free, goes_on_free, free, HEADER, MARKS);
prof_arch::pass_entry!(
    /// operator delete and others that may end in free.
    pass_delete, goes_on_free, delete, HEADER, MARKS);

pub(crate) fn function(call: &Call) -> &'static Function {
    // SAFETY: the stub passes the address of its descriptor in the shared memory, which is mapped
    // for as long as the stub is.
    unsafe { &*(call.function as *const Function) }
}

/// To the original, without coming back here.
#[inline(always)]
pub(crate) fn pass(f: &Function) -> Go {
    Go { target: f.original, stay: 0 }
}

/// Whether the thread may record this call: it is neither inside the hook nor inside an original.
///
/// A mark that stands for a frame below the stack pointer is stale: the frame was left by longjmp
/// or by an exception. On another stack (a signal handler's) that can't be told; then an original
/// is interrupted at worst, and what it allocates meanwhile is recorded as its own.
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
fn stale(slot: &Slot, t: &mut Thread, sp: u64, busy: u64, inner: u64) -> bool {
    if busy != 0 {
        // The hook's own code was interrupted by a signal whose handler allocates. Its work must
        // not be disturbed, unless the handler has plainly left it behind, which takes a jump
        // that no handler does on this stack while the frame is live.
        let shared = header::shared();
        let above = sp >= busy && sp - busy < 1 << 16;
        if (above && !sys::is_on_signal_stack(shared, sp)) || !left::is_there(shared, busy) {
            // Who interrupts this finds a frame that is there.
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
    // At the same place as well: what the original itself calls is further down, so this is another call
    // after one that was left by an exception.
    let at = inner & !NAMED;
    if sp >= at || (inner & NAMED != 0 && was_left(t, sp, at)) {
        slot.inner_sp.store(0, Relaxed);
        add(&slot.abandoned, 1);
        return true;
    }
    false
}

/// Set in [`Slot::inner_sp`] if the original is one that exceptions may pass through.
pub(crate) const NAMED: u64 = 1;

/// Whether the frame of a named function's original, at this stack pointer of its caller, is not there any more: an
/// exception, a jump or the thread's cancellation has passed through it. The return address that it has while
/// it lasts may stand there for longer where nobody has written over it; then what follows is taken for a part of it.
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
        // SAFETY: on a stack that this thread is known to have.
        return unsafe { memory::load(place) } != stable.bridge;
    }
    let mut word = [0; 8];
    memory::read(shared, place, &mut word) && u64::from_ne_bytes(word) != stable.bridge
}

#[inline(always)]
fn count(slot: &Slot, f: &Function) {
    if let Some(c) = slot.calls.get((f.index as usize).min(FUNCTIONS - 1)) {
        add(c, 1);
    }
}

/// The bytes that an argument list asks for; more than there are if their product overflows, as such a
/// call fails.
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
        && !sample::selects(shared.control(), slot, requested(f.kind, &call.args))
    {
        // What it ends in is not asked again: that would pick more blocks than it should.
        core::ptr::null_mut()
    } else {
        core::ptr::from_mut(t)
    };
    slot.inner_sp.store(sp, Relaxed);
    call.note = [core::ptr::from_ref(slot) as u64, t as u64];
    if f.nothrow != 0 {
        // The form that does not throw, as an exception must not pass through this frame. Its tag
        // argument is an empty object, whose address nobody looks at.
        let tag = if f.kind == Kind::New as u32 { 1 } else { 2 };
        call.args[tag] = core::ptr::from_ref(f) as u64;
        return Go { target: f.nothrow, stay: 1 };
    }
    Go { target: f.original, stay: 1 }
}

/// Where to go on with an allocation of `size` bytes that is plainly not to be recorded; else 0.
#[inline(always)]
fn goes_on_malloc(size: u64, f: &Function) -> u64 {
    let shared = header::shared();
    let Some(slot) = thread::slot_at_once(shared) else { return 0 };
    // Inside another one it is not counted.
    let outer = slot.busy_sp.load(Relaxed) | slot.inner_sp.load(Relaxed) == 0;
    if outer && sample::plainly_passes(shared.control(), slot, size) { f.original } else { 0 }
}

/// The same for a block that is given back. Its end is of no interest if it is not in the recording,
/// whoever gives it back.
#[inline(always)]
fn goes_on_free(addr: u64, f: &Function) -> u64 {
    let shared = header::shared();
    let full = shared.control().samples_full.load(Relaxed) != 0;
    if !full && samples::is_absent(shared, addr) { f.original } else { 0 }
}

/// Whether not all blocks are recorded.
#[inline(always)]
fn selecting(shared: &Shared) -> bool {
    shared.control().flags.load(Relaxed) & flags::SELECT != 0
}

/// Notes that a block is in the recording, so that its end will be, too.
#[inline(always)]
fn select(shared: &Shared, addr: u64) {
    if selecting(shared) && !samples::insert(shared, addr) {
        shared.control().samples_full.store(1, Relaxed);
    }
}

/// Whether the end of this block is to be recorded.
#[inline(always)]
pub(crate) fn is_selected(shared: &Shared, addr: u64) -> bool {
    !selecting(shared)
        || samples::remove(shared, addr)
        || shared.control().samples_full.load(Relaxed) != 0
}

/// What `before` left: no thread state where the allocation is not to be recorded.
#[inline(always)]
fn noted(call: &Call) -> (&'static Slot, Option<&'static mut Thread>) {
    // SAFETY: set from references by `before` of the same call, but for a null.
    unsafe { (&*(call.note[0] as *const Slot), (call.note[1] as *mut Thread).as_mut()) }
}

/// Notes in the frame that its original has returned: a detach looks for frames of which that is not so, as
/// they may be on the stack of a fiber, where only they themselves are found.
#[inline(always)]
fn returned(call: &mut Call) {
    // SAFETY: a field of ours; volatile, as nobody seems to read it.
    unsafe { (&raw mut call.note[0]).write_volatile(0) };
}

pub(crate) extern "C" fn after_alloc(call: &mut Call) -> u64 {
    if !header::attached() {
        return 0; // a child that was forked meanwhile
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
        // A throwing operator new that found no memory: the real one shall say so.
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
    slot.busy_sp.store(0, Relaxed);
    0
}

#[inline(always)]
fn record_alloc(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call, time: u64, addr: u64) {
    let f = function(call);
    let Some(node) = stack_node(shared, slot, t, call) else {
        return t.owned.forget(owner::key(shared, addr));
    };
    select(shared, addr);
    let size = chunk::look(f, t, addr, requested(f.kind, &call.args));
    let written = event(shared, slot, t, |c, at| {
        // SAFETY: `event` passes a place of MAX_EVENT bytes.
        unsafe { c.put_alloc(at, time, addr, size, node) }
    });
    if !written {
        t.owned.forget(owner::key(shared, addr));
    }
}

/// The node of the call's stack, in a segment with room for an event; `None`, and the event is counted
/// as lost, if there is none.
#[inline(always)]
fn stack_node(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call) -> Option<u32> {
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

/// The same for memory that is given back: 0 if the recording does not ask for it.
#[inline(always)]
fn free_node(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call) -> Option<u32> {
    if shared.control().flags.load(Relaxed) & flags::FREE_STACKS == 0 {
        return Some(0);
    }
    stack_node(shared, slot, t, call)
}

#[inline(always)]
fn put_free(shared: &Shared, slot: &Slot, t: &mut Thread, call: &Call, time: u64, addr: u64) {
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

/// The end of a block was lost: what threads know of blocks is void.
#[cold]
fn unseen(shared: &Shared) {
    shared.control().unseen.fetch_add(1, Relaxed);
}

/// What `before_realloc` leaves in argument 4, where neither the original nor unwinding looks.
pub(crate) const OLD_IS_SELECTED: u64 = 1;

extern "C" fn before_realloc(call: &mut Call) -> Go {
    let go = before_alloc(call);
    if go.stay != 0 {
        let shared = header::shared();
        let (_, t) = noted(call);
        // `result` is overwritten by the call: the thread's state goes to another unused argument.
        call.args[3] = t.map_or(0, |t| core::ptr::from_mut(t) as u64);
        // The old block may be somebody else's as soon as the original runs.
        let old = call.args[0];
        call.args[4] = if old != 0 && is_selected(shared, old) { OLD_IS_SELECTED } else { 0 };
        call.note[1] = clock::before(shared);
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
    // A size of 0 gives the block back.
    if addr == 0 && (old == 0 || size != 0) {
        // Failed, and the old block stands.
        if had {
            select(shared, old);
        }
        return 0;
    }
    let is_new = addr != 0 && new.is_some();
    if !is_new && !had {
        return 0;
    }
    // Where only the end of the old block is to be recorded, `before` has left none.
    let state = new.or_else(|| thread::current(shared).map(|(_, t)| t));
    let Some(t) = state else { return 0 };
    slot.busy_sp.store(call.regs.sp, Relaxed);
    let before = clock::not_before(shared, t, before);
    let time = clock::after(shared).max(before);
    count(slot, f);
    t.owned.forget(owner::key(shared, old));
    if !is_new {
        put_free(shared, slot, t, call, before, old);
    } else if old == 0 {
        t.owned.get(owner::key(shared, addr));
        record_alloc(shared, slot, t, call, time, addr);
    } else {
        // Also if the old block is not in the recording: that a block was reallocated counts.
        let node = stack_node(shared, slot, t, call);
        let written = node.is_some_and(|node| {
            select(shared, addr);
            let size = chunk::look(f, t, addr, size);
            event(shared, slot, t, |c, at| {
                // SAFETY: `event` passes a place of MAX_EVENT bytes.
                unsafe { c.put_realloc(at, before, time, old, addr, size, node) }
            })
        });
        if written {
            t.owned.get(owner::key(shared, addr));
        } else {
            unseen(shared);
        }
    }
    slot.busy_sp.store(0, Relaxed);
    0
}

/// Records a free; `None` if the call is not to be recorded.
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
    // First, as most are not where not all are recorded. Hooked functions that are entered from others
    // are not disturbed: what they free is not in the set, or not any more.
    if !is_selected(shared, addr) {
        return None;
    }
    // As early as can be: what it takes goes on beside what follows.
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
        // A thread that was not counted yet may have read the clock as if there were no other.
        Some(time) if !t.head.is_null() => clock::not_before(shared, t, time),
        _ => {
            let owned = t.owned.give(owner::key(shared, addr));
            clock::of_block(shared, t, owned)
        }
    };
    put_free(shared, slot, t, call, time, addr);
    count(slot, f);
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

/// Records the free of a block by a function that may itself end in a hooked one.
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

extern "C" fn after_nothing(_: &mut Call) -> u64 {
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
        // SAFETY: the scratch stack is this thread's, and free: it is not inside the hook.
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

/// Of prctl: from now on a thread that reads the processor's counter gets SIGSEGV.
const PR_SET_TSC: u32 = 26;
const PR_TSC_SIGSEGV: u32 = 2;

/// From here on system calls that the target does not expect may kill it, or a look at the processor's counter.
/// This comes before the call, since the filter may be for threads that are just allocating.
extern "C" fn before_sandbox(call: &mut Call) -> Go {
    let f = function(call);
    let what = call.args[0];
    if what == f.nothrow || (f.size_arg != 0 && what == u64::from(f.size_arg)) {
        let both = flags::SYSCALLS | flags::MASKS;
        header::shared().control().flags.fetch_and(!both, Relaxed);
    }
    // Of `prctl`, or of `syscall` with its number.
    let [number, option, value, ..] = call.args;
    let asked = if f.size_arg != 0 { (number, option) } else { (option, value) };
    let is_prctl = f.size_arg != 0 || number == nr::PRCTL;
    if is_prctl && (asked.0 as u32, asked.1 as u32) == (PR_SET_TSC, PR_TSC_SIGSEGV) {
        clock::close(header::shared());
    }
    // Of `syscall`; prctl has numbers of its own.
    if f.size_arg == 0 && fork::is_fork(&call.args) {
        return fork::before_fork(call);
    }
    pass(f)
}

unsafe extern "C" fn sync(_: *mut ()) {
    modules::sync(header::shared());
}
