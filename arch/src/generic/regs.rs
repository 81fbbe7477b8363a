//! Registers as the unwinder carries them.

use super::Isa;
use crate::unwind::{CfiModule, FullStep, RegisterSet};
use gimli::Vendor;

/// Registers that the fast unwinder carries from frame to frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Regs {
    /// Program counter: of an interrupted instruction, or a return address. It has no signature and no mark of an
    /// instruction set.
    pub pc: u64,
    /// Stack pointer. Of a calling frame: its value after the return, which is the callee's CFA. [`Isa::BOUND`] marks
    /// a lower bound.
    pub sp: u64,
    /// Frame pointer ([`Isa::FP`]), whatever the code uses the register for.
    pub fp: u64,
}

/// Result of a step.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The caller's registers.
    Next(Regs),
    /// The frame was the outermost one.
    End,
    /// The rule needs all registers.
    NeedFull,
    /// The stack cannot be followed further.
    Cut,
}

/// All general registers, for frames that need more than [`Regs`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct FullRegs<I: Isa> {
    /// Program counter.
    pub pc: u64,
    /// General registers by DWARF number. Those that a call does not preserve may hold anything.
    pub gpr: I::Bank,
}

impl<I: Isa> FullRegs<I> {
    /// Returns a general register; 0 if there is none of this number.
    #[inline]
    pub(super) fn general(&self, register: u16) -> u64 {
        self.gpr.as_ref().get(usize::from(register)).copied().unwrap_or(0)
    }

    /// Sets a general register, if there is one of this number.
    #[inline]
    pub(super) fn set_general(&mut self, register: u16, value: u64) {
        if let Some(slot) = self.gpr.as_mut().get_mut(usize::from(register)) {
            *slot = value;
        }
    }

    /// Returns these registers with the three of `regs` replaced.
    #[inline]
    #[must_use]
    pub fn with(mut self, regs: Regs) -> Self {
        self.pc = regs.pc;
        self.set_general(I::SP, regs.sp);
        self.set_general(I::FP, regs.fp);
        self
    }
}

impl<I: Isa> From<&FullRegs<I>> for Regs {
    #[inline]
    fn from(full: &FullRegs<I>) -> Self {
        Regs { pc: full.pc, sp: full.general(I::SP), fp: full.general(I::FP) }
    }
}

impl<I: Isa> From<FullRegs<I>> for Regs {
    #[inline]
    fn from(full: FullRegs<I>) -> Self {
        Regs::from(&full)
    }
}

impl<I: Isa> From<Regs> for FullRegs<I> {
    /// Sets registers other than the stack pointer and the frame pointer to zero, which is enough for frames that do
    /// not need them.
    #[inline]
    fn from(regs: Regs) -> Self {
        FullRegs::default().with(regs)
    }
}

impl<I: Isa> RegisterSet for FullRegs<I> {
    const SP: u16 = I::SP;
    const RA: u16 = I::RA;
    const LINK: bool = I::LINK;
    const PRESERVED: &'static [u16] = I::PRESERVED;
    const VENDOR: Vendor = I::VENDOR;
    const WORD: u8 = I::WORD;

    fn get(&self, register: u16) -> Option<u64> {
        if !I::LINK && register == I::RA {
            return Some(self.pc);
        }
        self.gpr.as_ref().get(usize::from(register)).copied()
    }

    fn set(&mut self, register: u16, value: u64) {
        if !I::LINK && register == I::RA {
            self.pc = value;
        } else if I::ZERO != Some(register) {
            self.set_general(register, value);
        }
    }

    fn pc(&self) -> u64 {
        self.pc
    }

    fn set_pc(&mut self, pc: u64) {
        self.pc = I::code_address(pc);
    }

    fn step_tables(
        &self,
        cfi: &CfiModule<'_>,
        lookup_pc: u64,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> FullStep<Self> {
        I::step_tables(self, cfi, lookup_pc, read)
    }
}
