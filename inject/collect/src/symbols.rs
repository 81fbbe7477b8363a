//! Reads build IDs and symbols of modules, from files or from the target's memory.

use goblin::container::Ctx;
use goblin::elf::dynamic::{DT_STRSZ, DT_STRTAB, DT_SYMTAB};
use goblin::elf::header::{EM_ARM, Header};
use goblin::elf::program_header::{PT_DYNAMIC, PT_LOAD, PT_NOTE, ProgramHeader};
use goblin::elf::section_header::{SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, SectionHeader};
use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC, STT_OBJECT, Sym};
use goblin::elf::{Elf, sym};
use memchr::memchr;
use prof_os::elf;
use prof_trace::chunk::MAX_PAYLOAD;
use prof_trace::records::Symbols;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Greatest length of a table that is read.
const MAX_TABLE: u64 = 64 << 20;
/// Greatest length of a note segment that is searched.
const MAX_NOTES: u64 = 64 << 10;
/// Greatest length of a dynamic section that is searched.
const MAX_DYNAMIC: u64 = 64 << 10;

/// An ELF image: a file, or a module in a process's memory.
#[derive(Debug)]
pub(crate) struct ElfImage<'a> {
    file: &'a File,
    /// Offset of the image in `file`.
    at: u64,
    /// Load bias (address minus virtual address), for an image in memory.
    bias: Option<u64>,
    header: Header,
    ctx: Ctx,
    segments: Vec<ProgramHeader>,
}

impl<'a> ElfImage<'a> {
    /// Opens an ELF file.
    pub(crate) fn file(file: &'a File) -> Option<Self> {
        Self::new(file, 0, None)
    }

    /// Opens a module in a process's memory, whose first byte is at `start`.
    pub(crate) fn memory(mem: &'a File, start: u64, bias: u64) -> Option<Self> {
        Self::new(mem, start, Some(bias))
    }

    fn new(file: &'a File, at: u64, bias: Option<u64>) -> Option<Self> {
        let mut b = [0u8; 64];
        file.read_exact_at(&mut b, at).ok()?;
        let header = Elf::parse_header(&b).ok()?;
        let ctx = Ctx::new(header.container().ok()?, header.endianness().ok()?);
        let mut image = Self { file, at, bias, header, ctx, segments: Vec::new() };
        let (n, each) = (header.e_phnum as usize, ProgramHeader::size(ctx));
        let b = image.read(header.e_phoff, (n.min(512) * each) as u64)?;
        image.segments = ProgramHeader::parse(&b, 0, n.min(512), ctx).ok()?;
        Some(image)
    }

    fn read(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        if len > MAX_TABLE {
            return None;
        }
        let mut b = vec![0; len as usize];
        self.file.read_exact_at(&mut b, self.at.checked_add(offset)?).ok()?;
        Some(b)
    }

    /// Returns whether a file has these bytes at a virtual address.
    pub(crate) fn has(&self, vaddr: u64, bytes: &[u8]) -> bool {
        let holds = |p: &&ProgramHeader| {
            let end = vaddr.checked_add(bytes.len() as u64);
            p.p_type == PT_LOAD
                && vaddr >= p.p_vaddr
                && end.is_some_and(|end| end <= p.p_vaddr.saturating_add(p.p_filesz))
        };
        let at = |p: &ProgramHeader| p.p_offset.checked_add(vaddr - p.p_vaddr);
        let offset = self.segments.iter().find(holds).and_then(at);
        offset.is_some_and(|at| self.read(at, bytes.len() as u64).is_some_and(|b| b == bytes))
    }

    /// Returns the GNU build ID.
    pub(crate) fn build_id(&self) -> Option<Vec<u8>> {
        self.segments.iter().filter(|p| p.p_type == PT_NOTE).find_map(|p| {
            let at = match self.bias {
                Some(bias) => bias.wrapping_add(p.p_vaddr).wrapping_sub(self.at),
                None => p.p_offset,
            };
            let notes = self.read(at, p.p_filesz.min(MAX_NOTES))?;
            elf::build_id(&notes, p.p_align, self.ctx).map(<[u8]>::to_vec)
        })
    }

    /// Returns its functions, as the record of module number `module`. A file's are from `.symtab`, or else `.dynsym`;
    /// those of a module in memory are from the table that is loaded for the dynamic linker.
    pub(crate) fn symbols(&self, module: u32) -> Option<Symbols> {
        let (symbols, strings) = match self.bias {
            None => self.tables()?,
            Some(bias) => self.loaded_tables(bias)?,
        };
        let count = symbols.len() / Sym::size(self.ctx.container);
        let mut found: Vec<(u64, u64, &[u8])> = sym::Symtab::parse(&symbols, 0, count, self.ctx)
            .ok()?
            .iter()
            .filter(|s| matches!(s.st_type(), STT_FUNC | STT_GNU_IFUNC) && s.st_shndx != 0)
            .filter_map(|s| {
                let rest = strings.get(s.st_name..)?;
                let name = &rest[..memchr(0, rest)?];
                // Bit 0 marks Thumb code, and is not part of the address.
                let start = s.st_value & !u64::from(self.header.e_machine == EM_ARM);
                Some((start, s.st_size, name))
            })
            .collect();
        found.sort_unstable();
        Some(pack(module, &found))
    }

    /// Returns the virtual address of the image's first byte in memory.
    pub(crate) fn first_address(&self) -> u64 {
        let first = self.segments.iter().filter(|p| p.p_type == PT_LOAD).min_by_key(|p| p.p_vaddr);
        first.map_or(0, |p| p.p_vaddr.wrapping_sub(p.p_offset))
    }

    /// Returns the virtual addresses of those variables among the wanted ones that a file's symbol table has, with their
    /// indices.
    pub(crate) fn variables(&self, wanted: &[&str]) -> Vec<(usize, u64)> {
        let Some((symbols, strings)) = self.tables() else { return Vec::new() };
        let count = symbols.len() / Sym::size(self.ctx.container);
        let Ok(all) = sym::Symtab::parse(&symbols, 0, count, self.ctx) else { return Vec::new() };
        let is_variable = |s: &Sym| s.st_type() == STT_OBJECT && s.st_shndx != 0;
        let mut found: Vec<(usize, u64)> = Vec::new();
        for s in all.iter().filter(is_variable) {
            let rest = strings.get(s.st_name..).unwrap_or(&[]);
            let is = |name: &&str| {
                rest.strip_prefix(name.as_bytes()).is_some_and(|end| end.first() == Some(&0))
            };
            if let Some(i) = wanted.iter().position(is) {
                found.push((i, s.st_value));
            }
        }
        found
    }

    /// Returns the bytes of a file's symbol table, and its strings.
    fn tables(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (n, each) = (self.header.e_shnum as usize, SectionHeader::size(self.ctx));
        let table = self.read(self.header.e_shoff, (n * each) as u64)?;
        let sections = SectionHeader::parse_from(&table, 0, n, self.ctx).ok()?;
        let find = |kind| sections.iter().find(|s| s.sh_type == kind && s.sh_size > 0);
        let symtab = find(SHT_SYMTAB).or_else(|| find(SHT_DYNSYM))?;
        let strtab = sections.get(symtab.sh_link as usize).filter(|s| s.sh_type != SHT_NOBITS)?;
        let strings = self.read(strtab.sh_offset, strtab.sh_size)?;
        Some((self.read(symtab.sh_offset, symtab.sh_size)?, strings))
    }

    /// Returns the bytes of a loaded symbol table, and its strings, from the dynamic section. The section does not tell
    /// the table's length, but linkers put the strings right behind it.
    fn loaded_tables(&self, bias: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        let p = self.segments.iter().find(|p| p.p_type == PT_DYNAMIC)?;
        let offset = |addr: u64| addr.wrapping_sub(self.at);
        let section =
            self.read(offset(bias.wrapping_add(p.p_vaddr)), p.p_memsz.min(MAX_DYNAMIC))?;
        let entries = elf::dynamic(&section, self.ctx);
        let entry = |tag: u64| entries.iter().find(|d| d.d_tag == tag).map(|d| d.d_val);
        // glibc replaces the section's values by addresses; other linkers, and the vDSO, do not.
        let address = |v: u64| if v < self.at { v.wrapping_add(bias) } else { v };
        let (symbols, strings) = (address(entry(DT_SYMTAB)?), address(entry(DT_STRTAB)?));
        let len = strings.checked_sub(symbols)?;
        Some((self.read(offset(symbols), len)?, self.read(offset(strings), entry(DT_STRSZ)?)?))
    }
}

/// Returns what a recording saves of a module's file: its build ID, and its functions if it has any. `None` if it is
/// not an ELF file.
pub fn module_symbols(file: &File) -> Option<(Vec<u8>, Option<Symbols>)> {
    let image = ElfImage::file(file)?;
    Some((image.build_id().unwrap_or_default(), image.symbols(1)))
}

/// Packs symbols, as many as fit into a chunk.
fn pack(module: u32, found: &[(u64, u64, &[u8])]) -> Symbols {
    let mut s = Symbols { module, ..Default::default() };
    for (start, size, name) in found {
        // 30 bytes is more than four such integers take in the chunk.
        if s.names.len() + name.len() + s.symbols.len() / 4 * 30 > MAX_PAYLOAD - 4096 {
            break;
        }
        s.symbols.extend([*start, *size, s.names.len() as u64, name.len() as u64]);
        s.names.extend_from_slice(name);
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::Pid;

    /// A function that is not inlined, and differs from all others, so that it has a symbol at any optimisation level.
    #[inline(never)]
    fn with_a_symbol_of_its_own(n: u64) -> u64 {
        std::hint::black_box(n) ^ 0x5eed_0f5a_11be_115d
    }

    #[test]
    fn our_own_file_and_memory_agree() {
        assert_ne!(with_a_symbol_of_its_own(std::hint::black_box(1)), 0);
        let file = File::open("/proc/self/exe").expect("exe");
        let image = ElfImage::file(&file).expect("ELF");
        let s = image.symbols(3).expect("symbols");
        let names = String::from_utf8_lossy(&s.names);
        assert!(names.contains("with_a_symbol_of_its_own"), "{} bytes", names.len());
        assert_eq!(s.symbols.len() % 4, 0);
        assert!(s.symbols.as_chunks::<4>().0.is_sorted_by_key(|q| q[0]));

        let mut maps = crate::maps::Maps::open(Pid::this()).expect("maps");
        assert!(maps.read());
        let exe = std::fs::read_link("/proc/self/exe").expect("exe");
        let first = maps.all.iter().find(|m| m.path() == exe).expect("mapped");
        let mem = File::open("/proc/self/mem").expect("mem");
        let loaded = ElfImage::memory(&mem, first.start.0, first.start.0).expect("ELF in memory");
        assert_eq!(loaded.build_id(), image.build_id());

        let vdso = maps.all.iter().find(|m| m.name == b"[vdso]").expect("a vDSO");
        let image = ElfImage::memory(&mem, vdso.start.0, vdso.start.0).expect("ELF");
        assert!(image.build_id().is_some());
        let s = image.symbols(1).expect("symbols");
        assert!(String::from_utf8_lossy(&s.names).contains("clock_gettime"));
    }
}
