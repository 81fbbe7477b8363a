//! Unwind rules packed into eight bytes, and the step that applies them: the hot path of the
//! profiler.
//!
//! Layout of the word, from the lowest bit:
//!
//! | bits   | `CfaSp`, `CfaFp`                         | `CfaFpDeref`                             |
//! |--------|------------------------------------------|------------------------------------------|
//! | 0..8   | kind                                     | kind                                     |
//! | 8..16  | zero                                     | 1 if the frame pointer is restored       |
//! | 16..32 | frame pointer's slot, relative to the CFA; 0: unchanged | its slot, relative to fp  |
//! | 32..64 | CFA, relative to sp or fp                | where the CFA is, relative to fp         |
//!
//! `GoCall` has `g_at` in bits 16..32 and `depth_at` in bits 32..64. The other kinds are the kind alone. The word 0
//! means that no rule was computed yet.

use super::goroutine;
use super::regs::{FullRegs, RA, RBP, RSP, Regs};
use crate::unwind::{CfiRule, FrameInfo, FullStep, Goroutine, Row};
use gimli::{CfaRule, Register, RegisterRule, Vendor};

const CFA_SP: u64 = 1;
const CFA_FP: u64 = 2;
const CFA_FP_DEREF: u64 = 3;
const FRAME_POINTER: u64 = 4;
const SIGNAL: u64 = 5;
const END: u64 = 6;
const COMPLEX: u64 = 7;
const UNKNOWN: u64 = 8;
const GO_CALL: u64 = 9;

/// Offsets in the `ucontext` of a signal frame, to which `rsp` points when the handler has returned: see
/// `struct ucontext` and `struct sigcontext_64` in the kernel's
/// `arch/x86/include/uapi/asm/{ucontext,sigcontext}.h`.
const UC_RBP: u64 = 120;
const UC_RSP: u64 = 160;
const UC_RIP: u64 = 168;
/// Offsets of the registers in the `ucontext`, by DWARF number: `rax` to `r15`.
const UC_GPR: [u64; 16] = [144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96];

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
        /// Offset of the slot with the caller's fp from the CFA; `None`: fp is unchanged.
        fp_slot: Option<i16>,
    },
    /// CFA = fp + `cfa_off`.
    CfaFp {
        /// Offset of the CFA from fp.
        cfa_off: i32,
        /// Offset of the slot with the caller's fp from the CFA; `None`: fp is unchanged.
        fp_slot: Option<i16>,
    },
    /// CFA = *(fp + `cfa_at`): functions that realign their stack.
    CfaFpDeref {
        /// Offset from fp of the word that holds the CFA.
        cfa_at: i32,
        /// Offset from fp of the slot with the caller's fp; `None`: fp is unchanged.
        fp_at: Option<i16>,
    },
    /// A chain of frame pointers, for code without call frame information. It is applied only where
    /// plausible.
    FramePointer,
    /// Go's `asmcgocall`, which calls C on the thread's own stack. Both offsets are relative to sp.
    GoCall {
        /// Offset of the pointer to the calling goroutine (`g`).
        g_at: i16,
        /// Offset of the distance from the goroutine's stack pointer to the end of its stack.
        depth_at: i32,
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

    /// Returns whether the code itself shows that the frame's return address is still in a register: never,
    /// here.
    #[inline(always)]
    #[must_use]
    pub const fn is_leaf(self) -> bool {
        false
    }

    /// Returns whether the step leads to another stack, or may: out of a signal handler, or from C to the goroutine that
    /// called it. Only for rules that have stepped.
    #[inline(always)]
    #[must_use]
    pub const fn leaves_stack(self) -> bool {
        self.0 as u8 >= SIGNAL as u8
    }

    /// Returns where the step from C to a goroutine leads; `None` for other rules.
    pub fn goroutine(
        self,
        regs: &Regs,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Goroutine> {
        let Form::GoCall { g_at, depth_at } = self.form() else { return None };
        let g = read(regs.sp.wrapping_add(i64::from(g_at) as u64))?;
        let depth = read(regs.sp.wrapping_add(i64::from(depth_at) as u64))?;
        let end_at = g.checked_add(G_STACK_HI)?;
        let end = read(end_at)?;
        let sp = end.checked_sub(depth).filter(|sp| depth >= 8 && sp & 7 == 0)?;
        Some(Goroutine { end_at, end, sp })
    }

    /// Returns whether the step reads the frame pointer, so that the register's value in this frame matters.
    #[inline(always)]
    #[must_use]
    pub const fn reads_fp(self) -> bool {
        matches!(self.0 & 0xff, CFA_FP | CFA_FP_DEREF | FRAME_POINTER)
    }

    /// Returns whether the step loads the caller's frame pointer from memory; it is then the last word read.
    #[inline(always)]
    #[must_use]
    pub const fn writes_fp(self) -> bool {
        match self.0 & 0xff {
            CFA_SP | CFA_FP => self.0 & 0xffff_0000 != 0,
            CFA_FP_DEREF => self.0 & 0x100 != 0,
            FRAME_POINTER | SIGNAL => true,
            _ => false,
        }
    }

    const fn pack(kind: u64, high: i32, slot: i16, flag: bool) -> Rule {
        Rule(kind | (flag as u64) << 8 | (slot as u16 as u64) << 16 | (high as u32 as u64) << 32)
    }

    /// Packs `form`; returns `Complex` for a slot at offset 0 from the CFA, which no code uses.
    #[must_use]
    pub const fn from_form(form: Form) -> Rule {
        match form {
            Form::None => Rule::NONE,
            Form::CfaSp { fp_slot: Some(0), .. } | Form::CfaFp { fp_slot: Some(0), .. } => {
                Rule::COMPLEX
            }
            Form::CfaSp { cfa_off, fp_slot: Some(slot) } => {
                Rule::pack(CFA_SP, cfa_off, slot, false)
            }
            Form::CfaSp { cfa_off, fp_slot: None } => Rule::pack(CFA_SP, cfa_off, 0, false),
            Form::CfaFp { cfa_off, fp_slot: Some(slot) } => {
                Rule::pack(CFA_FP, cfa_off, slot, false)
            }
            Form::CfaFp { cfa_off, fp_slot: None } => Rule::pack(CFA_FP, cfa_off, 0, false),
            Form::CfaFpDeref { cfa_at, fp_at: Some(at) } => {
                Rule::pack(CFA_FP_DEREF, cfa_at, at, true)
            }
            Form::CfaFpDeref { cfa_at, fp_at: None } => Rule::pack(CFA_FP_DEREF, cfa_at, 0, false),
            Form::FramePointer => Rule::FRAME_POINTER,
            Form::GoCall { g_at, depth_at } => Rule::pack(GO_CALL, depth_at, g_at, false),
            Form::Signal => Rule::SIGNAL,
            Form::End => Rule::END,
            Form::Complex => Rule::COMPLEX,
            Form::Unknown => Rule::UNKNOWN,
        }
    }

    /// Unpacks the rule, for tests, messages, and matching.
    #[must_use]
    pub const fn form(self) -> Form {
        let (high, slot) = ((self.0 >> 32) as i32, (self.0 >> 16) as i16);
        let fp_slot = if slot == 0 { None } else { Some(slot) };
        match self.0 & 0xff {
            0 => Form::None,
            CFA_SP => Form::CfaSp { cfa_off: high, fp_slot },
            CFA_FP => Form::CfaFp { cfa_off: high, fp_slot },
            CFA_FP_DEREF => {
                let fp_at = if self.0 & 0x100 == 0 { None } else { Some(slot) };
                Form::CfaFpDeref { cfa_at: high, fp_at }
            }
            FRAME_POINTER => Form::FramePointer,
            SIGNAL => Form::Signal,
            END => Form::End,
            COMPLEX => Form::Complex,
            GO_CALL => Form::GoCall { g_at: slot, depth_at: high },
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
        let cfa = base.wrapping_add((self.0 as i64 >> 32) as u64);
        if cfa <= regs.sp {
            return Step::Cut;
        }
        let Some(pc) = read(cfa.wrapping_sub(8)) else { return Step::Cut };
        let slot = i64::from(self.0 as i32 >> 16);
        let fp = if slot == 0 {
            regs.fp
        } else {
            match read(cfa.wrapping_add(slot as u64)) {
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
            Form::CfaFpDeref { cfa_at, fp_at } => self::deref(regs, cfa_at, fp_at, read),
            Form::FramePointer => frame_pointer(regs, read),
            Form::GoCall { .. } => go_call(self, regs, read),
            Form::Signal => signal(regs, read),
            Form::End => return Step::End,
            Form::Complex => return Step::NeedFull,
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
            let uc = full.gpr[RSP as usize];
            for (slot, offset) in regs.gpr.iter_mut().zip(UC_GPR) {
                let Some(value) = read(uc.wrapping_add(offset)) else { return FullStep::Cut };
                *slot = value;
            }
            return match read(uc.wrapping_add(UC_RIP)) {
                None => FullStep::Cut,
                Some(0) => FullStep::End,
                Some(pc) => FullStep::Next { regs: FullRegs { pc, ..regs }, signal: true },
            };
        }
        match self.step(&Regs::from(full), read) {
            Step::Next(next) => FullStep::Next { regs: regs.with(next), signal: false },
            Step::End => FullStep::End,
            Step::Cut if self == Rule::UNKNOWN => FullStep::NoCfi,
            Step::Cut | Step::NeedFull => FullStep::Cut,
        }
    }
}

fn deref(
    regs: &Regs,
    cfa_at: i32,
    fp_at: Option<i16>,
    read: &mut impl FnMut(u64) -> Option<u64>,
) -> Option<Regs> {
    let cfa = read(regs.fp.wrapping_add(i64::from(cfa_at) as u64))?;
    if cfa <= regs.sp {
        return None;
    }
    let pc = read(cfa.wrapping_sub(8))?;
    let fp = match fp_at {
        Some(at) => read(regs.fp.wrapping_add(i64::from(at) as u64))?,
        None => regs.fp,
    };
    Some(Regs { pc, sp: cfa, fp })
}

/// Steps by a frame that `push rbp; mov rbp, rsp` has made at the function's start: the caller's fp is at fp,
/// the return address above it.
fn frame_pointer(regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    if regs.fp < regs.sp || regs.fp & 7 != 0 {
        return None;
    }
    let pc = read(regs.fp.wrapping_add(8))?;
    let fp = read(regs.fp)?;
    let sp = regs.fp.checked_add(16)?;
    Some(Regs { pc, sp, fp })
}

/// Offset of `stack.hi` in Go's `g`, whose first field is the stack's bounds.
const G_STACK_HI: u64 = 8;

/// Steps from the thread's stack back to the stack of the goroutine that called C. `asmcgocall` saves the distance to
/// the stack's end and not the stack pointer, because a stack may move while C calls Go. For the same reason the frame
/// pointer that C has preserved means nothing: a value comes back that is taken for none.
fn go_call(rule: Rule, regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    const NO_FRAME_POINTER: u64 = 1;
    let sp = rule.goroutine(regs, read)?.sp;
    let pc = read(sp)?;
    Some(Regs { pc, sp: sp.checked_add(8)?, fp: NO_FRAME_POINTER })
}

/// Returns the interrupted registers. The stack may change to any other, so no progress is demanded.
fn signal(regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    let pc = read(regs.sp.wrapping_add(UC_RIP))?;
    let sp = read(regs.sp.wrapping_add(UC_RSP))?;
    let fp = read(regs.sp.wrapping_add(UC_RBP))?;
    Some(Regs { pc, sp, fp })
}

impl CfiRule for Rule {
    const UNKNOWN: Self = Rule::UNKNOWN;
    const COMPLEX: Self = Rule::COMPLEX;
    const VENDOR: Vendor = Vendor::Default;

    /// Only for calls of C by Go: for other code without tables, the chain of frame pointers is followed.
    fn from_code(
        pc: u64,
        _variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Self> {
        goroutine::form(pc, read).map(Rule::from_form)
    }

    /// Packs one row. A row that is not one of the common forms gives `Complex`: a rule is either exact or
    /// not used.
    fn from_row(row: &Row, frame: &FrameInfo<'_>, pc: u64) -> Self {
        if frame.ra != RA {
            return Rule::COMPLEX;
        }
        match row.register(Register(RA)) {
            Some(RegisterRule::Undefined) => return Rule::END,
            Some(RegisterRule::Offset(-8)) if !frame.signal => {}
            Some(RegisterRule::Expression(e)) if frame.signal => {
                let sigreturn = breg(frame.expression(&e)) == Some((RSP, UC_RIP as i64));
                return if sigreturn { Rule::SIGNAL } else { Rule::COMPLEX };
            }
            _ => return Rule::COMPLEX,
        }
        // A row that changes rsp is not supported: the caller's rsp is the CFA.
        if row.register(Register(RSP)).is_some_and(|rule| rule != RegisterRule::ValOffset(0)) {
            return Rule::COMPLEX;
        }
        let form = match row.cfa() {
            CfaRule::RegisterAndOffset { register: Register(base), offset } => {
                plain(row, frame, *base, *offset)
            }
            CfaRule::Expression(e) => match breg_deref(frame.expression(e)) {
                Some((RBP, cfa_at)) => realigned(row, frame, cfa_at),
                Some(_) => None,
                None => {
                    plt_offset(frame.expression(e), pc).and_then(|off| plain(row, frame, RSP, off))
                }
            },
        };
        form.map_or(Rule::COMPLEX, Rule::from_form)
    }
}

/// Returns the form of a row whose CFA is at a constant offset from `base`.
fn plain(row: &Row, frame: &FrameInfo<'_>, base: u16, offset: i64) -> Option<Form> {
    let cfa_off = i32::try_from(offset).ok()?;
    let slot = match row.register(Register(RBP)) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => None,
        Some(RegisterRule::Offset(slot)) => Some(slot),
        Some(RegisterRule::Expression(e)) => match breg(frame.expression(&e)) {
            Some((register, at)) if register == base => Some(at.checked_sub(offset)?),
            _ => return None,
        },
        Some(_) => return None,
    };
    let fp_slot = slot.map(i16::try_from).transpose().ok()?;
    match base {
        RSP => Some(Form::CfaSp { cfa_off, fp_slot }),
        RBP => Some(Form::CfaFp { cfa_off, fp_slot }),
        _ => None,
    }
}

/// Returns the form of a row that GCC emits for functions that realign their stack: CFA and fp are both
/// reached through fp.
fn realigned(row: &Row, frame: &FrameInfo<'_>, cfa_at: i64) -> Option<Form> {
    let fp_at = match row.register(Register(RBP)) {
        None | Some(RegisterRule::SameValue) => None,
        Some(RegisterRule::Expression(e)) => match breg(frame.expression(&e)) {
            Some((RBP, at)) => Some(i16::try_from(at).ok()?),
            _ => return None,
        },
        Some(_) => return None,
    };
    Some(Form::CfaFpDeref { cfa_at: i32::try_from(cfa_at).ok()?, fp_at })
}

/// Splits an expression into `DW_OP_breg<n> offset` and the rest.
fn split_breg(code: &[u8]) -> Option<(u16, i64, &[u8])> {
    let (&op, rest) = code.split_first()?;
    let register = u16::from(op.checked_sub(0x70).filter(|&n| n < 32)?);
    let mut rest = gimli::EndianSlice::new(rest, gimli::LittleEndian);
    let offset = gimli::Reader::read_sleb128(&mut rest).ok()?;
    Some((register, offset, rest.slice()))
}

/// Returns register and offset, if the expression is exactly `DW_OP_breg<n> offset`.
fn breg(code: &[u8]) -> Option<(u16, i64)> {
    match split_breg(code)? {
        (register, offset, []) => Some((register, offset)),
        _ => None,
    }
}

/// Returns register and offset, if the expression is exactly `DW_OP_breg<n> offset; DW_OP_deref`.
fn breg_deref(code: &[u8]) -> Option<(u16, i64)> {
    match split_breg(code)? {
        (register, offset, [0x06]) => Some((register, offset)),
        _ => None,
    }
}

/// Returns the value at `pc`, relative to rsp, of the expression that linkers write for the PLT, where each
/// 16-byte entry pushes one word at a known place: `breg7 8; breg16 0; lit15; and; lit<n>; ge; lit3; shl;
/// plus`.
fn plt_offset(code: &[u8], pc: u64) -> Option<i64> {
    let (RSP, offset, rest) = split_breg(code)? else { return None };
    let (RA, 0, rest) = split_breg(rest)? else { return None };
    let &[0x3f, 0x1a, lit @ 0x30..=0x4f, 0x2a, 0x33, 0x24, 0x22] = rest else { return None };
    let pushed = pc & 15 >= u64::from(lit.wrapping_sub(0x30));
    offset.checked_add(if pushed { 8 } else { 0 })
}

/// Returns whether `words`, read from a stack, begin with the saved pc of a signal frame: flags and code
/// segment follow it (`struct sigcontext_64`: rip, eflags, cs).
#[must_use]
pub fn is_interrupted_pc(words: &[u64]) -> bool {
    const USER_CS: u64 = 0x33;
    /// Bit 1 of the flags is always set, those above 21 never.
    const FLAGS_SET: u64 = 2;
    const FLAGS_CLEAR: u64 = !0x3f_ffff;
    let &[_, flags, segments, ..] = words else { return false };
    flags & (FLAGS_SET | FLAGS_CLEAR) == FLAGS_SET && segments & 0xffff == USER_CS
}

/// Returns whether `code`, the bytes at a pc, is a signal restorer: `mov eax, 15; syscall`, or the same with
/// `mov rax`.
///
/// For restorers without call frame information (musl) their [`Rule`] is [`Rule::SIGNAL`]. Ask this
/// before [`compile`](crate::unwind::compile): the byte before such a restorer, where a return
/// address is looked up, can belong to another function that does have call frame information.
#[must_use]
pub fn is_sigreturn_code(code: &[u8]) -> bool {
    code.starts_with(&super::syscall::RESTORER) || code.starts_with(&super::syscall::RESTORER_REX)
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
