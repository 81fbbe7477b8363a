//! Unwind rules packed into eight bytes, and the step that applies them: the hot path of the
//! profiler.
//!
//! Layout of the word, from the lowest bit, for the kinds `CfaSp` and `CfaFp`:
//!
//! | bits   | meaning                                                                     |
//! |--------|-----------------------------------------------------------------------------|
//! | 0..8   | kind                                                                        |
//! | 8..32  | CFA, relative to sp or fp, in words of 8 bytes, signed                      |
//! | 32..48 | return address's slot, relative to the CFA, in words, signed                |
//! | 48..64 | frame pointer's slot, relative to the CFA, in words, signed; 0: unchanged   |
//!
//! The other kinds are the kind alone. The word 0 means that no rule was computed yet.
//!
//! A frame whose return address is still in `$ra` needs all registers: it is `Complex` if there is call frame
//! information, `Leaf` if there is none and the code shows it (see [`prologue`](super::prologue)). Only the
//! innermost frame, and one that a signal has interrupted, can be of this kind.
//!
//! There is no chain of frame pointers on MIPS: `$fp` points to the bottom of its own frame. So the rule for
//! code of which nothing is known ends the stack there.

use super::isa::Order;
use super::regs::{FP, FullRegs, RA, Regs, SP};
use crate::unwind::{CfiRule, FrameInfo, FullStep, Goroutine, Row};
use gimli::{CfaRule, Register, RegisterRule, Vendor};

const CFA_SP: u64 = 1;
const CFA_FP: u64 = 2;
const FRAME_POINTER: u64 = 3;
const SIGNAL: u64 = 4;
const END: u64 = 5;
const COMPLEX: u64 = 6;
const UNKNOWN: u64 = 7;
const LEAF: u64 = 8;

/// Offset of the first register in the kernel's signal frame (`struct rt_sigframe` of
/// `arch/mips/kernel/signal.c`: room for four arguments and a trampoline, siginfo, `struct ucontext`), to
/// which the stack pointer points when the handler has returned. The other registers follow (`struct
/// sigcontext`).
pub(super) const FRAME_REGS: u64 = 192;
const FRAME_FP: u64 = FRAME_REGS + 8 * FP as u64;
const FRAME_SP: u64 = FRAME_REGS + 8 * SP as u64;
/// Offset of the program counter in that frame.
pub(super) const FRAME_PC: u64 = 768;

/// Rule that steps from a frame to its caller, for one code address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Rule(u64);

/// An unpacked [`Rule`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Form {
    /// No rule was computed yet.
    None,
    /// CFA = sp + `cfa_off`.
    CfaSp {
        /// Offset of the CFA from sp.
        cfa_off: i32,
        /// Offset of the return address's slot from the CFA.
        ra_slot: i32,
        /// Offset of the slot with the caller's fp from the CFA; `None`: fp is unchanged.
        fp_slot: Option<i32>,
    },
    /// CFA = fp + `cfa_off`.
    CfaFp {
        /// Offset of the CFA from fp.
        cfa_off: i32,
        /// Offset of the return address's slot from the CFA.
        ra_slot: i32,
        /// Offset of the slot with the caller's fp from the CFA; `None`: fp is unchanged.
        fp_slot: Option<i32>,
    },
    /// Code of which nothing is known: there is no chain of frame pointers to follow.
    FramePointer,
    /// The return address is in `$ra`. CFA = sp + `cfa_off`.
    Leaf {
        /// Offset of the CFA from sp.
        cfa_off: i32,
        /// Offset of the slot with the caller's fp from the CFA; `None`: fp is unchanged.
        fp_slot: Option<i32>,
    },
    /// The kernel's signal frame.
    Signal,
    /// The outermost frame of a thread.
    End,
    /// The frame needs [`step_full`](crate::unwind::step_full).
    Complex,
    /// There is no call frame information for this address.
    Unknown,
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

impl Rule {
    /// No rule was computed yet.
    pub const NONE: Rule = Rule(0);
    /// See [`Form::FramePointer`].
    pub const FRAME_POINTER: Rule = Rule(FRAME_POINTER);
    /// See [`Form::Signal`].
    pub const SIGNAL: Rule = Rule(SIGNAL);
    /// See [`Form::End`].
    pub const END: Rule = Rule(END);
    /// See [`Form::Complex`].
    pub const COMPLEX: Rule = Rule(COMPLEX);
    /// See [`Form::Unknown`].
    pub const UNKNOWN: Rule = Rule(UNKNOWN);
    /// Returns the word, to be kept in an atomic.
    #[inline(always)]
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Makes a rule from a word that [`to_u64`](Self::to_u64) returned. Any word is safe; a meaningless one
    /// steps to `Cut`.
    #[inline(always)]
    #[must_use]
    pub const fn from_u64(word: u64) -> Self {
        Rule(word)
    }

    /// Returns whether no rule was computed yet.
    #[inline(always)]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the frame is a signal trampoline. The pc of the next frame is then that of an
    /// interrupted instruction, and is looked up as it is, not at pc - 1.
    #[inline(always)]
    #[must_use]
    pub const fn is_signal(self) -> bool {
        self.0 == SIGNAL
    }

    /// Returns whether the step leads to another stack, or may: out of a signal handler.
    #[inline(always)]
    #[must_use]
    pub const fn leaves_stack(self) -> bool {
        self.is_signal()
    }

    /// Returns where the step from C to a goroutine leads: on this architecture it is not known.
    #[inline(always)]
    pub fn goroutine(
        self,
        _regs: &Regs,
        _read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Goroutine> {
        None
    }

    /// Returns whether the code itself shows that the frame's return address is still in the link register.
    #[inline(always)]
    #[must_use]
    pub const fn is_leaf(self) -> bool {
        self.0 & 0xff == LEAF
    }

    /// Returns whether the step reads the frame pointer, so that the register's value in this frame matters.
    #[inline(always)]
    #[must_use]
    pub const fn reads_fp(self) -> bool {
        self.0 & 0xff == CFA_FP
    }

    /// Returns whether the step loads the caller's frame pointer from memory; it is then the last word read.
    #[inline(always)]
    #[must_use]
    pub const fn writes_fp(self) -> bool {
        match self.0 & 0xff {
            CFA_SP | CFA_FP => self.0 >> 48 != 0,
            SIGNAL => true,
            _ => false,
        }
    }

    /// Packs a rule. Returns `Complex` for what does not fit: offsets that are no multiples of 8, or too
    /// large; slots at the CFA, which no code uses.
    const fn pack(kind: u64, cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Rule {
        const CFA_MOST: i32 = (1 << 23) - 1;
        let fp = match fp_slot {
            Some(0) => return Rule::COMPLEX,
            Some(slot) => slot,
            None => 0,
        };
        if (cfa_off | ra_slot | fp) & 7 != 0 || (ra_slot == 0) != (kind == LEAF) {
            return Rule::COMPLEX;
        }
        let (cfa, ra, fp) = (cfa_off >> 3, ra_slot >> 3, fp >> 3);
        if cfa > CFA_MOST || cfa < -CFA_MOST || ra as i16 as i32 != ra || fp as i16 as i32 != fp {
            return Rule::COMPLEX;
        }
        let cfa = (cfa as u32 & 0xff_ffff) as u64;
        Rule(kind | cfa << 8 | (ra as u16 as u64) << 32 | (fp as u16 as u64) << 48)
    }

    /// Packs `form`; returns `Complex` if it does not fit.
    #[must_use]
    pub const fn from_form(form: Form) -> Rule {
        match form {
            Form::None => Rule::NONE,
            Form::CfaSp { cfa_off, ra_slot, fp_slot } => {
                Rule::pack(CFA_SP, cfa_off, ra_slot, fp_slot)
            }
            Form::CfaFp { cfa_off, ra_slot, fp_slot } => {
                Rule::pack(CFA_FP, cfa_off, ra_slot, fp_slot)
            }
            Form::FramePointer => Rule::FRAME_POINTER,
            Form::Leaf { cfa_off, fp_slot } => Rule::pack(LEAF, cfa_off, 0, fp_slot),
            Form::Signal => Rule::SIGNAL,
            Form::End => Rule::END,
            Form::Complex => Rule::COMPLEX,
            Form::Unknown => Rule::UNKNOWN,
        }
    }

    /// Unpacks the rule, for tests, messages, and matching.
    #[must_use]
    pub const fn form(self) -> Form {
        let cfa_off = (self.0 as u32 as i32 >> 8) << 3;
        let ra_slot = ((self.0 >> 32) as i16 as i32) << 3;
        let fp = ((self.0 >> 48) as i16 as i32) << 3;
        let fp_slot = if fp == 0 { None } else { Some(fp) };
        match self.0 & 0xff {
            0 => Form::None,
            CFA_SP => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            CFA_FP => Form::CfaFp { cfa_off, ra_slot, fp_slot },
            FRAME_POINTER => Form::FramePointer,
            LEAF => Form::Leaf { cfa_off, fp_slot },
            SIGNAL => Form::Signal,
            END => Form::End,
            COMPLEX => Form::Complex,
            _ => Form::Unknown,
        }
    }

    /// Steps to the caller. `read` returns the word at an address, or `None` where there is no memory; every
    /// word that the result depends on is read through it, once.
    #[inline(always)]
    pub fn step(self, regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Step {
        let kind = self.0 & 0xff;
        if kind.wrapping_sub(CFA_SP) > CFA_FP - CFA_SP {
            return self.step_rare(regs, read);
        }
        let base = if kind == CFA_SP { regs.sp } else { regs.fp };
        let cfa = base.wrapping_add(((self.0 as u32 as i32 >> 8) as i64 * 8) as u64);
        if cfa <= regs.sp {
            return Step::Cut;
        }
        let ra_slot = i64::from((self.0 >> 32) as i16) * 8;
        let Some(pc) = read(cfa.wrapping_add(ra_slot as u64)) else { return Step::Cut };
        let fp_slot = (self.0 as i64 >> 48) * 8;
        let fp = if fp_slot == 0 {
            regs.fp
        } else {
            match read(cfa.wrapping_add(fp_slot as u64)) {
                Some(fp) => fp,
                None => return Step::Cut,
            }
        };
        if pc == 0 {
            return Step::End;
        }
        Step::Next(Regs { pc, sp: cfa, fp })
    }

    /// Applies all but the two common forms.
    #[cold]
    #[inline(never)]
    fn step_rare(self, regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Step {
        let next = match self.form() {
            Form::Signal => signal(regs, read),
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
        full: &FullRegs,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> FullStep<FullRegs> {
        let mut regs = *full;
        if self.is_signal() {
            let frame = full.gpr[SP as usize];
            for (slot, n) in regs.gpr.iter_mut().zip(0_u64..).skip(1) {
                let at = frame.wrapping_add(FRAME_REGS).wrapping_add(n.wrapping_mul(8));
                let Some(value) = read(at) else { return FullStep::Cut };
                *slot = value;
            }
            return match read(frame.wrapping_add(FRAME_PC)) {
                None => FullStep::Cut,
                Some(0) => FullStep::End,
                Some(pc) => FullStep::Next { regs: FullRegs { pc, ..regs }, signal: true },
            };
        }
        if let Form::Leaf { cfa_off, fp_slot } = self.form() {
            return leaf(full, cfa_off, fp_slot, read);
        }
        match self.step(&Regs::from(full), read) {
            Step::Next(next) => FullStep::Next { regs: regs.with(next), signal: false },
            Step::End => FullStep::End,
            Step::Cut if self == Rule::UNKNOWN => FullStep::NoCfi,
            Step::Cut | Step::NeedFull => FullStep::Cut,
        }
    }
}

/// Steps out of a function that has not saved its return address. Only the innermost function can be one, so
/// a caller with the same pc leads nowhere.
fn leaf(
    full: &FullRegs,
    cfa_off: i32,
    fp_slot: Option<i32>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> FullStep<FullRegs> {
    let mut regs = *full;
    let cfa = full.gpr[SP as usize].wrapping_add(i64::from(cfa_off) as u64);
    if cfa < full.gpr[SP as usize] {
        return FullStep::Cut;
    }
    regs.gpr[SP as usize] = cfa;
    regs.pc = full.gpr[RA as usize];
    if let Some(slot) = fp_slot {
        let Some(fp) = read(cfa.wrapping_add(i64::from(slot) as u64)) else { return FullStep::Cut };
        regs.gpr[FP as usize] = fp;
    }
    match regs.pc {
        0 => FullStep::End,
        pc if pc == full.pc => FullStep::Cut,
        _ => FullStep::Next { regs, signal: false },
    }
}

/// Returns the interrupted registers. The stack may change to any other, so no progress is demanded.
fn signal(regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    let pc = read(regs.sp.wrapping_add(FRAME_PC))?;
    let sp = read(regs.sp.wrapping_add(FRAME_SP))?;
    let fp = read(regs.sp.wrapping_add(FRAME_FP))?;
    Some(Regs { pc, sp, fp })
}

impl CfiRule for Rule {
    const UNKNOWN: Self = Rule::UNKNOWN;
    const COMPLEX: Self = Rule::COMPLEX;
    const VENDOR: Vendor = Vendor::Default;

    fn from_code(
        pc: u64,
        _variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        let rule = super::prologue::before(pc, read);
        (rule != Rule::UNKNOWN).then_some(rule)
    }

    /// Packs one row. A row that is not one of the common forms gives `Complex`: a rule is either exact or
    /// not used.
    fn from_row(row: &Row, frame: &FrameInfo<'_>, _pc: u64) -> Self {
        if frame.ra != RA || frame.signal {
            return Rule::COMPLEX;
        }
        let offset = |register| match row.register(Register(register)) {
            None | Some(RegisterRule::SameValue) => Some(None),
            Some(RegisterRule::Offset(n)) => i32::try_from(n).ok().map(Some),
            Some(_) => None,
        };
        if row.register(Register(RA)) == Some(RegisterRule::Undefined) {
            return Rule::END;
        }
        // A row that changes sp is not supported: the caller's sp is the CFA.
        if row.register(Register(SP)).is_some_and(|rule| rule != RegisterRule::ValOffset(0)) {
            return Rule::COMPLEX;
        }
        let (Some(Some(ra_slot)), Some(fp_slot)) = (offset(RA), offset(FP)) else {
            return Rule::COMPLEX;
        };
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            return Rule::COMPLEX;
        };
        let Ok(cfa_off) = i32::try_from(*offset) else { return Rule::COMPLEX };
        Rule::from_form(match register.0 {
            SP => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            FP => Form::CfaFp { cfa_off, ra_slot, fp_slot },
            _ => Form::Complex,
        })
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
/// Its [`Rule`] is [`Rule::SIGNAL`]: there is no call frame information for it.
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
