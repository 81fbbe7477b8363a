//! Laying out a frame of the target's own below a call, where calls leave their return address in a register:
//! what AArch64, ARM and MIPS64 have in common.
//!
//! From the stack pointer that the original is entered with, upwards: the caller's arguments on the stack, as far as
//! they are handed on; a mark that says that the frame is there; what the entry keeps for itself; the `Call`;
//! the registers that the target's unwinder looks for, up to the caller's stack pointer.

use crate::unwind::{SLOTS, Shape};

/// Larger frames would take more of a small stack than the hook does otherwise.
const MOST_FRAME: u64 = 2048;

/// Where in [`Slots`] the distance is from the frame's end down to where the frame pointer is to point, in words; 0:
/// it is the caller's.
pub const FP_AT: usize = SLOTS;
/// Where in [`Slots`] it says that the return address is signed in the frame.
pub const SIGNED_AT: usize = SLOTS + 1;

/// Where a frame has registers ([`Shape::slots`]), and what else must be known of it.
pub type Slots = [u8; SLOTS + 2];

/// An indirect call of the target's own, as a place to return to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// Its address, as a return address has it.
    pub back: u64,
    /// Bytes from the stack pointer of the original to that of its caller.
    pub frame: u64,
    /// Which register it calls, by its place in the architecture's list.
    pub register: u8,
    /// Where its frame has registers.
    pub slots: Slots,
}

/// Takes the better of two: the smaller frame.
pub(crate) fn better(best: &mut Option<Bridge>, new: Option<Bridge>) {
    if let Some(new) = new
        && best.is_none_or(|b| new.frame < b.frame)
    {
        *best = Some(new);
    }
}

/// A place to return to at `back`, which calls the register number `register` of the list, in a frame of this
/// shape, below whose registers so many bytes are needed; `None` where it will not do.
pub(crate) fn fit(
    shape: &Shape,
    back: u64,
    register: usize,
    needed: u64,
    word: u64,
) -> Option<Bridge> {
    // The register is the target's own again behind the frame.
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

/// What a frame is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// The caller's stack pointer, behind the frame.
    pub top: u64,
    /// Bytes of the frame.
    pub len: u64,
    /// Where registers go.
    pub slots: &'a Slots,
    /// How many words of the caller's stack are handed on.
    pub words: usize,
    /// The mark, and where it goes, from the frame's lower end.
    pub mark: (u64, u64),
}

/// Writes a frame: `values` are the caller's registers, in the order of the slots.
///
/// # Safety
/// The frame must be free but for what lies between its mark and its registers, and so many words above it readable.
pub(crate) unsafe fn put(f: &Frame<'_>, values: impl Iterator<Item = usize>) {
    const WORD: u64 = size_of::<usize>() as u64;
    let put = |at: u64, value: usize| {
        // SAFETY: within the frame; the caller's promise.
        unsafe { (at as *mut usize).write_unaligned(value) };
    };
    let base = f.top.wrapping_sub(f.len);
    for n in (0..f.words as u64).map(|n| n.wrapping_mul(WORD)) {
        // SAFETY: the caller's promise.
        let word = unsafe { (f.top.wrapping_add(n) as *const usize).read_unaligned() };
        put(base.wrapping_add(n), word);
    }
    // SAFETY: within the frame.
    unsafe { (base.wrapping_add(f.mark.1) as *mut u64).write_unaligned(f.mark.0) };
    for (value, below) in values.zip(f.slots).filter(|(_, below)| **below != 0) {
        put(f.top.wrapping_sub(u64::from(*below).wrapping_mul(WORD)), value);
    }
}
