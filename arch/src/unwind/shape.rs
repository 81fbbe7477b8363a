//! Shape of a frame of the target's own: where it has its caller's registers, for code that lays out such a
//! frame itself.

use super::cfi::{CfiContext, CfiModule};
use super::full_step::step_full;
use super::traits::{FullStep, RegisterSet};
use gimli::{RegisterRule, Vendor};

/// Maximum number of registers that a frame may hold.
pub const SLOTS: usize = 14;
/// DWARF number of AArch64's `RA_SIGN_STATE`: 1 where the return address has a signature.
const RA_SIGN_STATE: u16 = 34;
/// Stack pointer that a frame is tried with; no other register comes near it.
const SP: u64 = 0x4000_0000;
/// Frame pointer that a frame is tried with.
const FP: u64 = 0x5000_0000;
/// Each word holds its own address with this bit changed, so that it equals no register's value.
const WORD: u64 = 0x8000_0000;

/// Shape of a frame, from the row for a code address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Bytes from the stack pointer to the frame's end, which is the caller's stack pointer; from the frame pointer
    /// if [`by_fp`](Self::by_fp).
    pub len: u64,
    /// Whether the frame is counted from the frame pointer, so that it may be anywhere above the stack
    /// pointer.
    pub by_fp: bool,
    /// For each register, how many words below the frame's end it is; 0: it is not in the frame, but as the
    /// caller has it.
    pub slots: [u8; SLOTS],
    /// Whether the return address in the frame is signed.
    pub signed: bool,
}

/// Returns the shape of the frame in which code at `pc` runs, if the shape is all there is to the frame: it
/// holds some of `registers` (by DWARF number; the return address among them) and no others, and no
/// language's handler looks at it.
#[must_use]
pub fn shape<R: RegisterSet + Default>(
    cfi: &CfiModule<'_>,
    pc: u64,
    registers: &[u16],
    fp: u16,
) -> Option<Shape> {
    let mut ctx = CfiContext::new();
    if cfi.has_handler(pc) {
        return None;
    }
    let mut signed = false;
    if let Ok((row, _)) = cfi.row(pc, &mut ctx, R::VENDOR) {
        for (register, rule) in row.registers() {
            let number = register.0;
            if number == RA_SIGN_STATE && R::VENDOR == Vendor::AArch64 {
                signed = matches!(rule, RegisterRule::Constant(1));
            } else if !registers.contains(&number) && *rule != RegisterRule::SameValue {
                return None;
            }
        }
    }
    let mut regs = R::default();
    regs.set_pc(pc);
    let as_before = |n: u16| u64::from(n).wrapping_add(1) << 20;
    registers.iter().for_each(|n| regs.set(*n, as_before(*n)));
    regs.set(R::SP, SP);
    regs.set(fp, FP);
    let step = step_full(cfi, &regs, pc, &mut ctx, &mut |at| Some(at ^ WORD));
    let FullStep::Next { regs: next, signal: false } = step else { return None };
    let (end, word) = (next.get(R::SP)?, u64::from(R::WORD));
    let near = |from: u64| Some(end.wrapping_sub(from)).filter(|len| (1..2048).contains(len));
    let (len, by_fp) = near(SP).map(|len| (len, false)).or(near(FP).map(|len| (len, true)))?;
    let mut slots = [0; SLOTS];
    for (slot, n) in slots.iter_mut().zip(registers) {
        let value = next.get(*n)?;
        if value == as_before(*n) || (*n == fp && value == FP) {
            continue;
        }
        let below = end.wrapping_sub(value ^ WORD);
        if !(word..=len).contains(&below) || !below.is_multiple_of(word) {
            return None;
        }
        *slot = u8::try_from(below / word).ok()?;
    }
    // Two registers in one place would be a table that nobody writes.
    let link = registers.iter().position(|n| *n == R::RA)?;
    (slots.get(link) != Some(&0)).then_some(Shape { len, by_fp, slots, signed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::FullRegs;
    use crate::arm::regs::{LR, R7};

    const REGISTERS: [u16; 4] = [4, 5, R7, LR];

    fn of(instructions: u32) -> Option<Shape> {
        // Two functions, at 0x1000 and 0x2000; the table at 0x8000.
        let rows = [0x7fff_9000_u32, instructions, 0x7fff_9ff8, 1];
        let exidx: [u8; 16] = core::array::from_fn(|n| rows[n / 4].to_le_bytes()[n % 4]);
        let cfi =
            CfiModule { narrow: true, exidx: &exidx, exidx_addr: 0x8000, ..CfiModule::default() };
        shape::<FullRegs>(&cfi, 0x1010, &REGISTERS, R7)
    }

    #[test]
    fn frames_by_the_stack_and_by_the_frame_pointer() {
        // vsp += 256; pop {r4, r5, r6, r7, lr}: r6 is not asked for.
        let found = of(0x803f_abb0).unwrap();
        let mut slots = [0; SLOTS];
        slots[..4].copy_from_slice(&[5, 4, 2, 1]);
        assert_eq!(found, Shape { len: 276, by_fp: false, slots, signed: false });
        // vsp = r7; pop {r4, r5, r6, r7, lr}: r7's own place is where it points behind the pops.
        let found = of(0x8097_abb0).unwrap();
        assert_eq!((found.len, found.by_fp, found.slots), (20, true, slots));
        // vsp = r7; pop {r7, lr}: what r7 was is where r7 points.
        let found = of(0x8097_8408).map(|s| (s.len, s.slots[2], s.slots[3]));
        assert_eq!(found, Some((8, 2, 1)));
        assert_eq!(of(0x8084_08b0).unwrap().slots[2..4], [2, 1]);
        // Without a return address; one that can't be unwound.
        assert_eq!((of(0x8001_b0b0), of(1)), (None, None));
    }
}
