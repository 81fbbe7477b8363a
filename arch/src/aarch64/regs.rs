//! Registers as the unwinder carries them.
//!
//! Register numbers are the DWARF numbers of "DWARF for the Arm 64-bit Architecture" (aadwarf64),
//! section 4.1; for the general registers they are those of the instructions.

use crate::unwind::RegisterSet;
use gimli::Vendor;

/// DWARF number of `x19`, the first callee-saved register; those up to `x28` follow.
pub const X19: u16 = 19;
/// DWARF number of `x29`, the frame pointer.
pub const FP: u16 = 29;
/// DWARF number of `x30`, the link register, which is also the return address column.
pub const LR: u16 = 30;
/// DWARF number of the stack pointer.
pub const SP: u16 = 31;

/// Bits of an address. The bits above are the pointer authentication code of a signed return address: Linux
/// gives code no addresses beyond 48 bits unless a program asks for them by a hint.
const ADDRESS: u64 = (1 << 48) - 1;

/// Flag in a stack pointer that is a lower bound only. The stack pointer itself is a multiple of 16 wherever
/// memory is addressed by it (AAPCS64, 6.4.5.1); elsewhere nothing can be said of the frame.
pub(super) const SP_IS_BOUND: u64 = 1;

/// Returns a return address without its pointer authentication code.
#[inline(always)]
#[must_use]
pub const fn strip_pac(address: u64) -> u64 {
    address & ADDRESS
}

/// Registers that the fast unwinder carries from frame to frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Regs {
    /// Program counter: of an interrupted instruction, or a return address.
    pub pc: u64,
    /// Stack pointer. Of a calling frame: its value after the return, which is the callee's CFA. The lowest
    /// bit is set if only a lower bound is known (see [`knows_sp`](Self::knows_sp)).
    pub sp: u64,
    /// `x29`, whatever the code uses it for.
    pub fp: u64,
}

impl Regs {
    /// Returns whether `sp` is the stack pointer. After a step by the frame record alone it is a lower bound,
    /// as the record may be anywhere in its frame.
    #[inline(always)]
    #[must_use]
    pub const fn knows_sp(&self) -> bool {
        self.sp & SP_IS_BOUND == 0
    }
}

/// All general registers, for frames that need more than [`Regs`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct FullRegs {
    /// Returns the program counter.
    pub pc: u64,
    /// `x0` to `x30` and the stack pointer, by DWARF number. Registers that a call does not preserve may hold
    /// anything.
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
    /// Sets registers other than `sp` and `x29` to zero, which is enough for frames that do not need them.
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
    const RA: u16 = LR;
    const LINK: bool = true;
    const VENDOR: Vendor = Vendor::AArch64;

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
        self.pc = strip_pac(pc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_addresses_are_stripped() {
        let mut regs = FullRegs::default();
        regs.set_pc(0x0027_ffff_a123_4568);
        assert_eq!(regs.pc(), 0xffff_a123_4568);
        assert_eq!(strip_pac(0xaaaa_bbbb_cccc), 0xaaaa_bbbb_cccc);
        assert_eq!(strip_pac(0), 0);
    }
}
