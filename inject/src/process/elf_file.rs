//! Reads ELF files piece by piece. A file is the target's, which may change or shorten it at any moment, so it is not
//! mapped.

use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::header::Header;
use goblin::elf::program_header::{PT_LOAD, ProgramHeader};
use goblin::elf::section_header::{SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, SectionHeader};
use goblin::elf::sym::{Sym, Symtab};
use prof_os::elf;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Maximum number of bytes that are read at once.
const MAX_TABLE: u64 = 1 << 30;
/// Length of the longest symbol name that is read.
const MAX_NAME: usize = 4096;
/// Maximum number of bytes of a segment that are searched.
const MAX_SEGMENT: u64 = 64 << 20;

#[derive(Debug)]
enum Source {
    File(File),
    Bytes(Vec<u8>),
}

/// An ELF file, or an image of one in memory.
#[derive(Debug)]
pub struct ElfFile {
    source: Source,
    header: Header,
    ctx: Ctx,
    segments: Vec<ProgramHeader>,
}

impl ElfFile {
    /// Reads the headers of a file. Returns `None` if it is not an ELF file.
    #[must_use]
    pub fn of_file(file: File) -> Option<Self> {
        Self::new(Source::File(file))
    }

    /// Reads the headers of an image in memory. Returns `None` if it is not that of an ELF file.
    #[must_use]
    pub fn of_bytes(bytes: Vec<u8>) -> Option<Self> {
        Self::new(Source::Bytes(bytes))
    }

    fn new(source: Source) -> Option<Self> {
        let head = read(&source, 0, 64)?;
        let header = Elf::parse_header(&head).ok()?;
        let ctx = elf::context(&head)?;
        let count = usize::from(header.e_phnum).min(64);
        let table = read(&source, header.e_phoff, (count * ProgramHeader::size(ctx)) as u64)?;
        let segments = ProgramHeader::parse(&table, 0, count, ctx).ok()?;
        Some(Self { source, header, ctx, segments })
    }

    /// Returns the program headers.
    pub(crate) fn segments(&self) -> &[ProgramHeader] {
        &self.segments
    }

    /// Returns `len` bytes from offset `at`, or `None` if the file has not so many there.
    #[must_use]
    pub fn read(&self, at: u64, len: u64) -> Option<Vec<u8>> {
        read(&self.source, at, len)
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.source {
            Source::File(f) => f.metadata().map_or(0, |m| m.len()),
            Source::Bytes(b) => b.len() as u64,
        }
    }

    /// Returns whether there are no bytes, which is never so for a file that could be opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn sections(&self) -> Option<Vec<SectionHeader>> {
        let (n, each) = (usize::from(self.header.e_shnum), SectionHeader::size(self.ctx));
        if n == 0 || self.header.e_shoff == 0 {
            return None;
        }
        let table = self.read(self.header.e_shoff, (n * each) as u64)?;
        SectionHeader::parse_from(&table, 0, n, self.ctx).ok()
    }

    /// Calls `f` for each defined symbol of `.dynsym` and `.symtab`, with its name.
    pub fn each_symbol(&self, mut f: impl FnMut(&Sym, &str)) {
        let Some(sections) = self.sections() else { return };
        for kind in [SHT_DYNSYM, SHT_SYMTAB] {
            let Some(table) = sections.iter().find(|s| s.sh_type == kind) else { continue };
            let names = sections.get(table.sh_link as usize).filter(|s| s.sh_type != SHT_NOBITS);
            let Some(names) = names.and_then(|s| self.read(s.sh_offset, s.sh_size)) else {
                continue;
            };
            let Some(bytes) = self.read(table.sh_offset, table.sh_size) else { continue };
            each(&bytes, &names, self.ctx, &mut f);
        }
    }

    /// Returns the offset of the first section with code, if there is one. Headers, notes and symbols are in front of
    /// it.
    pub(crate) fn code_begins(&self) -> Option<u64> {
        let sections = self.sections()?;
        let code = sections.iter().filter(|s| s.is_executable() && s.sh_size != 0);
        code.map(|s| s.sh_offset).min()
    }

    /// Returns virtual address and length of a loaded section.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<(u64, u64)> {
        let sections = self.sections()?;
        let table = sections.get(usize::from(self.header.e_shstrndx))?;
        let names = self.read(table.sh_offset, table.sh_size)?;
        let named = |s: &&SectionHeader| {
            s.sh_addr != 0 && string(&names, s.sh_name) == Some(name.as_bytes())
        };
        sections.iter().find(named).map(|s| (s.sh_addr, s.sh_size))
    }

    /// Returns the bytes of a section, loaded or not; `None` if it is compressed, or longer than `most`.
    #[must_use]
    pub fn section_bytes(&self, name: &str, most: u64) -> Option<Vec<u8>> {
        const SHF_COMPRESSED: u64 = 1 << 11;
        let sections = self.sections()?;
        let table = sections.get(usize::from(self.header.e_shstrndx))?;
        let names = self.read(table.sh_offset, table.sh_size)?;
        let s = sections.iter().find(|s| string(&names, s.sh_name) == Some(name.as_bytes()))?;
        let plain = s.sh_flags & SHF_COMPRESSED == 0 && s.sh_type != SHT_NOBITS;
        if plain && s.sh_size <= most { self.read(s.sh_offset, s.sh_size) } else { None }
    }

    fn loads(&self) -> impl Iterator<Item = &ProgramHeader> {
        self.segments.iter().filter(|p| p.p_type == PT_LOAD)
    }

    /// Returns the virtual address of the first occurrence of these bytes in a loaded segment.
    #[must_use]
    pub fn find(&self, bytes: &[u8]) -> Option<u64> {
        self.loads().find_map(|p| {
            let segment = self.read(p.p_offset, p.p_filesz.min(MAX_SEGMENT))?;
            let at = memchr::memmem::find(&segment, bytes)?;
            Some(p.p_vaddr.wrapping_add(at as u64))
        })
    }

    /// Returns up to `len` bytes of an executable segment from this virtual address.
    #[must_use]
    pub fn at_address(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let p = self
            .loads()
            .filter(|p| p.is_executable())
            .find(|p| address >= p.p_vaddr && address - p.p_vaddr < p.p_filesz)?;
        let at = address - p.p_vaddr;
        self.read(p.p_offset.checked_add(at)?, len.min(p.p_filesz - at))
    }

    /// Returns virtual address and bytes of the first executable segment.
    #[must_use]
    pub fn code(&self) -> Option<(u64, Vec<u8>)> {
        let p = self.loads().find(|p| p.is_executable())?;
        Some((p.p_vaddr, self.read(p.p_offset, p.p_filesz.min(MAX_SEGMENT))?))
    }
}

/// Calls `f` for each defined symbol of a table, with its name.
pub(crate) fn each(bytes: &[u8], names: &[u8], ctx: Ctx, f: &mut impl FnMut(&Sym, &str)) {
    let count = bytes.len() / Sym::size(ctx.container);
    let Ok(table) = Symtab::parse(bytes, 0, count, ctx) else { return };
    for s in table.iter().filter(|s| s.st_shndx != 0 && s.st_value != 0) {
        let name = string(names, s.st_name).and_then(|n| std::str::from_utf8(n).ok());
        if let Some(name) = name {
            f(&s, name);
        }
    }
}

/// Returns the bytes from an offset up to a NUL.
fn string(names: &[u8], at: usize) -> Option<&[u8]> {
    let rest = names.get(at..)?;
    let end = memchr::memchr(0, &rest[..rest.len().min(MAX_NAME)])?;
    Some(&rest[..end])
}

fn read(source: &Source, at: u64, len: u64) -> Option<Vec<u8>> {
    match source {
        Source::Bytes(b) => {
            let at = usize::try_from(at).ok()?;
            Some(b.get(at..at.checked_add(usize::try_from(len).ok()?)?)?.to_vec())
        }
        Source::File(f) => {
            // The headers may name more bytes than the file has: no memory is allocated for those.
            let all = f.metadata().ok()?.len();
            if len > MAX_TABLE || at.checked_add(len)? > all {
                return None;
            }
            let mut b = vec![0; len as usize];
            f.read_exact_at(&mut b, at).ok()?;
            Some(b)
        }
    }
}
