//! Finds the target's modules: their addresses, unwind tables, dynamic sections and symbols.

use crate::process::elf_file::{ElfFile, each};
use crate::stopped::memory::{WORD, words};
use crate::{RemoteAddr, RemoteMemory};
use goblin::container::Ctx;
use goblin::elf::dynamic::{
    DF_TEXTREL, DT_DEBUG, DT_FLAGS, DT_JMPREL, DT_NEEDED, DT_PLTGOT, DT_PLTREL, DT_PLTRELSZ,
    DT_REL, DT_RELA, DT_RELASZ, DT_RELSZ, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMTAB, DT_TEXTREL,
    Dyn,
};
use goblin::elf::header::EM_ARM;
use goblin::elf::program_header::{PT_ARM_EXIDX, PT_DYNAMIC, PT_GNU_EH_FRAME, PT_LOAD};
use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC, Sym, Symtab};
use goblin::elf::{Elf, ProgramHeader};
use prof_arch::unwind::eh_frame_address;
use prof_os::files::{open_below, open_regular};
use prof_os::maps::Map;
use prof_os::{Pid, elf};
use prof_trace::shared::MODULES;
use std::fs::File;
use std::path::PathBuf;

/// Greatest number of bytes of a dynamic section that are read.
const MAX_DYNAMIC: u64 = 16 << 10;
/// Length of a symbol in a symbol table (`Elf64_Sym` and `Elf32_Sym` in elf(5)).
const SYMBOL: usize = if WORD == 8 { 24 } else { 16 };
/// Maximum number of symbols that are taken from one module.
const MOST_SYMBOLS: usize = 512;

/// An ELF file that is mapped in the target.
#[derive(Clone, Debug)]
pub struct Module {
    /// Path as the target sees it, or `[vdso]`.
    pub path: PathBuf,
    /// First mapped address.
    pub start: RemoteAddr,
    /// End of the last mapping.
    pub end: RemoteAddr,
    /// Load bias: address in memory minus the file's virtual address.
    pub bias: u64,
    /// Address and length of `.eh_frame_hdr`, zero if there is none.
    pub eh_frame_hdr: (RemoteAddr, u64),
    /// Address of `.eh_frame`, and its length or the number of bytes from there to the end of its segment.
    pub eh_frame: (RemoteAddr, u64),
    /// Address and length of `.ARM.exidx`, zero if there is none.
    pub exidx: (RemoteAddr, u64),
    /// Address and length of the data that `.ARM.exidx` refers to: `.ARM.extab`, or the segment with `.ARM.exidx`.
    pub extab: (RemoteAddr, u64),
    /// Address and length of the dynamic section, zero if there is none.
    pub dynamic: (RemoteAddr, u64),
    /// Start and end of the first mapping, which name it in `/proc/PID/map_files`.
    pub first: (u64, u64),
}

/// Symbol of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name without a symbol version.
    pub name: String,
    /// Address in the target.
    pub addr: RemoteAddr,
    /// Length in bytes; 0: unknown.
    pub size: u64,
    /// Whether the address is that of a resolver function (`STT_GNU_IFUNC`).
    pub indirect: bool,
}

/// Returns the modules of a process, from its mappings and the headers in its memory.
///
/// The kernel leaves gaps between the segments of the program and of its dynamic linker unmapped, if they are aligned
/// to more than a page. So another module may lie in such a gap (on AArch64 the vDSO does). The result has it before
/// the module around it: a search for an address finds the inner one first.
#[must_use]
pub fn modules(mem: &RemoteMemory, maps: &[Map]) -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    for (i, m) in maps.iter().enumerate() {
        let named = (m.inode != 0 && m.name.starts_with(b"/")) || m.name == b"[vdso]";
        let around = found.iter().position(|f| f.end > m.start);
        let own = around.is_some_and(|at| found[at].path == m.path());
        if !named || m.offset != 0 || !m.read || own {
            continue;
        }
        if let Some(new) = module(mem.pid(), mem, maps, i) {
            found.insert(around.unwrap_or(found.len()), new);
        }
        if found.len() == MODULES {
            break;
        }
    }
    found
}

fn module(pid: Pid, mem: &RemoteMemory, maps: &[Map], first: usize) -> Option<Module> {
    let m = &maps[first];
    let head = mem.read_some(m.start, 4096.min(m.len() as usize));
    let header = Elf::parse_header(&head).ok()?;
    let ctx = elf::context(&head)?;
    let headers = ProgramHeader::parse(
        &head,
        header.e_phoff as usize,
        (header.e_phnum as usize).min(56),
        ctx,
    )
    .ok()?;
    let loads = || headers.iter().filter(|p| p.p_type == PT_LOAD);
    let page = prof_os::page_size();
    let low = loads().map(|p| p.p_vaddr & !(page - 1)).min()?;
    let high = loads().map(|p| p.p_vaddr.saturating_add(p.p_memsz)).max()?;
    // A file that was mapped only to be read has no executable mapping.
    let executable = loads().any(|p| p.is_executable());
    let bias = m.start.0.wrapping_sub(low);
    let end = RemoteAddr(high.wrapping_add(bias).wrapping_add(page - 1) & !(page - 1));
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
    let exidx = if header.e_machine == EM_ARM { at(PT_ARM_EXIDX) } else { (RemoteAddr(0), 0) };
    let mut extab = (RemoteAddr(0), 0);
    let around = loads().find(|p| {
        let s = p.p_vaddr.wrapping_add(bias);
        exidx.1 != 0 && s <= exidx.0.0 && exidx.0.0 < s.wrapping_add(p.p_filesz)
    });
    if let Some(p) = around {
        extab = (RemoteAddr(p.p_vaddr.wrapping_add(bias)), p.p_filesz);
    }
    let mut found = Module {
        path: m.path().to_owned(),
        start: m.start,
        end,
        bias,
        eh_frame_hdr: hdr,
        eh_frame,
        exidx,
        extab,
        dynamic: at(PT_DYNAMIC),
        first: (m.start.0, m.end.0),
    };
    if found.eh_frame.1 == 0 {
        // Ignores an `.eh_frame` with only a terminator.
        let section = found.section(pid, mem, ".eh_frame").filter(|s| s.1 > 4);
        found.eh_frame = section.unwrap_or_default();
    }
    if found.exidx.1 != 0
        && let Some(section) = found.section(pid, mem, ".ARM.extab")
    {
        found.extab = section;
    }
    Some(found)
}

impl Module {
    /// Returns the last component of the path.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.path.file_name().and_then(|n| n.to_str()).unwrap_or_default()
    }

    /// Opens the module's file: the one that is mapped, even if it has been replaced or deleted, or lies in another
    /// mount namespace. The vDSO is read from memory. Returns `None` if the file can't be opened.
    #[must_use]
    pub fn open(&self, pid: Pid, mem: &RemoteMemory) -> Option<ElfFile> {
        if self.path.as_os_str() == "[vdso]" {
            let len = self.end.0 - self.start.0;
            return ElfFile::of_bytes(mem.read_some(self.start, len.min(1 << 20) as usize));
        }
        let (a, b) = self.first;
        let proc = PathBuf::from(prof_os::process::folder(pid));
        let head = mem.read_some(self.start, (b - a).min(4096) as usize);
        // Compares the beginning of a file with memory, to know whether it is the mapped one. Code is left out, as a
        // uprobe or another tool may have changed it in memory.
        let same = |file: &ElfFile| {
            let n = file.len().min(head.len() as u64).min(file.code_begins().unwrap_or(u64::MAX));
            n >= 64 && file.read(0, n).is_some_and(|h| h[..] == head[..n as usize])
        };
        let file = |f: std::io::Result<File>| ElfFile::of_file(f.ok()?).filter(same);
        file(open_regular(&proc.join(format!("map_files/{a:x}-{b:x}"))))
            .or_else(|| file(open_below(&proc.join("root"), &self.path)))
            .or_else(|| file(open_regular(&proc.join("exe"))))
    }

    /// Calls `f` for each defined symbol: those of the file or, if that can't be opened, those that are loaded for
    /// the dynamic linker.
    fn each_symbol(&self, pid: Pid, mem: &RemoteMemory, mut f: impl FnMut(&Sym, &str)) {
        match self.open(pid, mem) {
            Some(file) => file.each_symbol(f),
            None => {
                let Some((symbols, names, ctx)) = self.loaded_symbols(mem) else { return };
                each(&symbols, &names, ctx, &mut f);
            }
        }
    }

    /// Reads the dynamic symbol table and its string table from memory. The length of the symbol table stands nowhere
    /// but in hash tables, so it is taken from its place: linkers put the string table right behind it.
    fn loaded_symbols(&self, mem: &RemoteMemory) -> Option<(Vec<u8>, Vec<u8>, Ctx)> {
        let ctx = elf::context(&mem.read_some(self.start, 64))?;
        let entry = |tag: u64| {
            let value = dynamic_entry(mem, self, tag)?;
            // glibc relocates the addresses in the dynamic section, musl leaves them as they are in the file.
            Some(if value < self.start.0 { value.wrapping_add(self.bias) } else { value })
        };
        let (symbols, names) = (entry(DT_SYMTAB)?, entry(DT_STRTAB)?);
        let size = dynamic_entry(mem, self, DT_STRSZ)?.min(64 << 20);
        let len = names.checked_sub(symbols)?.min(64 << 20);
        let read = |at, len: u64| mem.read_some(RemoteAddr(at), len as usize);
        Some((read(symbols, len), read(names, size), ctx))
    }

    /// Returns whether a user may mean this module by `name`: by its path, its file name, or the part up to `.so` of
    /// that.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        let file = self.file_name();
        let stem = file.find(".so").map_or(file, |at| &file[..at]);
        name == file || name == stem || self.path.as_os_str() == name
    }

    /// Returns whether the module defines a symbol with one of these names for other modules.
    pub(crate) fn exports(&self, mem: &RemoteMemory, names: &[&str]) -> bool {
        let Some((symbols, strings, ctx)) = self.loaded_symbols(mem) else { return false };
        let mut found = false;
        each(&symbols, &strings, ctx, &mut |s, n| {
            found |= s.st_visibility() == 0 && names.contains(&n);
        });
        found
    }

    /// Returns the symbol whose address the dynamic linker puts, or will put, into a slot of this module's linkage
    /// table.
    pub(crate) fn slot_symbol(&self, mem: &RemoteMemory, slot: u64) -> Option<String> {
        let ctx = elf::context(&mem.read_some(self.start, 64))?;
        let by_table = || self.global_entry_symbol(mem, slot);
        let index = self.relocation_symbol(mem, slot).or_else(by_table)?;
        let (symbols, names, _) = self.loaded_symbols(mem)?;
        let count = symbols.len() / Sym::size(ctx.container);
        let s = Symtab::parse(&symbols, 0, count, ctx).ok()?.get(index)?;
        let rest = names.get(s.st_name..)?;
        let end = memchr::memchr(0, rest)?;
        std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
    }

    /// Returns the names of the libraries that the module was linked against (`DT_NEEDED`).
    pub(crate) fn needed(&self, mem: &RemoteMemory) -> Vec<String> {
        self.dynamic_strings(mem, DT_NEEDED)
    }

    /// Returns the name by which other modules were linked against this one (`DT_SONAME`).
    pub(crate) fn shared_name(&self, mem: &RemoteMemory) -> Option<String> {
        self.dynamic_strings(mem, DT_SONAME).into_iter().next()
    }

    /// Returns the entries of the dynamic section, in their order.
    fn dynamic_entries(&self, mem: &RemoteMemory) -> Vec<Dyn> {
        let (at, len) = self.dynamic;
        elf::dynamic(&mem.read_some(at, len.min(MAX_DYNAMIC) as usize), elf::native())
    }

    /// Returns the strings that all entries with this tag in the dynamic section refer to.
    fn dynamic_strings(&self, mem: &RemoteMemory, tag: u64) -> Vec<String> {
        const MOST: usize = 1024;
        let entries = self.dynamic_entries(mem).into_iter().filter(|e| e.d_tag == tag);
        let Some(table) = dynamic_entry(mem, self, DT_STRTAB) else { return Vec::new() };
        let table = RemoteAddr(self.relocated(table));
        let name = |entry: Dyn| {
            let bytes = mem.read_some(table.plus(entry.d_val), 256);
            let end = memchr::memchr(0, &bytes)?;
            String::from_utf8(bytes.get(..end)?.to_vec()).ok()
        };
        entries.take(MOST).filter_map(name).collect()
    }

    /// Returns the address of the global offset table.
    pub(crate) fn global_offset_table(&self, mem: &RemoteMemory) -> Option<u64> {
        dynamic_entry(mem, self, DT_PLTGOT).map(|table| self.relocated(table))
    }

    /// Returns the address in memory for one from the dynamic section, which some linkers and architectures leave as
    /// it is in the file.
    fn relocated(&self, address: u64) -> u64 {
        if address < self.start.0 { address.wrapping_add(self.bias) } else { address }
    }

    /// Returns the symbol's index for a slot of MIPS's global offset table. The table's last entries correspond one
    /// to one to the last symbols (System V ABI, MIPS RISC Processor Supplement, 5-10).
    fn global_entry_symbol(&self, mem: &RemoteMemory, slot: u64) -> Option<usize> {
        let at = slot.checked_sub(self.global_offset_table(mem)?)? / WORD as u64;
        let global = at.checked_sub(dynamic_entry(mem, self, DT_MIPS_LOCAL_GOTNO)?)?;
        let symbol = dynamic_entry(mem, self, DT_MIPS_GOTSYM)?.checked_add(global)?;
        usize::try_from(symbol).ok()
    }

    /// Returns the symbol's index that a relocation of the linkage table names for a slot.
    fn relocation_symbol(&self, mem: &RemoteMemory, slot: u64) -> Option<usize> {
        let table = self.relocated(dynamic_entry(mem, self, DT_JMPREL)?);
        let len = dynamic_entry(mem, self, DT_PLTRELSZ)?.min(16 << 20);
        let bytes = mem.read_some(RemoteAddr(table), len as usize);
        let wanted = slot.wrapping_sub(self.bias);
        // An entry has an offset, a word with the symbol's index, and an addend if the section says so.
        let addends = dynamic_entry(mem, self, DT_PLTREL)? == DT_RELA;
        let each = if addends { 3 * WORD } else { 2 * WORD };
        let symbol = if WORD == 8 { 32 } else { 8 };
        bytes.chunks_exact(each).find_map(|r| {
            let mut r = words(r);
            (r.next()? == wanted).then_some((r.next()? >> symbol) as usize)
        })
    }

    /// Returns the function symbols that `wanted` accepts, from both symbol tables, each once.
    pub fn symbols(
        &self,
        pid: Pid,
        mem: &RemoteMemory,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<Symbol> {
        let mut all: Vec<Symbol> = Vec::new();
        self.each_symbol(pid, mem, |s, name| {
            let indirect = s.st_type() == STT_GNU_IFUNC;
            if s.st_type() != STT_FUNC && !indirect {
                return;
            }
            let name = name.split('@').next().unwrap_or(name);
            let addr = RemoteAddr(s.st_value.wrapping_add(self.bias));
            if all.len() < MOST_SYMBOLS
                && wanted(name)
                && !all.iter().any(|o| o.name == name && o.addr == addr)
            {
                all.push(Symbol { name: name.to_owned(), addr, size: s.st_size, indirect });
            }
        });
        all
    }

    /// Returns the place in memory that the module's relocations fill for this symbol: the first there is. Those of MIPS64 are
    /// packed in another way, and are not found.
    pub(crate) fn relocated_place(&self, mem: &RemoteMemory, name: &str) -> Option<RemoteAddr> {
        let (symbols, names, _) = self.loaded_symbols(mem)?;
        let is_named = |symbol: &[u8]| {
            let at = u32::from_ne_bytes(*symbol.first_chunk()?) as usize;
            let rest = names.get(at..)?.strip_prefix(name.as_bytes())?;
            (rest.first() == Some(&0)).then_some(())
        };
        let index = symbols.chunks_exact(SYMBOL).position(|s| is_named(s).is_some())? as u64;
        let entry = |tag| dynamic_entry(mem, self, tag);
        let (table, len, each) = match entry(DT_RELA) {
            Some(table) => (table, entry(DT_RELASZ)?, 3 * WORD),
            None => (entry(DT_REL)?, entry(DT_RELSZ)?, 2 * WORD),
        };
        let len = len.min(16 << 20) as usize;
        let bytes = mem.read_some(RemoteAddr(self.relocated(table)), len);
        let shift = if WORD == 8 { 32 } else { 8 };
        bytes.chunks_exact(each).find_map(|r| {
            let mut r = words(r);
            let (offset, info) = (r.next()?, r.next()?);
            (info >> shift == index).then_some(RemoteAddr(offset.wrapping_add(self.bias)))
        })
    }

    /// Returns the address at which a program begins, by the header in its memory.
    pub(crate) fn entry(&self, mem: &RemoteMemory) -> Option<RemoteAddr> {
        let head = mem.read_some(self.start, 64);
        let h = goblin::elf::Elf::parse_header(&head).ok()?;
        Some(RemoteAddr(h.e_entry.wrapping_add(self.bias)))
    }

    /// Returns address and length of a section, by the file's section headers. Static programs have no program header
    /// that leads to `.eh_frame`.
    fn section(&self, pid: Pid, mem: &RemoteMemory, name: &str) -> Option<(RemoteAddr, u64)> {
        let (addr, len) = self.open(pid, mem)?.section(name)?;
        Some((RemoteAddr(addr.wrapping_add(self.bias)), len))
    }

    /// Returns the address of the first defined symbol with this name, whatever its type.
    #[must_use]
    pub fn data_symbol(&self, pid: Pid, mem: &RemoteMemory, name: &str) -> Option<RemoteAddr> {
        let mut found = None;
        self.each_symbol(pid, mem, |s, n| {
            if n == name && found.is_none() {
                found = Some(RemoteAddr(s.st_value.wrapping_add(self.bias)));
            }
        });
        found
    }
}

const DT_MIPS_LOCAL_GOTNO: u64 = 0x7000_000a;
const DT_MIPS_GOTSYM: u64 = 0x7000_0013;
const DT_MIPS_RLD_MAP: u64 = 0x7000_0016;
const DT_MIPS_RLD_MAP_REL: u64 = 0x7000_0035;

/// Returns whether the dynamic linker applies relocations to the module's code.
pub(crate) fn has_text_relocations(mem: &RemoteMemory, m: &Module) -> bool {
    // `DT_TEXTREL` may have the value 0, so `dynamic_entry` would not find it.
    m.dynamic_entries(mem).iter().any(|e| match e.d_tag {
        DT_TEXTREL => true,
        DT_FLAGS => e.d_val & DF_TEXTREL != 0,
        _ => false,
    })
}

/// Returns the first value, other than 0, with this tag in a module's dynamic section.
fn dynamic_entry(mem: &RemoteMemory, m: &Module, tag: u64) -> Option<u64> {
    dynamic_place(mem, m, tag).map(|(_, value)| value)
}

/// Returns the address of the entry that [`dynamic_entry`] finds, and its value.
fn dynamic_place(mem: &RemoteMemory, m: &Module, tag: u64) -> Option<(u64, u64)> {
    let entries = m.dynamic_entries(mem).into_iter();
    let mut placed = (m.dynamic.0.0..).step_by(2 * WORD).zip(entries);
    let (at, entry) = placed.find(|(_, e)| e.d_tag == tag && e.d_val != 0)?;
    Some((at, entry.d_val))
}

/// Returns the address of the dynamic linker's `r_debug` (`DT_DEBUG` of the executable); 0 if there is none.
#[must_use]
pub fn r_debug(mem: &RemoteMemory, modules: &[Module]) -> u64 {
    let find = |m: &Module| {
        let entry = |tag| dynamic_entry(mem, m, tag);
        // On MIPS the dynamic section is read-only, so it holds the address of the pointer to `r_debug` instead.
        let place = || {
            let relative = |(at, value): (u64, u64)| at.wrapping_add(value);
            entry(DT_MIPS_RLD_MAP)
                .or_else(|| dynamic_place(mem, m, DT_MIPS_RLD_MAP_REL).map(relative))
        };
        entry(DT_DEBUG).or_else(|| mem.word(RemoteAddr(place()?)).ok().filter(|word| *word != 0))
    };
    modules.iter().find_map(find).unwrap_or(0)
}
