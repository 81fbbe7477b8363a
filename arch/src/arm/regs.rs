//! Registers as the unwinder carries them.
//!
//! Register numbers are the DWARF numbers of "DWARF for the Arm Architecture" (aadwarf32), section
//! 4.1; for the general registers they are those of the instructions. Values have 32 bits and are
//! zero-extended.

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

/// 32-bit ARM as an instruction set of [`generic`](crate::generic).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Arm;

pub use crate::generic::regs::Regs;
/// All general registers, for frames that need more than [`Regs`].
pub type FullRegs = crate::generic::regs::FullRegs<Arm>;
/// Packed unwind rule.
pub type Rule = crate::generic::rule::Rule<Arm>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::RegisterSet;

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
