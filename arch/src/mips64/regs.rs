//! Registers as the unwinder carries them.
//!
//! Register numbers are those of the instructions, which are the DWARF numbers and those of
//! `PTRACE_GETREGS`, too. Names: "MIPSpro N32 ABI Handbook", table 2-1, which n64 shares.

/// The register that is always 0.
pub const ZERO: u16 = 0;
/// `$at`, free at a function's entry.
pub const AT: u16 = 1;
/// `$v0`, the result, and the number of a system call.
pub const V0: u16 = 2;
/// `$a0`, the first of eight arguments.
pub const A0: u16 = 4;
/// `$a3`, which says whether a system call has failed.
pub const A3: u16 = 7;
/// `$s0`, the first callee-saved register; those up to `$s7` follow.
pub const S0: u16 = 16;
/// `$t8`, free at a function's entry.
pub const T8: u16 = 24;
/// `$t9`, which has a function's address at its entry.
pub const T9: u16 = 25;
/// `$k0`, where the kernel shows a tracer what `$a3` was at a system call.
pub const K0: u16 = 26;
/// `$gp`, which is callee-saved.
pub const GP: u16 = 28;
/// The stack pointer.
pub const SP: u16 = 29;
/// `$fp` or `$s8`, the frame pointer.
pub const FP: u16 = 30;
/// `$ra`, where a call leaves the return address.
pub const RA: u16 = 31;

/// MIPS64 as an instruction set of [`generic`](crate::generic).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Mips64;

pub use crate::generic::regs::Regs;
/// All general registers, for frames that need more than [`Regs`].
pub type FullRegs = crate::generic::regs::FullRegs<Mips64>;
/// Packed unwind rule.
pub type Rule = crate::generic::rule::Rule<Mips64>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::RegisterSet;

    #[test]
    fn registers_by_number() {
        let mut regs = FullRegs::default();
        for n in 0..40 {
            regs.set(n, u64::from(n) + 100);
        }
        assert_eq!((regs.get(0), regs.get(1), regs.get(31)), (Some(0), Some(101), Some(131)));
        assert_eq!(regs.get(32), None);
        regs.set_pc(7);
        assert_eq!(Regs::from(regs), Regs { pc: 7, sp: 129, fp: 130 });
        assert_eq!(FullRegs::from(Regs { pc: 1, sp: 2, fp: 3 }).gpr[29..], [2, 3, 0]);
    }
}
