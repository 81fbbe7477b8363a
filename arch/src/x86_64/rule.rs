//! Unwind rules of AMD64: how they are packed, and what [`generic`](crate::generic) does not know of their steps.
//!
//! Layout of the word behind the kind, from the lowest bit:
//!
//! | bits   | `CfaSp`, `CfaFp`                         | `CfaFpDeref`                             |
//! |--------|------------------------------------------|------------------------------------------|
//! | 8..16  | zero                                     | 1 if the frame pointer is restored       |
//! | 16..32 | frame pointer's slot, relative to the CFA; 0: unchanged | its slot, relative to fp  |
//! | 32..64 | CFA, relative to sp or fp                | where the CFA is, relative to fp         |
//!
//! `GoCall` has `g_at` in bits 16..32 and `depth_at` in bits 32..64. The return address is always the word below the
//! CFA.

use super::goroutine;
use super::regs::{R12, R13, R14, R15, RA, RBP, RBX, RSP, X86_64};
use crate::generic::Isa;
use crate::generic::regs::Regs;
use crate::generic::rule::{CFA_FP_DEREF, GO_CALL, RESTORES_FP};
use crate::unwind::{FrameInfo, Goroutine, Row};
use gimli::{CfaRule, Register, RegisterRule};

pub use super::regs::Rule;
pub use crate::generic::regs::Step;
pub use crate::generic::rule::Form;

/// Offset of the return address from the CFA.
const RA_SLOT: i32 = -8;
/// Offset of `rip` in the `ucontext` of a signal frame, to which `rsp` points when the handler has returned: see
/// `struct ucontext` and `struct sigcontext_64` in the kernel's
/// `arch/x86/include/uapi/asm/{ucontext,sigcontext}.h`.
const UC_RIP: u64 = 168;
/// Offset of `stack.hi` in Go's `g`, whose first field is the stack's bounds.
const G_STACK_HI: u64 = 8;

/// Lays a rule out.
fn word(kind: u64, high: i32, slot: i16) -> u64 {
    kind | u64::from(slot as u16) << 16 | u64::from(high as u32) << 32
}

impl Isa for X86_64 {
    type Bank = [u64; 16];
    const SP: u16 = RSP;
    const FP: u16 = RBP;
    const RA: u16 = RA;
    /// System V ABI, AMD64 supplement, figure 3.4.
    const PRESERVED: &'static [u16] = &[RBX, RBP, R12, R13, R14, R15];
    const LINK: bool = false;
    const CHAIN: bool = true;
    /// `rax` to `r15`, by DWARF number.
    const SAVED: [u64; 16] =
        [144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96];
    const SAVED_PC: u64 = UC_RIP;

    /// Packs a rule. Returns `None` for a slot at offset 0 from the CFA, which no code uses.
    fn pack(kind: u64, cfa_off: i32, ra_slot: i32, fp_slot: Option<i32>) -> Option<u64> {
        if ra_slot != RA_SLOT || fp_slot == Some(0) {
            return None;
        }
        Some(word(kind, cfa_off, i16::try_from(fp_slot.unwrap_or(0)).ok()?))
    }

    #[inline(always)]
    fn cfa_off(word: u64) -> i64 {
        word as i64 >> 32
    }

    #[inline(always)]
    fn ra_slot(_word: u64) -> i64 {
        i64::from(RA_SLOT)
    }

    #[inline(always)]
    fn fp_slot(word: u64) -> i64 {
        i64::from(word as i32 >> 16)
    }

    fn pack_own(form: Form) -> Option<u64> {
        match form {
            Form::CfaFpDeref { cfa_at, fp_at: Some(at) } => {
                Some(word(CFA_FP_DEREF | RESTORES_FP, cfa_at, at))
            }
            Form::CfaFpDeref { cfa_at, fp_at: None } => Some(word(CFA_FP_DEREF, cfa_at, 0)),
            Form::GoCall { g_at, depth_at } => Some(word(GO_CALL, depth_at, g_at)),
            _ => None,
        }
    }

    fn unpack_own(word: u64) -> Option<Form> {
        let (high, slot) = ((word >> 32) as i32, (word >> 16) as i16);
        match word & 0xff {
            CFA_FP_DEREF => {
                let fp_at = (word & RESTORES_FP != 0).then_some(slot);
                Some(Form::CfaFpDeref { cfa_at: high, fp_at })
            }
            GO_CALL => Some(Form::GoCall { g_at: slot, depth_at: high }),
            _ => None,
        }
    }

    fn step_own(
        form: Form,
        regs: &Regs,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Regs> {
        match form {
            Form::CfaFpDeref { cfa_at, fp_at } => deref(regs, cfa_at, fp_at, read),
            _ => go_call(form, regs, read),
        }
    }

    fn goroutine(
        form: Form,
        regs: &Regs,
        read: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Option<Goroutine> {
        let Form::GoCall { g_at, depth_at } = form else { return None };
        let g = read(regs.sp.wrapping_add(i64::from(g_at) as u64))?;
        let depth = read(regs.sp.wrapping_add(i64::from(depth_at) as u64))?;
        let end_at = g.checked_add(G_STACK_HI)?;
        let end = read(end_at)?;
        let sp = end.checked_sub(depth).filter(|sp| depth >= 8 && sp & 7 == 0)?;
        Some(Goroutine { end_at, end, sp })
    }

    /// Returns rules for calls of C by Go only: for other code without tables, the chain of frame pointers is
    /// followed.
    fn from_code(
        pc: u64,
        _variant: Option<bool>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Rule> {
        goroutine::form(pc, read).map(Rule::from_form)
    }

    fn from_row(row: &Row, frame: &FrameInfo<'_>, pc: u64) -> Rule {
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

/// Steps out of a function that has realigned its stack.
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

/// Steps from the thread's stack back to the stack of the goroutine that called C. `asmcgocall` saves the distance to
/// the stack's end and not the stack pointer, because a stack may move while C calls Go. For the same reason the frame
/// pointer that C has preserved means nothing: a value comes back that is taken for none.
fn go_call(form: Form, regs: &Regs, read: &mut impl FnMut(u64) -> Option<u64>) -> Option<Regs> {
    const NO_FRAME_POINTER: u64 = 1;
    let sp = X86_64::goroutine(form, regs, read)?.sp;
    let pc = read(sp)?;
    Some(Regs { pc, sp: sp.checked_add(8)?, fp: NO_FRAME_POINTER })
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
    let fp_slot = slot.map(i32::try_from).transpose().ok()?;
    match base {
        RSP => Some(Form::CfaSp { cfa_off, ra_slot: RA_SLOT, fp_slot }),
        RBP => Some(Form::CfaFp { cfa_off, ra_slot: RA_SLOT, fp_slot }),
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
