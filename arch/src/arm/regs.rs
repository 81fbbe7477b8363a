//! Registers as the unwinder carries them.
//!
//! Register numbers are the DWARF numbers of "DWARF for the Arm Architecture" (aadwarf32), section
//! 4.1; for the general registers they are those of the instructions. Values have 32 bits and are
//! zero-extended.

use crate::unwind::{CfiModule, FullStep, RegisterSet};
use gimli::Vendor;

/// DWARF number of `r7`, the frame pointer of Thumb code.
pub const R7: u16 = 7;
/// DWARF number of `r11`, the frame pointer of ARM code.
pub const R11: u16 = 11;
/// DWARF number of the stack pointer, `r13`.
pub const SP: u16 = 13;
/// DWARF number of the link register, `r14`, which is also the return address column.
pub const LR: u16 = 14;
/// Number of the program counter, `r15`.
pub const PC: u16 = 15;

/// Bit of a code address that says that the code is Thumb code.
pub const THUMB: u64 = 1;

/// Registers that the fast unwinder carries from frame to frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Regs {
    /// Program counter without the Thumb bit: of an interrupted instruction, or a return address.
    pub pc: u64,
    /// Stack pointer. Of a calling frame: its value after the return, which is the callee's CFA.
    pub sp: u64,
    /// `r7`, whatever the code uses it for: the frame pointer of Thumb code.
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

/// All general registers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct FullRegs {
    /// Program counter without the Thumb bit.
    pub pc: u64,
    /// `r0` to `r14`, by DWARF number. Registers that a call does not preserve may hold anything.
    pub gpr: [u64; 15],
}

impl From<&FullRegs> for Regs {
    #[inline]
    fn from(full: &FullRegs) -> Self {
        Regs { pc: full.pc, sp: full.gpr[SP as usize], fp: full.gpr[R7 as usize] }
    }
}

impl From<FullRegs> for Regs {
    #[inline]
    fn from(full: FullRegs) -> Self {
        Regs::from(&full)
    }
}

impl From<Regs> for FullRegs {
    /// Sets registers other than `sp` and `r7` to zero, which is enough for frames that do not need them.
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
        self.gpr[R7 as usize] = regs.fp;
        self
    }
}

impl RegisterSet for FullRegs {
    const SP: u16 = SP;
    const RA: u16 = LR;
    const LINK: bool = true;
    const VENDOR: Vendor = Vendor::Default;
    const WORD: u8 = 4;

    fn get(&self, register: u16) -> Option<u64> {
        self.gpr.get(usize::from(register)).copied()
    }

    fn set(&mut self, register: u16, value: u64) {
        if let Some(slot) = self.gpr.get_mut(usize::from(register)) {
            *slot = value;
        }
    }

    fn pc(&self) -> u64 {
        self.pc
    }

    fn set_pc(&mut self, pc: u64) {
        self.pc = pc & !THUMB;
    }

    fn step_tables(
        &self,
        cfi: &CfiModule<'_>,
        lookup_pc: u64,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> FullStep<Self> {
        let (exidx, mut table) = super::rule::tables(cfi);
        // The tables are not on any stack.
        let mut word = |at| table(at).or_else(|| read(at).map(|word| word as u32));
        super::exidx::step_exidx(&exidx, self, lookup_pc, &mut word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_processor_is_no_part_of_the_address() {
        let mut regs = FullRegs::default();
        regs.set_pc(0xb6f1_2345);
        assert_eq!(regs.pc(), 0xb6f1_2344);
    }

    #[test]
    fn the_three_are_among_all() {
        let three = Regs { pc: 0x1_0000, sp: 0xbeff_0000, fp: 0xbeff_0010 };
        let full = FullRegs::from(three);
        assert_eq!(
            (full.get(SP), full.get(R7), full.get(LR)),
            (Some(three.sp), Some(three.fp), Some(0))
        );
        assert_eq!((Regs::from(full), full.get(PC), full.get(99)), (three, None, None));
    }
}
