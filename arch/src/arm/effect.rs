//! Effects of Thumb instructions on the frame: on the stack pointer, `r7`, and saved registers.
//!
//! Encodings: ARM Architecture Reference Manual, ARMv7-A and ARMv7-R, A6.2 and A6.3.

use super::decode::thumb_len;
use super::regs::{LR, PC, R7, SP};

/// Effect of an instruction on the frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    None,
    /// Moves the stack pointer by this many bytes.
    AddSp(i32),
    /// Gives the stack pointer an unknown value.
    LoseSp,
    /// Sets `r7` to this many bytes above the stack pointer.
    FpFromSp(i32),
    /// Moves `r7` by this many bytes.
    AddFp(i32),
    /// Sets the stack pointer to `r7`.
    SpFromFp,
    /// Gives `r7` another value.
    LoseFp,
    /// Stores the registers of this list below the stack pointer, which moves by this many bytes.
    Push(u32, i32),
    /// Loads the registers of this list from the stack pointer, which moves by this many bytes.
    Pop(u32, i32),
}

/// Returns the value of `ThumbExpandImm` (A6.3.2), for the three fields of an instruction.
fn expanded(insn: u32) -> i32 {
    let (fields, low) = (insn >> 15 & 0x800 | insn >> 4 & 0x700, insn & 0xff);
    let value = match fields >> 8 {
        0 => low,
        1 => low << 16 | low,
        2 => low << 24 | low << 8,
        3 => low << 24 | low << 16 | low << 8 | low,
        _ => (low | 0x80).rotate_right(fields >> 7 | low >> 7),
    };
    value as i32
}

/// Returns the bytes of the registers of a list.
pub(super) const fn bytes(list: u32) -> i32 {
    list.count_ones().wrapping_mul(4) as i32
}

/// Returns the effect of an instruction.
pub(super) fn effect(insn: u32) -> Effect {
    if insn >> 16 != 0 {
        return effect_wide(insn);
    }
    let words = ((insn & 0x7f) << 2) as i32;
    let list = insn & 0xff;
    match insn >> 7 {
        0b1_0110_0000 => return Effect::AddSp(words),
        0b1_0110_0001 => return Effect::AddSp(words.wrapping_neg()),
        _ => {}
    }
    match insn >> 8 {
        0xb4 => Effect::Push(list, bytes(list)),
        0xb5 => Effect::Push(list | 1 << LR, bytes(list | 1 << LR)),
        0xbc => Effect::Pop(list, bytes(list)),
        0xbd => Effect::Pop(list | 1 << PC, bytes(list | 1 << PC)),
        0xaf => Effect::FpFromSp((list << 2) as i32),
        0x37 => Effect::AddFp(list as i32),
        0x3f => Effect::AddFp((list as i32).wrapping_neg()),
        // Loads of r7 from the stack or a literal, and small numbers.
        0x9f | 0x4f | 0x27 => Effect::LoseFp,
        _ => match insn & 0xff87 {
            0x4685 if insn >> 3 & 15 == u32::from(R7) => Effect::SpFromFp,
            0x4485 | 0x4685 => Effect::LoseSp,
            0x4607 if insn >> 3 & 15 == u32::from(SP) => Effect::FpFromSp(0),
            0x4607 | 0x4407 => Effect::LoseFp,
            _ => Effect::None,
        },
    }
}

fn effect_wide(insn: u32) -> Effect {
    let (t, d) = (insn >> 12 & 15, insn >> 8 & 15);
    let (sp, fp) = (u32::from(SP), u32::from(R7));
    let plain = (insn >> 15 & 0x800 | insn >> 4 & 0x700 | insn & 0xff) as i32;
    let by = (insn & 0xff) as i32;
    let up = |n: i32| match d {
        _ if d == sp => Effect::AddSp(n),
        _ if d == fp && n >= 0 => Effect::FpFromSp(n),
        _ => Effect::None,
    };
    match insn >> 16 {
        0xe92d => return Effect::Push(insn & 0xffff, bytes(insn & 0xffff)),
        0xe8bd => return Effect::Pop(insn & 0xffff, bytes(insn & 0xffff)),
        // str and ldr of one register, which move the stack pointer.
        0xf84d if insn & 0xf00 == 0xd00 => return Effect::Push(1 << t, by),
        0xf85d if insn & 0xf00 == 0xb00 => return Effect::Pop(1 << t, by),
        // strd, ldrd
        0xe96d if t < d => return Effect::Push(1 << t | 1 << d, by.wrapping_mul(4)),
        0xe8fd if t < d => return Effect::Pop(1 << t | 1 << d, by.wrapping_mul(4)),
        _ => {}
    }
    match insn >> 16 & 0xfbff {
        0xf10d if insn & 0x8000 == 0 => return up(expanded(insn)),
        0xf1ad if insn & 0x8000 == 0 => return up(expanded(insn).wrapping_neg()),
        0xf20d if insn & 0x8000 == 0 => return up(plain),
        0xf2ad if insn & 0x8000 == 0 => return up(plain.wrapping_neg()),
        _ => {}
    }
    // vpush, vpop
    match insn >> 16 & 0xffbf {
        0xed2d => return Effect::AddSp(by.wrapping_mul(-4)),
        0xecbd => return Effect::AddSp(by.wrapping_mul(4)),
        _ => {}
    }
    let computes = insn >> 25 == 0b111_0101 || insn >> 27 == 0b11110 && insn & 0x8000 == 0;
    let loads = insn >> 20 & 0xff7 == 0xf85;
    match () {
        () if computes && d == sp || loads && t == sp => Effect::LoseSp,
        () if computes && d == fp || loads && t == fp => Effect::LoseFp,
        () => Effect::None,
    }
}

/// Function that reads halves of instructions; it returns `None` where there is no code.
pub(super) type Fetch<'a> = dyn FnMut(u64) -> Option<u16> + 'a;

/// Returns whether this is the first half of an instruction of two. The highest numbers are undefined as
/// first halves, and so is data: small negative distances.
pub(super) const fn is_first(half: u16) -> bool {
    thumb_len(half) == 4 && half < 0xfffe
}

/// Returns the instruction at an address, and its length.
pub(super) fn instruction(at: u64, fetch: &mut Fetch<'_>) -> Option<(u32, u64)> {
    let half = fetch(at)?;
    if !is_first(half) {
        return Some((u32::from(half), 2));
    }
    Some((u32::from(half) << 16 | u32::from(fetch(at.wrapping_add(2))?), 4))
}

/// Returns whether a path ends with this instruction: it branches to an address from a register or from
/// memory, or nowhere.
pub(super) fn leaves(insn: u32) -> bool {
    let pops = matches!(effect(insn), Effect::Pop(list, _) if list >> PC & 1 == 1);
    let loads = insn & 0xff70_f000 == 0xf850_f000;
    pops || loads
        || insn >> 16 == 0
            && (insn & 0xff87 == 0x4700 || insn & 0xff87 == 0x4687 || insn >> 8 == 0xde)
}
