//! Effects of instructions on the stack pointer, `x29` and `x30`, and where they lead; for
//! [`prologue`](super::prologue).
//!
//! Encodings: Arm Architecture Reference Manual for A-profile, C4.1 ("A64 instruction set encoding"). Where
//! it is not worth telling instructions apart, a register counts as written.

use super::regs::{FP, LR, SP};
use crate::unwind::ahead::{Effect, Flow, Register};

pub(super) const SP_N: u32 = SP as u32;
pub(super) const FP_N: u32 = FP as u32;
pub(super) const LR_N: u32 = LR as u32;

/// Returns the register with this number, which is `sp`, `x29` or `x30`.
const fn of(number: u32) -> Register {
    match number {
        SP_N => Register::Sp,
        FP_N => Register::Fp,
        _ => Register::Lr,
    }
}

/// Returns `bits` bits of `insn` from bit `low` on.
const fn bits(insn: u32, low: u32, bits: u32) -> u32 {
    insn.wrapping_shr(low) & 1_u32.wrapping_shl(bits).wrapping_sub(1)
}

/// Returns these bits as a signed number.
const fn signed(insn: u32, low: u32, bits: u32) -> i32 {
    let left = 32_u32.wrapping_sub(low.wrapping_add(bits));
    (insn.wrapping_shl(left) as i32).wrapping_shr(32_u32.wrapping_sub(bits))
}

/// Returns the register in the field that begins at bit `low`.
const fn register(insn: u32, low: u32) -> u32 {
    bits(insn, low, 5)
}

pub(super) fn flow(insn: u32, pc: u64) -> Flow {
    let to = |words: i32| pc.wrapping_add_signed(i64::from(words).wrapping_mul(4));
    if insn & 0x7c00_0000 == 0x1400_0000 {
        return if insn >> 31 == 1 { Flow::Call } else { Flow::Branch(to(signed(insn, 0, 26))) };
    }
    // b.cond, bc.cond, cbz, cbnz
    if insn & 0xff00_0000 == 0x5400_0000 || insn & 0x7e00_0000 == 0x3400_0000 {
        return Flow::Conditional(to(signed(insn, 5, 19)));
    }
    // tbz, tbnz
    if insn & 0x7e00_0000 == 0x3600_0000 {
        return Flow::Conditional(to(signed(insn, 5, 14)));
    }
    // Compare and branch (FEAT_CMPBR).
    if insn & 0x7e00_0000 == 0x7400_0000 {
        return Flow::Conditional(to(signed(insn, 5, 9)));
    }
    if insn >> 25 == 0x6b {
        // With or without authentication.
        return match (bits(insn, 21, 4) & 7, register(insn, 5)) {
            (0, to) => Flow::Register(to),
            (1, _) => Flow::Call,
            // An authenticated return names no register.
            (2, LR_N | 31) => Flow::Return,
            _ => Flow::Stop,
        };
    }
    let stops = insn & 0xffe0_001f == 0xd420_0000 // brk
        || insn & 0xffe0_001f == 0xd440_0000 // hlt
        || insn & 0xffff_0000 == 0 // udf
        || insn & 0xffc0_0000 == 0x5500_0000; // retaasppc, retabsppc
    if stops { Flow::Stop } else { Flow::Next }
}

pub(super) fn effect(insn: u32) -> Effect {
    match bits(insn, 25, 4) {
        0b1000 | 0b1001 => immediate(insn),
        0b0101 | 0b1101 => of_registers(insn),
        0b1010 | 0b1011 => system(insn),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(insn),
        0b0111 | 0b1111 => from_vector(insn),
        0b0010 => scalable(insn),
        _ => Effect::None,
    }
}

/// Returns the effect of unknown values in these registers; register 31 is the stack pointer.
fn lose(written: [u32; 3]) -> Effect {
    let has = |n: u32| written.contains(&n);
    let (sp, fp, lr) = (has(SP_N), has(FP_N), has(LR_N));
    if sp || fp || lr { Effect::Lose { sp, fp, lr } } else { Effect::None }
}

/// Returns the effect of an instruction that writes the register in its lowest bits; register 31 is none.
fn writes(insn: u32) -> Effect {
    let to = register(insn, 0);
    if to == SP_N { Effect::None } else { lose([to; 3]) }
}

/// Data processing with an immediate.
fn immediate(insn: u32) -> Effect {
    let (to, from) = (register(insn, 0), register(insn, 5));
    let (sets_flags, kind) = (bits(insn, 29, 1) == 1, bits(insn, 23, 3));
    // add, sub of 64 bits
    if kind == 0b010 && !sets_flags && insn >> 31 == 1 && (from == SP_N || from == FP_N) {
        let n = bits(insn, 10, 12).wrapping_shl(if bits(insn, 22, 1) == 1 { 12 } else { 0 }) as i32;
        let n = if bits(insn, 30, 1) == 1 { n.wrapping_neg() } else { n };
        match to {
            SP_N => return Effect::SpFrom(of(from), n),
            FP_N => return Effect::FpFrom(of(from), n),
            _ => {}
        }
    }
    // Others that may write the stack pointer: those with tags, and, orr, eor.
    let sp = match kind {
        0b010 => !sets_flags,
        0b011 => true,
        0b100 => bits(insn, 29, 2) != 3,
        _ => false,
    };
    if sp { lose([to; 3]) } else { writes(insn) }
}

/// Data processing with registers.
fn of_registers(insn: u32) -> Effect {
    // add, sub with an extended register; irg
    if insn & 0x3fe0_0000 == 0x0b20_0000 || insn & 0xffe0_fc00 == 0x9ac0_1000 {
        return lose([register(insn, 0); 3]);
    }
    // pacia, autia, xpaci and their like leave the same address.
    if insn & 0xffff_0000 == 0xdac1_0000 && register(insn, 0) == LR_N {
        return Effect::None;
    }
    writes(insn)
}

fn system(insn: u32) -> Effect {
    const PACIASP: u32 = 0xd503_233f;
    const PACIBSP: u32 = 0xd503_237f;
    /// `bti c`
    const LANDING: u32 = 0xd503_245f;
    match insn {
        PACIASP | PACIBSP | LANDING => Effect::Entry,
        // mrs, sysl
        _ if insn & 0xfff0_0000 == 0xd530_0000 || insn & 0xfff8_0000 == 0xd528_0000 => writes(insn),
        _ => Effect::None,
    }
}

/// Returns the effect of a load or store with an immediate offset.
fn moved(insn: u32, offset: i32, by: i32, size: i32, pair: bool) -> Effect {
    let base = register(insn, 5);
    let vector = bits(insn, 26, 1) == 1;
    let load = if pair { bits(insn, 22, 1) == 1 } else { bits(insn, 22, 2) != 0 };
    // prfm
    let nothing = vector || !pair && insn >> 30 == 3 && bits(insn, 22, 2) == 2;
    let named = |low: u32, at: i32| {
        let r = register(insn, low);
        (!nothing && (r == LR_N || r == FP_N)).then_some((r, at))
    };
    let registers = [named(0, 0), if pair { named(10, size) } else { None }];
    let from_frame = base == SP_N || base == FP_N;
    // A register must be loaded or stored whole.
    let whole = size == 8 || registers == [None; 2];
    if from_frame && whole && (by != 0 || registers != [None; 2]) {
        let registers = registers.map(|r| r.map(|(number, at)| (of(number), at)));
        return Effect::Move { load, base: of(base), offset, by, registers };
    }
    let written = |r: Option<(u32, i32)>| r.filter(|_| load).map_or(0, |r| r.0);
    let [first, second] = registers;
    lose([written(first), written(second), if by != 0 { base } else { 0 }])
}

/// Loads and stores.
fn memory(insn: u32) -> Effect {
    let vector = bits(insn, 26, 1) == 1;
    match bits(insn, 27, 3) {
        // Pairs.
        0b101 => {
            let size = match (vector, insn >> 30) {
                (true, n) => 4_i32.wrapping_shl(n),
                (false, 2) => 8,
                // stgp; ldpsw has size 4
                (false, 1) if bits(insn, 22, 1) == 0 => 16,
                (false, _) => 4,
            };
            let n = signed(insn, 15, 7).wrapping_mul(size);
            match bits(insn, 23, 2) {
                1 => moved(insn, 0, n, size, true),
                3 => moved(insn, n, n, size, true),
                _ => moved(insn, n, 0, size, true),
            }
        }
        0b111 => {
            let scale = insn >> 30 | if vector { bits(insn, 23, 1) << 2 } else { 0 };
            let size = 1_i32.wrapping_shl(scale);
            let n = signed(insn, 12, 9);
            match (bits(insn, 24, 1), bits(insn, 21, 1), bits(insn, 10, 2)) {
                (1, ..) => {
                    moved(insn, (bits(insn, 10, 12) as i32).wrapping_mul(size), 0, size, false)
                }
                (_, 0, 1) => moved(insn, 0, n, size, false),
                (_, 0, 3) => moved(insn, n, n, size, false),
                (_, 0, _) => moved(insn, n, 0, size, false),
                // ldraa, ldrab: the base may be written.
                (_, _, 1 | 3) if !vector => {
                    let base = if bits(insn, 11, 1) == 1 { register(insn, 5) } else { 0 };
                    lose([loaded(insn), base, 0])
                }
                (_, _, 2) if bits(insn, 22, 2) == 0 => Effect::None,
                _ if vector => Effect::None,
                _ => lose([loaded(insn), 0, 0]),
            }
        }
        // Vectors in structures; the base may be moved.
        0b001 if vector => {
            let moves = bits(insn, 23, 1) == 1 && bits(insn, 24, 1) <= 1;
            if moves { lose([register(insn, 5); 3]) } else { Effect::None }
        }
        // Tags; the base may be moved.
        0b011 if insn & 0xff20_0000 == 0xd920_0000 => {
            let base = if bits(insn, 10, 1) == 1 { register(insn, 5) } else { 0 };
            lose([loaded(insn), base, 0])
        }
        // Literals.
        0b011 if bits(insn, 24, 1) == 0 => {
            if vector {
                Effect::None
            } else {
                writes(insn)
            }
        }
        // Exclusive and ordered accesses; copies of memory.
        _ => {
            let general =
                |low: u32| if register(insn, low) == SP_N { 0 } else { register(insn, low) };
            let base = if bits(insn, 24, 1) == 1 { general(5) } else { 0 };
            lose([general(0), if base == 0 { general(10) } else { base }, general(16)])
        }
    }
}

/// Returns the register in the lowest bits, which is loaded; 31 is none.
fn loaded(insn: u32) -> u32 {
    let to = register(insn, 0);
    if to == SP_N { 0 } else { to }
}

/// Vector instructions that write a general register.
fn from_vector(insn: u32) -> Effect {
    let converts = insn & 0x7f20_fc00 == 0x1e20_0000 || insn & 0x7f20_0000 == 0x1e00_0000;
    let takes = insn & 0xbfe0_ec00 == 0x0e00_2c00; // smov, umov
    if converts || takes { writes(insn) } else { Effect::None }
}

/// Scalable instructions that write a general register; `addvl` and `addpl` may write the stack pointer.
fn scalable(insn: u32) -> Effect {
    if insn & 0xffa0_f800 == 0x0420_5000 {
        return lose([register(insn, 0); 3]);
    }
    let kind = bits(insn, 13, 3);
    let takes = match insn >> 24 {
        0x04 => bits(insn, 21, 1) == 1 && matches!(kind, 2 | 7),
        0x05 => kind == 5,
        0x25 => kind >= 4,
        _ => false,
    };
    if takes { writes(insn) } else { Effect::None }
}
