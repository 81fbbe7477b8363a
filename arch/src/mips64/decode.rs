//! Which instructions go elsewhere, what becomes of the one behind them, and which use their own
//! address.
//!
//! Encodings: see [`isa`](super::isa). Octeon's and Loongson's own instructions share opcodes with
//! loads and stores of a second coprocessor, which no program for Linux has; they are taken for
//! something that is not understood.

use super::isa::{BREAK, Isa};

/// What an instruction does with its own address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PcUse {
    /// `j`, `b`, `bc`: goes there.
    Branch(u64),
    /// `jal`, `bal`, `balc`: calls it.
    Call(u64),
    /// `beq`, `bgezc`, `bc1t` and their like: may go there.
    Conditional(u64),
    /// `bgezal` and its like: may call it, and sets `$ra` in any case.
    ConditionalCall(u64),
    /// `addiupc`, `auipc`, `aluipc`: puts that address into a register.
    Address(u64),
    /// `lwpc`, `lwupc`, `ldpc`: loads from there.
    Literal(u64),
    /// Uses it in a way that is not to be moved: changes to another instruction set, say.
    Other,
}

/// What becomes of the instruction behind one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Slot {
    /// It is the next one.
    None,
    /// It is done before the jump.
    Delay,
    /// It is done before the branch, if that is taken.
    Likely,
    /// It is the next one, if the branch is not taken, and must not be a branch itself.
    Forbidden,
}

impl Slot {
    /// The instruction behind belongs to this one.
    #[must_use]
    pub fn is_delay(self) -> bool {
        matches!(self, Slot::Delay | Slot::Likely)
    }
}

/// The five bits of a register's field.
pub(super) fn field(insn: u32, low: u32) -> u32 {
    insn.wrapping_shr(low) & 31
}

/// The lowest `bits` bits of `insn` as a signed number.
fn signed(insn: u32, bits: u32) -> i64 {
    let left = 32_u32.wrapping_sub(bits);
    i64::from(insn.wrapping_shl(left) as i32 >> left)
}

/// Branches, by what is common to all of them: what it is, and what becomes of the instruction
/// behind. The distance counts from the next instruction; it has 16, 21 or 26 bits.
#[derive(Copy, Clone)]
struct Branch {
    kind: fn(u64) -> PcUse,
    slot: Slot,
    bits: u32,
}

const fn branch(kind: fn(u64) -> PcUse, slot: Slot, bits: u32) -> Option<Branch> {
    Some(Branch { kind, slot, bits })
}

/// Branches of opcode 1, by their second field.
fn regimm(isa: Isa, insn: u32) -> Option<Branch> {
    let always = field(insn, 21) == 0;
    match field(insn, 16) {
        0x01 if always => branch(PcUse::Branch, Slot::Delay, 16),
        0x00 | 0x01 => branch(PcUse::Conditional, Slot::Delay, 16),
        0x11 if always => branch(PcUse::Call, Slot::Delay, 16),
        0x10 | 0x11 => branch(PcUse::ConditionalCall, Slot::Delay, 16),
        _ if isa.release6 => None,
        0x02 | 0x03 => branch(PcUse::Conditional, Slot::Likely, 16),
        0x12 | 0x13 => branch(PcUse::ConditionalCall, Slot::Likely, 16),
        0x1c => branch(PcUse::Conditional, Slot::Delay, 16), // bposge32
        _ => None,
    }
}

/// Branches on the state of a coprocessor, and on vectors of MSA.
fn coprocessor(isa: Isa, insn: u32) -> Option<Branch> {
    let floating = insn >> 26 == 0x11;
    let likely = insn >> 17 & 1 == 1;
    match (field(insn, 21), isa.release6) {
        (8, false) if likely => branch(PcUse::Conditional, Slot::Likely, 16),
        (8, false) | (9 | 13, true) => branch(PcUse::Conditional, Slot::Delay, 16),
        // MIPS-3D.
        (9 | 10, false) if floating => branch(PcUse::Conditional, Slot::Delay, 16),
        (0x0b | 0x0f | 0x18..=0x1f, _) if floating => branch(PcUse::Conditional, Slot::Delay, 16),
        _ => None,
    }
}

/// Compact branches, all of release 6, and `None` for what is none.
fn compact(insn: u32) -> Option<Branch> {
    let (rs, rt) = (field(insn, 21), field(insn, 16));
    let conditional = branch(PcUse::Conditional, Slot::Forbidden, 16);
    // Which of them set `$ra`, and when, is not to be relied upon.
    let linking = branch(|_| PcUse::Other, Slot::Forbidden, 16);
    match insn >> 26 {
        0x06 | 0x07 if rt != 0 => {
            if rs == 0 || rs == rt {
                linking
            } else {
                conditional
            }
        }
        0x08 | 0x18 => {
            if rs == 0 && rt != 0 {
                linking
            } else {
                conditional
            }
        }
        0x16 | 0x17 if rt != 0 => conditional,
        0x32 => branch(PcUse::Branch, Slot::None, 26),
        0x3a => branch(PcUse::Call, Slot::None, 26),
        0x36 | 0x3e if rs != 0 => branch(PcUse::Conditional, Slot::Forbidden, 21),
        _ => None,
    }
}

/// The branch that an instruction is.
fn decode_branch(isa: Isa, insn: u32) -> Option<Branch> {
    let (opcode, rs, rt) = (insn >> 26, field(insn, 21), field(insn, 16));
    let conditional = branch(PcUse::Conditional, Slot::Delay, 16);
    match opcode {
        0x01 => regimm(isa, insn),
        0x04 if rs == rt => branch(PcUse::Branch, Slot::Delay, 16),
        0x04 | 0x05 => conditional,
        0x06 | 0x07 if rt == 0 => conditional,
        0x11 | 0x12 => coprocessor(isa, insn),
        _ if isa.release6 => compact(insn),
        0x14 | 0x15 => branch(PcUse::Conditional, Slot::Likely, 16),
        0x16 | 0x17 if rt == 0 => branch(PcUse::Conditional, Slot::Likely, 16),
        // jalx; bbit0 and its like of Octeon, or a coprocessor's load.
        0x1d | 0x32 | 0x36 | 0x3a | 0x3e => branch(|_| PcUse::Other, Slot::Delay, 16),
        _ => None,
    }
}

/// Where the distance's field of a branch ends.
#[cfg(feature = "relocate")]
pub(super) fn distance_bits(isa: Isa, insn: u32) -> Option<u32> {
    decode_branch(isa, insn).map(|b| b.bits)
}

/// Whether, and how, the instruction at `pc` uses its own address. Calls of registers set the link
/// register from it, but do not read it.
#[must_use]
pub fn pc_use(isa: Isa, insn: u32, pc: u64) -> Option<PcUse> {
    let next = pc.wrapping_add(4);
    if insn >> 27 == 1 {
        let target = next & !0xfff_ffff | u64::from(insn & 0x03ff_ffff) << 2;
        return Some(if insn >> 26 & 1 == 0 { PcUse::Branch(target) } else { PcUse::Call(target) });
    }
    if insn >> 26 == 0x3b && isa.release6 {
        return pc_relative(insn, pc);
    }
    let found = decode_branch(isa, insn)?;
    let distance = signed(insn, found.bits).wrapping_mul(4);
    Some((found.kind)(next.wrapping_add_signed(distance)))
}

/// Opcode 0x3b of release 6.
fn pc_relative(insn: u32, pc: u64) -> Option<PcUse> {
    let by = |bits, shift: u32| signed(insn, bits).wrapping_shl(shift);
    Some(match field(insn, 16) {
        0x00..=0x07 => PcUse::Address(pc.wrapping_add_signed(by(19, 2))),
        0x08..=0x17 => PcUse::Literal(pc.wrapping_add_signed(by(19, 2))),
        0x18..=0x1b => PcUse::Literal((pc & !7).wrapping_add_signed(by(18, 3))),
        0x1e => PcUse::Address(pc.wrapping_add_signed(by(16, 16))),
        0x1f => PcUse::Address(pc.wrapping_add_signed(by(16, 16)) & !0xffff),
        _ => PcUse::Other,
    })
}

/// `jr`, `jalr` and their forms with a barrier: the register that they go to, and the one that they
/// leave the return address in.
pub(super) fn register_jump(insn: u32) -> Option<(u32, u32)> {
    let (rs, rd) = (field(insn, 21), field(insn, 11));
    match insn & 0xfc1f_003f {
        0x08 => Some((rs, 0)),
        0x09 => Some((rs, rd)),
        _ => None,
    }
}

/// `jic`, `jialc`, of release 6: the register, and whether it is a call.
pub(super) fn compact_register_jump(isa: Isa, insn: u32) -> Option<(u32, bool)> {
    match insn >> 21 {
        0x6c0 if isa.release6 => Some((field(insn, 16), false)),
        0x7c0 if isa.release6 => Some((field(insn, 16), true)),
        _ => None,
    }
}

/// What becomes of the instruction behind this one.
#[must_use]
pub fn slot(isa: Isa, insn: u32) -> Slot {
    if insn >> 27 == 1 || register_jump(insn).is_some() {
        return Slot::Delay;
    }
    decode_branch(isa, insn).map_or(Slot::None, |b| b.slot)
}

/// It may go elsewhere, so it must not stand in a delay slot.
#[cfg(any(test, feature = "relocate"))]
pub(super) fn is_transfer(isa: Isa, insn: u32) -> bool {
    insn >> 27 == 1
        || register_jump(insn).is_some()
        || compact_register_jump(isa, insn).is_some()
        || decode_branch(isa, insn).is_some()
        || insn == 0x4200_0018 // eret
}

/// Execution never goes on behind this instruction (and its delay slot).
pub(super) fn is_terminator(isa: Isa, insn: u32) -> bool {
    matches!(pc_use(isa, insn, 0), Some(PcUse::Branch(_)))
        || matches!(register_jump(insn), Some((_, 0)))
        || matches!(compact_register_jump(isa, insn), Some((_, false)))
        || insn & 0xfc00_003f == BREAK
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
