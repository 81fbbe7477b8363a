//! Unwind rules of 32-bit ARM: what [`generic`](crate::generic) has to know of its frames.
//!
//! A frame that is found by `r11`, the frame pointer of ARM code, needs all registers: the fast unwinder carries
//! `r7`, that of Thumb code, only. Compilers do not agree on where a frame pointer leads, so there is no chain of them
//! to follow in code without call frame information: the stack ends there.

use super::exidx;
use super::regs::{Arm, FullRegs, LR, R7, SP, THUMB};
use super::sigframe::{SIGINFO_LEN, UC_R0};
use crate::generic::{Isa, consecutive};
use crate::unwind::{CfiModule, FullStep};
use core::ops::Range;

pub use super::regs::Rule;
pub use crate::generic::regs::Step;
pub use crate::generic::rule::Form;

/// First word of the kernel's frame for a handler without `SA_SIGINFO` (`setup_frame` of
/// `arch/arm/kernel/signal.c`): the flags of its `struct ucontext`. No other frame has this value.
const PLAIN_FRAME: u64 = 0x5ac3_c35a;

impl Isa for Arm {
    type Bank = [u64; 15];
    const SP: u16 = SP;
    const FP: u16 = R7;
    const RA: u16 = LR;
    /// AAPCS32, 6.1.1: `r4` to `r11`.
    const PRESERVED: &'static [u16] = &[4, 5, 6, 7, 8, 9, 10, 11];
    const WORD: u8 = 4;
    const SAVED: [u64; 15] = consecutive(0, 4);
    const SAVED_PC: u64 = 15 * 4;

    #[inline(always)]
    fn code_address(word: u64) -> u64 {
        word & !THUMB
    }

    fn saved_at(sp: u64, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let before = if read(sp)? == PLAIN_FRAME { 0 } else { SIGINFO_LEN };
        Some(sp.wrapping_add(before).wrapping_add(UC_R0))
    }

    fn from_code(
        pc: u64,
        variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Rule> {
        super::prologue::before(pc, variant, read)
    }

    /// Returns true for Thumb code.
    fn interrupted_variant(sp: u64, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<bool> {
        let at = Self::saved_at(sp, read)?;
        let cpsr = read(at.wrapping_add(16 * 4))?;
        Some(cpsr & u64::from(super::call::CPSR_T) != 0)
    }

    fn is_beside_tables(pc: u64) -> bool {
        pc & THUMB != 0
    }

    fn from_tables(cfi: &CfiModule<'_>, pc: u64) -> Rule {
        let (exidx, mut read) = exidx::tables(cfi);
        exidx::compile_exidx(&exidx, pc, &mut read)
    }

    fn range_in_tables(cfi: &CfiModule<'_>, pc: u64) -> Option<Range<u64>> {
        exidx::tables(cfi).0.range(pc)
    }

    fn step_tables(
        regs: &FullRegs,
        cfi: &CfiModule<'_>,
        lookup_pc: u64,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> FullStep<FullRegs> {
        let (exidx, mut table) = exidx::tables(cfi);
        // The tables are not on any stack.
        let mut word = |at| table(at).or_else(|| read(at).map(|word| word as u32));
        exidx::step_exidx(&exidx, regs, lookup_pc, &mut word)
    }
}

/// Returns whether `words`, read from a stack, begin with the saved pc of a signal frame: the processor state
/// follows it, and further on the first record of coprocessor registers.
#[must_use]
pub fn is_interrupted_pc(words: &[u64]) -> bool {
    /// Mode and interrupt masks, byte order, and bits that are always zero, as user code has them.
    const USER: (u64, u64) = (0x00f0_02df, 0x10);
    /// Magic numbers of the records of vector registers, and of iWMMXt's, which come first if there are any.
    const RECORDS: [u64; 3] = [super::sigframe::VFP_MAGIC as u64, 0x12ef_842a, 0xb0d9_ed01];
    /// Number of words from pc to the first record.
    const AWAY: usize = 35;
    let (Some(cpsr), Some(record)) = (words.get(1), words.get(AWAY)) else { return false };
    cpsr & USER.0 == USER.1 && RECORDS.contains(record)
}

/// Returns whether `code`, the bytes at a pc, is a signal restorer: `mov r7, #number; svc`, of either kind of
/// signal frame, as the kernel or a libc has it.
///
/// The [`Rule`] of such code is [`Rule::SIGNAL`]. Ask this before [`compile`](crate::unwind::compile).
#[must_use]
pub fn is_sigreturn_code(code: &[u8]) -> bool {
    super::syscall::restorer_of(code).is_some()
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
