//! Registers as the unwinder carries them.
//!
//! Register numbers are the DWARF numbers of the System V ABI, AMD64 supplement, figure 3.36
//! ("DWARF Register Number Mapping"). They differ from the numbers in instruction encodings.

/// DWARF number of `rbx`.
pub const RBX: u16 = 3;
/// DWARF number of `rbp`, the frame pointer.
pub const RBP: u16 = 6;
/// DWARF number of `rsp`, the stack pointer.
pub const RSP: u16 = 7;
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

/// AMD64 as an instruction set of [`generic`](crate::generic).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct X86_64;

pub use crate::generic::regs::Regs;
/// All general registers, for frames that need more than [`Regs`].
pub type FullRegs = crate::generic::regs::FullRegs<X86_64>;
/// Packed unwind rule.
pub type Rule = crate::generic::rule::Rule<X86_64>;
