//! Builds a signal frame like the kernel's own, so that a thread whose registers were changed gets all of
//! them back by `rt_sigreturn`, with nobody's help.
//!
//! Layout: `struct rt_sigframe` (`arch/arm64/kernel/signal.c`), `struct ucontext` and `struct
//! sigcontext` with its records (`arch/arm64/include/uapi/asm/`); what is checked on return:
//! `restore_sigframe` and `parse_user_sigframe` in `arch/arm64/kernel/signal.c`.
//!
//! The thread runs `svc #0; ret` with `sp` at the frame and the restorer's address in `x30`.

use super::call::UserRegs;
use crate::generic::sigframe::{Fixed, SS_INVALID, put};
#[allow(unused_imports)] // for the documentation
use crate::generic::stopped::StoppedRegs;

pub use crate::generic::sigframe::{Sigframe, SigframeError, VectorLayout};

/// Register set with the vector registers: `NT_PRFPREG`, `struct user_fpsimd_state`.
pub const VECTOR_REGSET: i32 = 2;

/// Register sets with the scalable vector registers: `NT_ARM_SVE`, `NT_ARM_SSVE`. A system call discards all
/// of them but what [`VECTOR_REGSET`] has.
pub const SCALABLE_REGSETS: &[i32] = &[0x405, 0x40b];

/// Returns whether the first bytes of such a set (`struct user_sve_header`) say that the thread uses it.
#[must_use]
pub fn is_scalable_in_use(header: &[u8]) -> bool {
    let &[a, b, c, d, _, _, _, _, _, _, _, _, flags, _, _, _, ..] = header else { return false };
    flags & 1 == 1 && u32::from_le_bytes([a, b, c, d]) > 16
}

/// Head of the record of the vector registers: magic number and length.
pub(super) const FPSIMD_HEAD: u64 = 0x4650_8001 | (FPSIMD_LEN as u64) << 32;
/// Length of `struct fpsimd_context`, in bytes.
const FPSIMD_LEN: usize = 528;
/// Length of `struct user_fpsimd_state` up to its padding: 32 registers, `fpsr`, `fpcr`.
const VECTOR_LEN: usize = 32 * 16 + 8;

/// Offset of `x0` in the kernel's signal frame (`struct rt_sigframe` of `arch/arm64/kernel/signal.c`:
/// siginfo, `struct ucontext`), to which the stack pointer points when the handler has returned. The other
/// registers follow, then sp and pc (`struct sigcontext`).
pub(super) const FRAME_X0: u64 = 312;

/// Offsets from the frame's start: siginfo, then the ucontext.
const UC_STACK_FLAGS: usize = 128 + 24;
const UC_SIGMASK: usize = 128 + 40;
/// Offset of the records, which end with an empty one.
const RECORDS: usize = 592;
const LEN: usize = RECORDS + FPSIMD_LEN + 16;
const FIXED: Fixed = Fixed { align: 16, len: LEN, vector_len: VECTOR_LEN };

/// Returns the maximum length of a frame, in bytes.
#[must_use]
pub const fn sigframe_len(_vector_len: usize) -> usize {
    LEN
}

/// Builds, in `out`, the signal frame for `frame_addr` (a multiple of 16) that restores `regs`, the vector
/// state `vector` (as [`VECTOR_REGSET`] has it) and the signal mask `sigmask`.
///
/// `regs` should come from [`for_sigframe`](StoppedRegs::for_sigframe). The restorer is not in the frame but in `x30`:
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
    sigmask: u64,
    _restorer: u64,
) -> Result<Sigframe, SigframeError> {
    FIXED.build(out, frame_addr, vector, |frame, vector| fill(frame, regs, vector, sigmask))
}

fn fill(frame: &mut [u8], regs: &UserRegs, vector: &[u8], sigmask: u64) -> Option<()> {
    put(frame, UC_STACK_FLAGS, SS_INVALID.to_le_bytes())?;
    put(frame, UC_SIGMASK, sigmask.to_le_bytes())?;
    let general = regs.x.iter().chain([&regs.sp, &regs.pc, &regs.pstate]);
    for (offset, value) in (FRAME_X0 as usize..).step_by(8).zip(general) {
        put(frame, offset, value.to_le_bytes())?;
    }
    put(frame, RECORDS, FPSIMD_HEAD.to_le_bytes())?;
    // The record has status and control before the registers.
    let (registers, status) = vector.split_at_checked(32 * 16)?;
    put(frame, RECORDS.wrapping_add(8), status)?;
    put(frame, RECORDS.wrapping_add(16), registers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::sigframe::test_refusals;

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_frame_is_the_kernels() {
        let mut regs =
            UserRegs { sp: 0x7000, pc: 0x4000, pstate: 0x6000_0000, ..UserRegs::default() };
        for (n, x) in (100..).zip(&mut regs.x) {
            *x = n;
        }
        let mut vector = [0; 528];
        vector[0] = 0x11;
        vector[511] = 0x22;
        vector[512] = 0x33; // fpsr
        vector[516] = 0x44; // fpcr
        let mut out = [0xff; LEN + 8];
        let layout = VectorLayout::native();
        let frame = build_sigframe(&mut out, 0x8000, &regs, &vector, &layout, 0x55, 0).unwrap();
        assert_eq!(frame, Sigframe { len: LEN, sp: 0x8000 });
        assert_eq!(word(&out, 168), 0x55);
        assert_eq!((word(&out, 312), word(&out, 312 + 8 * 30)), (100, 130));
        assert_eq!([560, 568, 576].map(|at| word(&out, at)), [0x7000, 0x4000, 0x6000_0000]);
        assert_eq!(word(&out, 592), 0x210_4650_8001);
        assert_eq!(word(&out, 600), 0x44_0000_0033);
        assert_eq!((out[608], out[608 + 511]), (0x11, 0x22));
        assert_eq!((word(&out, 1120), word(&out, 1128)), (0, 0));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn the_offsets_are_libcs() {
        use core::mem::offset_of;
        assert_eq!(128 + offset_of!(libc::ucontext_t, uc_sigmask), UC_SIGMASK);
        let context = 128 + offset_of!(libc::ucontext_t, uc_mcontext);
        assert_eq!(context + offset_of!(libc::mcontext_t, regs), FRAME_X0 as usize);
        assert_eq!(context + size_of::<libc::mcontext_t>() - 4096, RECORDS);
    }

    #[test]
    fn scalable_registers_in_use() {
        let header = |size: u8, flags: u8| {
            let mut bytes = [0; 16];
            (bytes[0], bytes[12]) = (size, flags);
            bytes
        };
        assert!(is_scalable_in_use(&header(99, 1)));
        assert!(!is_scalable_in_use(&header(99, 0)) && !is_scalable_in_use(&header(16, 1)));
        assert!(!is_scalable_in_use(&header(99, 1)[..15]) && !is_scalable_in_use(&[]));
    }

    test_refusals!(8, 16, 520, 0);
}
