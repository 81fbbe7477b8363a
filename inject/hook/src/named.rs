//! Functions whose arguments stand elsewhere than malloc's and free's: those that the user has named, and
//! jemalloc's resizing in place. Each shows its arguments where the usual ones have them, before and after
//! the original has run, which gets its own.

use crate::entry::{
    OLD_IS_SELECTED, after_alloc, after_delete, after_realloc, before_alloc, free_and_stay,
    function, is_selected,
};
use crate::{clock, header, thread};
use prof_arch::native::capture::{Call, Go};

prof_arch::hook_entry_many!(
    /// A function that hands out a block.
    alloc, before_named_alloc, after_named_alloc);
prof_arch::hook_entry_many!(
    /// A function that gives one block for another.
    realloc, before_named_realloc, after_named_realloc);
prof_arch::hook_entry_many!(
    /// A function that takes a block back.
    free, before_named_free, after_delete);
prof_arch::hook_entry_many!(
    /// xallocx.
    resize, before_resize, after_resize);

/// What `before` leaves in the low bits of the slot's address: the old block is in the recording.
const HAD: u64 = 1;
/// The same for the new block: it is to be.
const NEW: u64 = 2;
const BITS: u64 = HAD | NEW;

fn argument(call: &Call, index: u8) -> u64 {
    call.args.get(index as usize).copied().unwrap_or(0)
}

/// `before_alloc` for a call whose first arguments were these.
fn before_usual(call: &mut Call, first: u64, second: u64) -> Go {
    let own = call.args;
    call.args[0] = first;
    call.args[1] = second;
    let go = before_alloc(call);
    call.args = own;
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
        // It is as large as before: as a reallocation that has failed.
        call.result = 0;
        after_exchange(call, block, size.max(1));
    }
    call.result = result;
    0
}

/// What realloc's own `before` does, with nothing left among the arguments: the original may have more
/// of them than realloc.
fn before_exchange(call: &mut Call, block: u64, size: u64) -> Go {
    let go = before_usual(call, block, size);
    if go.stay != 0 {
        let shared = header::shared();
        if call.note[1] != 0 {
            call.note[0] |= NEW;
        }
        // The old block may be somebody else's as soon as the original runs.
        if block != 0 && is_selected(shared, block) {
            call.note[0] |= HAD;
        }
        call.note[1] = clock::before(shared);
    }
    go
}

/// Puts everything where `after_realloc` looks for what `before_realloc` has left.
fn after_exchange(call: &mut Call, block: u64, size: u64) -> u64 {
    if !header::attached() {
        return 0; // a child that was forked meanwhile
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
    free_and_stay(call, f, argument(call, f.block_arg))
}
