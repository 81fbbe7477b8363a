//! References in code of any architecture, for reading the files of other machines.

use crate::{aarch64, arm, mips64, x86_64};

/// `e_machine` of ELF files (System V ABI, chapter 4, and each architecture's supplement).
const ARM: u16 = 40;
const AARCH64: u16 = 183;
const MIPS: u16 = 8;
const X86_64: u16 = 62;

/// Instruction set of a file, from its ELF header.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// `e_machine`.
    pub number: u16,
    /// `e_flags`.
    pub flags: u32,
    /// Whether the file's integers are big-endian.
    pub big_endian: bool,
}

impl Machine {
    /// Returns whether `code`, which is at `address`, forms the address `target`: relative to its own, as a
    /// constant, or from an entry of the global offset table, whose bytes are `table`. Returns false for
    /// unknown machines.
    #[must_use]
    pub fn refers(self, code: &[u8], address: u64, target: u64, table: &[u8]) -> bool {
        match self.number {
            X86_64 => {
                x86_64::insn::find_reference(code, address, target).is_some()
                    || self.holds(code, target, 1)
            }
            AARCH64 => {
                aarch64::insn::find_reference(code, address, target).is_some()
                    || self.holds(code, target, 8)
            }
            ARM => {
                arm::insn::find_reference(code, address, target).is_some()
                    || arm::insn::moves(code, target)
                    || self.holds(code, target, 4)
            }
            MIPS => {
                use mips64::insn::{find_reference_by_table_in, find_reference_in};
                let variant = self.mips();
                find_reference_in(variant, code, address, target).is_some()
                    || find_reference_by_table_in(variant, code, address, target, table).is_some()
            }
            _ => false,
        }
    }

    /// Returns whether the code contains the address as it is, at a multiple of `step`: as an immediate, or a
    /// literal.
    fn holds(self, code: &[u8], target: u64, step: usize) -> bool {
        let short = u32::try_from(target).ok();
        let is = |at: usize| {
            let rest = code.get(at..).unwrap_or_default();
            let four = rest.first_chunk().map(|b| u32::from_le_bytes(*b));
            let eight = rest.first_chunk().map(|b| u64::from_le_bytes(*b));
            (short.is_some() && four == short) || eight == Some(target)
        };
        target != 0 && (0..code.len()).step_by(step).any(is)
    }

    /// Returns how MIPS instructions are to be read (`EF_MIPS_ARCH` in `e_flags`: 32R6 and 64R6).
    fn mips(self) -> mips64::variant::Variant {
        use mips64::variant::{Order, Variant};
        let order = if self.big_endian { Order::Big } else { Order::Little };
        Variant { order, release6: matches!(self.flags >> 28, 9 | 10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn machine(number: u16) -> Machine {
        Machine { number, flags: 0, big_endian: false }
    }

    fn words(list: &[u32], big_endian: bool) -> Vec<u8> {
        list.iter()
            .flat_map(|w| if big_endian { w.to_be_bytes() } else { w.to_le_bytes() })
            .collect()
    }

    /// Checks that the code refers to the one address and not to those beside it.
    #[track_caller]
    fn only(m: Machine, code: &[u8], at: u64, target: u64, table: &[u8]) {
        assert!(m.refers(code, at, target, table));
        for other in [target - 4, target + 1, target + 0x1000, target + 0x1_0000] {
            assert!(!m.refers(code, at, other, table), "{other:#x}");
        }
    }

    #[test]
    fn amd64() {
        let lea = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3];
        only(machine(X86_64), &lea, 0x2000, 0x201b, &[]);
        // mov eax, 0x402010
        only(machine(X86_64), &[0xb8, 0x10, 0x20, 0x40, 0, 0xc3], 0x40_1000, 0x40_2010, &[]);
    }

    #[test]
    fn aarch64() {
        // adrp x0, +1 page; add x0, x0, #0x18; ret
        let code = words(&[0xb000_0000, 0x9100_6000, 0xd65f_03c0], false);
        only(machine(AARCH64), &code, 0x40_0740, 0x40_1018, &[]);
        // ldr x0, .+8; ret; the literal
        let code = words(&[0x5800_0040, 0xd65f_03c0, 0x1234_5678, 0xaaaa], false);
        only(machine(AARCH64), &code, 0x40_0740, 0xaaaa_1234_5678, &[]);
    }

    #[test]
    fn arm() {
        // ldr r0, [pc, #4]; add r0, pc; bx lr; nop; the distance from 0x1006
        let code = [0x01, 0x48, 0x78, 0x44, 0x70, 0x47, 0x00, 0xbf, 0x02, 0x01, 0, 0];
        only(machine(ARM), &code, 0x1000, 0x1108, &[]);
        // Thumb: movw r0, #0x5678; movt r0, #0x1234; bx lr
        let code = [0x45, 0xf2, 0x78, 0x60, 0xc1, 0xf2, 0x34, 0x20, 0x70, 0x47];
        only(machine(ARM), &code, 0x1_0000, 0x1234_5678, &[]);
        // ARM: the same
        let code = words(&[0xe305_0678, 0xe341_0234, 0xe12f_ff1e], false);
        only(machine(ARM), &code, 0x1_0000, 0x1234_5678, &[]);
        // ldr r0, [pc, #-4]; the literal
        let code = words(&[0xe51f_0004, 0x1_2344], false);
        only(machine(ARM), &code, 0x1_0000, 0x1_2344, &[]);
    }

    #[test]
    fn mips() {
        for big_endian in [false, true] {
            let m = Machine { big_endian, ..machine(MIPS) };
            // ld v0, -32712(gp); jr ra; daddiu v0, v0, 0xc10
            let code = words(&[0xdf82_8038, 0x03e0_0008, 0x6442_0c10], big_endian);
            let entry: u64 = 0x1_2000_0000;
            let entry = if big_endian { entry.to_be_bytes() } else { entry.to_le_bytes() };
            let table = [[0; 8], [0xff; 8], [0x11; 8], [0x22; 8], [0x33; 8], entry].concat();
            only(m, &code, 0x1_2000_0a40, 0x1_2000_0c10, &table);
            // At address 0 as in the file, the values of the first entries count, too.
            let table = [[0; 8], [0x80; 8], [0; 8], [0; 8], [0; 8], [0; 8]].concat();
            assert!(m.refers(&code, 0xa40, 0xc10, &table));
            assert!(!m.refers(&code, 0xa40, 0x1_0c10, &table));
        }
        // addiupc v0, 0x20, of release 6
        let m = Machine { flags: 0xa000_0000, ..machine(MIPS) };
        only(m, &words(&[0xec40_0008, 0xd81f_0000], false), 0x1000, 0x1020, &[]);
    }

    #[test]
    fn others_refer_to_nothing() {
        assert!(!machine(243).refers(&[0x10; 32], 0x1000, 0x1010_1010, &[]));
        for number in [X86_64, AARCH64, ARM, MIPS] {
            for len in 0..8 {
                assert!(!machine(number).refers(&[0xff, 0x48, 0x44][..len.min(3)], 0, 9, &[]));
            }
        }
    }
}
