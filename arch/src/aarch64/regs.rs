//! Registers as the unwinder carries them.
//!
//! Register numbers are the DWARF numbers of "DWARF for the Arm 64-bit Architecture" (aadwarf64),
//! section 4.1; for the general registers they are those of the instructions.

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

/// AArch64 as an instruction set of [`generic`](crate::generic).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Aarch64;

pub use crate::generic::regs::Regs;
/// All general registers, for frames that need more than [`Regs`].
pub type FullRegs = crate::generic::regs::FullRegs<Aarch64>;
/// Packed unwind rule.
pub type Rule = crate::generic::rule::Rule<Aarch64>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::RegisterSet;

    #[test]
    fn return_addresses_are_stripped() {
        let mut regs = FullRegs::default();
        regs.set_pc(0x0027_ffff_a123_4568);
        assert_eq!(regs.pc(), 0xffff_a123_4568);
        assert_eq!(strip_pac(0xaaaa_bbbb_cccc), 0xaaaa_bbbb_cccc);
        assert_eq!(strip_pac(0), 0);
    }
}
