//! The places in a MIPS64 library to which the dynamic linker adds the load base: those of relocations, whose type
//! consists of three bytes, and the entries of the global offset table, which have no relocations.
//!
//! Sources: "64-bit ELF Object File Specification" (SGI), 2.9; System V ABI, MIPS RISC Processor Supplement, 5-10.

use goblin::elf::dynamic::DT_PLTGOT;
use goblin::elf::{Elf, Reloc};

const DT_LOCAL_GOTNO: u64 = 0x7000_000a;
const DT_SYMTABNO: u64 = 0x7000_0011;
const DT_GOTSYM: u64 = 0x7000_0013;
/// Two types, applied one after the other: `R_MIPS_REL32`, then `R_MIPS_64`. goblin returns this value for both byte
/// orders, although the layout in little-endian files differs.
const RELATIVE: u32 = 3 | 18 << 8;
/// Number of entries for the dynamic linker's own use.
const RESERVED: u64 = 2;

/// Returns whether a relocation adds the base to the word at its place: `Some(false)` for one that does nothing,
/// `None` for all other types.
pub(crate) fn is_relative(r: &Reloc) -> Option<bool> {
    match (r.r_sym, r.r_type) {
        (_, 0) => Some(false),
        (0, RELATIVE) => Some(true),
        _ => None,
    }
}

/// Returns the addresses of the table's entries to which the base is added. Returns `None` if there are entries for
/// symbols that other modules may define.
pub(crate) fn entries(elf: &Elf<'_>) -> Option<Vec<u64>> {
    let value = |tag: u64| {
        let dynamic = elf.dynamic.as_ref()?;
        dynamic.dyns.iter().find(|d| d.d_tag == tag).map(|d| d.d_val)
    };
    let (table, local) = (value(DT_PLTGOT)?, value(DT_LOCAL_GOTNO)?);
    if value(DT_GOTSYM)? < value(DT_SYMTABNO)? {
        return None;
    }
    Some((RESERVED..local).map(|n| table.wrapping_add(n.wrapping_mul(8))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relocations() {
        let reloc = |r_sym, r_type| Reloc { r_sym, r_type, ..Reloc::default() };
        assert_eq!(is_relative(&reloc(0, 0x1203)), Some(true));
        assert_eq!(is_relative(&reloc(0, 0)), Some(false));
        // A relocation for a symbol, one of 32 bits, and an absolute one.
        for other in [reloc(5, 0x1203), reloc(0, 3), reloc(0, 18)] {
            assert_eq!(is_relative(&other), None);
        }
    }
}
