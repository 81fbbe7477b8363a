//! A fork by a signal handler that has interrupted the hook.
//!
//! A child has nothing of the shared memory, and no call of it comes to the hook. But when the handler
//! returns, the child goes on in the midst of the call that was interrupted, with addresses of that memory in its
//! registers. So who forks with anything of prof's on the stack takes along a copy of what such a call
//! works on, and the child puts it at its place, in memory of its own. The call ends there, and what it
//! writes nobody reads. Of all the rest the child finds zeroes, which everywhere mean that there is nothing.

use crate::entry::{function, pass};
use crate::state::Thread;
use crate::{extent, header, sys, thread};
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::capture::{Call, Go, copy_forward};
use prof_arch::native::syscall::nr;
use prof_trace::shared::{Control, FUNCTIONS, Function, Shared, Slot};

prof_arch::hook_entry!(
    /// fork.
    fork, before_fork, after_fork);

/// A part of the shared memory in the copy.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Piece {
    /// Its address in the shared memory.
    addr: u64,
    len: u64,
    /// Where in the copy it begins.
    at: u64,
}

/// What a child is given: stands in front of the pieces.
#[repr(C)]
struct Copy {
    /// Bytes of the mapping that this begins.
    len: u64,
    /// Where the shared memory is, and its length.
    ring: (u64, u64),
    /// Bytes of it in front of the threads' states.
    front: u64,
    /// The state of the thread that forks; 0: it has none.
    state: (u64, u64),
    pieces: [Piece; PIECES],
}

const PIECES: usize = 4;
/// The pieces begin at multiples of this.
const ALIGN: u64 = 64;

/// Whether a system call makes a child with memory of its own, on the stack of its parent.
pub(crate) fn is_fork(args: &[u64; 6]) -> bool {
    const CLONE_VM: u64 = 0x100;
    // Further arguments of it stand on the stack there.
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
    // A handler is in the midst of a call, if so: nothing of the thread's is touched.
    let copy = if may_be_inside(shared, call.regs.sp) { take(shared) } else { 0 };
    call.note[0] = copy;
    if copy == 0 { pass(f) } else { Go { target: f.original, stay: 1 } }
}

/// In the parent as in the child.
pub(crate) extern "C" fn after_fork(call: &mut Call) -> u64 {
    let at = call.note[0];
    // SAFETY: `take` has mapped and filled it in, and the child has a copy of it.
    let copy = unsafe { &*(at as *const Copy) };
    if !header::attached() {
        put(copy, at);
    }
    sys::unmap(at, copy.len);
    0
}

/// Whether the thread may be inside of prof's code with a handler on top of that: on a stack for signals or of a
/// fiber, nobody knows; on its own, if anything there leads to prof's code or memory.
fn may_be_inside(shared: &Shared, sp: u64) -> bool {
    if !sys::allowed(shared) {
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
        // SAFETY: on the thread's own stack, which reaches to `end`.
        let word = unsafe { crate::memory::load(at) };
        let found = within(word, c.hook_addr, c.hook_len)
            || within(word, c.ring_addr, c.ring_len)
            || c.stubs.iter().take_while(|s| s.len != 0).any(|s| within(word, s.addr, s.len));
        if found {
            return true;
        }
        at += size_of::<usize>() as u64;
    }
    false
}

/// Copies what a call of this thread works on; returns the address of the copy, 0 if there is no memory for it.
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
        // Only who is busy is in the midst of working with all of it.
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
        // SAFETY: within the shared memory, and within what was just mapped.
        unsafe { copy_forward((at + p.at) as *mut u8, p.addr as *const u8, p.len as usize) };
    }
    let copy = Copy { len, ring: (ring, c.ring_len), front: c.states_addr - ring, state, pieces };
    // SAFETY: at the beginning of what was just mapped, in front of the pieces.
    unsafe { (at as *mut Copy).write(copy) };
    at
}

/// Puts the copy, which begins at `at`, where the shared memory was.
fn put(copy: &Copy, at: u64) {
    let (ring, len) = copy.ring;
    // All of it, of which next to nothing is ever made; where address space is limited, what is needed.
    let mapped = sys::map(ring, len) != 0
        || (sys::map(ring, copy.front) != 0 && sys::map(copy.state.0, copy.state.1) != 0);
    if !mapped {
        return;
    }
    for p in &copy.pieces {
        // SAFETY: mapped just now, or in the copy.
        unsafe { copy_forward(p.addr as *mut u8, (at + p.at) as *const u8, p.len as usize) };
    }
    // SAFETY: this process's own by now, and no other thread of it is there.
    unsafe { (&raw mut (*(ring as *mut Control)).main_tid).write(sys::getpid()) };
}
