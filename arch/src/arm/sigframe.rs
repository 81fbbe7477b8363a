//! Builds a signal frame like the kernel's own, so that a thread whose registers were changed gets all of
//! them back by `rt_sigreturn`, with nobody's help.
//!
//! Layout: `struct rt_sigframe` (`arch/arm/kernel/signal.h`), `struct ucontext` and `struct sigcontext`
//! (`arch/arm/include/uapi/asm/`), `struct vfp_sigframe`; what is checked on return:
//! `restore_sigframe` in `arch/arm/kernel/signal.c`. A 64-bit kernel has the same
//! (`arch/arm64/kernel/signal32.c`).
//!
//! The thread runs a system call instruction, and code that takes a word off the stack or not
//! ([`popped`](super::syscall::popped)), below the frame, and returns to the link register.

use super::call::UserRegs;
use super::syscall::SignalSet;
use crate::generic::sigframe::{Fixed, SS_INVALID, put};
#[allow(unused_imports)] // for the documentation
use crate::generic::stopped::StoppedRegs;

pub use crate::generic::sigframe::{Sigframe, SigframeError, VectorLayout};

/// Register set with the vector registers: `NT_ARM_VFP`.
pub const VECTOR_REGSET: i32 = 0x400;

/// Register sets that a system call discards: there are none.
pub const SCALABLE_REGSETS: &[i32] = &[];

/// Returns whether the first bytes of such a set say that the thread uses it.
#[must_use]
pub fn is_scalable_in_use(_header: &[u8]) -> bool {
    false
}

/// Magic number of the record of the vector registers.
pub(super) const VFP_MAGIC: u32 = 0x5646_5001;
/// Length of `struct vfp_sigframe`: magic, length, 32 registers, `fpscr`, padding, `fpexc`, `fpinst`,
/// `fpinst2`.
const VFP_LEN: usize = 288;
/// Length of the register set: 32 registers and `fpscr`.
const VECTOR_LEN: usize = 32 * 8 + 4;

/// Size of `struct siginfo`, which stands before the `struct ucontext` of other handlers' frames.
pub(super) const SIGINFO_LEN: u64 = 128;
/// Offset of `r0` in the `struct ucontext`; the other registers follow, up to pc (`struct sigcontext`).
pub(super) const UC_R0: u64 = 32;

/// Offset of the `struct ucontext` from the frame's start, and offsets of its fields.
const UC: usize = SIGINFO_LEN as usize;
const UC_STACK_FLAGS: usize = UC + 12;
const UC_CONTEXT_R0: usize = UC + UC_R0 as usize;
const UC_SIGMASK: usize = UC + 104;
/// Offset of the records of coprocessors, which end with an empty one.
const RECORDS: usize = UC + 232;
/// Length of a frame, with the code that the kernel puts behind it.
const LEN: usize = UC + 744 + 16;
const FIXED: Fixed = Fixed { align: 8, len: LEN, vector_len: VECTOR_LEN };

/// Returns the maximum length of a frame, in bytes.
#[must_use]
pub const fn sigframe_len(_vector_len: usize) -> usize {
    LEN
}

/// Builds, in `out`, the signal frame for `frame_addr` (a multiple of 8) that restores `regs`, the vector
/// state `vector` (as [`VECTOR_REGSET`] has it) and the signal mask `sigmask`.
///
/// `regs` should come from [`for_sigframe`](StoppedRegs::for_sigframe). The restorer is not in the frame but in `lr`:
/// see [`enter`](StoppedRegs::enter).
///
/// # Errors
///
/// See [`SigframeError`].
pub fn build_sigframe(
    out: &mut [u8],
    frame_addr: u64,
    regs: &UserRegs,
    vector: &[u8],
    _layout: &VectorLayout,
    sigmask: SignalSet,
    _restorer: u64,
) -> Result<Sigframe, SigframeError> {
    FIXED.build(out, frame_addr, vector, |frame, vector| fill(frame, regs, vector, sigmask))
}

fn fill(frame: &mut [u8], regs: &UserRegs, vector: &[u8], sigmask: SignalSet) -> Option<()> {
    put(frame, UC_STACK_FLAGS, SS_INVALID.to_le_bytes())?;
    put(frame, UC_SIGMASK, sigmask.to_le_bytes())?;
    let general = regs.r.iter().chain([&regs.cpsr]);
    for (offset, value) in (UC_CONTEXT_R0..).step_by(4).zip(general) {
        put(frame, offset, value.to_le_bytes())?;
    }
    put(frame, RECORDS, VFP_MAGIC.to_le_bytes())?;
    put(frame, RECORDS.wrapping_add(4), (VFP_LEN as u32).to_le_bytes())?;
    put(frame, RECORDS.wrapping_add(8), vector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::sigframe::test_refusals;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn the_frame_is_the_kernels() {
        let mut regs = UserRegs { cpsr: 0x6000_0030, ..UserRegs::default() };
        for (n, r) in (100..).zip(&mut regs.r) {
            *r = n;
        }
        let mut vector = [0; 260];
        vector[0] = 0x11;
        vector[255] = 0x22;
        vector[256] = 0x33; // fpscr
        let mut out = [0xff; LEN + 8];
        let layout = VectorLayout::native();
        let frame = build_sigframe(&mut out, 0x8008, &regs, &vector, &layout, 0x55, 0).unwrap();
        assert_eq!(frame, Sigframe { len: LEN, sp: 0x8008 });
        assert_eq!((word(&out, 232), word(&out, 236)), (0x55, 0));
        assert_eq!((word(&out, 160), word(&out, 160 + 4 * 15)), (100, 115));
        assert_eq!(word(&out, 160 + 4 * 16), 0x6000_0030);
        assert_eq!((word(&out, 360), word(&out, 364)), (0x5646_5001, 288));
        assert_eq!((out[368], out[368 + 255], out[368 + 256]), (0x11, 0x22, 0x33));
        assert_eq!(word(&out, 360 + 288), 0);
        assert_eq!(LEN, 888);
    }

    test_refusals!(4, 8, 260, 0);
}
