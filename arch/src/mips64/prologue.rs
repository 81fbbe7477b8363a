//! Frames of code that has no call frame information, from its instructions.
//!
//! What compilers make at a function's start: `daddiu $sp, $sp, -N`, then `sd $ra, n($sp)` and
//! `sd $fp, n($sp)`, and `move $fp, $sp` where the function moves `$sp` again; at its end the
//! opposite. Other instructions stand between those. Assembly code may do as it likes: what is not
//! understood gives [`Rule::UNKNOWN`].

use super::decode::{PcUse, field, is_terminator, pc_use, register_jump, slot};
use super::isa::{Isa, Order};
use super::regs::{FP, RA, SP};
use super::rule::{Form, Rule};

/// Instructions that are looked at, at most.
const MOST: usize = 4096;

/// `move $ra, $zero`, in its two forms.
const NO_RETURN: [u32; 2] = [0x0000_f825, 0x0000_f82d];

/// Bytes of code that are read at a time.
const PIECE: u64 = 256;

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
    /// A register gets a value from the stack, at an offset from another.
    Load {
        register: u32,
        base: u32,
        offset: i32,
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
    if opcode == 0x37 && (rt == RA_N || rt == FP_N) && (rs == SP_N || rs == FP_N) {
        return Effect::Load { register: rt, base: rs, offset: number };
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
            Effect::Load { register, base, offset } => {
                let base = if base == SP_N { self.sp } else { self.fp };
                let at = above(base, offset);
                let is_fp = register == FP_N;
                let slot = if is_fp { &mut self.fp_slot } else { &mut self.ra_slot };
                // From elsewhere it is a value of the function's own: the caller's is where it was saved.
                if at.is_none() || at == *slot {
                    *slot = None;
                }
                if is_fp {
                    self.fp = None;
                }
            }
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
    /// Where branches lead, and the frame there.
    ahead: [Option<(u64, Frame)>; AHEAD],
    /// More may be reached from before than is noted there.
    more: bool,
    /// Where the function starts.
    start: u64,
    /// Behind the end of a path that nothing leads past, another function starts.
    next_starts: bool,
}

impl Walk {
    /// A branch leads to `target`, where the frame is the same as here.
    fn note(&mut self, target: u64, frame: Frame) {
        match self.ahead.iter_mut().find(|slot| slot.is_none()) {
            Some(free) => *free = Some((target, frame)),
            None => self.more = true,
        }
    }

    /// The frame at `at`, where either the instruction before or branches lead.
    fn arrive(&mut self, at: u64) -> Frame {
        let noted = self.ahead.iter().flatten().find(|(target, _)| *target == at);
        let known = self.frame.or(noted.map(|(_, frame)| *frame));
        if known.is_none() && self.next_starts && !self.more && self.ahead == [None; AHEAD] {
            (self.body, self.start) = (Frame::ENTRY, at);
        }
        let frame = known.unwrap_or(self.body);
        for slot in &mut self.ahead {
            if slot.is_some_and(|(target, _)| target <= at) {
                *slot = None;
            }
        }
        self.frame = Some(frame);
        frame
    }
}

/// Reads instructions; `None` where there is no code.
type Fetch<'a> = dyn FnMut(u64) -> Option<u32> + 'a;

/// The rule for the instruction at `at`, of a function that starts at `start`, or, if `next_starts`, of
/// one behind that.
fn walk(isa: Isa, start: u64, at: u64, next_starts: bool, fetch: &mut Fetch<'_>) -> Option<Rule> {
    let mut walk = Walk {
        frame: Some(Frame::ENTRY),
        body: Frame::ENTRY,
        ahead: [None; AHEAD],
        more: false,
        start,
        next_starts,
    };
    // The end of a path, and where a branch leads, take effect behind the delay slot.
    let (mut ends, mut branch) = (None, None);
    for here in (start..at).step_by(4) {
        let insn = fetch(here)?;
        let mut frame = walk.arrive(here);
        frame.apply(effect(insn));
        walk.frame = Some(frame);
        if frame.has_all_of(&walk.body) {
            walk.body = frame;
        }
        let last = if slot(isa, insn).is_delay() { here.wrapping_add(4) } else { here };
        match pc_use(isa, insn, here) {
            Some(PcUse::Branch(to) | PcUse::Conditional(to)) if to > last => {
                branch = Some((last, to));
            }
            // It was no other function.
            Some(PcUse::Conditional(to)) if to < walk.start && to >= start => return None,
            _ => {}
        }
        // A table of places, unless it is the return.
        walk.more |= register_jump(insn).is_some_and(|(to, link)| link == 0 && to != RA_N);
        if is_terminator(isa, insn) {
            ends = Some(last);
        }
        if let Some((_, to)) = branch.take_if(|(last, _)| *last == here) {
            walk.note(to, frame);
        }
        if ends == Some(here) {
            walk.frame = None;
        }
    }
    Some(walk.arrive(at).rule())
}

/// The instructions of `code`, the first of which is at 0.
fn slice(isa: Isa, code: &[u8]) -> impl FnMut(u64) -> Option<u32> {
    move |at| isa.order.word4(code, usize::try_from(at).ok()?)
}

/// The rule for the instruction behind `code`, which are the instructions from the function's start.
#[must_use]
pub fn from_function_in(isa: Isa, code: &[u8]) -> Rule {
    let len = code.len() & !3;
    if len / 4 > MOST {
        return Rule::UNKNOWN;
    }
    walk(isa, 0, len as u64, false, &mut slice(isa, code)).unwrap_or(Rule::UNKNOWN)
}

/// The same for the instruction at `at`, where the function's start is not known. The start is taken to
/// be the last `daddiu $sp, $sp, -N`.
///
/// If a path ends behind it, the instruction may be of the next function, one without a frame, where
/// nothing before leads to; but not if it `is_call`, or the delay slot of one: what calls has a frame.
/// What gives itself a return address of 0 before it calls is where its thread begins.
pub fn before_in(isa: Isa, at: u64, is_call: bool, fetch: &mut Fetch<'_>) -> Rule {
    let (mut here, mut straight) = (at, is_call);
    for _ in 0..MOST {
        here = here.wrapping_sub(4);
        let Some(insn) = fetch(here) else { break };
        match effect(insn) {
            Effect::AddSp(by) if by < 0 => {
                return walk(isa, here, at, !is_call, fetch).unwrap_or(Rule::UNKNOWN);
            }
            _ if straight && NO_RETURN.contains(&insn) => return Rule::END,
            _ => straight &= !is_terminator(isa, insn),
        }
    }
    Rule::UNKNOWN
}

/// The same for the last instruction before `pc`, as a return address is, or for `pc - 1`, if that is the
/// address of an instruction: one that a signal has interrupted. For code of this process.
pub fn before(pc: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Rule {
    let look = pc.wrapping_sub(1);
    let (mut piece, mut from) = ([0; PIECE as usize], None);
    // Pieces of pages: what is not there is not read, and what is, in few calls.
    let mut fetch = |at: u64| {
        let base = at & !(PIECE - 1);
        if from != Some(base) {
            from = None;
            read(base, &mut piece).then_some(())?;
            from = Some(base);
        }
        Order::NATIVE.word4(&piece, at.wrapping_sub(base) as usize)
    };
    before_in(Isa::NATIVE, look & !3, look & 3 != 0, &mut fetch)
}

/// [`from_function_in`] for this machine.
#[must_use]
pub fn from_function(code: &[u8]) -> Rule {
    from_function_in(Isa::NATIVE, code)
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use crate::mips64::isa::NOP;
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
    fn registers_that_hold_other_values() {
        // ld fp, 216(v1); ld fp, 8(sp); ld ra, 0(sp); ld ra, 8(v0): none is where they were saved.
        let insns =
            [DOWN, SD_RA, SD_FP, 0xdc7e_00d8, 0xdfbe_0008, 0xdfbf_0000, 0xdc5f_0008, LD_FP, LD_RA];
        let (rules, body) = (rules(&insns), sp(32, Some(-16)));
        assert_eq!(rules[3..8], [body; 5]);
        assert_eq!(rules[8..], [sp(32, None), leaf(32, None)]);
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
            let rule = |insns: &[u32], is_call: bool| {
                let code: Vec<u8> = insns.iter().flat_map(|i| order.bytes4(*i)).collect();
                before_in(isa, code.len() as u64, is_call, &mut slice(isa, &code))
            };
            for is_call in [false, true] {
                assert_eq!(rule(&[JR, NOP, LUI, DOWN, SD_RA, LUI], is_call), sp(32, None));
                assert_eq!(rule(&[LUI, NOP], is_call), Rule::UNKNOWN);
                assert_eq!(rule(&[], is_call), Rule::UNKNOWN);
            }
            let behind = [DOWN, SD_RA, LUI, LD_RA, JR, UP, LUI];
            assert_eq!(rule(&behind, false), leaf(0, None));
            assert_eq!(rule(&behind, true), sp(32, None));
            // A branch leads there, or further: forwards, or back from there.
            let over = [DOWN, SD_RA, 0x1080_0005, NOP, LD_RA, JR, UP, LUI, LUI, LUI];
            assert_eq!(rule(&over, false), sp(32, None));
            let back = [DOWN, SD_RA, LUI, LD_RA, JR, UP, LUI, 0x1480_fffa, NOP];
            assert_eq!(rule(&back, false), Rule::UNKNOWN);
            // Its own loop.
            let own = [DOWN, SD_RA, LUI, LD_RA, JR, UP, LUI, 0x1480_fffe, NOP];
            assert_eq!(rule(&own, false), leaf(0, None));
            // A table of places.
            let table = [DOWN, SD_RA, 0x0040_0008, NOP, LD_RA, JR, UP, LUI];
            assert_eq!(rule(&table, false), sp(32, None));
            // As programs start.
            let start = [DOWN, SD_RA, JR, NOP, NO_RETURN[0], LUI];
            assert_eq!(rule(&start, true), Rule::END);
            assert_eq!(rule(&[NO_RETURN[0], DOWN, SD_RA, LUI], true), sp(32, None));
        }
    }

    #[test]
    fn of_a_process() {
        let insns = [NOP, DOWN, SD_RA, LUI, 0x0320_f809, NOP, LD_RA]; // jalr t9
        let code: Vec<u8> = insns.iter().flat_map(|i| Order::NATIVE.bytes4(*i)).collect();
        let mut page = code.clone();
        page.resize(PIECE as usize, 0);
        let mut read = |at: u64, to: &mut [u8]| {
            to.copy_from_slice(&page);
            at == 0x1000
        };
        // Behind the delay slot of the call; interrupted before the save.
        assert_eq!(before(0x1018, &mut read), sp(32, None));
        assert_eq!(before(0x1009, &mut read), leaf(32, None));
        assert_eq!(before(0x1005, &mut read), Rule::UNKNOWN);
        assert_eq!(before(0x2018, &mut read), Rule::UNKNOWN);
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
            (LD_FP, Effect::Load { register: 30, base: 29, offset: 16 }),
            (0xdc7e_00d8, Effect::LoseFp), // ld fp, 216(v1)
            (0xff9f_0008, Effect::None),   // sd ra, 8(gp)
            (NOP, Effect::None),
            (JR, Effect::None),
        ] {
            assert_eq!(effect(insn), want, "{insn:08x}");
        }
    }
}
