//! Branches, the role of the instruction behind one, and the instructions that use their own address.
//!
//! Encodings: see [`variant`](super::variant). Octeon's and Loongson's own instructions share opcodes with loads and
//! stores of a second coprocessor, which no program for Linux has; they count as not understood.

use super::variant::{BREAK, Variant};

/// An instruction's use of its own address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PcUse {
    /// `j`, `b`, `bc`: branches to this address.
    Branch(u64),
    /// `jal`, `bal`, `balc`: calls this address.
    Call(u64),
    /// `beq`, `bgezc`, `bc1t` and their like: may branch to this address.
    Conditional(u64),
    /// `bgezal` and its like: may call this address, and sets `$ra` in any case.
    ConditionalCall(u64),
    /// `addiupc`, `auipc`, `aluipc`: puts this address into a register.
    Address(u64),
    /// `lwpc`, `lwupc`, `ldpc`: loads from this address.
    Literal(u64),
    /// Uses its address in a way that can't be moved, for example changes to another instruction set.
    Other,
}

/// Role of the instruction behind one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The next instruction.
    None,
    /// The instruction in the delay slot is executed before the jump.
    Delay,
    /// The instruction in the delay slot is executed before the branch, if that is taken.
    Likely,
    /// The next instruction if the branch is not taken; it must not be a branch itself.
    Forbidden,
}

impl Slot {
    /// Returns whether the instruction behind belongs to this one.
    #[must_use]
    pub fn is_delay(self) -> bool {
        matches!(self, Slot::Delay | Slot::Likely)
    }
}

/// Returns the five bits of a register's field.
pub(super) fn field(insn: u32, low: u32) -> u32 {
    insn.wrapping_shr(low) & 31
}

/// Returns the lowest `bits` bits of `insn` as a signed number.
fn signed(insn: u32, bits: u32) -> i64 {
    let left = 32_u32.wrapping_sub(bits);
    i64::from(insn.wrapping_shl(left) as i32 >> left)
}

/// The properties of a branch: the kind, and the role of the instruction behind. The distance counts from
/// the next instruction; it has 16, 21 or 26 bits.
#[derive(Copy, Clone)]
struct Branch {
    kind: fn(u64) -> PcUse,
    slot: Slot,
    bits: u32,
}

const fn branch(kind: fn(u64) -> PcUse, slot: Slot, bits: u32) -> Option<Branch> {
    Some(Branch { kind, slot, bits })
}

/// Returns the branch of opcode 1, by its second field.
fn regimm(variant: Variant, insn: u32) -> Option<Branch> {
    let always = field(insn, 21) == 0;
    match field(insn, 16) {
        0x01 if always => branch(PcUse::Branch, Slot::Delay, 16),
        0x00 | 0x01 => branch(PcUse::Conditional, Slot::Delay, 16),
        0x11 if always => branch(PcUse::Call, Slot::Delay, 16),
        0x10 | 0x11 => branch(PcUse::ConditionalCall, Slot::Delay, 16),
        _ if variant.release6 => None,
        0x02 | 0x03 => branch(PcUse::Conditional, Slot::Likely, 16),
        0x12 | 0x13 => branch(PcUse::ConditionalCall, Slot::Likely, 16),
        0x1c => branch(PcUse::Conditional, Slot::Delay, 16), // bposge32
        _ => None,
    }
}

/// Returns the branch on the state of a coprocessor, or on vectors of MSA.
fn coprocessor(variant: Variant, insn: u32) -> Option<Branch> {
    let floating = insn >> 26 == 0x11;
    let likely = insn >> 17 & 1 == 1;
    match (field(insn, 21), variant.release6) {
        (8, false) if likely => branch(PcUse::Conditional, Slot::Likely, 16),
        (8, false) | (9 | 13, true) => branch(PcUse::Conditional, Slot::Delay, 16),
        // MIPS-3D.
        (9 | 10, false) if floating => branch(PcUse::Conditional, Slot::Delay, 16),
        (0x0b | 0x0f | 0x18..=0x1f, _) if floating => branch(PcUse::Conditional, Slot::Delay, 16),
        _ => None,
    }
}

/// Returns the compact branch, all of which are of release 6; `None` if it is none.
fn compact(insn: u32) -> Option<Branch> {
    let (rs, rt) = (field(insn, 21), field(insn, 16));
    let conditional = branch(PcUse::Conditional, Slot::Forbidden, 16);
    // It can't be relied upon which of them set `$ra`, and when.
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

/// Returns the branch that an instruction is; `None` if it is none.
fn decode_branch(variant: Variant, insn: u32) -> Option<Branch> {
    let (opcode, rs, rt) = (insn >> 26, field(insn, 21), field(insn, 16));
    let conditional = branch(PcUse::Conditional, Slot::Delay, 16);
    match opcode {
        0x01 => regimm(variant, insn),
        0x04 if rs == rt => branch(PcUse::Branch, Slot::Delay, 16),
        0x04 | 0x05 => conditional,
        0x06 | 0x07 if rt == 0 => conditional,
        0x11 | 0x12 => coprocessor(variant, insn),
        _ if variant.release6 => compact(insn),
        0x14 | 0x15 => branch(PcUse::Conditional, Slot::Likely, 16),
        0x16 | 0x17 if rt == 0 => branch(PcUse::Conditional, Slot::Likely, 16),
        // jalx; bbit0 and its like of Octeon, or a coprocessor's load.
        0x1d | 0x32 | 0x36 | 0x3a | 0x3e => branch(|_| PcUse::Other, Slot::Delay, 16),
        _ => None,
    }
}

/// Returns the number of bits of a branch's distance.
#[cfg(feature = "relocate")]
pub(super) fn distance_bits(variant: Variant, insn: u32) -> Option<u32> {
    decode_branch(variant, insn).map(|b| b.bits)
}

/// Returns how the instruction at `pc` uses its own address, if it does. Calls of registers set the link
/// register from it, but do not read it.
#[must_use]
pub fn pc_use(variant: Variant, insn: u32, pc: u64) -> Option<PcUse> {
    let next = pc.wrapping_add(4);
    if insn >> 27 == 1 {
        let target = next & !0xfff_ffff | u64::from(insn & 0x03ff_ffff) << 2;
        return Some(if insn >> 26 & 1 == 0 { PcUse::Branch(target) } else { PcUse::Call(target) });
    }
    if insn >> 26 == 0x3b && variant.release6 {
        return pc_relative(insn, pc);
    }
    let found = decode_branch(variant, insn)?;
    let distance = signed(insn, found.bits).wrapping_mul(4);
    Some((found.kind)(next.wrapping_add_signed(distance)))
}

/// Returns the use by an instruction of opcode 0x3b of release 6.
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

/// Returns, of `jr`, `jalr` and their forms with a barrier, the register that they branch to and the one that
/// they leave the return address in.
pub(super) fn register_jump(insn: u32) -> Option<(u32, u32)> {
    let (rs, rd) = (field(insn, 21), field(insn, 11));
    match insn & 0xfc1f_003f {
        0x08 => Some((rs, 0)),
        0x09 => Some((rs, rd)),
        _ => None,
    }
}

/// Returns, of `jic` and `jialc` of release 6, the register, and whether it is a call.
pub(super) fn compact_register_jump(variant: Variant, insn: u32) -> Option<(u32, bool)> {
    match insn >> 21 {
        0x6c0 if variant.release6 => Some((field(insn, 16), false)),
        0x7c0 if variant.release6 => Some((field(insn, 16), true)),
        _ => None,
    }
}

/// Returns the role of the instruction behind this one.
#[must_use]
pub fn slot(variant: Variant, insn: u32) -> Slot {
    if insn >> 27 == 1 || register_jump(insn).is_some() {
        return Slot::Delay;
    }
    decode_branch(variant, insn).map_or(Slot::None, |b| b.slot)
}

/// Returns whether it may branch, so that it must not be in a delay slot.
#[cfg(any(test, feature = "relocate"))]
pub(super) fn is_transfer(variant: Variant, insn: u32) -> bool {
    insn >> 27 == 1
        || register_jump(insn).is_some()
        || compact_register_jump(variant, insn).is_some()
        || decode_branch(variant, insn).is_some()
        || insn == 0x4200_0018 // eret
}

/// Returns whether execution never continues behind this instruction (and its delay slot).
pub(super) fn is_terminator(variant: Variant, insn: u32) -> bool {
    matches!(pc_use(variant, insn, 0), Some(PcUse::Branch(_)))
        || matches!(register_jump(insn), Some((_, 0)))
        || matches!(compact_register_jump(variant, insn), Some((_, false)))
        || insn & 0xfc00_003f == BREAK
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
