//! What a MIPS64 library is relocated by: apart from relocations, whose types stand in three bytes of
//! their own, the entries of its global offset table, which have none.
//!
//! "64-bit ELF Object File Specification" (SGI), 2.9; System V ABI, MIPS RISC Processor Supplement,
//! 5-10.

use goblin::elf::{Elf, Reloc};

const DT_PLTGOT: u64 = 3;
const DT_LOCAL_GOTNO: u64 = 0x7000_000a;
const DT_SYMTABNO: u64 = 0x7000_0011;
const DT_GOTSYM: u64 = 0x7000_0013;
/// Two types, one done after the other: `R_MIPS_REL32`, then `R_MIPS_64`. (goblin gives what has another
/// layout in little-endian files the same one.)
const RELATIVE: u32 = 3 | 18 << 8;
/// Entries for the dynamic linker's own use.
const RESERVED: u64 = 2;

/// Whether a relocation adds the base to the word that stands there: `Some(false)` for one that does
/// nothing, `None` for others.
pub(crate) fn is_relative(r: &Reloc) -> Option<bool> {
    match (r.r_sym, r.r_type) {
        (_, 0) => Some(false),
        (0, RELATIVE) => Some(true),
        _ => None,
    }
}

/// The addresses of the table's entries, to which the base is to be added. `None` if there are entries
/// for symbols that others may define.
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
        // For a symbol; of 32 bits; absolute.
        for other in [reloc(5, 0x1203), reloc(0, 3), reloc(0, 18)] {
            assert_eq!(is_relative(&other), None);
        }
    }
}
