//! Unwind rules packed into eight bytes, and the step that applies them: the hot path of the
//! profiler.
//!
//! Layout of the word, from the lowest bit, for the kinds `CfaSp` and `CfaFp`:
//!
//! | bits   | meaning                                                                     |
//! |--------|-----------------------------------------------------------------------------|
//! | 0..8   | kind                                                                        |
//! | 8..32  | CFA, relative to sp or r7, in words of 4 bytes, signed                      |
//! | 32..48 | return address's slot, relative to the CFA, in words, signed                |
//! | 48..64 | r7's slot, relative to the CFA, in words, signed; 0: unchanged              |
//!
//! The other kinds are the kind alone. The word 0 means that no rule was computed yet.
//!
//! A frame whose return address is still in the link register needs all registers: it is `Complex` if there
//! is call frame information, `Leaf` if there is none and the code shows it (see
//! [`prologue`](super::prologue)). Only the innermost frame, and one that a signal has interrupted, can be of
//! this kind. A frame that is found by `r11`, the frame pointer of ARM code, needs them, too: the fast
//! unwinder carries that of Thumb code only.

use super::exidx::{self, Exidx};
use super::regs::{FullRegs, LR, R7, Regs, SP, THUMB};
use crate::unwind::{CfiModule, CfiRule, FrameInfo, FullStep, Goroutine, Row};
use gimli::{CfaRule, Register, RegisterRule, Vendor};

const CFA_SP: u64 = 1;
const CFA_FP: u64 = 2;
const FRAME_POINTER: u64 = 3;
const SIGNAL: u64 = 4;
const END: u64 = 5;
const COMPLEX: u64 = 6;
const UNKNOWN: u64 = 7;
const LEAF: u64 = 8;

/// First word of the kernel's frame for a handler without `SA_SIGINFO` (`setup_frame` of
/// `arch/arm/kernel/signal.c`): the flags of its `struct ucontext`. No other frame has this value.
const PLAIN_FRAME: u64 = 0x5ac3_c35a;
/// Size of `struct siginfo`, which stands before the `struct ucontext` of other handlers' frames.
pub(super) const SIGINFO_LEN: u64 = 128;
/// Offset of `r0` in the `struct ucontext`; the other registers follow, up to pc (`struct sigcontext`).
pub(super) const UC_R0: u64 = 32;

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
        /// Offset of the slot with the caller's r7 from the CFA; `None`: r7 is unchanged.
        fp_slot: Option<i32>,
    },
    /// CFA = r7 + `cfa_off`.
    CfaFp {
        /// Offset of the CFA from r7.
        cfa_off: i32,
        /// Offset of the return address's slot from the CFA.
        ra_slot: i32,
        /// Offset of the slot with the caller's r7 from the CFA; `None`: r7 is unchanged.
        fp_slot: Option<i32>,
    },
    /// Code without call frame information. Compilers do not agree on where a frame pointer leads here, so
    /// the stack ends.
    FramePointer,
    /// The return address is in `lr`. CFA = sp + `cfa_off`.
    Leaf {
        /// Offset of the CFA from sp.
        cfa_off: i32,
        /// Offset of the slot with the caller's r7 from the CFA; `None`: r7 is unchanged.
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

    /// Packs a rule. Returns `Complex` for what does not fit: offsets that are no multiples of 4, or too
    /// large; slots at the CFA, which no code uses.
    const fn pack(kind: u64, cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Rule {
        const CFA_MOST: i32 = (1 << 23) - 1;
        let fp = match fp_slot {
            Some(0) => return Rule::COMPLEX,
            Some(slot) => slot,
            None => 0,
        };
        if (cfa_off | ra_slot | fp) & 3 != 0 || (ra_slot == 0) != (kind == LEAF) {
            return Rule::COMPLEX;
        }
        let (cfa, ra, fp) = (cfa_off >> 2, ra_slot >> 2, fp >> 2);
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
        let cfa_off = (self.0 as u32 as i32 >> 8) << 2;
        let ra_slot = ((self.0 >> 32) as i16 as i32) << 2;
        let fp = ((self.0 >> 48) as i16 as i32) << 2;
        let fp_slot = if fp == 0 { None } else { Some(fp) };
        match self.0 & 0xff {
            0 => Form::None,
            CFA_SP => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            CFA_FP => Form::CfaFp { cfa_off, ra_slot, fp_slot },
            FRAME_POINTER => Form::FramePointer,
            SIGNAL => Form::Signal,
            END => Form::End,
            COMPLEX => Form::Complex,
            LEAF => Form::Leaf { cfa_off, fp_slot },
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
        let cfa = base.wrapping_add(((self.0 as u32 as i32 >> 8) as i64 * 4) as u64);
        if cfa <= regs.sp {
            return Step::Cut;
        }
        let ra_slot = i64::from((self.0 >> 32) as i16) * 4;
        let Some(pc) = read(cfa.wrapping_add(ra_slot as u64)) else { return Step::Cut };
        let fp_slot = (self.0 as i64 >> 48) * 4;
        let fp = if fp_slot == 0 {
            regs.fp
        } else {
            match read(cfa.wrapping_add(fp_slot as u64)) {
                Some(fp) => fp,
                None => return Step::Cut,
            }
        };
        let pc = pc & !THUMB;
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
            let Some(at) = context(full.gpr[SP as usize], read) else { return FullStep::Cut };
            for (slot, n) in regs.gpr.iter_mut().zip(0_u64..) {
                let Some(value) = read(at.wrapping_add(n.wrapping_mul(4))) else {
                    return FullStep::Cut;
                };
                *slot = value;
            }
            return match read(at.wrapping_add(15 * 4)) {
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
    let [sp, lr] = [full.gpr[SP as usize], full.gpr[LR as usize]];
    let cfa = sp.wrapping_add(i64::from(cfa_off) as u64);
    if cfa < sp {
        return FullStep::Cut;
    }
    regs.gpr[SP as usize] = cfa;
    regs.pc = lr & !THUMB;
    if let Some(slot) = fp_slot {
        let Some(fp) = read(cfa.wrapping_add(i64::from(slot) as u64)) else { return FullStep::Cut };
        regs.gpr[R7 as usize] = fp;
    }
    match regs.pc {
        0 => FullStep::End,
        pc if pc == full.pc => FullStep::Cut,
        _ => FullStep::Next { regs, signal: false },
    }
}

/// Returns the address of the interrupted registers in the signal frame at `sp`.
fn context(sp: u64, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<u64> {
    let before = if read(sp)? == PLAIN_FRAME { 0 } else { SIGINFO_LEN };
    Some(sp.wrapping_add(before).wrapping_add(UC_R0))
}

/// Returns the interrupted registers. The stack may change to any other, so no progress is demanded.
fn signal(regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    let at = context(regs.sp, read)?;
    let pc = read(at.wrapping_add(15 * 4))?;
    let sp = read(at.wrapping_add(4 * SP as u64))?;
    let fp = read(at.wrapping_add(4 * R7 as u64))?;
    Some(Regs { pc, sp, fp })
}

/// Returns the index table of a module, and a function that reads words of its tables.
pub(super) fn tables<'a>(
    cfi: &'a CfiModule<'_>,
) -> (Exidx<'a>, impl FnMut(u64) -> Option<u32> + use<'a>) {
    let in_slice = |bytes: &[u8], start: u64, at: u64| {
        let offset = usize::try_from(at.checked_sub(start)?).ok()?;
        Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
    };
    let read = move |at| {
        in_slice(cfi.extab, cfi.extab_addr, at).or_else(|| in_slice(cfi.exidx, cfi.exidx_addr, at))
    };
    (Exidx { bytes: cfi.exidx, addr: cfi.exidx_addr }, read)
}

impl CfiRule for Rule {
    const UNKNOWN: Self = Rule::UNKNOWN;
    const COMPLEX: Self = Rule::COMPLEX;
    const VENDOR: Vendor = Vendor::Default;

    /// Packs one row. A row that is not one of the common forms gives `Complex`: a rule is either exact or
    /// not used.
    fn from_row(row: &Row, frame: &FrameInfo<'_>, _pc: u64) -> Self {
        if frame.ra != LR || frame.signal {
            return Rule::COMPLEX;
        }
        let offset = |register| match row.register(Register(register)) {
            None | Some(RegisterRule::SameValue) => Some(None),
            Some(RegisterRule::Offset(n)) => i32::try_from(n).ok().map(Some),
            Some(_) => None,
        };
        if row.register(Register(LR)) == Some(RegisterRule::Undefined) {
            return Rule::END;
        }
        // A row that changes sp is not supported: the caller's sp is the CFA.
        if row.register(Register(SP)).is_some_and(|rule| rule != RegisterRule::ValOffset(0)) {
            return Rule::COMPLEX;
        }
        let (Some(Some(ra_slot)), Some(fp_slot)) = (offset(LR), offset(R7)) else {
            return Rule::COMPLEX;
        };
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            return Rule::COMPLEX;
        };
        let Ok(cfa_off) = i32::try_from(*offset) else { return Rule::COMPLEX };
        Rule::from_form(match register.0 {
            SP => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            R7 => Form::CfaFp { cfa_off, ra_slot, fp_slot },
            _ => Form::Complex,
        })
    }

    fn from_code(
        pc: u64,
        variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        super::prologue::before(pc, variant, read)
    }

    /// Returns true for Thumb code.
    fn interrupted_variant(sp: u64, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<bool> {
        let at = context(sp, read)?;
        let cpsr = read(at.wrapping_add(16 * 4))?;
        Some(cpsr & u64::from(super::call::CPSR_T) != 0)
    }

    fn is_beside_tables(pc: u64) -> bool {
        pc & THUMB != 0
    }

    fn from_tables(cfi: &CfiModule<'_>, pc: u64) -> Self {
        let (exidx, mut read) = tables(cfi);
        exidx::compile_exidx(&exidx, pc, &mut read)
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
/// Its [`Rule`] is [`Rule::SIGNAL`]. Ask this before [`compile`](crate::unwind::compile).
#[must_use]
pub fn is_sigreturn_code(code: &[u8]) -> bool {
    super::syscall::restorer_of(code).is_some()
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
