//! Unwind rules of MIPS64: what [`generic`](crate::generic) has to know of its frames.
//!
//! There is no chain of frame pointers on MIPS: `$fp` points to the bottom of its own frame. So the rule for
//! code of which nothing is known ends the stack there.

use super::regs::{FP, Mips64, RA, SP, ZERO};
use super::sigframe::{FRAME_PC, FRAME_REGS};
use super::variant::Order;
use crate::generic::{Isa, consecutive};

pub use super::regs::Rule;
pub use crate::generic::regs::Step;
pub use crate::generic::rule::Form;

impl Isa for Mips64 {
    type Bank = [u64; 32];
    const SP: u16 = SP;
    const FP: u16 = FP;
    const RA: u16 = RA;
    /// MIPSpro 64-bit porting guide, table 2-1: `$s0` to `$s7`, `$gp` and `$fp`.
    const PRESERVED: &'static [u16] = &[16, 17, 18, 19, 20, 21, 22, 23, 28, 30];
    const ZERO: Option<u16> = Some(ZERO);
    const SAVED: [u64; 32] = consecutive(FRAME_REGS, 8);
    const SAVED_PC: u64 = FRAME_PC;

    fn from_code(
        pc: u64,
        _variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Rule> {
        let rule = super::prologue::before(pc, read);
        (rule != Rule::UNKNOWN).then_some(rule)
    }
}

/// Returns whether `words`, read from a stack, begin with the saved pc of a signal frame. Behind it are the
/// state of the floating point unit, and what is used of it; then that of the signal processor; and the
/// blocked signals, among which `SIGKILL` and `SIGSTOP` never are.
#[must_use]
pub fn is_interrupted_pc_in(order: Order, words: &[u64]) -> bool {
    /// Bit of the control register that is always 0, and bits of `sc_used_math` that mean nothing.
    const CONTROL_CLEAR: u64 = 1 << 20;
    const USED_CLEAR: u64 = !0xf;
    const NEVER_BLOCKED: u64 = 1 << 8 | 1 << 22;
    let &[pc, floating, _, mask, ..] = words else { return false };
    let (low, high) = (floating & 0xffff_ffff, floating >> 32);
    let (control, used) = match order {
        Order::Little => (low, high),
        Order::Big => (high, low),
    };
    pc & 3 == 0
        && control & CONTROL_CLEAR == 0
        && used & USED_CLEAR == 0
        && mask & NEVER_BLOCKED == 0
}

/// Does what [`is_interrupted_pc_in`] does, in this machine's byte order.
#[must_use]
pub fn is_interrupted_pc(words: &[u64]) -> bool {
    is_interrupted_pc_in(Order::NATIVE, words)
}

/// Returns whether `code`, the bytes at a pc, is a signal restorer: `li $v0, 5211; syscall`.
///
/// The [`Rule`] of such code is [`Rule::SIGNAL`]: there is no call frame information for it.
#[must_use]
pub fn is_sigreturn_code_in(order: Order, code: &[u8]) -> bool {
    code.starts_with(&super::syscall::restorer_in(order))
}

/// Does what [`is_sigreturn_code_in`] does, in this machine's byte order.
#[must_use]
pub fn is_sigreturn_code(code: &[u8]) -> bool {
    is_sigreturn_code_in(Order::NATIVE, code)
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
