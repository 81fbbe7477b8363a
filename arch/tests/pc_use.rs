//! Compares with a disassembler, over a sample of all 32-bit words, which AArch64 instructions use their own
//! address, and how far away their target is.
#![cfg(feature = "relocate")]

use prof_arch::aarch64::insn::{PcUse, pc_use};
use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Operand};

const PC: u64 = 0x40_0123_4568;

/// Returns the distance that the disassembler shows; `None` if it does not know the word.
fn oracle(decoder: &InstDecoder, word: u32) -> Option<Option<i64>> {
    let bytes = word.to_le_bytes();
    let insn = decoder.decode(&mut U8Reader::new(&bytes)).ok()?;
    let distance = insn.operands.iter().find_map(|o| match o {
        Operand::PCOffset(n) => Some(*n),
        _ => None,
    });
    Some(distance)
}

fn ours(word: u32) -> Option<i64> {
    let to = match pc_use(word, PC)? {
        PcUse::Branch(to) | PcUse::Call(to) | PcUse::Conditional(to, _) => to,
        PcUse::Literal(to) => to,
        PcUse::Address(to) if word & 0x9f00_0000 == 0x9000_0000 => {
            return Some(to.wrapping_sub(PC & !0xfff) as i64);
        }
        PcUse::Address(to) => to,
        PcUse::Other => unreachable!("compared by nobody"),
    };
    Some(to.wrapping_sub(PC) as i64)
}

#[test]
fn as_a_disassembler_sees_it() {
    let decoder = InstDecoder::default();
    let (mut known, mut used, mut wrong) = (0_u32, 0_u32, Vec::new());
    // Takes every value of the upper half with some of the lower, as the upper bits tell the instruction.
    let mut low = 0x1234_u32;
    for high in 0..=u16::MAX {
        for _ in 0..48 {
            low = low.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = u32::from(high) << 16 | low >> 16;
            let Some(theirs) = oracle(&decoder, word) else { continue };
            known += 1;
            used += u32::from(theirs.is_some());
            // Such instructions are never moved, whatever their distance.
            if pc_use(word, PC) == Some(PcUse::Other) {
                continue;
            }
            if ours(word) != theirs {
                wrong.push((word, ours(word), theirs));
            }
        }
    }
    assert!(known > 1_000_000 && used > 200_000, "{known} instructions, {used} use the pc");
    let show: Vec<_> =
        wrong.iter().take(20).map(|w| format!("{:08x}: {:x?}, not {:x?}", w.0, w.1, w.2)).collect();
    assert!(wrong.is_empty(), "{} of {known}: {show:#?}", wrong.len());
}
