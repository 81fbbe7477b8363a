//! Reads the build ID and the dynamic section of an ELF image. The caller has read their bytes: from a file, piece by
//! piece or mapped, or from a process's memory. goblin parses them.

use goblin::container::{Container, Ctx, Endian};
use goblin::elf::dynamic::{DT_NULL, Dyn, Dynamic};
use goblin::elf::note::{NT_GNU_BUILD_ID, NoteDataIterator};
use goblin::elf::program_header::{PT_DYNAMIC, ProgramHeader};

/// Greatest length of a build ID; those of linkers have 20 bytes at most, and users may choose longer ones.
pub const MAX_BUILD_ID: usize = 64;

/// Returns the class and byte order that an ELF header names.
#[must_use]
pub fn context(head: &[u8]) -> Option<Ctx> {
    let container = if *head.get(4)? == 2 { Container::Big } else { Container::Little };
    let order = if *head.get(5)? == 2 { Endian::Big } else { Endian::Little };
    Some(Ctx::new(container, order))
}

/// Returns the class and byte order of this process, which are those of every process that it can record.
#[must_use]
pub fn native() -> Ctx {
    let container =
        if cfg!(target_pointer_width = "64") { Container::Big } else { Container::Little };
    Ctx::new(container, if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little })
}

/// Returns the GNU build ID from the bytes of a note segment or section with this alignment. `None`: it has none, or one
/// that is longer than [`MAX_BUILD_ID`].
#[must_use]
pub fn build_id(notes: &[u8], align: u64, ctx: Ctx) -> Option<&[u8]> {
    let align = if align == 8 { 8 } else { 4 };
    let mut all = NoteDataIterator { data: notes, size: notes.len(), offset: 0, ctx: (align, ctx) };
    let is_id = |kind: u32, name: &str| kind == NT_GNU_BUILD_ID && name == "GNU";
    let id = all.find_map(|n| n.ok().filter(|n| is_id(n.n_type, n.name)).map(|n| n.desc))?;
    (id.len() <= MAX_BUILD_ID).then_some(id)
}

/// Returns the entries of a dynamic section, up to the one that ends it. A section that is cut off has those that are
/// whole.
#[must_use]
pub fn dynamic(section: &[u8], ctx: Ctx) -> Vec<Dyn> {
    let p_filesz = (section.len() - section.len() % Dyn::size(ctx.container)) as u64;
    let header = ProgramHeader { p_type: PT_DYNAMIC, p_filesz, ..ProgramHeader::default() };
    let found = Dynamic::parse(section, &[header], ctx).ok().flatten();
    let mut entries = found.map(|d| d.dyns).unwrap_or_default();
    entries.retain(|e| e.d_tag != DT_NULL);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

    fn word(n: u32, order: Endian) -> [u8; 4] {
        if order.is_little() { n.to_le_bytes() } else { n.to_be_bytes() }
    }

    fn note(name: &[u8], kind: u32, desc: &[u8], align: usize, order: Endian) -> Vec<u8> {
        let mut bytes = Vec::new();
        for n in [name.len() as u32, desc.len() as u32, kind] {
            bytes.extend(word(n, order));
        }
        for part in [name, desc] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(align), 0);
        }
        bytes
    }

    #[test]
    fn build_ids_are_found_behind_other_notes() {
        for order in ORDERS {
            for (align, container) in
                [(4, Container::Little), (4, Container::Big), (8, Container::Big)]
            {
                let ctx = Ctx::new(container, order);
                let id = [7, 6, 5, 4, 3, 2, 1];
                let notes = [
                    note(b"Go\0\0", 4, b"a Go build ID", align, order),
                    note(b"GNU\0", 5, &[0; 16], align, order),
                    note(b"", NT_GNU_BUILD_ID, b"no name", align, order),
                    note(b"GNU\0", NT_GNU_BUILD_ID, &id, align, order),
                ]
                .concat();
                assert_eq!(build_id(&notes, align as u64, ctx), Some(&id[..]), "{align} {ctx:?}");
                let padding = (align - id.len() % align) % align;
                for cut in 0..notes.len() - padding {
                    assert_eq!(build_id(&notes[..cut], align as u64, ctx), None, "{cut}");
                }
            }
        }
    }

    #[test]
    fn notes_of_impossible_lengths_end_the_search() {
        for order in ORDERS {
            let ctx = Ctx::new(Container::Big, order);
            for (name, desc) in [(u32::MAX, 4), (4, u32::MAX), (u32::MAX, u32::MAX), (0, 0)] {
                let mut notes = [name, desc, NT_GNU_BUILD_ID].map(|n| word(n, order)).concat();
                notes.extend(b"GNU\0abcd");
                assert_eq!(build_id(&notes, 4, ctx), None, "{name} {desc}");
            }
            let long = note(b"GNU\0", NT_GNU_BUILD_ID, &[1; MAX_BUILD_ID + 1], 4, order);
            assert_eq!(build_id(&long, 1 << 40, ctx), None);
        }
    }

    #[test]
    fn dynamic_sections_of_every_class_and_order() {
        for order in ORDERS {
            for container in [Container::Little, Container::Big] {
                let ctx = Ctx::new(container, order);
                let words: &[u32] = &[1, 0x10, 5, 0xffff_fff0, 0, 0, 6, 9];
                let bytes: Vec<u8> = words
                    .iter()
                    .flat_map(|n| match (container, order) {
                        (Container::Little, _) => word(*n, order).to_vec(),
                        (_, Endian::Little) => u64::from(*n).to_le_bytes().to_vec(),
                        _ => u64::from(*n).to_be_bytes().to_vec(),
                    })
                    .collect();
                let entries = |bytes: &[u8]| -> Vec<(u64, u64)> {
                    dynamic(bytes, ctx).iter().map(|d| (d.d_tag, d.d_val)).collect()
                };
                let all = [(1, 0x10), (5, 0xffff_fff0)];
                assert_eq!(entries(&bytes), all, "up to the end mark, {ctx:?}");
                let each = Dyn::size(container);
                for cut in 0..=bytes.len() {
                    assert_eq!(entries(&bytes[..cut]), all[..(cut / each).min(2)], "{cut}");
                }
            }
        }
    }

    #[test]
    fn headers_name_class_and_order() {
        let of = |class, order| context(&[0x7f, b'E', b'L', b'F', class, order]);
        assert_eq!(of(2, 1), Some(Ctx::new(Container::Big, Endian::Little)));
        assert_eq!(of(1, 2), Some(Ctx::new(Container::Little, Endian::Big)));
        assert_eq!((context(b"\x7fELF\x02"), context(b"")), (None, None));
        let own = std::fs::read("/proc/self/exe").expect("our file");
        assert_eq!(context(&own), Some(native()));
    }
}
