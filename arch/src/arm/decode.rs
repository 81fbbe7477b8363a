//! Decodes how instructions use their own address.
//!
//! Encodings: Arm Architecture Reference Manual for ARMv7-A, A5 (ARM) and A6 (Thumb). The program counter
//! reads as the instruction's address plus 8 in ARM code, plus 4 in Thumb code. Loads relative to it, and
//! `adr`, count from the multiple of four at or below it.
//!
//! An instruction that is not known for certain to leave the program counter alone is [`PcUse::Other`]: a
//! function that begins with it is not patched.

/// Instruction set that the processor is in.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Instructions of 32 bits.
    Arm,
    /// Instructions of one or two halves of that.
    Thumb,
}

/// Condition on which a branch is taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The flags match this field of the instruction.
    Flags(u32),
    /// This register is zero.
    Zero(u32),
    /// This register is not zero.
    NotZero(u32),
}

/// The use that an instruction makes of its own address.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PcUse {
    /// `b`: branches to this address.
    Branch(u32),
    /// `bl`, `blx`: calls this address, in this state.
    Call(u32, State),
    /// Conditional `b`, `cbz`, `cbnz`: may branch to this address.
    Conditional(u32, Condition),
    /// `adr`, `mov` from pc: puts the value into a register.
    Address(u32, u32),
    /// `add` with pc: adds the value to a register.
    Add(u32, u32),
    /// A load, or a preload, from this address.
    Literal(u32),
    /// `tbb`, `tbh`: branches as far behind this address as an entry of a table says. The table is at this
    /// address if it is found by pc.
    Table(u32),
    /// Uses its address in a way that can't be moved, or branches by what it reads there.
    Other,
}

/// Position of Thumb code in an if-then block (`ITSTATE`): the condition of the next instruction, and behind
/// it a bit for each that follows, and a one.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct IfThen(u8);

impl IfThen {
    /// Returns the condition on which the next instruction is executed; `None` outside of blocks.
    #[must_use]
    pub fn condition(self) -> Option<u32> {
        (self.0 & 15 != 0).then_some(u32::from(self.0 >> 4))
    }

    /// Returns the position behind this Thumb instruction.
    #[must_use]
    pub fn behind(self, insn: u32) -> Self {
        match self.0 {
            _ if is_if_then(insn) => Self(insn as u8),
            last if last & 7 == 0 => Self(0),
            more => Self(more & 0xe0 | more << 1 & 0x1f),
        }
    }
}

/// Returns whether this is the Thumb instruction `it`, which begins a block.
#[must_use]
pub fn is_if_then(insn: u32) -> bool {
    insn >> 8 == 0xbf && insn & 15 != 0
}

/// Returns the length of the Thumb instruction that begins with this half, in bytes.
#[must_use]
pub const fn thumb_len(half: u16) -> usize {
    if half >= 0xe800 { 4 } else { 2 }
}

/// Returns `bits` bits of `insn` from bit `low` on, as a signed number.
fn field(insn: u32, low: u32, bits: u32) -> i32 {
    let left = 32_u32.wrapping_sub(low.wrapping_add(bits));
    insn.wrapping_shl(left) as i32 >> 32_u32.wrapping_sub(bits)
}

fn nibble(insn: u32, low: u32) -> u32 {
    insn >> low & 15
}

/// Returns `base` plus the distance if `up`, else minus the distance.
fn away(base: u32, up: bool, distance: u32) -> u32 {
    if up { base.wrapping_add(distance) } else { base.wrapping_sub(distance) }
}

/// Returns how the ARM instruction at `pc` uses its own address, if it does. One that branches to an address
/// in a register, or in memory that it finds without its own address, does not.
#[must_use]
pub fn pc_use_arm(insn: u32, pc: u32) -> Option<PcUse> {
    let here = pc.wrapping_add(8);
    if insn >> 28 == 15 {
        return unconditional_arm(insn, here);
    }
    let always = insn >> 28 == 14;
    match insn >> 25 & 7 {
        5 => {
            let to = here.wrapping_add_signed(field(insn, 0, 24) << 2);
            return Some(match (insn >> 24 & 1, always) {
                (0, true) => PcUse::Branch(to),
                (0, false) => PcUse::Conditional(to, Condition::Flags(insn >> 28)),
                (_, true) => PcUse::Call(to, State::Arm),
                _ => PcUse::Other,
            });
        }
        // System calls and coprocessors; vector loads may be from a literal.
        6 | 7 => return coprocessor_arm(insn, here),
        _ => {}
    }
    let found = match insn >> 25 & 7 {
        0 => data_or_extra_arm(insn, here),
        1 => immediate_arm(insn, here),
        2 | 3 => load_store_arm(insn, here),
        _ => block_arm(insn),
    };
    // Values under a condition are not worth supporting.
    if always || found.is_none() { found } else { Some(PcUse::Other) }
}

fn unconditional_arm(insn: u32, here: u32) -> Option<PcUse> {
    if insn >> 25 & 7 == 5 {
        let half = (insn >> 24 & 1) << 1;
        let to = here.wrapping_add_signed(field(insn, 0, 24) << 2).wrapping_add(half);
        return Some(PcUse::Call(to, State::Thumb));
    }
    // pld, pli from a literal
    if insn & 0xff7f_f000 == 0xf55f_f000 || insn & 0xff7f_f000 == 0xf45f_f000 {
        return Some(PcUse::Literal(away(here, insn >> 23 & 1 == 1, insn & 0xfff)));
    }
    // Barriers, and the vector instructions that compute.
    let plain = insn & 0xffff_ff00 == 0xf57f_f000 || insn & 0xfe00_0000 == 0xf200_0000;
    (!plain).then_some(PcUse::Other)
}

fn coprocessor_arm(insn: u32, here: u32) -> Option<PcUse> {
    if insn >> 24 & 15 == 15 {
        return None; // svc
    }
    if insn & 0x0f3f_0e00 == 0x0d1f_0a00 {
        return Some(PcUse::Literal(away(here, insn >> 23 & 1 == 1, (insn & 0xff) << 2)));
    }
    let memory = insn >> 25 & 7 == 6;
    if memory && nibble(insn, 16) == 15 {
        return Some(PcUse::Other);
    }
    // Two general registers to or from a coprocessor.
    let two = insn & 0x0fe0_0000 == 0x0c40_0000;
    // One general register; 15 means the flags in some.
    let one = insn & 0x0f00_0010 == 0x0e00_0010;
    let flags = insn & 0x0fff_ffff == 0x0ef1_fa10; // vmrs
    let fifteen = nibble(insn, 12) == 15;
    ((two || one) && fifteen && !flags).then_some(PcUse::Other)
}

/// Data processing with registers, multiplication, loads of halves and pairs.
fn data_or_extra_arm(insn: u32, here: u32) -> Option<PcUse> {
    let (n, d, s, m) = (nibble(insn, 16), nibble(insn, 12), nibble(insn, 8), nibble(insn, 0));
    let other = |fifteen: bool| fifteen.then_some(PcUse::Other);
    // bx, bxj, blx: to a register
    if matches!(insn & 0x0fff_fff0, 0x012f_ff10 | 0x012f_ff20 | 0x012f_ff30) {
        return other(m == 15);
    }
    if insn & 0x90 == 0x90 {
        if insn & 0x60 == 0 {
            // Multiplication, exclusive loads and stores. Some of the latter have 15 where they have no
            // register.
            let exclusive = insn & 0x0f80_0000 == 0x0180_0000;
            let loads = exclusive && insn & 0x0010_0000 != 0;
            return other(n == 15 || d == 15 || m == 15 && !loads || s == 15 && !exclusive);
        }
        // ldrh, ldrsb, ldrsh, ldrd with an immediate
        let load = insn & 0x0010_0000 != 0 || insn & 0xf0 == 0xd0;
        let literal = insn & 0x0f6f_0000 == 0x014f_0000 && load;
        if literal && d < 15 {
            let distance = insn >> 4 & 0xf0 | insn & 15;
            return Some(PcUse::Literal(away(here, insn >> 23 & 1 == 1, distance)));
        }
        let register = insn & 0x0040_0000 == 0;
        let pair = insn & 0x0010_0040 == 0x40;
        return other(n == 15 || d == 15 || d == 14 && pair || register && m == 15);
    }
    let shifted_by_register = insn & 0x10 != 0;
    // These are encoded as comparisons that set no flags: status registers, clz, hints and others.
    if insn & 0x0190_0000 == 0x0100_0000 {
        let fields = [n, d, s, m];
        return other(fields.contains(&15));
    }
    let opcode = insn >> 21 & 15;
    if !shifted_by_register && insn & 0xff0 == 0 && d != 15 {
        match (opcode, n, m) {
            (13, 0, 15) if insn & 0x0010_0000 == 0 => return Some(PcUse::Address(d, here)),
            (4, 15, o) | (4, o, 15) if insn & 0x0010_0000 == 0 && o == d => {
                return Some(PcUse::Add(d, here));
            }
            _ => {}
        }
    }
    // Comparisons have no result. A plain move to register 15 is a branch to the address that it moves.
    let compares = opcode >> 2 == 2;
    let jumps = d == 15 && !compares && !(opcode == 13 && insn & 0x0010_0ff0 == 0);
    other(m == 15 || n == 15 || shifted_by_register && s == 15 || jumps)
}

/// Data processing with an immediate.
fn immediate_arm(insn: u32, here: u32) -> Option<PcUse> {
    let (n, d) = (nibble(insn, 16), nibble(insn, 12));
    // movw, movt: a part of the immediate is in the field of the first operand.
    if insn & 0x0fb0_0000 == 0x0300_0000 {
        return (d == 15).then_some(PcUse::Other);
    }
    // Hints, and status registers.
    if insn & 0x0fb0_0000 == 0x0320_0000 {
        return None;
    }
    let value = (insn & 0xff).rotate_right(nibble(insn, 8) << 1);
    if d != 15 && matches!(insn & 0x0fff_0000, 0x028f_0000 | 0x024f_0000) {
        return Some(PcUse::Address(d, away(here, insn & 0x0080_0000 != 0, value)));
    }
    let opcode = insn >> 21 & 15;
    let compares = opcode >> 2 == 2;
    (n == 15 || d == 15 && !compares).then_some(PcUse::Other)
}

/// Loads and stores of words and bytes; media instructions.
fn load_store_arm(insn: u32, here: u32) -> Option<PcUse> {
    let (n, d, m) = (nibble(insn, 16), nibble(insn, 12), nibble(insn, 0));
    let register = insn >> 25 & 1 == 1;
    if register && insn & 0x10 != 0 {
        // Media instructions: in some, 15 means no register; those are refused too.
        let fields = [n, d, nibble(insn, 8), m];
        return fields.contains(&15).then_some(PcUse::Other);
    }
    let loads = insn & 0x0010_0000 != 0;
    if !register && loads && insn & 0x0f2f_0000 == 0x050f_0000 && d != 15 {
        return Some(PcUse::Literal(away(here, insn >> 23 & 1 == 1, insn & 0xfff)));
    }
    // A load into pc is a branch.
    let jumps = d == 15 && loads && insn & 0x0040_0000 == 0;
    (n == 15 || register && m == 15 || d == 15 && !jumps).then_some(PcUse::Other)
}

/// Several registers at once: pc may be loaded, and not stored.
fn block_arm(insn: u32) -> Option<PcUse> {
    let (loads, lists_pc) = (insn & 0x0010_0000 != 0, insn & 0x8000 != 0);
    (nibble(insn, 16) == 15 || lists_pc && !loads || insn & 0x0040_0000 != 0)
        .then_some(PcUse::Other)
}

/// Returns how the Thumb instruction at `pc` uses its own address, if it does. One of two halves has the
/// first in the upper 16 bits.
#[must_use]
pub fn pc_use_thumb(insn: u32, pc: u32) -> Option<PcUse> {
    if insn >> 16 != 0 {
        return pc_use_wide(insn, pc);
    }
    let here = pc.wrapping_add(4);
    let aligned = here & !3;
    let words = (insn & 0xff) << 2;
    let high = |low: u32| insn >> low & 7;
    match insn >> 11 {
        0b01001 => return Some(PcUse::Literal(aligned.wrapping_add(words))),
        0b10100 => return Some(PcUse::Address(high(8), aligned.wrapping_add(words))),
        0b11100 => return Some(PcUse::Branch(here.wrapping_add_signed(field(insn, 0, 11) << 1))),
        _ => {}
    }
    if insn >> 10 == 0b010001 {
        return high_registers(insn, here);
    }
    if insn & 0xf500 == 0xb100 {
        let distance = (insn >> 9 & 1) << 6 | (insn >> 3 & 31) << 1;
        let when = if insn & 0x800 == 0 { Condition::Zero } else { Condition::NotZero };
        return Some(PcUse::Conditional(here.wrapping_add(distance), when(high(0))));
    }
    // The instructions behind `it` depend on it. Some words of its format are undefined.
    if is_if_then(insn) {
        let (condition, follow) = (nibble(insn, 4), insn & 15);
        let exists = condition < 14 || condition == 14 && follow.is_power_of_two();
        return (!exists).then_some(PcUse::Other);
    }
    let condition = nibble(insn, 8);
    if insn >> 12 == 0b1101 && condition < 14 {
        let to = here.wrapping_add_signed(field(insn, 0, 8) << 1);
        return Some(PcUse::Conditional(to, Condition::Flags(condition)));
    }
    None
}

/// `add`, `cmp`, `mov`, `bx`, `blx` with any register.
fn high_registers(insn: u32, here: u32) -> Option<PcUse> {
    let (m, d) = (nibble(insn, 3), insn >> 4 & 8 | insn & 7);
    match insn >> 8 & 3 {
        0 if d == 15 => Some(PcUse::Other),
        0 if m == 15 => Some(PcUse::Add(d, here)),
        1 => (m == 15 || d == 15).then_some(PcUse::Other),
        2 if m == 15 && d != 15 => Some(PcUse::Address(d, here)),
        _ => (m == 15).then_some(PcUse::Other),
    }
}

fn pc_use_wide(insn: u32, pc: u32) -> Option<PcUse> {
    let here = pc.wrapping_add(4);
    if insn & 0xf800_8000 == 0xf000_8000 {
        return branch_wide(insn, here);
    }
    let aligned = here & !3;
    let (n, t, d) = (nibble(insn, 16), nibble(insn, 12), nibble(insn, 8));
    let up = insn >> 23 & 1 == 1;
    // adr
    let immediate = insn >> 15 & 0x800 | insn >> 4 & 0x700 | insn & 0xff;
    match insn & 0xfbff_8000 {
        0xf2af_0000 if d != 15 => return Some(PcUse::Address(d, aligned.wrapping_sub(immediate))),
        0xf20f_0000 if d != 15 => return Some(PcUse::Address(d, aligned.wrapping_add(immediate))),
        _ => {}
    }
    if n == 15 {
        // ldrb, ldrh, ldr and the signed ones; one into pc is a branch, or a preload.
        let load = insn & 0xfe1f_0000 == 0xf81f_0000 && insn & 0x0160_0000 != 0x0140_0000;
        if load
            && insn & 0x0060_0000 != 0x0060_0000
            && (t != 15 || insn & 0x0060_0000 != 0x0040_0000)
        {
            return Some(PcUse::Literal(away(aligned, up, insn & 0xfff)));
        }
        // ldrd; vldr
        if insn & 0xff7f_0000 == 0xe95f_0000 && t != 15 && d != 15
            || insn & 0xff3f_0e00 == 0xed1f_0a00
        {
            return Some(PcUse::Literal(away(aligned, up, (insn & 0xff) << 2)));
        }
    }
    if insn & 0xfff0_ffe0 == 0xe8d0_f000 {
        let m = nibble(insn, 0);
        let exists = n != 13 && m != 13 && m != 15;
        return Some(if exists { PcUse::Table(here) } else { PcUse::Other });
    }
    wide_register_fields(insn, n, t, d).then_some(PcUse::Other)
}

/// Branches and calls, and what shares their encoding: hints, barriers, status registers.
fn branch_wide(insn: u32, here: u32) -> Option<PcUse> {
    let sign = insn >> 26 & 1;
    let (j1, j2) = (insn >> 13 & 1, insn >> 11 & 1);
    // 24 bits in units of two bytes.
    let far = {
        let (i1, i2) = (!(j1 ^ sign) & 1, !(j2 ^ sign) & 1);
        let bits = sign << 23 | i1 << 22 | i2 << 21 | (insn >> 16 & 0x3ff) << 11 | insn & 0x7ff;
        field(bits, 0, 24) << 1
    };
    match (insn >> 14 & 1, insn >> 12 & 1) {
        (0, 1) => Some(PcUse::Branch(here.wrapping_add_signed(far))),
        (1, 1) => Some(PcUse::Call(here.wrapping_add_signed(far), State::Thumb)),
        (1, _) if insn & 1 == 0 => {
            Some(PcUse::Call((here & !3).wrapping_add_signed(far), State::Arm))
        }
        (1, _) => Some(PcUse::Other),
        _ if insn >> 23 & 7 == 7 => {
            // Hints, barriers and reads of the status do no harm.
            let plain = insn & 0xffff_ff00 == 0xf3af_8000
                || insn & 0xffff_ff00 == 0xf3bf_8f00
                || insn & 0xffff_f0ff == 0xf3ef_8000 && nibble(insn, 8) != 15;
            (!plain).then_some(PcUse::Other)
        }
        _ => {
            let bits = sign << 19 | j2 << 18 | j1 << 17 | (insn >> 16 & 63) << 11 | insn & 0x7ff;
            let to = here.wrapping_add_signed(field(bits, 0, 20) << 1);
            Some(PcUse::Conditional(to, Condition::Flags(insn >> 22 & 15)))
        }
    }
}

/// Returns whether 15 is in a field where it may mean pc.
fn wide_register_fields(insn: u32, n: u32, t: u32, d: u32) -> bool {
    let m = nibble(insn, 0);
    match insn >> 25 {
        // Several registers: pc may be loaded, and not stored.
        0b1110100 if insn & 0x0040_0000 == 0 => {
            n == 15 || insn & 0x8000 != 0 && insn & 0x0010_0000 == 0
        }
        // Two registers, exclusive ones, jumps through tables.
        0b1110100 => {
            let loads_exclusively = insn & 0x0130_0000 == 0x0010_0000;
            n == 15 || t == 15 || d == 15 && !loads_exclusively
        }
        // Shifted registers: mov and mvn have no first operand, comparisons no result.
        0b1110101 => {
            let opcode = insn >> 21 & 15;
            let moves = opcode == 2 || opcode == 3;
            let compares = matches!(opcode, 0 | 4 | 8 | 13) && insn & 0x0010_0000 != 0;
            n == 15 && !moves || d == 15 && !compares || m == 15
        }
        // Coprocessors and vectors.
        0b1110110 | 0b1110111 | 0b1111110 | 0b1111111 => {
            let computes = insn & 0x0f00_0010 == 0x0e00_0000 || insn & 0xef00_0000 == 0xef00_0000;
            let flags = insn == 0xeef1_fa10;
            !computes && !flags && (n == 15 || t == 15)
        }
        // Immediates: mov, mvn and comparisons as above; movw and movt have a part of the immediate there.
        0b1111000..=0b1111011 => {
            let opcode = insn >> 21 & 15;
            let plain = insn & 0x0200_0000 != 0;
            let wide_move = plain && (opcode == 2 || opcode == 6);
            let moves = !plain && (opcode == 2 || opcode == 3) || wide_move;
            let compares = !plain && matches!(opcode, 0 | 4 | 8 | 13) && insn & 0x0010_0000 != 0;
            n == 15 && !moves || d == 15 && !compares
        }
        // Loads and stores of one register: a load into pc is a branch; with another size it is a preload.
        0b1111100 => {
            let register = insn & 0x0080_0fc0 == 0 && insn & 0x0100_0000 == 0;
            let loads = insn & 0x0010_0000 != 0;
            n == 15 || t == 15 && !loads || (register && m == 15)
        }
        // Data processing with registers, multiplication: in some, 15 means no register.
        _ => {
            let multiplies = insn >> 24 & 1 == 1;
            let extends = !multiplies && insn & 0x0080_0080 == 0x80;
            // In these, 15 does not mean that nothing is added.
            let four = insn & 0x00f0_0000 == 0 && insn & 0xf0 != 0
                || insn & 0x00f0_0000 == 0x0060_0000
                || insn & 0x0080_0000 != 0;
            n == 15 && !extends || d == 15 || m == 15 || t == 15 && multiplies && four
        }
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
