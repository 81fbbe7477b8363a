//! Byte order and release, and the encodings of the instructions that are made here.
//!
//! Encodings: "MIPS Architecture for Programmers, Volume II-A: The MIPS64 Instruction Set Reference
//! Manual", revisions 5.04 and 6.06, and table A.2 of them.

use super::regs::ZERO;

/// Order of the bytes of a word in memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

impl Order {
    /// Variant of this machine.
    pub const NATIVE: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };

    /// Returns a word of 4 bytes as it is in memory.
    #[must_use]
    pub const fn bytes4(self, word: u32) -> [u8; 4] {
        match self {
            Order::Little => word.to_le_bytes(),
            Order::Big => word.to_be_bytes(),
        }
    }

    /// Returns a word of 8 bytes as it is in memory.
    #[must_use]
    pub const fn bytes8(self, word: u64) -> [u8; 8] {
        match self {
            Order::Little => word.to_le_bytes(),
            Order::Big => word.to_be_bytes(),
        }
    }

    /// Returns the word of 4 bytes at `at`.
    #[must_use]
    pub fn word4(self, bytes: &[u8], at: usize) -> Option<u32> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Order::Little => u32::from_le_bytes(word),
            Order::Big => u32::from_be_bytes(word),
        })
    }

    /// Returns the word of 8 bytes at `at`.
    #[must_use]
    pub fn word8(self, bytes: &[u8], at: usize) -> Option<u64> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Order::Little => u64::from_le_bytes(word),
            Order::Big => u64::from_be_bytes(word),
        })
    }
}

/// Meaning of an instruction's bytes. Release 6 gave many opcodes a new meaning; no program is of both kinds,
/// and no processor runs both.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// Byte order.
    pub order: Order,
    /// Whether the release is 6 or later.
    pub release6: bool,
}

impl Variant {
    /// Returns this machine's layout.
    pub const NATIVE: Variant =
        Variant { order: Order::NATIVE, release6: cfg!(target_arch = "mips64r6") };
}

/// `sll $0, $0, 0`, which does nothing.
pub const NOP: u32 = 0;
/// `syscall`.
pub const SYSCALL: u32 = 0x0000_000c;
/// `break`.
pub const BREAK: u32 = 0x0000_000d;
/// `jr $ra`, as before release 6, where it is `jalr $0, $ra`.
pub const JR_RA: u32 = 0x03e0_0008;

/// Encodes `lui rt, imm`.
#[must_use]
pub const fn lui(rt: u32, imm: u16) -> u32 {
    0x3c00_0000 | rt << 16 | imm as u32
}

/// Encodes `ori rt, rs, imm`.
#[must_use]
pub const fn ori(rt: u32, rs: u32, imm: u16) -> u32 {
    0x3400_0000 | rs << 21 | rt << 16 | imm as u32
}

/// Encodes `dsll rd, rt, 16`.
#[must_use]
pub const fn dsll16(rd: u32, rt: u32) -> u32 {
    rt << 16 | rd << 11 | 16 << 6 | 0x38
}

/// Encodes `lw rt, offset(base)`.
#[must_use]
pub const fn lw(rt: u32, offset: i16, base: u32) -> u32 {
    0x8c00_0000 | base << 21 | rt << 16 | offset as u16 as u32
}

/// Encodes `beq rs, rt`, to `words` behind the next instruction.
#[must_use]
pub const fn beq(rs: u32, rt: u32, words: u16) -> u32 {
    0x1000_0000 | rs << 21 | rt << 16 | words as u32
}

/// Encodes `jalr $0, rs`: it branches to the address in a register, in all releases.
#[must_use]
pub const fn jump_register(rs: u32) -> u32 {
    rs << 21 | 0x09
}

/// Returns the instructions that put an address into a register, and how many of the six are used. There is
/// no load relative to the program counter before release 6.
#[must_use]
pub const fn load_address(register: u32, value: u64) -> ([u32; 6], usize) {
    let (a, b, c, d) =
        ((value >> 48) as u16, (value >> 32) as u16, (value >> 16) as u16, value as u16);
    let r = register;
    if value as i32 as i64 as u64 == value {
        return ([lui(r, c), ori(r, r, d), NOP, NOP, NOP, NOP], 2);
    }
    if value >> 47 == 0 {
        return ([lui(r, b), ori(r, r, c), dsll16(r, r), ori(r, r, d), NOP, NOP], 4);
    }
    let upper = if a == 0 { ori(r, ZERO as u32, 0) } else { lui(r, a) };
    ([upper, ori(r, r, b), dsll16(r, r), ori(r, r, c), dsll16(r, r), ori(r, r, d)], 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value that the instructions of [`load_address`] put into the register.
    fn run(insns: &[u32], register: u32) -> u64 {
        insns.iter().fold(0xdead_beef_dead_beef, |value, &insn| {
            let imm = u64::from(insn & 0xffff);
            assert_eq!(if insn >> 26 == 0 { insn >> 11 & 31 } else { insn >> 16 & 31 }, register);
            match insn >> 26 {
                0x0f => (imm << 16) as i32 as i64 as u64,
                0x0d if insn >> 21 & 31 == 0 => imm,
                0x0d => value | imm,
                0 => value << 16,
                _ => panic!("{insn:08x}"),
            }
        })
    }

    #[test]
    fn addresses_are_loaded() {
        for (value, len) in [
            (0, 2),
            (0x1234, 2),
            (0x1_2000, 2),
            (0x7fff_ffff, 2),
            (0xffff_ffff_8000_0000, 2),
            (0x8000_0000, 4),
            (0x1_2000_8000, 4),
            (0xff_f7fc_8765, 4),
            (0x7fff_ffff_ffff, 4),
            (0x8000_0000_0000, 6),
            (0xffff_8000_1234_5678, 6),
            (u64::MAX, 2),
            (0x8123_4567_89ab_cdef, 6),
        ] {
            let (insns, n) = load_address(24, value);
            assert_eq!((run(&insns[..n], 24), n), (value, len), "{value:#x}");
        }
    }

    #[test]
    fn both_orders() {
        assert_eq!(Order::Little.bytes4(0x0102_0304), [4, 3, 2, 1]);
        assert_eq!(Order::Big.bytes4(0x0102_0304), [1, 2, 3, 4]);
        for order in [Order::Little, Order::Big] {
            assert_eq!(order.word4(&order.bytes4(0x1234_5678), 0), Some(0x1234_5678));
            assert_eq!(order.word8(&order.bytes8(0x1234_5678_9abc), 0), Some(0x1234_5678_9abc));
            assert_eq!(order.word4(&[0; 4], 1), None);
            assert_eq!(order.word8(&[0; 8], 1), None);
            assert_eq!(order.word8(&[0; 8], 9), None);
        }
    }
}
