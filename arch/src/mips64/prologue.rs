//! Frames of code that has no call frame information, from its instructions.
//!
//! What compilers make at a function's start: `daddiu $sp, $sp, -N`, then `sd $ra, n($sp)` and
//! `sd $fp, n($sp)`, and `move $fp, $sp` where the function moves `$sp` again; at its end the
//! opposite. Other instructions stand between those. Assembly code may do as it likes: what is not
//! understood gives [`Rule::UNKNOWN`].

use super::decode::{PcUse, field, is_terminator, pc_use, slot};
use super::isa::{Isa, NOP};
use super::regs::{FP, RA, SP};
use super::rule::{Form, Rule};

/// Instructions that are looked at, at most.
const MOST: usize = 4096;

/// Branches whose targets are still ahead, at most.
const AHEAD: usize = 16;

/// What an instruction does with the frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Effect {
    None,
    /// `$sp` is moved.
    AddSp(i32),
    /// `$sp` gets a value that is not known.
    LoseSp,
    /// `$fp` is set to that much above `$sp`.
    FpFromSp(i32),
    /// `$sp` is set to that much above `$fp`.
    SpFromFp(i32),
    /// `$fp` gets another value.
    LoseFp,
    /// A register is saved, at an offset from another.
    Save {
        register: u32,
        base: u32,
        offset: i32,
    },
    /// A register gets a value from the stack.
    Load {
        register: u32,
    },
}

const SP_N: u32 = SP as u32;
const FP_N: u32 = FP as u32;
const RA_N: u32 = RA as u32;

/// The register that an instruction writes, of those with three registers or two and a number, and
/// of loads.
fn written(insn: u32) -> Option<u32> {
    match insn >> 26 {
        // Shifts, moves, arithmetic; not jumps, traps, system calls, multiplications.
        0 => match insn & 0x3f {
            0x00..=0x07 | 0x0a | 0x0b | 0x10 | 0x12 | 0x14..=0x17 | 0x20..=0x2f | 0x38..=0x3f => {
                Some(field(insn, 11))
            }
            _ => None,
        },
        0x08..=0x0f | 0x18..=0x1b | 0x20..=0x27 | 0x30 | 0x34 | 0x37 => Some(field(insn, 16)),
        _ => None,
    }
}

fn effect(insn: u32) -> Effect {
    let (rs, rt) = (field(insn, 21), field(insn, 16));
    let number = i32::from(insn as u16 as i16);
    let (opcode, to) = (insn >> 26, written(insn));
    if opcode == 0x3f && (rt == RA_N || rt == FP_N) && (rs == SP_N || rs == FP_N) {
        return Effect::Save { register: rt, base: rs, offset: number };
    }
    if opcode == 0x37 && (to == Some(RA_N) || to == Some(FP_N)) {
        return Effect::Load { register: rt };
    }
    // move: or, or daddu, with $zero.
    let moves = opcode == 0 && rt == 0 && matches!(insn & 0x7ff, 0x25 | 0x2d);
    let adds = opcode == 0x19;
    match (to, rs) {
        (Some(SP_N), SP_N) if adds => Effect::AddSp(number),
        (Some(SP_N), FP_N) if adds => Effect::SpFromFp(number),
        (Some(SP_N), FP_N) if moves => Effect::SpFromFp(0),
        (Some(SP_N), _) => Effect::LoseSp,
        (Some(FP_N), SP_N) if adds => Effect::FpFromSp(number),
        (Some(FP_N), SP_N) if moves => Effect::FpFromSp(0),
        (Some(FP_N), _) => Effect::LoseFp,
        _ => Effect::None,
    }
}

/// The frame at one instruction, as the instructions before it have made it. Offsets are from the
/// stack pointer at the function's start, which is the CFA.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Frame {
    /// `$sp`; `None` where it is not known.
    sp: Option<i32>,
    /// `$fp`, if it was set from `$sp`.
    fp: Option<i32>,
    ra_slot: Option<i32>,
    fp_slot: Option<i32>,
}

impl Frame {
    const ENTRY: Frame = Frame { sp: Some(0), fp: None, ra_slot: None, fp_slot: None };

    fn apply(&mut self, effect: Effect) {
        let above = |base: Option<i32>, n: i32| base.and_then(|base| base.checked_add(n));
        match effect {
            Effect::None => {}
            Effect::AddSp(n) => self.sp = above(self.sp, n),
            Effect::LoseSp => self.sp = None,
            Effect::FpFromSp(n) => self.fp = above(self.sp, n),
            Effect::SpFromFp(n) => self.sp = above(self.fp, n),
            Effect::LoseFp => self.fp = None,
            Effect::Save { register, base, offset } => {
                let base = if base == SP_N { self.sp } else { self.fp };
                let at = above(base, offset).filter(|&slot| slot < 0);
                let slot = if register == RA_N { &mut self.ra_slot } else { &mut self.fp_slot };
                // What is saved later is no longer the caller's.
                *slot = slot.or(at);
            }
            Effect::Load { register: RA_N } => self.ra_slot = None,
            Effect::Load { .. } => (self.fp, self.fp_slot) = (None, None),
        }
    }

    /// It is a frame, and nothing that is in the other is missing.
    fn has_all_of(&self, other: &Frame) -> bool {
        let less = |a: Option<i32>, b: Option<i32>| a.is_none() && b.is_some();
        self.ra_slot.is_some()
            && self.sp != Some(0)
            && !less(self.fp_slot, other.fp_slot)
            && !less(self.fp, other.fp)
    }

    fn rule(&self) -> Rule {
        let Frame { sp, fp, ra_slot, fp_slot } = *self;
        match (ra_slot, sp, fp) {
            (Some(ra_slot), _, Some(fp)) => {
                Rule::from_form(Form::CfaFp { cfa_off: fp.wrapping_neg(), ra_slot, fp_slot })
            }
            (Some(ra_slot), Some(sp), None) => {
                Rule::from_form(Form::CfaSp { cfa_off: sp.wrapping_neg(), ra_slot, fp_slot })
            }
            // Not saved yet, or taken back already, or not to be saved at all.
            (None, Some(sp), _) => {
                Rule::from_form(Form::Leaf { cfa_off: sp.wrapping_neg(), fp_slot })
            }
            _ => Rule::UNKNOWN,
        }
    }
}

/// Follows a function's instructions in the order in which they stand.
struct Walk {
    /// As the instructions so far have made it; `None` behind the end of a path.
    frame: Option<Frame>,
    /// The frame with the most in it so far, for code that only a computed jump leads to.
    body: Frame,
    /// Where branches lead, in bytes from the function's start, and the frame there.
    ahead: [Option<(u64, Frame)>; AHEAD],
}

impl Walk {
    /// A branch leads to `target`, where the frame is the same as here.
    fn note(&mut self, target: u64, frame: Frame) {
        if let Some(free) = self.ahead.iter_mut().find(|slot| slot.is_none()) {
            *free = Some((target, frame));
        }
    }

    /// The frame at `at`, where either the instruction before or branches lead.
    fn arrive(&mut self, at: u64) -> Frame {
        let noted = self.ahead.iter().flatten().find(|(target, _)| *target == at);
        let frame = self.frame.or(noted.map(|(_, frame)| *frame)).unwrap_or(self.body);
        for slot in &mut self.ahead {
            if slot.is_some_and(|(target, _)| target <= at) {
                *slot = None;
            }
        }
        self.frame = Some(frame);
        frame
    }
}

/// The rule for the instruction behind `code`, which are the instructions from the function's start.
#[must_use]
pub fn from_function_in(isa: Isa, code: &[u8]) -> Rule {
    let words = code.as_chunks::<4>().0;
    if words.len() > MOST {
        return Rule::UNKNOWN;
    }
    let mut walk = Walk { frame: Some(Frame::ENTRY), body: Frame::ENTRY, ahead: [None; AHEAD] };
    // The end of a path, and where a branch leads, take effect behind the delay slot.
    let (mut ends, mut branch) = (None, None);
    for (word, at) in words.iter().zip((0_u64..).step_by(4)) {
        let insn = isa.order.word4(word, 0).unwrap_or(NOP);
        let mut frame = walk.arrive(at);
        frame.apply(effect(insn));
        walk.frame = Some(frame);
        if frame.has_all_of(&walk.body) {
            walk.body = frame;
        }
        let last = if slot(isa, insn).is_delay() { at.wrapping_add(4) } else { at };
        if let Some(PcUse::Branch(to) | PcUse::Conditional(to)) = pc_use(isa, insn, at)
            && to > last
        {
            branch = Some((last, to));
        }
        if is_terminator(isa, insn) {
            ends = Some(last);
        }
        if let Some((_, to)) = branch.take_if(|(last, _)| *last == at) {
            walk.note(to, frame);
        }
        if ends == Some(at) {
            walk.frame = None;
        }
    }
    walk.arrive(words.len().wrapping_mul(4) as u64).rule()
}

/// The same where the function's start is not known: `code` are the instructions before the one in
/// question, as far as they are readable. The start is taken to be the last `daddiu $sp, $sp, -N`; if
/// a path ends behind it, the instruction may be of the next function, and nothing is known.
#[must_use]
pub fn from_code_before_in(isa: Isa, code: &[u8]) -> Rule {
    let words = code.as_chunks::<4>().0;
    let insn = |word: &[u8; 4]| isa.order.word4(word, 0).unwrap_or(NOP);
    let mut back = words.iter().rev().take(MOST).zip(1_usize..);
    let start = back.find_map(|(word, n)| match effect(insn(word)) {
        Effect::AddSp(by) if by < 0 => Some(Some(n)),
        _ if is_terminator(isa, insn(word)) => Some(None),
        _ => None,
    });
    let Some(Some(n)) = start else { return Rule::UNKNOWN };
    let from = words.len().wrapping_sub(n).wrapping_mul(4);
    from_function_in(isa, code.get(from..).unwrap_or_default())
}

/// [`from_function_in`] for this machine.
#[must_use]
pub fn from_function(code: &[u8]) -> Rule {
    from_function_in(Isa::NATIVE, code)
}

/// [`from_code_before_in`] for this machine.
#[must_use]
pub fn from_code_before(code: &[u8]) -> Rule {
    from_code_before_in(Isa::NATIVE, code)
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use crate::mips64::isa::Order;
    use alloc::vec::Vec;

    const JR: u32 = 0x03e0_0008;
    const DOWN: u32 = 0x67bd_ffe0; // daddiu sp, sp, -32
    const UP: u32 = 0x67bd_0020;
    const SD_RA: u32 = 0xffbf_0018; // sd ra, 24(sp)
    const SD_FP: u32 = 0xffbe_0010; // sd fp, 16(sp)
    const SD_GP: u32 = 0xffbc_0008;
    const LD_RA: u32 = 0xdfbf_0018;
    const LD_FP: u32 = 0xdfbe_0010;
    const MOVE_FP: u32 = 0x03a0_f025; // move fp, sp
    const BACK: u32 = 0x03c0_e825; // move sp, fp
    const LUI: u32 = 0x3c1c_0002;

    /// The rules before each of the instructions and behind them.
    fn rules(insns: &[u32]) -> Vec<Rule> {
        let both = [Order::Little, Order::Big].map(|order| {
            let isa = Isa { order, release6: false };
            let code: Vec<u8> = insns.iter().flat_map(|i| order.bytes4(*i)).collect();
            (0..=insns.len()).map(|n| from_function_in(isa, &code[..n * 4])).collect::<Vec<_>>()
        });
        assert_eq!(both[0], both[1]);
        both[0].clone()
    }

    fn sp(cfa_off: i32, fp_slot: Option<i32>) -> Rule {
        Rule::from_form(Form::CfaSp { cfa_off, ra_slot: -8, fp_slot })
    }

    fn leaf(cfa_off: i32, fp_slot: Option<i32>) -> Rule {
        Rule::from_form(Form::Leaf { cfa_off, fp_slot })
    }

    fn fp(cfa_off: i32) -> Rule {
        Rule::from_form(Form::CfaFp { cfa_off, ra_slot: -8, fp_slot: Some(-16) })
    }

    #[test]
    fn a_frame_is_made_and_undone() {
        let body = sp(32, Some(-16));
        assert_eq!(
            rules(&[LUI, DOWN, SD_GP, SD_RA, SD_FP, LUI, LD_FP, LD_RA, JR, UP]),
            [
                leaf(0, None),
                leaf(0, None),
                leaf(32, None),
                leaf(32, None),
                sp(32, None),
                body,
                body,
                sp(32, None),
                leaf(32, None),
                leaf(32, None),
                body // of the next path
            ]
        );
        // The next path: a branch over it leads there, with the frame.
        let over = [DOWN, SD_RA, 0x1080_0004, NOP, LD_RA, JR, UP, LUI, LUI];
        assert_eq!(rules(&over)[7..], [sp(32, None); 3]);
        // One that was made before there was a frame.
        let early = [0x1080_0006, NOP, DOWN, SD_RA, LD_RA, JR, UP, LUI, JR, NOP];
        assert_eq!(rules(&early)[7..10], [leaf(0, None); 3]);
        // A computed jump.
        let table = [DOWN, SD_RA, 0x0040_0008, NOP, LUI];
        assert_eq!(rules(&table)[4..], [sp(32, None); 2]);
    }

    #[test]
    fn a_frame_pointer() {
        // dsubu sp, sp, v0
        let insns = [DOWN, SD_RA, SD_FP, MOVE_FP, 0x03a2_e82f, LUI, BACK, LD_RA, LD_FP, JR, UP];
        let rules = rules(&insns);
        assert_eq!(rules[3..8], [sp(32, Some(-16)), fp(32), fp(32), fp(32), fp(32)]);
        // The end of the path; what follows is of another.
        assert_eq!((rules[10], rules[11]), (leaf(32, None), fp(32)));
    }

    #[test]
    fn a_leaf_function_with_a_frame() {
        // As compiled without optimisation.
        let insns = [DOWN, SD_FP, MOVE_FP, LUI, BACK, LD_FP, JR, UP];
        let body = leaf(32, Some(-16));
        assert_eq!(rules(&insns)[..5], [leaf(0, None), leaf(32, None), body, body, body]);
    }

    #[test]
    fn what_is_not_understood() {
        // dsubu sp, sp, v0 without a frame pointer
        assert_eq!(rules(&[DOWN, SD_RA, 0x03a2_e82f])[3], Rule::UNKNOWN);
        assert_eq!(from_function(&[0; 4 * MOST + 4]), Rule::UNKNOWN);
        assert_eq!(from_function(&[]), leaf(0, None));
    }

    #[test]
    fn without_the_start() {
        for order in [Order::Little, Order::Big] {
            let isa = Isa { order, release6: false };
            let rule = |insns: &[u32]| {
                let code: Vec<u8> = insns.iter().flat_map(|i| order.bytes4(*i)).collect();
                from_code_before_in(isa, &code)
            };
            assert_eq!(rule(&[JR, NOP, LUI, DOWN, SD_RA, LUI]), sp(32, None));
            assert_eq!(rule(&[DOWN, SD_RA, LUI, LD_RA, JR, UP, LUI]), Rule::UNKNOWN);
            assert_eq!(rule(&[LUI, NOP]), Rule::UNKNOWN);
            assert_eq!(rule(&[]), Rule::UNKNOWN);
        }
    }

    #[test]
    fn effects() {
        for (insn, want) in [
            (DOWN, Effect::AddSp(-32)),
            (0x03a2_e82d, Effect::LoseSp),       // daddu sp, sp, v0
            (0xdfbd_0000, Effect::LoseSp),       // ld sp, 0(sp)
            (0x67be_0010, Effect::FpFromSp(16)), // daddiu fp, sp, 16
            (0x67dd_0020, Effect::SpFromFp(32)), // daddiu sp, fp, 32
            (0x03a0_f02d, Effect::FpFromSp(0)),  // daddu fp, sp, zero
            (0x0080_f025, Effect::LoseFp),       // move fp, a0
            (0xffdf_0008, Effect::Save { register: 31, base: 30, offset: 8 }),
            (LD_FP, Effect::Load { register: 30 }),
            (0xff9f_0008, Effect::None), // sd ra, 8(gp)
            (NOP, Effect::None),
            (JR, Effect::None),
        ] {
            assert_eq!(effect(insn), want, "{insn:08x}");
        }
    }
}
