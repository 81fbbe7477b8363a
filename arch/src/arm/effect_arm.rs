//! Effects of instructions of the ARM state on the stack pointer, `r7` and `lr`, and where they lead.
//!
//! Encodings: ARM Architecture Reference Manual, ARMv7-A and ARMv7-R, A5. Where it is not worth telling
//! instructions apart, a register counts as written.

use super::effect::bytes;
use super::regs::{LR, PC, R7, SP};
use crate::unwind::ahead::{Effect, Flow, Register};

const SP_N: u32 = SP as u32;
const FP_N: u32 = R7 as u32;
const LR_N: u32 = LR as u32;
const PC_N: u32 = PC as u32;

/// Returns the register in the four bits from bit `low` on.
const fn register(insn: u32, low: u32) -> u32 {
    insn.wrapping_shr(low) & 15
}

const fn bit(insn: u32, n: u32) -> bool {
    insn.wrapping_shr(n) & 1 == 1
}

/// Returns bits 27 to 25, by which instructions are told apart first.
const fn class(insn: u32) -> u32 {
    insn >> 25 & 7
}

/// Returns where an instruction leads.
pub(super) fn flow(insn: u32, at: u64) -> Flow {
    if insn >> 28 == 15 {
        // blx; rfe and undefined ones; the others compute, load vectors, or are barriers.
        return match insn >> 24 & 15 {
            0xa | 0xb => Flow::Call,
            0x8 | 0x9 | 0xf => Flow::Stop,
            _ => Flow::Next,
        };
    }
    // Zeros, which are data, and udf.
    if insn == 0 || insn & 0x0ff0_00f0 == 0x07f0_00f0 {
        return Flow::Stop;
    }
    match class(insn) {
        5 if bit(insn, 24) => Flow::Call,
        5 => {
            let words = (insn << 8) as i32 >> 8;
            Flow::Branch(at.wrapping_add(8).wrapping_add_signed(i64::from(words) << 2))
        }
        0 => match (insn & 0x0fff_fff0, register(insn, 0)) {
            (0x012f_ff30, _) => Flow::Call,
            (0x012f_ff10 | 0x01a0_f000, LR_N) => Flow::Return,
            (0x012f_ff10 | 0x01a0_f000, to) if to != PC_N && to != SP_N => Flow::Register(to),
            (0x012f_ff10, _) => Flow::Stop,
            _ => computed(insn),
        },
        1 => computed(insn),
        2 | 3 if is_media(insn) => Flow::Next,
        // pc is popped, or loaded from elsewhere.
        2 | 3 if bit(insn, 20) && register(insn, 12) == PC_N && !bit(insn, 22) => {
            if class(insn) == 2 && register(insn, 16) == SP_N { Flow::Return } else { Flow::Stop }
        }
        4 if bit(insn, 20) && bit(insn, PC_N) => {
            if register(insn, 16) == SP_N {
                Flow::Return
            } else {
                Flow::Stop
            }
        }
        _ => Flow::Next,
    }
}

/// Returns where an instruction leads that computes: it may write the program counter.
fn computed(insn: u32) -> Flow {
    if data_written(insn) == Some(PC_N) { Flow::Stop } else { Flow::Next }
}

const fn is_media(insn: u32) -> bool {
    class(insn) == 3 && bit(insn, 4)
}

/// Returns whether this is a multiplication, an exclusive access, or an access of halves or doubles.
const fn is_extra(insn: u32) -> bool {
    class(insn) == 0 && insn & 0x90 == 0x90
}

/// Returns the register that data processing writes; `None` if it writes none, or this is no such
/// instruction.
fn data_written(insn: u32) -> Option<u32> {
    let compares = insn >> 23 & 3 == 2;
    match (compares, bit(insn, 20)) {
        _ if is_extra(insn) => None,
        (true, true) => None,
        // movw, movt; not msr
        (true, false) if class(insn) == 1 && !bit(insn, 21) => Some(register(insn, 12)),
        (true, false) => None,
        _ => Some(register(insn, 12)),
    }
}

/// Returns the number in an instruction that computes with one (A5.2.4).
const fn immediate(insn: u32) -> i32 {
    (insn & 0xff).rotate_right(insn >> 7 & 30) as i32
}

/// Returns the effect of unknown values in these registers.
fn lose(written: &[u32]) -> Effect {
    let has = |n: u32| written.contains(&n);
    let (sp, fp, lr) = (has(SP_N), has(FP_N), has(LR_N));
    if sp || fp || lr { Effect::Lose { sp, fp, lr } } else { Effect::None }
}

/// Returns the effect of an instruction.
pub(super) fn effect(insn: u32) -> Effect {
    if insn >> 28 == 15 {
        // Loads and stores of vectors may move the base.
        let moves = insn >> 24 & 15 == 4 && register(insn, 0) != PC_N;
        return if moves { lose(&[register(insn, 16)]) } else { Effect::None };
    }
    match class(insn) {
        0 if is_extra(insn) => extra(insn),
        0 | 1 => data(insn),
        3 if is_media(insn) => match insn >> 20 & 0xff {
            // Products and quotients have the result in another field.
            0x70..=0x78 => lose(&[register(insn, 16), register(insn, 12)]),
            _ => lose(&[register(insn, 12)]),
        },
        2 | 3 => {
            let distance = if class(insn) == 2 { Some((insn & 0xfff) as i32) } else { None };
            let size = if bit(insn, 22) { 1 } else { 4 };
            one(insn, bit(insn, 20), distance, size)
        }
        4 => many(insn),
        6 => vectors(insn),
        // mrc; register 15 means the flags
        7 if !bit(insn, 24) && bit(insn, 4) && bit(insn, 20) => lose(&[register(insn, 12)]),
        _ => Effect::None,
    }
}

/// Data processing.
fn data(insn: u32) -> Effect {
    let from = match register(insn, 16) {
        SP_N => Some(Register::Sp),
        FP_N => Some(Register::Fp),
        _ => None,
    };
    // add, sub of a number; mov of a register
    let by = match (insn >> 20 & 0xff, insn & 0x0fff_0ff0) {
        (0x28 | 0x29, _) => from.map(|from| (from, immediate(insn))),
        (0x24 | 0x25, _) => from.map(|from| (from, immediate(insn).wrapping_neg())),
        (_, 0x01a0_0000) => match register(insn, 0) {
            SP_N => Some((Register::Sp, 0)),
            FP_N => Some((Register::Fp, 0)),
            _ => None,
        },
        _ => None,
    };
    match (register(insn, 12), by) {
        (SP_N, Some((from, n))) => return Effect::SpFrom(from, n),
        (FP_N, Some((from, n))) => return Effect::FpFrom(from, n),
        _ => {}
    }
    if let Some(written) = data_written(insn) {
        return lose(&[written]);
    }
    // Status registers, leading zeros, small products: the result is in one of two fields.
    let other = class(insn) == 0 && insn >> 23 & 3 == 2 && !bit(insn, 20);
    if other { lose(&[register(insn, 16), register(insn, 12)]) } else { Effect::None }
}

/// Returns the effect of multiplications, exclusive accesses, and accesses of halves and doubles.
fn extra(insn: u32) -> Effect {
    let (n, t) = (register(insn, 16), register(insn, 12));
    match (insn >> 5 & 3, bit(insn, 24)) {
        (0, false) => lose(&[n, t]),
        (0, true) => lose(&[t, t | 1]),
        (kind, _) => {
            let double = !bit(insn, 20) && kind != 1;
            let load = bit(insn, 20) || kind == 2;
            let near = (insn >> 4 & 0xf0 | insn & 15) as i32;
            let distance = bit(insn, 22).then_some(near);
            one(insn, load, distance, if double { 8 } else { 2 })
        }
    }
}

/// Returns whether the instruction loads two words.
pub(super) const fn loads_two(insn: u32) -> bool {
    // ldrd, and vldr of a double
    insn & 0x0e10_00f0 == 0x0000_00d0 || insn & 0x0f00_0f00 == 0x0d00_0b00
}

/// Returns the effect of a load or store of one register, or of two of four bytes each if `size` is 8;
/// `distance` is the distance from the base, if it is known.
fn one(insn: u32, load: bool, distance: Option<i32>, size: i32) -> Effect {
    let (n, t) = (register(insn, 16), register(insn, 12));
    let (before, up) = (bit(insn, 24), bit(insn, 23));
    let moves = !before || bit(insn, 21);
    let named = |number: u32, at: i32| match number {
        FP_N => Some((Register::Fp, at)),
        LR_N | PC_N => Some((Register::Lr, at)),
        _ => None,
    };
    let registers = match size {
        4 => [named(t, 0), None],
        8 => [named(t, 0), named(t.wrapping_add(1), 4)],
        _ => [None; 2],
    };
    let gets_sp = load && (t == SP_N || size == 8 && t.wrapping_add(1) == SP_N);
    if let (SP_N, Some(distance), false) = (n, distance, gets_sp)
        && (size >= 4 || !load)
    {
        let by = if up { distance } else { distance.wrapping_neg() };
        let offset = if before { by } else { 0 };
        let by = if moves { by } else { 0 };
        return match (by, registers) {
            (0, [None, None]) => Effect::None,
            _ => Effect::Move { load, base: Register::Sp, offset, by, registers },
        };
    }
    let second = if size == 8 { t.wrapping_add(1) } else { t };
    let (t, second) = if load { (t, second) } else { (0, 0) };
    lose(&[t, second, if moves { n } else { 0 }])
}

/// Returns the effect of a load or store of many registers.
fn many(insn: u32) -> Effect {
    let (load, moves, list) = (bit(insn, 20), bit(insn, 21), insn & 0xffff);
    let n = register(insn, 16);
    let has = |number: u32| bit(list, number);
    if n == SP_N && !(load && has(SP_N)) {
        let all = bytes(list);
        let (before, up) = (bit(insn, 24), bit(insn, 23));
        let offset = match (up, before) {
            (true, false) => 0,
            (true, true) => 4,
            (false, true) => all.wrapping_neg(),
            (false, false) => 4_i32.wrapping_sub(all),
        };
        let by = match (moves, up) {
            (false, _) => 0,
            (true, true) => all,
            (true, false) => all.wrapping_neg(),
        };
        let registers = super::follow::listed(list);
        return Effect::Move { load, base: Register::Sp, offset, by, registers };
    }
    let got = |number: u32| if load && has(number) { number } else { 0 };
    lose(&[got(SP_N), got(FP_N), got(LR_N), if moves { n } else { 0 }])
}

/// Returns the effect of moves of vector registers to and from memory, and of pairs of registers to and from
/// coprocessors.
fn vectors(insn: u32) -> Effect {
    let (n, t) = (register(insn, 16), register(insn, 12));
    if insn & 0x0fe0_0000 == 0x0c40_0000 {
        return if bit(insn, 20) { lose(&[n, t]) } else { Effect::None };
    }
    if !bit(insn, 21) {
        return Effect::None;
    }
    // vpush, vpop, or of another base.
    let by = (insn & 0xff).wrapping_mul(4) as i32;
    match insn & 0x0fbf_0e00 {
        0x0d2d_0a00 => Effect::SpFrom(Register::Sp, by.wrapping_neg()),
        0x0cbd_0a00 => Effect::SpFrom(Register::Sp, by),
        _ => lose(&[n]),
    }
}

#[cfg(test)]
#[path = "effect_arm_tests.rs"]
mod tests;
