//! A fork: what the child gets of prof's memory.
//!
//! The child of an ordinary fork gets nothing, or shared memory of its own if it is to be recorded ([`heir`]).
//!
//! A signal handler may fork that has interrupted the hook. The child has nothing of the shared memory, and none
//! of its calls comes to the hook. But when the handler returns, the child continues in the middle of the interrupted call, with addresses of that memory in its
//! registers. So if anything of prof's is on the stack, the parent copies the memory that such a call works
//! on, and the child puts the copy in place, in private memory. The call ends there, and nobody reads what it
//! writes. In all other parts the child finds zeroes, which everywhere mean that there is nothing.

use crate::mapping::Shared;
use crate::original::{function, pass};
use crate::state::Thread;
use crate::{extent, header, heir, sys, thread};
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::capture::{Call, Go, copy_forward};
use prof_arch::native::syscall::nr;
use prof_trace::shared::{Control, FUNCTIONS, Function, SharedArea, Slot};

prof_arch::hook_entry!(
    /// Entry of fork.
    fork, before_fork, after_fork);

/// A part of the shared memory in the copy.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Piece {
    /// Address in the shared memory.
    addr: u64,
    len: u64,
    /// Offset in the copy.
    at: u64,
}

/// Head of the copy that a child gets; the pieces follow it.
#[repr(C)]
struct Copy {
    /// Length of the mapping with the copy, in bytes.
    len: u64,
    /// Address and length of the shared memory.
    ring: (u64, u64),
    /// Bytes of the shared memory in front of the thread states.
    front: u64,
    /// Address and length of the state of the forking thread; 0: it has none.
    state: (u64, u64),
    pieces: [Piece; PIECES],
}

const PIECES: usize = 4;
/// Alignment of the pieces in the copy.
const ALIGN: u64 = 64;

/// Returns whether a system call creates a child with memory of its own that runs on its parent's stack.
pub(crate) fn is_fork(args: &[u64; 6]) -> bool {
    const CLONE_VM: u64 = 0x100;
    // On ARM, further arguments of `syscall` are on the stack.
    const IN_REGISTERS: bool = !cfg!(target_arch = "arm");
    match args[0] {
        nr::FORK => true,
        nr::CLONE => IN_REGISTERS && args[1] & CLONE_VM == 0 && args[2] == 0,
        nr::CLONE3 => {
            let mut flags = [0; 8];
            crate::memory::read(header::shared(), args[1], &mut flags)
                && u64::from_ne_bytes(flags) & CLONE_VM == 0
        }
        _ => false,
    }
}

pub(crate) extern "C" fn before_fork(call: &mut Call) -> Go {
    let f = function(call);
    let shared = header::shared();
    // A handler may run in the middle of a call: nothing of the thread's state is changed.
    let wanted = heir::are_wanted(shared);
    let heir = if wanted && !is_marked(shared) { heir::make(shared) } else { 0 };
    let copy = if heir == 0 && may_be_inside(shared, call.regs.sp) { take(shared) } else { 0 };
    call.note = [copy, heir];
    if copy == 0 && !wanted { pass(f) } else { Go { target: f.original, stay: 1 } }
}

/// Runs in the parent and in the child.
pub(crate) extern "C" fn after_fork(call: &mut Call) -> u64 {
    let [at, heir] = call.note;
    let is_child = !header::attached();
    if at != 0 {
        // SAFETY: `take` has mapped and filled in the copy; the child has inherited it.
        let copy = unsafe { &*(at as *const Copy) };
        if is_child {
            put(copy, at);
        }
        sys::unmap(at, copy.len);
    }
    match (is_child, at) {
        (true, 0) => heir::inherit(heir),
        // The child may go on where its parent was making memory for another one, which stays mapped for that.
        (true, _) => {}
        (false, _) => heir::discard(heir),
    }
    0
}

/// Returns whether this thread is in the midst of recording a call. Where words on its stack lead to prof's code without
/// that, they are left from earlier calls, or the thread was interrupted on the first or last few instructions of one: in a child
/// with shared memory of its own it goes on there with its slot, and a new state.
pub(crate) fn is_marked(shared: &Shared) -> bool {
    let slot = thread::place_of_own(shared).and_then(|index| shared.slot(index));
    slot.is_some_and(|s| s.busy_sp.load(Relaxed) != 0 || s.inner_sp.load(Relaxed) != 0)
}

/// Returns whether a handler may be running on top of prof's code in this thread. On a signal stack or a
/// fiber's this can't be told, so it may; on the thread's own stack it may if any word there leads to prof's
/// code or memory.
fn may_be_inside(shared: &Shared, sp: u64) -> bool {
    if !sys::may_map(shared) {
        return false;
    }
    if sys::is_on_signal_stack(shared, sp) {
        return true;
    }
    let Some(end) = extent::end_of_own(shared, sp) else { return true };
    let c = shared.control();
    let within = |addr: u64, start: u64, len: u64| addr.wrapping_sub(start) < len;
    let mut at = sp & !(size_of::<usize>() as u64 - 1);
    while at + size_of::<usize>() as u64 <= end {
        // SAFETY: the word is on the thread's own stack, which reaches to `end`.
        let word = unsafe { crate::memory::load(at) };
        let found = within(word, c.hook_addr, c.hook_len)
            || within(word, c.ring_addr.load(Relaxed), c.ring_len.load(Relaxed))
            || c.stubs
                .iter()
                .map(SharedArea::get)
                .take_while(|s| s.len != 0)
                .any(|s| within(word, s.addr, s.len));
        if found {
            return true;
        }
        at += size_of::<usize>() as u64;
    }
    false
}

/// Copies what a call of this thread works on; returns the address of the copy, 0 if there is no memory for
/// it.
fn take(shared: &Shared) -> u64 {
    let c = shared.control();
    let ring = shared.base() as u64;
    let piece =
        |offset: usize, len: usize| Piece { addr: ring + offset as u64, len: len as u64, at: 0 };
    let functions = (c.functions.load(Relaxed) as usize).min(FUNCTIONS);
    let mut pieces = [
        piece(0, size_of::<Control>()),
        piece(Shared::function_offset(0), functions * size_of::<Function>()),
        Piece::default(),
        Piece::default(),
    ];
    let mut state = (0, 0);
    if let Some(index) = thread::place_of_own(shared)
        && let Some(slot) = shared.slot(index)
    {
        state = (c.states_addr + index as u64 * c.states_stride, c.states_stride);
        // Only a thread inside the hook works on all of its state.
        let busy = slot.busy_sp.load(Relaxed) != 0;
        let len = if busy { state.1 } else { offset_of!(Thread, owned) as u64 };
        pieces[2] = piece(Shared::slot_offset(index), size_of::<Slot>());
        pieces[3] = Piece { addr: state.0, len, at: 0 };
    }
    let mut len = (size_of::<Copy>() as u64).next_multiple_of(ALIGN);
    for p in &mut pieces {
        p.at = len;
        len += p.len.next_multiple_of(ALIGN);
    }
    let at = sys::map(0, len);
    if at == 0 {
        return 0;
    }
    for p in &pieces {
        // SAFETY: the source is in the shared memory, the destination in the new mapping.
        unsafe { copy_forward((at + p.at) as *mut u8, p.addr as *const u8, p.len as usize) };
    }
    let copy = Copy {
        len,
        ring: (ring, c.ring_len.load(Relaxed)),
        front: c.states_addr - ring,
        state,
        pieces,
    };
    // SAFETY: the new mapping begins with room for it, in front of the pieces.
    unsafe { (at as *mut Copy).write(copy) };
    at
}

/// Puts the pieces of the copy, which begins at `at`, where they were in the shared memory.
fn put(copy: &Copy, at: u64) {
    let (ring, len) = copy.ring;
    // All of the shared memory is mapped, of which few pages are ever allocated; if address space is limited,
    // only what is needed.
    let mapped = sys::map(ring, len) != 0
        || (sys::map(ring, copy.front) != 0 && sys::map(copy.state.0, copy.state.1) != 0);
    if !mapped {
        return;
    }
    for p in &copy.pieces {
        // SAFETY: the destination was just mapped, the source is in the copy.
        unsafe { copy_forward(p.addr as *mut u8, (at + p.at) as *const u8, p.len as usize) };
    }
    // SAFETY: the page is this process's own by now, and no other thread of the process exists.
    unsafe { (&raw mut (*(ring as *mut Control)).main_tid).write(sys::getpid()) };
}
