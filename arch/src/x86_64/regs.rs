//! Registers as the unwinder carries them.
//!
//! Register numbers are the DWARF numbers of the System V ABI, AMD64 supplement, figure 3.36
//! ("DWARF Register Number Mapping"). They differ from the numbers in instruction encodings.

use crate::unwind::RegisterSet;
use gimli::Vendor;

/// DWARF number of `rax`.
pub const RAX: u16 = 0;
/// DWARF number of `rdx`.
pub const RDX: u16 = 1;
/// DWARF number of `rcx`.
pub const RCX: u16 = 2;
/// DWARF number of `rbx`.
pub const RBX: u16 = 3;
/// DWARF number of `rsi`.
pub const RSI: u16 = 4;
/// DWARF number of `rdi`.
pub const RDI: u16 = 5;
/// DWARF number of `rbp`, the frame pointer.
pub const RBP: u16 = 6;
/// DWARF number of `rsp`, the stack pointer.
pub const RSP: u16 = 7;
/// DWARF number of `r8`; `r9` to `r15` follow.
pub const R8: u16 = 8;
/// DWARF number of `r10`.
pub const R10: u16 = 10;
/// DWARF number of `r12`.
pub const R12: u16 = 12;
/// DWARF number of `r13`.
pub const R13: u16 = 13;
/// DWARF number of `r14`.
pub const R14: u16 = 14;
/// DWARF number of `r15`.
pub const R15: u16 = 15;
/// DWARF number of the return address column; in expressions it stands for `rip`.
pub const RA: u16 = 16;

/// Registers that the fast unwinder carries from frame to frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Regs {
    /// Instruction pointer: of an interrupted instruction, or a return address.
    pub pc: u64,
    /// Stack pointer. Of a calling frame: its value after the return, which is the callee's CFA.
    pub sp: u64,
    /// Frame pointer register, whatever the code uses it for.
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
    /// Instruction pointer.
    pub pc: u64,
    /// `rax` to `r15` by DWARF number. Registers that a call does not preserve may hold anything.
    pub gpr: [u64; 16],
}

impl From<&FullRegs> for Regs {
    #[inline]
    fn from(full: &FullRegs) -> Self {
        Regs { pc: full.pc, sp: full.gpr[RSP as usize], fp: full.gpr[RBP as usize] }
    }
}

impl From<FullRegs> for Regs {
    #[inline]
    fn from(full: FullRegs) -> Self {
        Regs::from(&full)
    }
}

impl From<Regs> for FullRegs {
    /// Sets registers other than `rsp` and `rbp` to zero, which is enough for frames that do not need them.
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
        self.gpr[RSP as usize] = regs.sp;
        self.gpr[RBP as usize] = regs.fp;
        self
    }
}

impl RegisterSet for FullRegs {
    const SP: u16 = RSP;
    const RA: u16 = RA;
    const LINK: bool = false;
    const VENDOR: Vendor = Vendor::Default;

    fn get(&self, register: u16) -> Option<u64> {
        if register == RA { Some(self.pc) } else { self.gpr.get(usize::from(register)).copied() }
    }

    fn set(&mut self, register: u16, value: u64) {
        if register == RA {
            self.pc = value;
        } else if let Some(slot) = self.gpr.get_mut(usize::from(register)) {
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
