//! Reads ELF files of either class and byte order.

use super::unpack;
use goblin::container::Ctx;
use goblin::elf::Elf;
use goblin::elf::header::{EM_ARM, Header};
use goblin::elf::section_header::{
    SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR, SHN_UNDEF, SHT_DYNSYM, SHT_NOBITS, SHT_NOTE,
    SHT_PROGBITS, SHT_SYMTAB, SectionHeader,
};
use goblin::elf::sym::{
    STB_GLOBAL, STB_LOCAL, STT_COMMON, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT, Sym, Symtab,
};
use memmap2::Mmap;
use prof_arch::refers::Machine;
use prof_os::elf::build_id;
use prof_os::files::{open_below, open_regular};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const ZLIB: u32 = 1;
const ZSTD: u32 = 2;

/// A symbol of a function or a variable.
pub(super) struct Symbol {
    /// Address of the symbol in the file.
    pub start: u64,
    /// Length in bytes; 0 if the file doesn't tell.
    pub size: u64,
    /// Rank among symbols of the same address; the lowest is the best.
    pub rank: u8,
    /// File offset of its name.
    pub name_at: u64,
}

/// Greatest number of bytes read of a file that can't be mapped.
const READ_LIMIT: u64 = 1 << 30;

/// The bytes of a file. It is mapped unless another user could truncate it meanwhile, which would end this process by
/// SIGBUS; then it is read.
enum Bytes {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Bytes {
    fn of(file: File, foreign: bool) -> io::Result<Self> {
        let meta = file.metadata()?;
        let me = prof_os::process::effective_uid();
        let lasting = [0, me].contains(&meta.uid()) && meta.mode() & 0o022 == 0 && !foreign;
        if lasting {
            // SAFETY: the mapping is private and only read, and only root and the user that prof runs as can change the
            // file.
            return Ok(Self::Mapped(unsafe { Mmap::map(&file) }?));
        }
        let mut bytes = Vec::new();
        file.take(READ_LIMIT).read_to_end(&mut bytes)?;
        Ok(Self::Read(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(m) => m,
            Self::Read(v) => v,
        }
    }
}

/// Returns the rank of a symbol's binding: of several names of one address the global one is the best.
fn binding(sym: &Sym) -> u8 {
    match sym.st_bind() {
        STB_GLOBAL => 0,
        STB_LOCAL => 2,
        _ => 1,
    }
}

/// An open ELF file.
pub(super) struct ObjectFile {
    map: Bytes,
    header: Header,
    ctx: Ctx,
    sections: Vec<SectionHeader>,
    /// File offset and size of the section names.
    names: (u64, u64),
    root: Option<PathBuf>,
    path: PathBuf,
    identity: Option<String>,
}

impl ObjectFile {
    /// Opens a file; `None` if it can't be read or is not an ELF file. With a root folder, the path is relative to
    /// that, as for a process with that root.
    pub(super) fn open_in(root: Option<&Path>, path: &Path) -> Option<Self> {
        let file = match root {
            Some(root) => open_below(root, path),
            None => open_regular(path),
        };
        let foreign = root.is_some() || path.starts_with("/proc");
        let file = file.ok()?;
        let meta = file.metadata().ok()?;
        let identity = format!(
            "{} {} {} {} {} {}",
            path.display(),
            meta.dev(),
            meta.ino(),
            meta.len(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        let image = Self::of(Bytes::of(file, foreign).ok()?, root, path)?;
        Some(Self { identity: Some(identity), ..image })
    }

    /// Opens an image from a file that does not have its final name `path` yet.
    pub(super) fn of_file(mut file: File, path: &Path) -> Option<Self> {
        file.rewind().ok()?;
        Self::of(Bytes::of(file, false).ok()?, None, path)
    }

    /// Returns whether the image contains debug information.
    pub(super) fn has_lines(&self) -> bool {
        [".debug_info", ".zdebug_info"].iter().any(|n| self.section_header(n).is_some())
    }

    /// Opens the image in the section `.gnu_debugdata`: symbols that a distribution has left in a stripped program,
    /// compressed by xz.
    pub(super) fn inner(&self) -> Option<Self> {
        let packed = self.section(".gnu_debugdata")?;
        let bytes = unpack::xz(&packed)?;
        Self::of(Bytes::Read(bytes), self.root(), &self.path)
    }

    fn of(map: Bytes, root: Option<&Path>, path: &Path) -> Option<Self> {
        let header = Elf::parse_header(&map).ok()?;
        let ctx = Ctx::new(header.container().ok()?, header.endianness().ok()?);
        let count = header.e_shnum as usize;
        let at = usize::try_from(header.e_shoff).ok()?;
        let sections = match at {
            0 => Vec::new(),
            _ => SectionHeader::parse(&map, at, count, ctx).unwrap_or_default(),
        };
        // goblin may have put a null section in front; the indices are still right.
        let names =
            sections.get(header.e_shstrndx as usize).map_or((0, 0), |s| (s.sh_offset, s.sh_size));
        Some(Self {
            map,
            header,
            ctx,
            sections,
            names,
            root: root.map(Path::to_owned),
            path: path.to_owned(),
            identity: None,
        })
    }

    /// Returns the root folder that its path is relative to, if that is not this process's.
    pub(super) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a text that identifies the file and its last change.
    pub(super) fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Returns whether its integers are little-endian.
    pub(super) fn is_little_endian(&self) -> bool {
        self.ctx.le.is_little()
    }

    /// Returns the machine that its code is for.
    pub(super) fn machine(&self) -> Machine {
        let (number, flags) = (self.header.e_machine, self.header.e_flags);
        Machine { number, flags, big_endian: !self.is_little_endian() }
    }

    fn bytes(&self, at: u64, len: u64) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        self.map.get(at..at.checked_add(usize::try_from(len).ok()?)?)
    }

    /// Returns the bytes at a file offset, up to a NUL.
    pub(super) fn name(&self, at: u64) -> Option<&[u8]> {
        let rest = self.map.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().take(1 << 16).position(|b| *b == 0)?;
        Some(&rest[..end])
    }

    fn section_header(&self, name: &str) -> Option<&SectionHeader> {
        self.sections.iter().find(|s| {
            s.sh_type != SHT_NOBITS
                && (s.sh_name as u64) < self.names.1
                && self.name(self.names.0.saturating_add(s.sh_name as u64)) == Some(name.as_bytes())
        })
    }

    /// Returns the contents of a section, decompressed.
    pub(super) fn section(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if let Some(s) = self.section_header(name) {
            let raw = self.bytes(s.sh_offset, s.sh_size)?;
            if s.sh_flags & SHF_COMPRESSED as u64 == 0 {
                return Some(Cow::Borrowed(raw));
            }
            let kind = self.u32(raw.get(..4)?)?;
            let (size, data) = if self.ctx.is_big() {
                (self.u64(raw.get(8..16)?)?, raw.get(24..)?)
            } else {
                (self.u32(raw.get(4..8)?)? as u64, raw.get(12..)?)
            };
            return match kind {
                ZLIB => unpack::zlib(data, size).map(Cow::Owned),
                ZSTD => unpack::zstd(data, size).map(Cow::Owned),
                _ => None,
            };
        }
        let old = name.strip_prefix(".debug_").map(|n| format!(".zdebug_{n}"))?;
        let s = self.section_header(&old)?;
        let raw = self.bytes(s.sh_offset, s.sh_size)?.strip_prefix(b"ZLIB")?;
        let size = u64::from_be_bytes(*raw.first_chunk()?);
        unpack::zlib(&raw[8..], size).map(Cow::Owned)
    }

    fn u32(&self, b: &[u8]) -> Option<u32> {
        let b = *b.first_chunk()?;
        Some(if self.is_little_endian() { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) })
    }

    fn u64(&self, b: &[u8]) -> Option<u64> {
        let b = *b.first_chunk()?;
        Some(if self.is_little_endian() { u64::from_le_bytes(b) } else { u64::from_be_bytes(b) })
    }

    /// Returns the build ID; empty if it has none.
    pub(super) fn build_id(&self) -> &[u8] {
        let notes = self.sections.iter().filter(|s| s.sh_type == SHT_NOTE);
        notes
            .filter_map(|s| Some((self.bytes(s.sh_offset, s.sh_size)?, s.sh_addralign)))
            .find_map(|(b, align)| build_id(b, align, self.ctx))
            .unwrap_or_default()
    }

    /// Returns name and checksum of the separate debug file.
    pub(super) fn debug_link(&self) -> Option<(String, u32)> {
        let s = self.section(".gnu_debuglink")?;
        let end = s.iter().position(|b| *b == 0)?;
        let sum = self.u32(s.get((end + 1).next_multiple_of(4)..)?)?;
        Some((String::from_utf8(s[..end].to_vec()).ok()?, sum))
    }

    /// Returns path and build ID of the file that several debug files share.
    pub(super) fn alternate(&self) -> Option<(String, Vec<u8>)> {
        let s = self.section(".gnu_debugaltlink")?;
        let end = s.iter().position(|b| *b == 0)?;
        Some((String::from_utf8(s[..end].to_vec()).ok()?, s[end + 1..].to_vec()))
    }

    /// Returns the checksum of the file, for a [`debug_link`](Self::debug_link) to it.
    pub(super) fn checksum(&self) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(&self.map);
        crc.sum()
    }

    /// Passes `take` all function symbols, and symbols of code without a type.
    pub(super) fn symbols(&self, mut take: impl FnMut(Symbol)) {
        self.defined(|sym, name_at| {
            let kind = sym.st_type();
            let function = kind == STT_FUNC || kind == STT_GNU_IFUNC;
            if !function && (kind != STT_NOTYPE || !self.in_code(sym.st_shndx)) {
                return;
            }
            let thumb = self.header.e_machine == EM_ARM && function;
            let start = if thumb { sym.st_value & !1 } else { sym.st_value };
            let rank = binding(sym) + if function { 0 } else { 4 };
            take(Symbol { start, size: sym.st_size, rank, name_at });
        });
    }

    /// Passes `take` the symbols of all variables that are not thread-local.
    pub(super) fn variables(&self, mut take: impl FnMut(Symbol)) {
        self.defined(|sym, name_at| {
            if [STT_OBJECT, STT_COMMON].contains(&sym.st_type()) && sym.st_size > 0 {
                let (start, size) = (sym.st_value, sym.st_size);
                take(Symbol { start, size, rank: binding(sym), name_at });
            }
        });
    }

    /// Passes `take` all symbols that have a name and a place in the file, with the file offset of the name.
    fn defined(&self, mut take: impl FnMut(&Sym, u64)) {
        for s in &self.sections {
            if s.sh_type != SHT_SYMTAB && s.sh_type != SHT_DYNSYM {
                continue;
            }
            let Some(names) = self.sections.get(s.sh_link as usize) else { continue };
            let entry = if self.ctx.is_big() { 24 } else { 16 };
            let Ok(at) = usize::try_from(s.sh_offset) else { continue };
            if self.bytes(s.sh_offset, s.sh_size).is_none() {
                continue;
            }
            let count = s.sh_size as usize / entry;
            let Ok(table) = Symtab::parse(&self.map, at, count, self.ctx) else { continue };
            for sym in &table {
                if sym.st_shndx == SHN_UNDEF as usize || sym.st_value == 0 {
                    continue;
                }
                let name_at = names.sh_offset.saturating_add(sym.st_name as u64);
                if self.map.get(name_at as usize).is_none_or(|b| *b == 0 || *b == b'$') {
                    continue; // `$x` and its like mark code and data, they are no functions
                }
                take(&sym, name_at);
            }
        }
    }

    /// Returns up to `len` bytes that are loaded at an address, as far as they are in one section.
    pub(super) fn loaded(&self, address: u64, len: u64) -> Option<&[u8]> {
        let holds = |s: &&SectionHeader| {
            s.sh_type != SHT_NOBITS
                && s.sh_flags & u64::from(SHF_ALLOC) != 0
                && address.checked_sub(s.sh_addr).is_some_and(|at| at < s.sh_size)
        };
        let s = self.sections.iter().find(holds)?;
        let at = address - s.sh_addr;
        self.bytes(s.sh_offset.checked_add(at)?, len.min(s.sh_size - at))
    }

    /// Returns the loaded data sections, with their addresses.
    pub(super) fn data(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let is = |s: &&SectionHeader| {
            s.sh_type == SHT_PROGBITS
                && s.sh_flags & u64::from(SHF_ALLOC) != 0
                && s.sh_flags & u64::from(SHF_EXECINSTR | SHF_COMPRESSED) == 0
        };
        let data = |s: &SectionHeader| Some((s.sh_addr, self.bytes(s.sh_offset, s.sh_size)?));
        self.sections.iter().filter(is).filter_map(data)
    }

    fn in_code(&self, section: usize) -> bool {
        self.sections.get(section).is_some_and(|s| s.sh_flags & SHF_EXECINSTR as u64 != 0)
    }
}
