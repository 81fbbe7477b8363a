//! Builds a signal frame like the kernel's own, so that a thread whose registers were changed gets all of
//! them back by `rt_sigreturn`, with nobody's help.
//!
//! Layout: `struct rt_sigframe` (`arch/mips/kernel/signal.c`), `struct ucontext` and `struct
//! sigcontext` (`arch/mips/include/uapi/asm/`), as n64 has them; what is checked on return:
//! `sys_rt_sigreturn` and `restore_sigcontext` in `arch/mips/kernel/signal.c`.
//!
//! The thread runs `syscall; jr $ra` with `$sp` at the frame and the restorer's address in `$ra`.

use super::call::UserRegs;
use super::syscall::SignalSet;
use super::variant::Order;
use crate::generic::sigframe::{Fixed, SS_INVALID, put};
#[allow(unused_imports)] // for the documentation
use crate::generic::stopped::StoppedRegs;

pub use crate::generic::sigframe::{Sigframe, SigframeError, VectorLayout};

/// Register set with the floating point registers: `NT_PRFPREG`, 32 of 8 bytes, then 4 bytes of control and
/// status.
pub const VECTOR_REGSET: i32 = 2;

/// Register set with the vector registers of MSA (`NT_MIPS_MSA`), whose lower halves are the floating point
/// registers. A system call leaves them alone, but the frame has no upper halves.
pub const SCALABLE_REGSETS: &[i32] = &[0x802];

/// Returns whether the first bytes of such a set, which are the first register, say that the thread uses the
/// upper halves: the kernel shows all ones for a thread that does not. (A thread with just these in the first
/// register counts as one that does not.)
#[must_use]
pub fn is_scalable_in_use(header: &[u8]) -> bool {
    header.get(8..16).is_some_and(|upper| upper != [0xff; 8])
}

/// Length of 32 registers, control and status.
const VECTOR_LEN: usize = 32 * 8 + 4;
/// Value of `sc_used_math`: floating point registers are there (`USED_FP`), all 32 of 8 bytes (`USED_FR1`).
const USED: u32 = 3;

/// Offset of the first register in the kernel's signal frame (`struct rt_sigframe` of
/// `arch/mips/kernel/signal.c`: room for four arguments and a trampoline, siginfo, `struct ucontext`), to
/// which the stack pointer points when the handler has returned. The other registers follow (`struct
/// sigcontext`).
pub(super) const FRAME_REGS: u64 = 192;
/// Offset of the program counter in that frame.
pub(super) const FRAME_PC: u64 = 768;

/// Offset of the ucontext from the frame's start, behind room for arguments, a trampoline and siginfo.
const UC: usize = 16 + 8 + 128;
const UC_STACK_FLAGS: usize = UC + 16 + 16;
const FLOATING: usize = FRAME_REGS as usize + 32 * 8;
const HI: usize = FLOATING + 32 * 8;
/// Behind each of the two follow three more parts of products, of the signal processor.
const LO: usize = HI + 4 * 8;
const PC: usize = FRAME_PC as usize;
const CONTROL: usize = PC + 8;
const UC_SIGMASK: usize = CONTROL + 16;
const LEN: usize = UC_SIGMASK + super::syscall::SIGSET_LEN;
const FIXED: Fixed = Fixed { align: 16, len: LEN, vector_len: VECTOR_LEN };
const _: () = assert!(UC + 40 == FRAME_REGS as usize && LO + 4 * 8 == PC);

/// Returns the maximum length of a frame, in bytes.
#[must_use]
pub const fn sigframe_len(_vector_len: usize) -> usize {
    LEN
}

/// Builds, in `out`, the signal frame for `frame_addr` (a multiple of 16) that restores `regs`, the floating
/// point state `vector` (as [`VECTOR_REGSET`] has it) and the signal mask `sigmask`.
///
/// `regs` should come from [`for_sigframe`](StoppedRegs::for_sigframe). The restorer is not in the frame but in `$ra`:
/// see [`enter`](StoppedRegs::enter).
///
/// # Errors
///
/// See [`SigframeError`].
pub fn build_sigframe_in(
    order: Order,
    out: &mut [u8],
    frame_addr: u64,
    regs: &UserRegs,
    vector: &[u8],
    sigmask: SignalSet,
) -> Result<Sigframe, SigframeError> {
    FIXED.build(out, frame_addr, vector, |frame, vector| fill(order, frame, regs, vector, sigmask))
}

/// Does what [`build_sigframe_in`] does, in this machine's byte order.
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
    build_sigframe_in(Order::NATIVE, out, frame_addr, regs, vector, sigmask)
}

fn fill(
    order: Order,
    frame: &mut [u8],
    regs: &UserRegs,
    vector: &[u8],
    sigmask: SignalSet,
) -> Option<()> {
    put(frame, UC_STACK_FLAGS, order.bytes4(SS_INVALID))?;
    for (offset, value) in (FRAME_REGS as usize..).step_by(8).zip(regs.gpr).skip(1) {
        put(frame, offset, order.bytes8(value))?;
    }
    for (offset, value) in [(HI, regs.hi), (LO, regs.lo), (PC, regs.pc)] {
        put(frame, offset, order.bytes8(value))?;
    }
    // Both come from the kernel, in this machine's byte order already.
    let (registers, control) = vector.split_at_checked(32 * 8)?;
    put(frame, FLOATING, registers)?;
    put(frame, CONTROL, control)?;
    put(frame, CONTROL.wrapping_add(4), order.bytes4(USED))?;
    for (offset, word) in (UC_SIGMASK..).step_by(8).zip(sigmask) {
        put(frame, offset, order.bytes8(word))?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::sigframe::test_refusals;

    fn frame_of(order: Order) -> [u8; LEN + 8] {
        let mut regs = UserRegs { pc: 0x4000, lo: 0x66, hi: 0x77, ..UserRegs::default() };
        for (n, x) in (100..).zip(&mut regs.gpr) {
            *x = n;
        }
        let mut vector = [0; 264];
        (vector[0], vector[255]) = (0x11, 0x22);
        vector[256..260].copy_from_slice(&order.bytes4(0x0100_0001));
        let mut out = [0xff; LEN + 8];
        let frame =
            build_sigframe_in(order, &mut out, 0x8000, &regs, &vector, [0x55, 0x99]).unwrap();
        assert_eq!(frame, Sigframe { len: 808, sp: 0x8000 });
        out
    }

    #[test]
    fn the_frame_is_the_kernels() {
        for order in [Order::Little, Order::Big] {
            let out = frame_of(order);
            let word = |at| order.word8(&out, at).unwrap();
            let half = |at| order.word4(&out, at).unwrap();
            assert_eq!(half(184), 4); // uc_stack.ss_flags
            // The place of the register that is always 0 stays 0.
            assert_eq!([192, 200, 440].map(word), [0, 101, 131]);
            assert_eq!((out[448], out[703]), (0x11, 0x22));
            assert_eq!([704, 736, 768].map(word), [0x77, 0x66, 0x4000]);
            assert_eq!([776, 780, 784].map(half), [0x0100_0001, 3, 0]);
            assert_eq!([792, 800].map(word), [0x55, 0x99]);
            assert_eq!(out[808..], [0xff; 8]);
        }
        let (little, big) = (frame_of(Order::Little), frame_of(Order::Big));
        assert_eq!((little[200], big[207]), (101, 101));
    }

    #[test]
    fn the_unwinder_reads_it() {
        use crate::mips64::Regs;
        use crate::mips64::rule::{Rule, Step, is_interrupted_pc_in};
        for order in [Order::Little, Order::Big] {
            let out = frame_of(order);
            let mut read = |at: u64| order.word8(&out, (at - 0x8000) as usize);
            let at_frame = Regs { pc: 1, sp: 0x8000, fp: 0 };
            let want = Regs { pc: 0x4000, sp: 129, fp: 130 };
            assert_eq!(Rule::SIGNAL.step(&at_frame, &mut read), Step::Next(want));
            let words = [768, 776, 784, 792].map(|at| order.word8(&out, at).unwrap());
            assert!(is_interrupted_pc_in(order, &words));
        }
    }

    #[test]
    fn vectors_in_use() {
        let mut header = [0; 16];
        header[8..].fill(0xff);
        assert!(!is_scalable_in_use(&header));
        header[15] = 0;
        assert!(is_scalable_in_use(&header));
        assert!(!is_scalable_in_use(&header[..15]) && !is_scalable_in_use(&[]));
    }

    test_refusals!(8, 16, 260, [0; 2]);
}
