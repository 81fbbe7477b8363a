//! Layout of a frame of the target's own below a call, where calls leave their return address in a register:
//! the common part of AArch64, ARM and MIPS64.
//!
//! From the stack pointer at the original's entry upwards: the caller's arguments on the stack, as far as
//! they are copied; a mark that shows that the frame is there; what the entry keeps for itself; the `Call`;
//! the registers that the target's unwinder looks for, up to the caller's stack pointer.

use crate::unwind::{SLOTS, Shape};

/// Maximum size of a frame: larger ones would take more of a small stack than the hook does otherwise.
const MOST_FRAME: u64 = 2048;

/// Index in [`Slots`] of the distance from the frame's end down to where the frame pointer is to point, in
/// words; 0: the frame pointer is the caller's.
pub const FP_AT: usize = SLOTS;
/// Index in [`Slots`] of the flag that the return address is signed in the frame.
pub const SIGNED_AT: usize = SLOTS + 1;

/// Slots of a frame that hold registers ([`Shape::slots`]), and what else must be known of the frame.
pub type Slots = [u8; SLOTS + 2];

/// A bridge: an indirect call in the target's own code, as a place to return to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// Address of the call, in the form of a return address.
    pub back: u64,
    /// Bytes from the stack pointer of the original to that of its caller.
    pub frame: u64,
    /// Register that is called, as an index of the architecture's list.
    pub register: u8,
    /// Slots of the frame that hold registers.
    pub slots: Slots,
}

/// Arguments of an architecture's `lay_out`.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Address to return to; 0: directly to the hook.
    pub back: u64,
    /// See [`Bridge::frame`].
    pub frame: u64,
    /// See [`Bridge::register`].
    pub register: u8,
    /// See [`Bridge::slots`]. Ignored on AMD64, where the slots are always the same.
    pub slots: Slots,
    /// Number of readable words on the caller's stack, from its stack pointer up.
    pub words: usize,
}

/// Keeps the better of two bridges: the one with the smaller frame.
pub(crate) fn better(best: &mut Option<Bridge>, new: Option<Bridge>) {
    if let Some(new) = new
        && best.is_none_or(|b| new.frame < b.frame)
    {
        *best = Some(new);
    }
}

/// Returns the bridge at `back`, which calls the register number `register` of the list, in a frame of this
/// shape that has `needed` bytes below its registers; `None` if it does not fit.
pub(crate) fn fit(
    shape: &Shape,
    back: u64,
    register: usize,
    needed: u64,
    word: u64,
) -> Option<Bridge> {
    // The frame must restore the register that is called.
    if shape.slots.get(register).is_none_or(|slot| *slot == 0) {
        return None;
    }
    let (mut slots, deepest) = ([0; SLOTS + 2], shape.slots.iter().copied().max()?);
    slots.iter_mut().zip(shape.slots).for_each(|(to, from)| *to = from);
    let frame = if shape.by_fp {
        slots[FP_AT] = u8::try_from(shape.len / word).ok()?;
        needed.checked_add(shape.len)?
    } else {
        let below = shape.len.checked_sub(u64::from(deepest).wrapping_mul(word))?;
        (below >= needed).then_some(shape.len)?
    };
    slots[SIGNED_AT] = u8::from(shape.signed);
    let even = frame.is_multiple_of(word.wrapping_mul(2)) && frame <= MOST_FRAME;
    even.then_some(Bridge { back, frame, register: register as u8, slots })
}

/// Parts of a frame to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// The caller's stack pointer, at the frame's end.
    pub top: u64,
    /// Size of the frame, in bytes.
    pub len: u64,
    /// Slots for the registers.
    pub slots: &'a Slots,
    /// Number of words of the caller's stack that are copied.
    pub words: usize,
    /// The mark, and its offset from the frame's lower end.
    pub mark: (u64, u64),
}

/// Writes a frame: `values` are the caller's registers, in the order of the slots.
///
/// # Safety
/// The frame must be free but for what lies between its mark and its registers, and `f.words` words above it
/// must be readable.
pub(crate) unsafe fn put(f: &Frame<'_>, values: impl Iterator<Item = usize>) {
    const WORD: u64 = size_of::<usize>() as u64;
    let put = |at: u64, value: usize| {
        // SAFETY: the address is inside the frame, which is free by the caller's promise.
        unsafe { (at as *mut usize).write_unaligned(value) };
    };
    let base = f.top.wrapping_sub(f.len);
    for n in (0..f.words as u64).map(|n| n.wrapping_mul(WORD)) {
        // SAFETY: the caller promises that the frame is free, and that the words above it are readable.
        let word = unsafe { (f.top.wrapping_add(n) as *const usize).read_unaligned() };
        put(base.wrapping_add(n), word);
    }
    // SAFETY: the mark is inside the frame, which is free by the caller's promise.
    unsafe { (base.wrapping_add(f.mark.1) as *mut u64).write_unaligned(f.mark.0) };
    for (value, below) in values.zip(f.slots).filter(|(_, below)| **below != 0) {
        put(f.top.wrapping_sub(u64::from(*below).wrapping_mul(WORD)), value);
    }
}
