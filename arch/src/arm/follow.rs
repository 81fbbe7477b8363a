//! Unwind rules for code without unwind tables, from the instructions ahead: for interrupted instructions in
//! either state, and for calls in the ARM state. See [`ahead`].
//!
//! The address of an instruction does not say in which state it is. Where nothing else says it, code counts
//! as ARM code if it looks like that.

use super::decode::{PcUse, is_if_then, pc_use_arm, pc_use_thumb};
use super::effect::{self, Fetch, bytes, effect, instruction, leaves};
use super::effect_arm;
use super::regs::Rule;
use super::regs::{LR, PC, R7};
use crate::generic::rule::Form;
use crate::unwind::ahead::{self, Code, Effect, Flow, Frame, Instruction, Register, State, Value};

/// Maximum number of instructions before a call among which its function's start is looked for.
const MOST: u64 = 4096;

/// Returns the effect of a Thumb instruction on `lr`, except for pushing and popping it, and for calls. Those
/// of four bytes have the register that they write in one of two fields; what these mean otherwise is not
/// examined.
fn on_lr(insn: u32) -> Effect {
    const LOSE: Effect = Effect::Lose { sp: false, fp: false, lr: true };
    let lr = u32::from(LR);
    if insn >> 16 == 0 {
        let writes = matches!(insn & 0xff87, 0x4686 | 0x4486);
        return if writes { LOSE } else { Effect::None };
    }
    let (n, t, d) = (insn >> 16 & 15, insn >> 12 & 15, insn >> 8 & 15);
    let moves = |load| {
        let registers = [Some((Register::Lr, 0)), None];
        let offset = (insn & 0xfff) as i32;
        Effect::Move { load, base: Register::Sp, offset, by: 0, registers }
    };
    match insn >> 16 {
        0xf8dd if t == lr => return moves(true),
        0xf8cd if t == lr => return moves(false),
        0xe92d | 0xe8bd | 0xf84d | 0xf85d => return Effect::None, // push and pop
        _ => {}
    }
    let stores = (insn >> 24 == 0xf8 || insn >> 25 == 0b111_0100) && insn >> 20 & 1 == 0;
    let writes = n == lr && insn >> 25 != 0b111_0101 || !stores && (t == lr || d == lr);
    if writes { LOSE } else { Effect::None }
}

/// Returns the registers of a list that matter, with their offsets from its start.
pub(super) fn listed(list: u32) -> [Option<(Register, i32)>; 2] {
    let place = |register: u16| {
        let below = list & (1_u32 << register).wrapping_sub(1);
        (list >> register & 1 == 1).then(|| bytes(below))
    };
    // If the list has both, the one that is branched to counts.
    let ra = place(PC).or_else(|| place(LR));
    [place(R7).map(|n| (Register::Fp, n)), ra.map(|n| (Register::Lr, n))]
}

/// Returns the other effects of a Thumb instruction.
fn on_frame(insn: u32) -> Effect {
    let lose = |sp, fp| Effect::Lose { sp, fp, lr: false };
    match effect(insn) {
        effect::Effect::None => Effect::None,
        effect::Effect::AddSp(n) => Effect::SpFrom(Register::Sp, n),
        effect::Effect::LoseSp => lose(true, false),
        effect::Effect::FpFromSp(n) => Effect::FpFrom(Register::Sp, n),
        effect::Effect::AddFp(n) => Effect::FpFrom(Register::Fp, n),
        effect::Effect::SpFromFp => Effect::SpFrom(Register::Fp, 0),
        effect::Effect::LoseFp => lose(false, true),
        effect::Effect::Push(list, by) => {
            let (down, registers) = (by.wrapping_neg(), listed(list));
            Effect::Move { load: false, base: Register::Sp, offset: down, by: down, registers }
        }
        effect::Effect::Pop(list, by) => {
            Effect::Move { load: true, base: Register::Sp, offset: 0, by, registers: listed(list) }
        }
    }
}

/// Returns where a Thumb instruction leads.
fn flow_thumb(insn: u32, pc_use: Option<PcUse>) -> Flow {
    match pc_use {
        Some(PcUse::Branch(to)) => Flow::Branch(to.into()),
        Some(PcUse::Conditional(to, _)) => Flow::Conditional(to.into()),
        Some(PcUse::Call(..)) => Flow::Call,
        Some(PcUse::Table(_)) => Flow::Stop,
        // blx of a register
        _ if insn >> 16 == 0 && insn & 0xff87 == 0x4780 => Flow::Call,
        _ if leaves(insn) => match (insn & 0xffff_ff87, insn >> 3 & 15) {
            (0x4700 | 0x4687, 14) => Flow::Return,
            (0x4700 | 0x4687, 13) => Flow::Stop,
            (0x4700 | 0x4687, register) => Flow::Register(register),
            // A value popped into pc is the return address; any other one is not known here.
            _ => match effect(insn) {
                effect::Effect::Pop(list, _) if list >> PC & 1 == 1 => Flow::Return,
                _ => Flow::Stop,
            },
        },
        // udf; and zeros, which are data
        _ if insn & 0xfff0_f000 == 0xf7f0_a000 || insn == 0 => Flow::Stop,
        _ => Flow::Next,
    }
}

/// Code of this process, in the Thumb state.
struct Thumb<'a, 'b>(&'a mut Fetch<'b>);

impl Code for Thumb<'_, '_> {
    type Rule = Rule;

    fn rule(frame: Frame) -> Option<Rule> {
        pack(frame)
    }

    fn instruction(&mut self, at: u64) -> Option<Instruction> {
        let (insn, len) = instruction(at, self.0)?;
        let block = if is_if_then(insn) { 4_u32.wrapping_sub(insn.trailing_zeros()) } else { 0 };
        let pc_use = pc_use_thumb(insn, at as u32);
        let data = literal(
            pc_use,
            insn >> 25 == 0b111_0100 || insn >> 25 == 0b111_0110 && insn & 0x100 != 0,
        );
        let flow = flow_thumb(insn, pc_use);
        let moves = matches!(flow, Flow::Next | Flow::Return);
        let effects = if moves { [on_lr(insn), on_frame(insn)] } else { [Effect::None; 2] };
        Some(Instruction { len, conditional: false, block, flow, effects, data })
    }

    /// Recognises the stub of a linkage table in the ARM state, to which `bx pc` leads.
    fn stub(&mut self, state: &State, at: u64, register: u32, _start: u64) -> Option<Frame> {
        let at_start = state.sp == Some((Register::Sp, 0)) && state.lr == Value::Initial;
        let goes = register == u32::from(PC) && at_start;
        (goes && is_stub(at.wrapping_add(4) & !3, self.0)).then_some(LEAF)
    }
}

/// Code of this process, in the ARM state.
struct Arm<'a, 'b>(&'a mut Fetch<'b>);

impl Code for Arm<'_, '_> {
    type Rule = Rule;

    fn rule(frame: Frame) -> Option<Rule> {
        pack(frame)
    }

    fn instruction(&mut self, at: u64) -> Option<Instruction> {
        let insn = word(at, self.0)?;
        let data = literal(pc_use_arm(insn, at as u32), effect_arm::loads_two(insn));
        let flow = effect_arm::flow(insn, at);
        let moves = matches!(flow, Flow::Next | Flow::Return);
        let effect = if moves { effect_arm::effect(insn) } else { Effect::None };
        let conditional = insn >> 28 < 14;
        let effects = [effect, Effect::None];
        Some(Instruction { len: 4, conditional, block: 0, flow, effects, data })
    }

    fn stub(&mut self, _: &State, _: u64, _: u32, _: u64) -> Option<Frame> {
        None
    }
}

/// Returns address and length of a literal, which has one word or two.
fn literal(pc_use: Option<PcUse>, two: bool) -> Option<(u64, u64)> {
    let Some(PcUse::Literal(at)) = pc_use else { return None };
    Some((u64::from(at & !3), if two { 8 } else { 4 }))
}

/// Frame at a function's first instruction.
const LEAF: Frame = Frame { base: Register::Sp, cfa_off: 0, ra_slot: None, fp_slot: None };

fn pack(frame: Frame) -> Option<Rule> {
    let Frame { base, cfa_off, ra_slot, fp_slot } = frame;
    let rule = Rule::from_form(match (ra_slot, base) {
        (Some(ra_slot), Register::Sp) => Form::CfaSp { cfa_off, ra_slot, fp_slot },
        (Some(ra_slot), _) => Form::CfaFp { cfa_off, ra_slot, fp_slot },
        (None, _) => Form::Leaf { cfa_off, fp_slot },
    });
    (rule != Rule::COMPLEX).then_some(rule)
}

/// Returns the instruction of the ARM state at an address.
fn word(at: u64, fetch: &mut Fetch<'_>) -> Option<u32> {
    let (low, high) = (fetch(at)?, fetch(at.wrapping_add(2))?);
    at.is_multiple_of(4).then(|| u32::from(high) << 16 | u32::from(low))
}

/// Returns whether `at` is in the stub of a linkage table in the ARM state: `add ip, pc, #a; add ip, ip, #b;
/// ldr pc, [ip, #c]!`, of which the one in the middle may be missing.
fn is_stub(at: u64, fetch: &mut Fetch<'_>) -> bool {
    let mut insns = (0..3_u64).map(|n| word(at.wrapping_add(n.wrapping_mul(4)), fetch));
    let adds =
        |insn: &Option<u32>| insn.is_some_and(|insn| matches!(insn >> 12, 0xe_28fc | 0xe_28cc));
    insns.find(|insn| !adds(insn)).flatten().is_some_and(|insn| insn >> 12 == 0xe_5bcf)
}

/// Returns whether the words at `at` look like instructions of the ARM state: most of these are executed
/// always, for which they begin with 0xe. Thumb code has that in few places.
fn looks_like_arm(at: u64, fetch: &mut Fetch<'_>) -> bool {
    const WORDS: u64 = 8;
    let mut always = |n: &u64| {
        let half = fetch(at.wrapping_add(n.wrapping_mul(4)).wrapping_add(2));
        half.is_some_and(|half| half >> 12 == 0xe)
    };
    at.is_multiple_of(4) && (0..WORDS).filter(|n| always(n)).count() >= 6
}

/// Returns the rule for the interrupted instruction at `at`; `None` if the code does not show it.
pub(super) fn from(at: u64, thumb: Option<bool>, fetch: &mut Fetch<'_>) -> Option<Rule> {
    if thumb != Some(true) && is_stub(at, fetch) {
        return pack(LEAF);
    }
    if thumb.unwrap_or_else(|| !looks_like_arm(at, fetch)) {
        ahead::from(at, false, &mut Thumb(fetch))
    } else {
        ahead::from(at, false, &mut Arm(fetch))
    }
}

/// Returns the rule for the call in the ARM state that returns to `at`; `None` if there is no such call, or
/// the code does not show it.
pub(super) fn from_call(at: u64, fetch: &mut Fetch<'_>) -> Option<Rule> {
    let call = at.wrapping_sub(4);
    let is_call = effect_arm::flow(word(call, fetch)?, call) == Flow::Call;
    // Behind a call that does not return there may be data, or nothing.
    let looks = looks_like_arm(call, fetch) || looks_like_arm(call.wrapping_sub(28), fetch);
    (is_call && looks).then_some(())?;
    ahead::from(at, true, &mut Arm(fetch)).or_else(|| {
        // The function never returns.
        let start = start(call, fetch)?;
        ahead::up_to(start, call, &mut Arm(fetch))
    })
}

/// Returns the start of the function that has the call at `call`: where it saves its return address, or right
/// before that, where it saves arguments or makes room for them.
fn start(call: u64, fetch: &mut Fetch<'_>) -> Option<u64> {
    /// `push`
    const PUSH: u32 = 0xe92d;
    /// `push {lr}`
    const PUSH_LR: u32 = 0xe52d_e004;
    let mut before = (1..=MOST).map(|n| call.wrapping_sub(n.wrapping_mul(4)));
    let saves = |insn: u32| insn == PUSH_LR || insn >> 16 == PUSH && insn >> LR & 1 == 1;
    // The search ends where there is no code.
    let found = before
        .find_map(|at| word(at, fetch).map_or(Some(None), |insn| saves(insn).then_some(Some(at))));
    let push = found.flatten()?;
    let arguments = word(push.wrapping_sub(4), fetch).is_some_and(|insn| {
        insn >> 4 == PUSH << 12 && insn & 15 != 0
            || matches!(insn, 0xe24d_d004 | 0xe24d_d008 | 0xe24d_d00c | 0xe24d_d010)
    });
    Some(if arguments { push.wrapping_sub(4) } else { push })
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
