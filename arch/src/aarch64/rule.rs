//! Unwind rules of AArch64: what [`generic`](crate::generic) has to know of its frames.

use super::regs::{Aarch64, FP, LR, SP, SP_IS_BOUND, strip_pac};
use super::sigframe::FRAME_X0;
use crate::generic::regs::Regs;
use crate::generic::{Isa, consecutive};
use gimli::Vendor;

pub use super::regs::Rule;
pub use crate::generic::regs::Step;
pub use crate::generic::rule::Form;

impl Isa for Aarch64 {
    type Bank = [u64; 32];
    const SP: u16 = SP;
    const FP: u16 = FP;
    const RA: u16 = LR;
    /// AAPCS64, 6.1.1: `x19` to `x29`.
    const PRESERVED: &'static [u16] = &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29];
    const VENDOR: Vendor = Vendor::AArch64;
    /// The chain of frame records (AAPCS64, 6.4.6). A record may be anywhere in its frame, so the caller's stack
    /// pointer is only known not to be below the record's end.
    const CHAIN: bool = true;
    const BOUND: u64 = SP_IS_BOUND;
    const SAVED: [u64; 32] = consecutive(FRAME_X0, 8);
    const SAVED_PC: u64 = FRAME_X0 + 8 * 32;

    #[inline(always)]
    fn code_address(word: u64) -> u64 {
        strip_pac(word)
    }

    /// Steps by the frame pointer, or not at all. A function that keeps a frame record keeps both words of it together,
    /// and the frame pointer on them while it calls (AAPCS64, 6.4.6), whichever register its tables count from.
    fn step_above(rule: Rule, regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Step {
        match rule.form() {
            Form::CfaFp { .. } | Form::FramePointer | Form::End => rule.step(regs, read),
            Form::CfaSp { cfa_off, ra_slot, fp_slot: Some(fp_slot) } if ra_slot == fp_slot + 8 => {
                let cfa = regs.fp.wrapping_sub(i64::from(fp_slot) as u64);
                let sp = cfa.wrapping_sub(i64::from(cfa_off) as u64);
                if sp < regs.sp || sp & 15 != 0 {
                    return Step::Cut;
                }
                rule.step(&Regs { sp, ..*regs }, read)
            }
            _ => Step::Cut,
        }
    }

    fn from_code(
        pc: u64,
        _variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Rule> {
        super::prologue::before(pc, read)
    }
}

/// Returns whether `words`, read from a stack, begin with the saved pc of a signal frame: the processor state
/// follows it, and behind a word of padding the record of the vector registers, which the kernel always puts
/// first.
#[must_use]
pub fn is_interrupted_pc(words: &[u64]) -> bool {
    /// Mode and interrupt masks, which are clear in user code, and the upper half, which is unused.
    const PSTATE_CLEAR: u64 = 0xffff_ffff_0000_03df;
    let &[_, pstate, _, record, ..] = words else { return false };
    pstate & PSTATE_CLEAR == 0 && record == super::sigframe::FPSIMD_HEAD
}

/// Returns whether `code`, the bytes at a pc, is a signal restorer: `mov x8, #139; svc #0`.
///
/// The [`Rule`] of such code is [`Rule::SIGNAL`]. Ask this before [`compile`](crate::unwind::compile): the vDSO's row
/// for it leads to the frame record that the kernel puts below the frame, not to the interrupted registers.
#[must_use]
pub fn is_sigreturn_code(code: &[u8]) -> bool {
    code.starts_with(&super::syscall::RESTORER)
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
