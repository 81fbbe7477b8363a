//! Functions whose arguments are in other places than malloc's and free's: those that the user has named, and
//! jemalloc's in-place resizing. Each presents its arguments where the usual functions have them, before and
//! after the original, which gets its own.

use crate::entry::{
    NAMED, OLD_IS_SELECTED, after_alloc, after_delete, after_realloc, before_alloc, free_and_stay,
    is_selected,
};
use crate::original::function;
use crate::{clock, extent, header, memory, thread};
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::bridge::{Layout, Loads, STACK_WORDS, lay_out};
use prof_arch::native::capture::{Call, Go};
use prof_trace::shared::{Function, Slot};

prof_arch::hook_entry_many!(
    /// Entry of a function that returns a block.
    alloc, before_named_alloc, after_named_alloc);
prof_arch::hook_entry_many!(
    /// Entry of a function that exchanges one block for another.
    realloc, before_named_realloc, after_named_realloc);
prof_arch::hook_entry_many!(
    /// Entry of a function that frees a block.
    free, before_named_free, after_delete);
prof_arch::hook_entry_many!(
    /// Entry of xallocx.
    resize, before_resize, after_resize);

/// Flag that `before` leaves in the low bits of the slot's address: the old block is in the recording.
const HAD: u64 = 1;
/// Flag beside it: the new block is to be recorded.
const NEW: u64 = 2;
const BITS: u64 = HAD | NEW;

/// Offset at which the entries find the size of the original's frame.
pub(crate) const FRAME: usize = core::mem::offset_of!(Function, frame);

/// Lays out the frame of the original. The entries call this.
pub(crate) extern "C" fn named_frame(
    call: &Call,
    loads: &mut Loads,
    come_back: u64,
    returned: u64,
) {
    let f = function(call);
    let (back, frame, register, slots) = (f.back, f.frame, f.back_register, f.back_slots);
    let layout = Layout { back, frame, register, slots, words: stack_words(call) };
    // SAFETY: the entry has left room for the frame, and `words` words can be read.
    unsafe { lay_out(call, &layout, loads, come_back, returned) };
}

/// Returns how many words behind the call's return address can be read, where further arguments may be. The
/// stack of a fiber may end there.
fn stack_words(call: &Call) -> usize {
    const PAGE: u64 = 4096;
    let at = call.regs.sp;
    let here = (PAGE - (at & (PAGE - 1))) as usize / size_of::<usize>();
    let next = (at | (PAGE - 1)).wrapping_add(1);
    let shared = header::shared();
    let goes_on = || {
        memory::read(shared, next, &mut [0])
            || thread::current(shared).is_some_and(|(_, t)| extent::is_known(t, next))
    };
    if here >= STACK_WORDS || goes_on() { STACK_WORDS } else { here }
}

fn argument(call: &Call, index: u8) -> u64 {
    call.args.get(index as usize).copied().unwrap_or(0)
}

/// Calls `before_alloc` as if these were the first arguments of the call.
fn before_usual(call: &mut Call, first: u64, second: u64) -> Go {
    let own = call.args;
    call.args[0] = first;
    call.args[1] = second;
    let go = before_alloc(call);
    call.args = own;
    mark(call, go)
}

/// Marks the original as one that exceptions may pass through.
fn mark(call: &Call, go: Go) -> Go {
    if go.stay != 0 {
        // SAFETY: a call that stays has left a reference to its slot.
        let slot = unsafe { &*(call.note[0] as *const Slot) };
        slot.inner_sp.store(call.regs.sp | NAMED, Relaxed);
    }
    go
}

extern "C" fn before_named_alloc(call: &mut Call) -> Go {
    let size = argument(call, function(call).size_arg);
    before_usual(call, size, 0)
}

extern "C" fn after_named_alloc(call: &mut Call) -> u64 {
    call.args[0] = argument(call, function(call).size_arg);
    after_alloc(call)
}

extern "C" fn before_named_realloc(call: &mut Call) -> Go {
    let f = function(call);
    let (block, size) = (argument(call, f.block_arg), argument(call, f.size_arg));
    before_exchange(call, block, size)
}

extern "C" fn after_named_realloc(call: &mut Call) -> u64 {
    let f = function(call);
    let (block, size) = (argument(call, f.block_arg), argument(call, f.size_arg));
    after_exchange(call, block, size)
}

extern "C" fn before_resize(call: &mut Call) -> Go {
    let (block, size) = (call.args[0], call.args[1]);
    before_exchange(call, block, size)
}

extern "C" fn after_resize(call: &mut Call) -> u64 {
    let (block, size, extra) = (call.args[0], call.args[1], call.args[2]);
    let result = call.result;
    if result >= size {
        call.result = block;
        after_exchange(call, block, result.min(size.saturating_add(extra)));
    } else {
        // The size is as before, so this is handled as a failed reallocation.
        call.result = 0;
        after_exchange(call, block, size.max(1));
    }
    call.result = result;
    0
}

/// Does what `before_realloc` does, but leaves nothing in the arguments: the original may have more of them
/// than realloc.
fn before_exchange(call: &mut Call, block: u64, size: u64) -> Go {
    let go = before_usual(call, block, size);
    if go.stay != 0 {
        let shared = header::shared();
        if call.note[1] != 0 {
            call.note[0] |= NEW;
        }
        // Another thread may get the old block as soon as the original runs.
        if block != 0 && is_selected(shared, block) {
            call.note[0] |= HAD;
        }
        call.note[1] = clock::before(shared).0;
    }
    go
}

/// Puts the notes where `after_realloc` expects those of `before_realloc`.
fn after_exchange(call: &mut Call, block: u64, size: u64) -> u64 {
    if !header::attached() {
        return 0; // this is a child that was forked meanwhile
    }
    let bits = call.note[0] & BITS;
    call.note[0] &= !BITS;
    let state =
        || thread::current(header::shared()).map_or(0, |(_, t)| core::ptr::from_mut(t) as u64);
    call.args[0] = block;
    call.args[1] = size;
    call.args[3] = if bits & NEW != 0 { state() } else { 0 };
    call.args[4] = if bits & HAD != 0 { OLD_IS_SELECTED } else { 0 };
    after_realloc(call)
}

extern "C" fn before_named_free(call: &mut Call) -> Go {
    let f = function(call);
    let go = free_and_stay(call, f, argument(call, f.block_arg));
    mark(call, go)
}
