//! Unwind rules for code without call frame information, from the instructions ahead: see
//! [`ahead`].

use super::effect::{effect, flow};
use super::regs::Rule;
use crate::generic::rule::Form;
use crate::unwind::ahead::{self, Code, Effect, Flow, Frame, Instruction, Register, State, Value};

/// Bytes of code that are read at a time.
const PIECE: u64 = 256;
/// `stp x16, x30, [sp, #-16]!`: linkage tables begin with it, and their jump's target undoes it.
const PUSH: u32 = 0xa9bf_7bf0;
/// Maximum number of instructions from there to the jump.
const STUB: u64 = 8;
/// `autia1716`
const AUTIA1716: u32 = 0xd503_219f;

/// Function that reads instructions; it returns `None` where there is no code.
type Fetch<'a> = dyn FnMut(u64) -> Option<u32> + 'a;

/// Code of this process, A64.
struct A64<'a, 'b>(&'a mut Fetch<'b>);

impl Code for A64<'_, '_> {
    type Rule = Rule;

    fn rule(frame: Frame) -> Option<Rule> {
        let Frame { base, cfa_off, ra_slot, fp_slot } = frame;
        let rule = Rule::from_form(match (ra_slot, base) {
            (Some(ra_slot), Register::Sp) => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            (Some(ra_slot), _) => Form::CfaFp { cfa_off, ra_slot, fp_slot },
            (None, _) => Form::Leaf { cfa_off, fp_slot },
        });
        (rule != Rule::COMPLEX).then_some(rule)
    }

    fn instruction(&mut self, at: u64) -> Option<Instruction> {
        let insn = (self.0)(at)?;
        let flow = flow(insn, at);
        let effect = if flow == Flow::Next { effect(insn) } else { Effect::None };
        let effects = [effect, Effect::None];
        Some(Instruction { len: 4, conditional: false, block: 0, flow, effects, data: None })
    }

    fn stub(&mut self, state: &State, at: u64, register: u32, start: u64) -> Option<Frame> {
        if register != 17 || state.lr != Value::Initial || !self.is_stub(at) {
            return None;
        }
        let mut place = (1..STUB).map(|n| at.wrapping_sub(n.wrapping_mul(4)));
        match place.find(|at| (self.0)(*at) == Some(PUSH)) {
            Some(push) if push >= start => {
                let mut undone = *state;
                undone.sp = state.address(Register::Sp, 16);
                undone.frame()
            }
            Some(_) if state.sp == Some((Register::Sp, 0)) => {
                Some(Frame { base: Register::Sp, cfa_off: 16, ra_slot: Some(-8), fp_slot: None })
            }
            Some(_) => None,
            None => state.frame(),
        }
    }
}

impl A64<'_, '_> {
    /// Returns whether the `br x17` at `at` is that of a linkage table: `ldr x17, [x16, n]`, then `add x16,
    /// x16, n`, with or without `autia1716`.
    fn is_stub(&mut self, at: u64) -> bool {
        let mut before = (1..4).map(|n| (self.0)(at.wrapping_sub(n * 4)).unwrap_or(0));
        let between = |insn: &u32| insn & 0xffc0_03ff == 0x9100_0210 || *insn == AUTIA1716;
        before.find(|insn| !between(insn)).is_some_and(|insn| insn & 0xffc0_03ff == 0xf940_0211)
    }
}

/// Returns the rule for the return address `pc`, or, if `pc - 1` is the address of an instruction, for that
/// interrupted instruction. Returns `None` for a return address if the rule is not certain: the code may then
/// keep a chain of frame pointers. Returns [`Rule::UNKNOWN`] for an interrupted instruction: its function may
/// not have added to that chain yet.
pub fn before(pc: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<Rule> {
    let (mut piece, mut from_piece) = ([0; PIECE as usize], None);
    // Code is read in pieces of pages, so that nothing unmapped is read, and in few calls.
    let mut fetch = |at: u64| {
        let base = at & !PIECE.wrapping_sub(1);
        if from_piece != Some(base) {
            from_piece = None;
            read(base, &mut piece).then_some(())?;
            from_piece = Some(base);
        }
        let word = piece.get(at.wrapping_sub(base) as usize..)?.first_chunk()?;
        Some(u32::from_le_bytes(*word))
    };
    match pc & 3 {
        0 => ahead::from(pc, true, &mut A64(&mut fetch)),
        1 => {
            let rule = ahead::from(pc.wrapping_sub(1), false, &mut A64(&mut fetch));
            Some(rule.unwrap_or(Rule::UNKNOWN))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "prologue_tests.rs"]
mod tests;
