//! Calls of the hook that a thread has left by a jump.
//!
//! A signal handler may interrupt the hook and leave by `siglongjmp`. The mark that the thread is inside then
//! stays behind, and the next calls look like those of a handler, which must not touch the interrupted work.
//! The stack shows whether the frame of the interrupted call still exists: the words that an entry puts there
//! do not change while the call lasts.

use crate::mapping::Shared;
use crate::memory;
use crate::state::{SeenCode, SeenName, Thread};
use crate::sys;
use core::mem::offset_of;
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::Regs;
use prof_arch::native::capture::Call;
use prof_trace::ids::PcId;
use prof_trace::ring;
use prof_trace::shared::{FUNCTIONS, Function, Slot, segment};

/// Maximum distance from the caller's stack pointer down to a [`Call`], without the frame of a named
/// function.
const NEAR: u64 = 1024;
/// Bytes read at a time; a page is a multiple of it.
const PIECE: usize = 256;
/// Distance from the function of a [`Call`] to its stack pointer, in words of 8 bytes.
const APART: usize =
    (offset_of!(Call, regs) + offset_of!(Regs, sp) - offset_of!(Call, function)) / 8;

/// Returns whether the frame of the call that was made at this stack pointer is still on the stack; true if
/// the stack can't be read.
pub(crate) fn is_there(shared: &Shared, sp: u64) -> bool {
    if !sys::allowed(shared) {
        return true;
    }
    let functions = shared.base() as u64 + Shared::function_offset(0) as u64;
    let is_function =
        |word: u64| word.wrapping_sub(functions) < (FUNCTIONS * size_of::<Function>()) as u64;
    let low = sp.saturating_sub(NEAR + shared.control().stable.bridge_frame);
    let mut at = low & !(PIECE as u64 - 1);
    // The preceding words, the nearest first.
    let mut last = [0u64; APART];
    while at < sp {
        let mut bytes = [0; PIECE];
        // Unmapped memory holds no frame.
        if memory::read(shared, at, &mut bytes) {
            for word in bytes.as_chunks::<8>().0 {
                let word = u64::from_ne_bytes(*word);
                if word == sp && last.last().copied().is_some_and(is_function) {
                    return true;
                }
                last.copy_within(..APART - 1, 1);
                last[0] = word;
            }
        }
        at += PIECE as u64;
    }
    false
}

/// Resets the state of a thread that has left a call of the hook: whatever it was writing may be incomplete.
#[cold]
pub(crate) fn start_over(shared: &Shared, slot: &Slot, t: &mut Thread) {
    let (seq, index) = (t.seq, t.index);
    let closed = close(shared, slot, t.segment as usize, index);
    if !closed {
        // The thread may have been about to take another segment.
        for k in 0..shared.geometry().segments() {
            close(shared, slot, k, index);
        }
    }
    t.reset(slot, index);
    t.seq = seq + u64::from(!closed);
    distrust(t);
}

/// Closes a segment if it is the thread's and open; returns whether it was.
fn close(shared: &Shared, slot: &Slot, k: usize, index: u32) -> bool {
    let Some(h) = shared.head(k) else { return false };
    let own = h.state.load(Relaxed) == segment::ACTIVE
        && h.slot.load(Relaxed) == index
        && h.serial.load(Relaxed) == slot.serial.load(Relaxed);
    if own {
        ring::close(shared, k);
    }
    own
}

/// Clears the caches of a thread: an entry may be half written.
#[cold]
pub(crate) fn distrust(t: &mut Thread) {
    t.codes.fill(SeenCode { pc: 0, rule: 0, id: PcId::NONE, modules: 0 });
    t.names.fill(SeenName { key: 0, number: 0 });
    t.met = (0, 0);
    for r in &mut t.recent {
        r.epoch = 0;
    }
}
