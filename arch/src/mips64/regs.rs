//! Registers as the unwinder carries them.
//!
//! Register numbers are those of the instructions, which are the DWARF numbers and those of
//! `PTRACE_GETREGS`, too. Names: "MIPSpro N32 ABI Handbook", table 2-1, which n64 shares.

use crate::unwind::RegisterSet;
use gimli::Vendor;

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

/// Registers that the fast unwinder carries from frame to frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Regs {
    /// Program counter: of an interrupted instruction, or a return address.
    pub pc: u64,
    /// Stack pointer. Of a calling frame: its value after the return, which is the callee's CFA.
    pub sp: u64,
    /// `$fp`, whatever the code uses it for.
    pub fp: u64,
}

impl Regs {
    /// Returns whether `sp` is the stack pointer, and not a bound of it: always, as each step computes it.
    #[inline(always)]
    #[must_use]
    pub const fn knows_sp(&self) -> bool {
        true
    }
}

/// All general registers, for frames that need more than [`Regs`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct FullRegs {
    /// Returns the program counter.
    pub pc: u64,
    /// Registers by number; the first is always 0. Those that a call does not preserve may hold anything.
    pub gpr: [u64; 32],
}

impl From<&FullRegs> for Regs {
    #[inline]
    fn from(full: &FullRegs) -> Self {
        Regs { pc: full.pc, sp: full.gpr[SP as usize], fp: full.gpr[FP as usize] }
    }
}

impl From<FullRegs> for Regs {
    #[inline]
    fn from(full: FullRegs) -> Self {
        Regs::from(&full)
    }
}

impl From<Regs> for FullRegs {
    /// Sets registers other than `$sp` and `$fp` to zero, which is enough for frames that do not need them.
    #[inline]
    fn from(regs: Regs) -> Self {
        FullRegs::default().with(regs)
    }
}

impl FullRegs {
    /// Returns these registers with the three of `regs` replaced.
    #[inline]
    #[must_use]
    pub fn with(mut self, regs: Regs) -> Self {
        self.pc = regs.pc;
        self.gpr[SP as usize] = regs.sp;
        self.gpr[FP as usize] = regs.fp;
        self
    }
}

impl RegisterSet for FullRegs {
    const SP: u16 = SP;
    const RA: u16 = RA;
    const LINK: bool = true;
    const VENDOR: Vendor = Vendor::Default;

    fn get(&self, register: u16) -> Option<u64> {
        self.gpr.get(usize::from(register)).copied()
    }

    fn set(&mut self, register: u16, value: u64) {
        if let Some(slot) = self.gpr.get_mut(usize::from(register))
            && register != ZERO
        {
            *slot = value;
        }
    }

    fn pc(&self) -> u64 {
        self.pc
    }

    fn set_pc(&mut self, pc: u64) {
        self.pc = pc;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
