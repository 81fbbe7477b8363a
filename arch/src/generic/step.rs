//! Steps from a frame to its caller by a packed rule: the hot path of the profiler.

use super::Isa;
use super::regs::{FullRegs, Regs, Step};
use super::rule::{CFA_FP, CFA_SP, Form, Rule};
use crate::unwind::FullStep;

impl<I: Isa> Rule<I> {
    /// Returns whether `regs.sp` is the stack pointer. After a step by the chain of frame pointers it may be a lower
    /// bound only ([`Isa::BOUND`]).
    #[inline(always)]
    #[must_use]
    pub const fn knows_sp(regs: &Regs) -> bool {
        regs.sp & I::BOUND == 0
    }

    /// Steps to the caller. `read` returns the word at an address, or `None` where there is no memory; every
    /// word that the result depends on is read through it, once.
    #[inline(always)]
    pub fn step(self, regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Step {
        // One comparison detects both a rule of another kind and a stack pointer that is not known.
        let kind = self.kind() | (regs.sp & I::BOUND) << 8;
        if kind.wrapping_sub(CFA_SP) > CFA_FP - CFA_SP {
            return self.step_rare(regs, read);
        }
        let base = if kind == CFA_SP { regs.sp } else { regs.fp };
        let cfa = base.wrapping_add(I::cfa_off(self.0) as u64);
        if cfa <= regs.sp {
            return Step::Cut;
        }
        let Some(pc) = read(cfa.wrapping_add(I::ra_slot(self.0) as u64)) else { return Step::Cut };
        let fp_slot = I::fp_slot(self.0);
        let fp = if fp_slot == 0 {
            regs.fp
        } else {
            match read(cfa.wrapping_add(fp_slot as u64)) {
                Some(fp) => fp,
                None => return Step::Cut,
            }
        };
        let pc = I::code_address(pc);
        if pc == 0 {
            return Step::End;
        }
        Step::Next(Regs { pc, sp: cfa, fp })
    }

    /// Applies all but the two common forms.
    #[cold]
    #[inline(never)]
    fn step_rare(self, regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Step {
        if !Self::knows_sp(regs) {
            return I::step_above(self, &Regs { sp: regs.sp & !I::BOUND, ..*regs }, read);
        }
        let next = match self.form() {
            Form::FramePointer if I::CHAIN => frame_pointer::<I>(regs, read),
            Form::Signal => signal::<I>(regs, read),
            form @ (Form::CfaFpDeref { .. } | Form::GoCall { .. }) => I::step_own(form, regs, read),
            Form::End => return Step::End,
            Form::Complex | Form::Leaf { .. } => return Step::NeedFull,
            _ => return Step::Cut,
        };
        match next {
            Some(Regs { pc: 0, .. }) => Step::End,
            Some(next) => Step::Next(next),
            None => Step::Cut,
        }
    }

    /// Steps with all registers. A signal frame restores them all. For `Unknown` nothing is known (`NoCfi`),
    /// and `Complex` can't be answered here (`Cut`). The other forms leave registers that they do not
    /// describe as they are, which is wrong for those that the function saved: use
    /// [`step_full`](crate::unwind::step_full) where there is call frame information.
    pub fn step_all(
        self,
        full: &FullRegs<I>,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> FullStep<FullRegs<I>> {
        let regs = Regs::from(full);
        let exact = Self::knows_sp(&regs);
        if self.is_signal() && exact {
            return match interrupted(full, read) {
                None => FullStep::Cut,
                Some(FullRegs { pc: 0, .. }) => FullStep::End,
                Some(regs) => FullStep::Next { regs, signal: true },
            };
        }
        if I::LINK
            && exact
            && let Form::Leaf { cfa_off, fp_slot } = self.form()
        {
            return leaf(full, cfa_off, fp_slot, read);
        }
        match self.step(&regs, read) {
            Step::Next(next) => FullStep::Next { regs: full.with(next), signal: false },
            Step::End => FullStep::End,
            Step::Cut if self == Rule::UNKNOWN => FullStep::NoCfi,
            Step::Cut | Step::NeedFull => FullStep::Cut,
        }
    }
}

/// Steps by the two words that the frame pointer leads to: the caller's frame pointer, and above it the return address.
fn frame_pointer<I: Isa>(regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    let word = u64::from(I::WORD);
    if regs.fp < regs.sp || !regs.fp.is_multiple_of(word) {
        return None;
    }
    let pc = read(regs.fp.wrapping_add(word))?;
    let fp = read(regs.fp)?;
    let sp = regs.fp.checked_add(word.wrapping_mul(2))? | I::BOUND;
    Some(Regs { pc: I::code_address(pc), sp, fp })
}

/// Returns the three registers that the signal frame at the stack pointer has saved. The stack may change to any
/// other, so no progress is demanded.
fn signal<I: Isa>(regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    let at = I::saved_at(regs.sp, read)?;
    let offset = |n: u16| I::SAVED.as_ref().get(usize::from(n)).copied();
    let pc = read(at.wrapping_add(I::SAVED_PC))?;
    let sp = read(at.wrapping_add(offset(I::SP)?))?;
    let fp = read(at.wrapping_add(offset(I::FP)?))?;
    Some(Regs { pc, sp, fp })
}

/// Returns all registers that the signal frame at the stack pointer has saved.
fn interrupted<I: Isa>(
    full: &FullRegs<I>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> Option<FullRegs<I>> {
    let mut regs = *full;
    let at = I::saved_at(full.general(I::SP), read)?;
    let offsets = I::SAVED;
    let slots = regs.gpr.as_mut().iter_mut().zip(offsets.as_ref());
    for (n, (slot, offset)) in (0_u16..).zip(slots) {
        if I::ZERO != Some(n) {
            *slot = read(at.wrapping_add(*offset))?;
        }
    }
    regs.pc = read(at.wrapping_add(I::SAVED_PC))?;
    Some(regs)
}

/// Steps out of a function that has not saved its return address. Only the innermost function can be one, so
/// a caller with the same pc leads nowhere.
fn leaf<I: Isa>(
    full: &FullRegs<I>,
    cfa_off: i32,
    fp_slot: Option<i32>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> FullStep<FullRegs<I>> {
    let mut regs = *full;
    let sp = full.general(I::SP);
    let cfa = sp.wrapping_add(i64::from(cfa_off) as u64);
    if cfa < sp {
        return FullStep::Cut;
    }
    regs.set_general(I::SP, cfa);
    regs.pc = I::code_address(full.general(I::RA));
    if let Some(slot) = fp_slot {
        let Some(fp) = read(cfa.wrapping_add(i64::from(slot) as u64)) else { return FullStep::Cut };
        regs.set_general(I::FP, fp);
    }
    match regs.pc {
        0 => FullStep::End,
        pc if pc == full.pc => FullStep::Cut,
        _ => FullStep::Next { regs, signal: false },
    }
}
