//! One step with all registers, for the frames that no packed rule describes.

use super::cfi::{CfiContext, CfiModule, FrameInfo, NoRow, Row};
use super::expr::Machine;
use super::traits::{FullStep, RegisterSet};
use gimli::{CfaRule, RegisterRule};

/// Steps from `regs` to the caller, by the row for `lookup_pc` (see the [module](super) about
/// return addresses).
///
/// `read` returns the word at an address, or `None` where there is no memory.
pub fn step_full<R: RegisterSet, F: FnMut(u64) -> Option<u64>>(
    cfi: &CfiModule<'_>,
    regs: &R,
    lookup_pc: u64,
    ctx: &mut CfiContext,
    read: &mut F,
) -> FullStep<R> {
    let (row, frame) = match cfi.row(lookup_pc, ctx, R::VENDOR) {
        Ok(found) => found,
        Err(NoRow::NotCovered) => return regs.step_tables(cfi, lookup_pc, read),
        Err(NoRow::Malformed) => return FullStep::Cut,
    };
    if frame.ra != R::RA {
        return FullStep::Cut;
    }
    match row.register(gimli::Register(R::RA)) {
        Some(RegisterRule::Undefined) => return FullStep::End,
        // Without a link register, there is no way to the return address.
        None | Some(RegisterRule::SameValue) if !R::LINK => return FullStep::Cut,
        // The function has not saved its return address.
        _ => {}
    }
    let Some(mut next) = apply(row, &frame, regs, read) else { return FullStep::Cut };
    let Some(pc) = next.get(R::RA) else { return FullStep::Cut };
    if pc == 0 {
        return FullStep::End;
    }
    next.set_pc(pc);
    // A function without a frame has its caller's stack pointer. Its caller must have a frame, so if the next
    // step makes no progress either, it finds the same return address again.
    let (new, old) = (next.get(R::SP), regs.get(R::SP));
    let progress = new > old || (R::LINK && new == old && next.pc() != regs.pc());
    if !frame.signal && !progress {
        return FullStep::Cut;
    }
    FullStep::Next { regs: next, signal: frame.signal }
}

/// Calls `take` with each register that the function at `lookup_pc` has saved in memory for its caller, and the address of
/// that word. Returns whether a row covers the function; if none does, nothing is known of what it has saved.
pub fn saved_registers<R: RegisterSet, F: FnMut(u64) -> Option<u64>>(
    cfi: &CfiModule<'_>,
    regs: &R,
    lookup_pc: u64,
    ctx: &mut CfiContext,
    read: &mut F,
    take: &mut dyn FnMut(u16, u64),
) -> bool {
    let Ok((row, frame)) = cfi.row(lookup_pc, ctx, R::VENDOR) else { return false };
    let Some(cfa) = cfa(row, &frame, regs, read) else { return false };
    for (register, rule) in row.registers() {
        let at = match rule {
            RegisterRule::Offset(offset) => Some(cfa.wrapping_add(*offset as u64)),
            RegisterRule::Expression(expression) => {
                Machine { regs, cfa: Some(cfa), read: &mut *read }
                    .eval(frame.expression(expression), Some(cfa))
            }
            _ => None,
        };
        if let Some(at) = at {
            take(register.0, at);
        }
    }
    true
}

/// Returns the canonical frame address: the stack pointer that the caller has after the return.
fn cfa<R: RegisterSet, F: FnMut(u64) -> Option<u64>>(
    row: &Row,
    frame: &FrameInfo<'_>,
    regs: &R,
    read: &mut F,
) -> Option<u64> {
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            Some(regs.get(register.0)?.wrapping_add(*offset as u64))
        }
        CfaRule::Expression(expression) => {
            Machine { regs, cfa: None, read }.eval(frame.expression(expression), None)
        }
    }
}

/// Applies every rule of the row to the registers as they were before.
fn apply<R: RegisterSet, F: FnMut(u64) -> Option<u64>>(
    row: &Row,
    frame: &FrameInfo<'_>,
    regs: &R,
    read: &mut F,
) -> Option<R> {
    let cfa = cfa(row, frame, regs, read)?;
    let mut next = *regs;
    next.set(R::SP, cfa);
    for (register, rule) in row.registers() {
        let essential = register.0 == R::RA || register.0 == R::SP;
        match value(rule, frame, regs, cfa, read) {
            Ok(Some(value)) => next.set(register.0, value),
            Ok(None) => {}
            // Unwinding does without a register that only the caller's own variables need.
            Err(()) if !essential && regs.get(register.0).is_none() => {}
            Err(()) => return None,
        }
    }
    Some(next)
}

/// Returns the caller's value of one register; `None` if it is unchanged, or not recoverable.
fn value<R: RegisterSet, F: FnMut(u64) -> Option<u64>>(
    rule: &RegisterRule<usize>,
    frame: &FrameInfo<'_>,
    regs: &R,
    cfa: u64,
    read: &mut F,
) -> Result<Option<u64>, ()> {
    let mut eval = |expression| {
        Machine { regs, cfa: Some(cfa), read: &mut *read }
            .eval(frame.expression(expression), Some(cfa))
    };
    let found = match rule {
        RegisterRule::Undefined | RegisterRule::SameValue => return Ok(None),
        RegisterRule::Offset(offset) => read(cfa.wrapping_add(*offset as u64)),
        RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add(*offset as u64)),
        RegisterRule::Register(other) => regs.get(other.0),
        RegisterRule::Expression(expression) => eval(expression).and_then(&mut *read),
        RegisterRule::ValExpression(expression) => eval(expression),
        RegisterRule::Constant(value) => Some(*value),
        _ => None,
    };
    found.map(Some).ok_or(())
}
