//! The target's modules: where they are mapped, how to unwind them, what they define.

use crate::proc::{self, Map};
use crate::{RemoteAddr, RemoteMemory};
use goblin::elf::program_header::{PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD};
use goblin::elf::{Elf, ProgramHeader};
use prof_arch::unwind::eh_frame_address;
use std::fs::File;
use std::path::PathBuf;

/// A mapped ELF file.
#[derive(Clone, Debug)]
pub struct Module {
    /// As the target sees it; `[vdso]`.
    pub path: PathBuf,
    /// First mapped address.
    pub start: RemoteAddr,
    /// End of the last mapping.
    pub end: RemoteAddr,
    /// Address minus the file's virtual address.
    pub bias: u64,
    /// Address and length of `.eh_frame_hdr`, zero if there is none.
    pub eh_frame_hdr: (RemoteAddr, u64),
    /// Address of `.eh_frame` and the bytes from there to the end of its segment.
    pub eh_frame: (RemoteAddr, u64),
    /// Address and length of the dynamic section, zero if there is none.
    pub dynamic: (RemoteAddr, u64),
    /// The first mapping, for `/proc/PID/map_files`.
    pub first: (u64, u64),
}

/// A symbol of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Its address in the target.
    pub addr: RemoteAddr,
    /// Its length; 0: not known.
    pub size: u64,
    /// It is resolved by calling it (`STT_GNU_IFUNC`).
    pub indirect: bool,
}

/// The modules of a process, from its mappings and the headers in its memory.
#[must_use]
pub fn modules(mem: &RemoteMemory, maps: &[Map]) -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    for (i, m) in maps.iter().enumerate() {
        let named = (m.inode != 0 && m.name.starts_with(b"/")) || m.name == b"[vdso]";
        if !named || m.offset != 0 || !m.read || found.last().is_some_and(|f| f.end > m.start) {
            continue;
        }
        found.extend(module(mem.pid(), mem, maps, i));
    }
    found
}

fn module(pid: i32, mem: &RemoteMemory, maps: &[Map], first: usize) -> Option<Module> {
    let m = &maps[first];
    let head = mem.read_some(m.start, 4096.min(m.len() as usize));
    let header = Elf::parse_header(&head).ok()?;
    let ctx = container(&head)?;
    let headers = ProgramHeader::parse(
        &head,
        header.e_phoff as usize,
        (header.e_phnum as usize).min(56),
        ctx,
    )
    .ok()?;
    let loads = || headers.iter().filter(|p| p.p_type == PT_LOAD);
    let low = loads().map(|p| p.p_vaddr & !4095).min()?;
    let high = loads().map(|p| p.p_vaddr.saturating_add(p.p_memsz)).max()?;
    // A file that was mapped by somebody to be looked at has no code.
    let executable = loads().any(|p| p.is_executable());
    let bias = m.start.0.wrapping_sub(low);
    let end = RemoteAddr(high.wrapping_add(bias).wrapping_add(4095) & !4095);
    let mapped = maps[first..].iter().take_while(|n| n.start < end).any(|n| n.exec);
    if !executable || !mapped || end <= m.start {
        return None;
    }
    let at = |kind: u32| {
        let p = headers.iter().find(|p| p.p_type == kind);
        p.map_or((RemoteAddr(0), 0), |p| (RemoteAddr(p.p_vaddr.wrapping_add(bias)), p.p_memsz))
    };
    let hdr = at(PT_GNU_EH_FRAME);
    let mut eh_frame = (RemoteAddr(0), 0);
    if hdr.1 != 0
        && let Some(addr) = eh_frame_address(&mem.read_some(hdr.0, 16), hdr.0.0)
    {
        let segment = loads().find(|p| {
            let s = p.p_vaddr.wrapping_add(bias);
            s <= addr && addr < s.wrapping_add(p.p_filesz)
        });
        if let Some(p) = segment {
            let end = p.p_vaddr.wrapping_add(bias).wrapping_add(p.p_filesz);
            eh_frame = (RemoteAddr(addr), end - addr);
        }
    }
    let mut found = Module {
        path: proc::path_of(&m.name),
        start: m.start,
        end,
        bias,
        eh_frame_hdr: hdr,
        eh_frame,
        dynamic: at(PT_DYNAMIC),
        first: (m.start.0, m.end.0),
    };
    if found.eh_frame.1 == 0 {
        found.eh_frame = found.eh_frame_section(pid, mem).unwrap_or_default();
    }
    Some(found)
}

fn container(head: &[u8]) -> Option<goblin::container::Ctx> {
    use goblin::container::{Container, Ctx, Endian};
    let c = if *head.get(4)? == 2 { Container::Big } else { Container::Little };
    let e = if *head.get(5)? == 2 { Endian::Big } else { Endian::Little };
    Some(Ctx::new(c, e))
}

impl Module {
    /// The file's last component.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.file_name().and_then(|n| n.to_str()).unwrap_or_default()
    }

    /// The file's contents: what is mapped, even if it has been replaced or deleted, or lies in
    /// another mount namespace; the vDSO from memory.
    #[must_use]
    pub fn open(&self, pid: i32, mem: &RemoteMemory) -> Option<FileBytes> {
        if self.path.as_os_str() == "[vdso]" {
            let len = self.end.0 - self.start.0;
            return Some(FileBytes::Owned(mem.read_some(self.start, len.min(1 << 20) as usize)));
        }
        let (a, b) = self.first;
        let by_map = format!("/proc/{pid}/map_files/{a:x}-{b:x}");
        let by_root = PathBuf::from(format!("/proc/{pid}/root"))
            .join(self.path.strip_prefix("/").unwrap_or(&self.path));
        let file = File::open(by_map).or_else(|_| File::open(by_root)).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        // SAFETY: a file that somebody cuts short while it is read ends this process by SIGBUS; it is
        // one that is mapped as code by a running process, which would end likewise.
        let map = unsafe { memmap2::Mmap::map(&file).ok()? };
        // The same file as what is mapped?
        let n = map.len().min(4096).min((self.first.1 - self.first.0) as usize);
        let head = mem.read_some(self.start, n);
        (n >= 64 && map.get(..n) == Some(&head)).then_some(FileBytes::Mapped(map))
    }

    /// Its function symbols that `wanted` accepts, from both symbol tables, each once.
    pub fn symbols(
        &self,
        pid: i32,
        mem: &RemoteMemory,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<Symbol> {
        let Some(bytes) = self.open(pid, mem) else { return Vec::new() };
        let Ok(elf) = Elf::parse(bytes.get()) else { return Vec::new() };
        let mut all: Vec<Symbol> = Vec::new();
        let tables = [(&elf.dynsyms, &elf.dynstrtab), (&elf.syms, &elf.strtab)];
        for (syms, names) in tables {
            for s in syms.iter() {
                let kind = s.st_type();
                let function = kind == goblin::elf::sym::STT_FUNC || kind == 10;
                if s.st_shndx == 0 || s.st_value == 0 || !function {
                    continue;
                }
                let Some(name) = names.get_at(s.st_name) else { continue };
                let name = name.split('@').next().unwrap_or(name);
                let addr = RemoteAddr(s.st_value.wrapping_add(self.bias));
                if wanted(name) && !all.iter().any(|o| o.name == name && o.addr == addr) {
                    let name = name.to_owned();
                    all.push(Symbol { name, addr, size: s.st_size, indirect: kind == 10 });
                }
            }
        }
        all
    }
}

impl Module {
    /// `.eh_frame` by the file's section headers: static programs have no header segment for it.
    fn eh_frame_section(&self, pid: i32, mem: &RemoteMemory) -> Option<(RemoteAddr, u64)> {
        let bytes = self.open(pid, mem)?;
        let elf = Elf::parse(bytes.get()).ok()?;
        let s = elf
            .section_headers
            .iter()
            .find(|s| s.sh_addr != 0 && elf.shdr_strtab.get_at(s.sh_name) == Some(".eh_frame"))?;
        Some((RemoteAddr(s.sh_addr.wrapping_add(self.bias)), s.sh_size))
    }

    /// The address of a data symbol.
    #[must_use]
    pub fn data_symbol(&self, pid: i32, mem: &RemoteMemory, name: &str) -> Option<RemoteAddr> {
        let bytes = self.open(pid, mem)?;
        let elf = Elf::parse(bytes.get()).ok()?;
        let tables = [(&elf.dynsyms, &elf.dynstrtab), (&elf.syms, &elf.strtab)];
        tables.iter().find_map(|(syms, names)| {
            let s =
                syms.iter().find(|s| s.st_value != 0 && names.get_at(s.st_name) == Some(name))?;
            Some(RemoteAddr(s.st_value.wrapping_add(self.bias)))
        })
    }
}

/// Where a file's bytes go, by its program headers.
#[derive(Debug)]
pub struct Layout<'a> {
    bytes: &'a [u8],
    loads: Vec<ProgramHeader>,
}

impl<'a> Layout<'a> {
    /// Of a file.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let h = Elf::parse_header(bytes).ok()?;
        let count = (h.e_phnum as usize).min(64);
        let all = ProgramHeader::parse(bytes, h.e_phoff as usize, count, container(bytes)?).ok()?;
        Some(Self { bytes, loads: all.into_iter().filter(|p| p.p_type == PT_LOAD).collect() })
    }

    /// The file's virtual address of a place in it.
    #[must_use]
    pub fn address(&self, offset: usize) -> Option<u64> {
        let o = offset as u64;
        let p = self.loads.iter().find(|p| p.p_offset <= o && o - p.p_offset < p.p_filesz)?;
        Some(p.p_vaddr.wrapping_add(o - p.p_offset))
    }

    /// Virtual address and bytes of the executable segment.
    #[must_use]
    pub fn code(&self) -> Option<(u64, &'a [u8])> {
        let p = self.loads.iter().find(|p| p.is_executable())?;
        let from = usize::try_from(p.p_offset).ok()?;
        let len = usize::try_from(p.p_filesz).ok()?;
        Some((p.p_vaddr, self.bytes.get(from..from.checked_add(len)?)?))
    }
}

/// The bytes of a file.
#[derive(Debug)]
pub enum FileBytes {
    /// Mapped.
    Mapped(memmap2::Mmap),
    /// Read.
    Owned(Vec<u8>),
}

impl FileBytes {
    /// The bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(m) => m,
            Self::Owned(v) => v,
        }
    }
}

/// The dynamic linker's `r_debug` (`DT_DEBUG` of the executable); 0 if there is none.
#[must_use]
pub fn r_debug(mem: &RemoteMemory, modules: &[Module]) -> u64 {
    const DT_DEBUG: u64 = 21;
    for m in modules {
        let (at, len) = m.dynamic;
        let words = mem.read_some(at, len.min(16 << 10) as usize);
        let (words, _) = words.as_chunks::<8>();
        for pair in words.chunks_exact(2) {
            if u64::from_ne_bytes(pair[0]) == DT_DEBUG && pair[1] != [0; 8] {
                return u64::from_ne_bytes(pair[1]);
            }
        }
    }
    0
}
