//! Data that an entry of the hook passes to the hook, and gets from it.

use super::Isa;
use super::regs::{FullRegs, Regs};

/// Registers of a hook entry's caller that the entry saves for unwinding, beside [`Regs`].
pub trait Entry: Isa {
    /// Unsigned integer of the width of a register.
    type Word: Copy + Into<u64>;
    /// Registers in the order of [`SAVES`](Self::SAVES).
    type Saved: AsRef<[Self::Word]> + core::fmt::Debug;
    /// Padding of [`Call`], for the alignment of the stack pointer.
    type Padding: core::fmt::Debug + Default;
    /// DWARF numbers of the saved registers.
    const SAVES: &[u16];
}

/// One call of a hooked function, on the calling thread's stack.
#[repr(C)]
#[derive(Debug)]
pub struct Call<I: Entry> {
    /// First six integer arguments; the original is called with these values. No hooked function has more. On 32-bit
    /// ARM the last two are valid only if [`hook_entry_many`](crate::hook_entry_many) has defined the entry.
    pub args: [u64; 6],
    /// Descriptor of the function, which the stub has passed.
    pub function: u64,
    /// Result of the original.
    pub result: u64,
    /// Registers of the caller: return address, stack pointer after the return, frame pointer.
    pub regs: Regs,
    /// Callee-saved registers of the caller.
    pub saved: I::Saved,
    /// Values that `before` leaves for `after`.
    pub note: [u64; 2],
    /// See [`Entry::Padding`].
    pub padding: I::Padding,
}

impl<I: Entry> From<&Call<I>> for FullRegs<I> {
    /// Returns the caller's registers as far as they are known.
    fn from(call: &Call<I>) -> Self {
        let mut full = FullRegs::from(call.regs);
        if I::LINK {
            full.set_general(I::RA, call.regs.pc);
        }
        for (number, value) in I::SAVES.iter().zip(call.saved.as_ref()) {
            full.set_general(*number, (*value).into());
        }
        full
    }
}

/// Result of `before`: how the entry continues. 32-bit ARM returns it in memory (AAPCS32, 6.4).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Go {
    /// Address to continue at, with the arguments in [`Call::args`].
    pub target: u64,
    /// 0: jump there and forget the call; 1: call it, and then `after`.
    pub stay: u64,
}

/// Checks the layout of [`Call`] that the assembly of an entry counts on. `call_at` is the offset of the structure in
/// the entry's stack frame; the other arguments are its length and the offsets in the frame of its members.
pub(crate) const fn check_layout<I: Entry>(
    call_at: usize,
    len: usize,
    function: usize,
    regs: usize,
    saved: usize,
) {
    use core::mem::offset_of;
    assert!(size_of::<Call<I>>() == len);
    assert!(call_at + offset_of!(Call<I>, function) == function);
    assert!(call_at + offset_of!(Call<I>, result) == function + 8);
    assert!(call_at + offset_of!(Call<I>, regs) == regs);
    assert!(call_at + offset_of!(Call<I>, saved) == saved);
}

/// Defines the test of an architecture's `copy_forward` and `fill`, which only run there.
#[cfg(test)]
macro_rules! test_copies {
    ($arch:literal) => {
        #[cfg(target_arch = $arch)]
        #[test]
        fn copies() {
            for n in 0..40 {
                let from: [u8; 48] = core::array::from_fn(|i| i as u8 + 1);
                let mut to = [0xee; 48];
                // SAFETY: both arrays are longer than `n`.
                unsafe { copy_forward(to.as_mut_ptr(), from.as_ptr(), n) };
                assert_eq!(to[..n], from[..n]);
                assert_eq!(to[n..], [0xee; 48][n..]);
                // SAFETY: as above.
                unsafe { fill(to.as_mut_ptr(), 0x55, n) };
                assert_eq!(to[..n], [0x55; 48][..n]);
                assert_eq!(to[n..], [0xee; 48][n..]);
            }
        }
    };
}
#[cfg(test)]
pub(crate) use test_copies;
