//! Unwind rules for code without call frame information, from the instructions ahead: see [`ahead`].

use super::goroutine;
use super::regs::Rule;
use crate::generic::rule::Form;
use crate::unwind::ahead::{self, Code, Effect, Flow, Frame, Instruction, Register, State};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction as Decoded, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register as Name,
};

/// Maximum length of an instruction.
const LONGEST: usize = 15;
/// Alignment of functions.
const ALIGNED: u64 = 16;

/// Code of 64-bit mode.
struct Amd64<'a> {
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> bool,
    factory: InstructionInfoFactory,
    /// The address behind the last call that was seen.
    behind_call: u64,
}

impl Amd64<'_> {
    /// Decodes the instruction at an address, which may end where there is nothing more to read.
    fn decode(&mut self, at: u64) -> Option<Decoded> {
        let mut bytes = [0; LONGEST];
        let mut len = LONGEST;
        while !(self.read)(at, bytes.get_mut(..len)?) {
            len = len.checked_sub(1).filter(|len| *len > 0)?;
        }
        let i = Decoder::with_ip(64, bytes.get(..len)?, at, DecoderOptions::NONE).decode();
        (!i.is_invalid()).then_some(i)
    }

    /// Returns the effects of an instruction on the registers that matter.
    fn effects(&mut self, i: &Decoded) -> [Effect; 2] {
        let one = |effect| [effect, Effect::None];
        let takes = |register| Effect::Move {
            load: true,
            base: Register::Sp,
            offset: 0,
            by: 8,
            registers: [register, None],
        };
        let (to, from) = (i.op0_kind(), i.op1_kind());
        match i.mnemonic() {
            Mnemonic::Ret => return one(takes(Some((Register::Lr, 0)))),
            Mnemonic::Leave => {
                return [Effect::SpFrom(Register::Fp, 0), takes(Some((Register::Fp, 0)))];
            }
            Mnemonic::Pop if to == OpKind::Register && i.stack_pointer_increment() == 8 => {
                if i.op0_register() == Name::RSP {
                    return one(lose(true, false));
                }
                return one(takes((i.op0_register() == Name::RBP).then_some((Register::Fp, 0))));
            }
            Mnemonic::Push if i.stack_pointer_increment() == -8 => {
                let is_fp = to == OpKind::Register && i.op0_register() == Name::RBP;
                let registers = [is_fp.then_some((Register::Fp, 0)), None];
                let base = Register::Sp;
                return one(Effect::Move { load: false, base, offset: -8, by: -8, registers });
            }
            Mnemonic::Mov if to == OpKind::Memory && from == OpKind::Register => {
                if let (Some((base, offset)), Name::RBP) = (place(i), i.op1_register()) {
                    let registers = [Some((Register::Fp, 0)), None];
                    return one(Effect::Move { load: false, base, offset, by: 0, registers });
                }
            }
            Mnemonic::Mov if to == OpKind::Register && i.op0_register() == Name::RBP => {
                if from == OpKind::Register && i.op1_register() == Name::RSP {
                    return one(Effect::FpFrom(Register::Sp, 0));
                } else if let (OpKind::Memory, Some((base, offset))) = (from, place(i)) {
                    let registers = [Some((Register::Fp, 0)), None];
                    return one(Effect::Move { load: true, base, offset, by: 0, registers });
                }
            }
            Mnemonic::Mov
                if to == OpKind::Register
                    && i.op0_register() == Name::RSP
                    && from == OpKind::Register
                    && i.op1_register() == Name::RBP =>
            {
                return one(Effect::SpFrom(Register::Fp, 0));
            }
            Mnemonic::Lea => match (i.op0_register(), place(i)) {
                (Name::RSP, Some((base, n))) => return one(Effect::SpFrom(base, n)),
                (Name::RBP, Some((base, n))) => return one(Effect::FpFrom(base, n)),
                _ => {}
            },
            Mnemonic::Add | Mnemonic::Sub
                if to == OpKind::Register && i.op0_register() == Name::RSP =>
            {
                let by = constant(i).map(|n| if i.mnemonic() == Mnemonic::Add { n } else { -n });
                return one(by.map_or(lose(true, false), |by| Effect::SpFrom(Register::Sp, by)));
            }
            _ => {}
        }
        let mut written = [false; 2];
        for used in self.factory.info(i).used_registers() {
            let writes =
                !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
            match used.register().full_register() {
                Name::RSP if writes => written = [true, written[1]],
                Name::RBP if writes => written = [written[0], true],
                _ => {}
            }
        }
        let [sp, fp] = written;
        one(if sp || fp { lose(sp, fp) } else { Effect::None })
    }
}

fn lose(sp: bool, fp: bool) -> Effect {
    Effect::Lose { sp, fp, lr: false }
}

/// Returns the place of an operand in memory, relative to the stack pointer or the frame pointer.
fn place(i: &Decoded) -> Option<(Register, i32)> {
    let base = match i.memory_base() {
        Name::RSP => Register::Sp,
        Name::RBP => Register::Fp,
        _ => return None,
    };
    let offset = i32::try_from(i.memory_displacement64() as i64).ok()?;
    let plain = i.memory_index() == Name::None && !i.has_segment_prefix();
    plain.then_some((base, offset))
}

/// Returns the constant of an instruction's second operand, which its negative fits as well.
fn constant(i: &Decoded) -> Option<i32> {
    let is_constant = matches!(
        i.op1_kind(),
        OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64
    );
    let n = i32::try_from(i.try_immediate(1).ok()? as i64).ok()?;
    (is_constant && n != i32::MIN).then_some(n)
}

impl Code for Amd64<'_> {
    type Rule = Rule;

    fn rule(frame: Frame) -> Option<Rule> {
        let Frame { base, cfa_off, ra_slot, fp_slot } = frame;
        let ra_slot = ra_slot?;
        let rule = Rule::from_form(match base {
            Register::Sp => Form::CfaSp { cfa_off, ra_slot, fp_slot },
            _ => Form::CfaFp { cfa_off, ra_slot, fp_slot },
        });
        (rule != Rule::COMPLEX).then_some(rule)
    }

    fn instruction(&mut self, at: u64) -> Option<Instruction> {
        let i = self.decode(at)?;
        // Behind a call that never returns there is padding, or another function.
        let begins = matches!(i.mnemonic(), Mnemonic::Push | Mnemonic::Endbr64)
            || i.mnemonic() == Mnemonic::Sub && i.op0_register() == Name::RSP;
        let pads = matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        if at == self.behind_call && (pads || begins && at.is_multiple_of(ALIGNED)) {
            return None;
        }
        let flow = match i.flow_control() {
            FlowControl::Next => Flow::Next,
            FlowControl::Call | FlowControl::IndirectCall => {
                self.behind_call = i.next_ip();
                Flow::Call
            }
            FlowControl::UnconditionalBranch if i.is_jmp_short_or_near() => {
                Flow::Branch(i.near_branch_target())
            }
            FlowControl::ConditionalBranch => Flow::Conditional(i.near_branch_target()),
            FlowControl::Return if i.op_count() == 0 && i.mnemonic() == Mnemonic::Ret => {
                Flow::Return
            }
            _ if matches!(i.mnemonic(), Mnemonic::Syscall) => Flow::Next,
            _ => Flow::Stop,
        };
        let moves = matches!(flow, Flow::Next | Flow::Return);
        let effects = if moves { self.effects(&i) } else { [Effect::None; 2] };
        let len = i.len() as u64;
        Some(Instruction { len, conditional: false, block: 0, flow, effects, data: None })
    }

    fn stub(&mut self, _: &State, _: u64, _: u32, _start: u64) -> Option<Frame> {
        None
    }
}

/// Returns the rule for code without tables at `pc`: of an instruction that was interrupted, or where a call returns to. `read`
/// reads code, and returns `false` where there is none. Returns `None` if the code does not show the rule.
#[must_use]
pub fn rule_by_code(
    pc: u64,
    exact: bool,
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
) -> Option<Rule> {
    if let Some(form) = goroutine::form(pc, read) {
        return Some(Rule::from_form(form));
    }
    let factory = InstructionInfoFactory::new();
    // The return address is on the stack in any case, and in no register.
    let behind_call = if exact { 0 } else { pc };
    ahead::from(pc, true, &mut Amd64 { read, factory, behind_call })
}

#[cfg(test)]
#[path = "prologue_tests.rs"]
mod tests;
