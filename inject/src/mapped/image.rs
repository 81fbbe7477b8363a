//! Lays out the hook's ELF file as bytes that can be written to the target.

use crate::process::mips_got;
use crate::stopped::memory::WORD;
use crate::{Error, RemoteAddr, Result};
use goblin::elf::header::{EM_AARCH64, EM_ARM, EM_MIPS};
use goblin::elf::program_header::{PF_W, PT_LOAD};
use goblin::elf::{Elf, Reloc};
use prof_trace::shared::{HOOK_SYMBOL, HookHeader, LAYOUT, Locations, MAGIC, RingLocation};
use std::mem::offset_of;

/// The hook's library.
pub(crate) static HOOK: &[u8] = include_bytes!(env!("PROF_HOOK_SO"));

/// The hook's memory, from its first to its last segment.
#[derive(Debug)]
pub(crate) struct HookImage {
    bytes: Vec<u8>,
    header: usize,
    locations: usize,
    relative: Vec<(usize, u64)>,
    /// Offset and length of the executable part.
    pub code: (usize, usize),
    /// Length of that part without the rest of its last page.
    instructions: usize,
    /// Offset and length of the writable part.
    pub data: (usize, usize),
    flags_without_write: Vec<(usize, u32)>,
}

fn broken(what: &str) -> Error {
    Error::Broken(what.to_string())
}

impl HookImage {
    /// Lays out the hook that is embedded in prof.
    pub(crate) fn new() -> Result<Self> {
        let elf = Elf::parse(HOOK).map_err(|e| broken(&e.to_string()))?;
        let loads = || elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD);
        let page = prof_os::page_size() as usize;
        let end = loads().map(|p| p.p_vaddr + p.p_memsz).max().unwrap_or(0) as usize;
        let mut bytes = vec![0; end.next_multiple_of(page)];
        let (mut code, mut data, mut instructions) = ((0, 0), (0, 0), 0);
        for p in loads() {
            let (from, to, n) = (p.p_offset as usize, p.p_vaddr as usize, p.p_filesz as usize);
            bytes[to..to + n].copy_from_slice(&HOOK[from..from + n]);
            let start = to & !(page - 1);
            let len = (to + p.p_memsz as usize).next_multiple_of(page) - start;
            if p.is_executable() {
                (code, instructions) = ((start, len), to + n - start);
            } else if p.is_write() {
                data = (start, len);
            }
        }
        // The writable part must be the last, as the hook's further memory is mapped behind it.
        if data.0 + data.1 != bytes.len() {
            return Err(broken("the order of its segments"));
        }
        let symbol =
            elf.dynsyms.iter().find(|s| elf.dynstrtab.get_at(s.st_name) == Some(HOOK_SYMBOL));
        let symbol = symbol.ok_or_else(|| broken("no header"))?.st_value as usize;
        let relocs = elf.dynrelas.iter().chain(elf.dynrels.iter()).chain(elf.pltrelocs.iter());
        let mut relative = Vec::new();
        let inline = |at: usize| {
            let word = bytes.get(at..at + WORD).and_then(|b| b.first_chunk());
            word.map(|w| usize::from_ne_bytes(*w) as u64).ok_or_else(|| broken("a relocation"))
        };
        for r in relocs {
            match is_relative(&elf, &r) {
                Some(true) => {}
                Some(false) => continue,
                None => return Err(broken("a relocation that is not relative")),
            }
            let at = r.r_offset as usize;
            let addend = r.r_addend.map_or_else(|| inline(at), |a| Ok(a as u64))?;
            relative.push((at, addend));
        }
        if elf.header.e_machine == EM_MIPS {
            let entries = mips_got::entries(&elf);
            for at in entries.ok_or_else(|| broken("its global offset table"))? {
                relative.push((at as usize, inline(at as usize)?));
            }
        }
        let pointed = |from: usize, len: usize, what: &str| {
            let to = relative.iter().find(|(at, _)| *at == from).map(|(_, to)| *to as usize);
            to.filter(|to| to.saturating_add(len) <= bytes.len()).ok_or_else(|| broken(what))
        };
        let header = pointed(symbol, size_of::<HookHeader>(), "no address of its header")?;
        let locations = pointed(
            header + offset_of!(HookHeader, locations),
            size_of::<Locations>(),
            "no address of its locations",
        )?;
        let flags_without_write = flags_without_write(&elf);
        let image = Self {
            bytes,
            header,
            locations,
            relative,
            code,
            instructions,
            data,
            flags_without_write,
        };
        let h = image.header_at(RemoteAddr(0));
        if h.magic != MAGIC || h.layout != LAYOUT {
            return Err(broken("its header"));
        }
        let magic = image.bytes[locations + offset_of!(Locations, magic)..].first_chunk();
        if magic.map(|m| u64::from_ne_bytes(*m)) != Some(MAGIC) {
            return Err(broken("its locations"));
        }
        Ok(image)
    }

    /// Returns the length in bytes, from the first to the last segment.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes to be written at `base`, relocated, with its [`Locations`] filled in.
    #[must_use]
    pub(crate) fn at(
        &self,
        base: RemoteAddr,
        segments: u32,
        shared: RemoteAddr,
        flag: RemoteAddr,
    ) -> Vec<u8> {
        let mut b = self.bytes.clone();
        for (at, addend) in &self.relative {
            let value = base.0.wrapping_add(*addend) as usize;
            b[*at..at + WORD].copy_from_slice(&value.to_ne_bytes());
        }
        let l = self.locations;
        let mut put = |o: usize, v: &[u8]| b[l + o..l + o + v.len()].copy_from_slice(v);
        let place = offset_of!(Locations, shared);
        put(place, &(shared.0 as usize).to_ne_bytes());
        put(place + RingLocation::SEGMENTS, &(segments as usize).to_ne_bytes());
        put(offset_of!(Locations, flag), &flag.0.to_ne_bytes());
        b
    }

    /// Returns offset and bytes of the filled-in [`Locations`] of a hook that is relocated already.
    #[must_use]
    pub(crate) fn locations_at(
        &self,
        segments: u32,
        shared: RemoteAddr,
        flag: RemoteAddr,
    ) -> (u64, Vec<u8>) {
        let all = self.at(RemoteAddr(0), segments, shared, flag);
        (self.locations as u64, all[self.locations..][..size_of::<Locations>()].to_vec())
    }

    /// Returns offset and length of the code and of the header, which are as in [`HookImage::at`] also if a dynamic linker
    /// has loaded them.
    #[must_use]
    pub(crate) fn essential(&self) -> [(usize, usize); 2] {
        [(self.code.0, self.instructions), (self.header, size_of::<HookHeader>())]
    }

    /// Returns the offset of the flags in each program header of writable memory, and these flags without that permission.
    #[must_use]
    pub(crate) fn flags_without_write(&self) -> &[(usize, u32)] {
        &self.flags_without_write
    }

    /// Returns the header of a hook at `base`, with the addresses of its code.
    #[must_use]
    pub(crate) fn header_at(&self, base: RemoteAddr) -> HookHeader {
        let b = self.at(base, 0, RemoteAddr(0), RemoteAddr(0));
        let mut h = std::mem::MaybeUninit::<HookHeader>::uninit();
        let bytes = &b[self.header..self.header + size_of::<HookHeader>()];
        // SAFETY: the header is integers and pointers that are never followed, so any bytes are a valid value.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), h.as_mut_ptr().cast(), bytes.len());
            h.assume_init()
        }
    }
}

/// See [`HookImage::flags_without_write`]. The file's headers are at its begin, which is the begin of its memory.
fn flags_without_write(elf: &Elf<'_>) -> Vec<(usize, u32)> {
    /// Offset of `p_flags` in `Elf64_Phdr` and in `Elf32_Phdr` (elf(5)).
    const FLAGS: usize = if WORD == 8 { 4 } else { 24 };
    let (first, size) = (elf.header.e_phoff as usize, usize::from(elf.header.e_phentsize));
    let all = elf.program_headers.iter().enumerate().filter(|(_, p)| p.p_type == PT_LOAD);
    all.filter(|(_, p)| p.is_write())
        .map(|(k, p)| (first + k * size + FLAGS, p.p_flags & !PF_W))
        .collect()
}

/// Returns `Some(true)` for a relocation that adds the load address (`R_*_RELATIVE` in each psABI's relocation
/// table), `Some(false)` for one that changes nothing, and `None` for any other.
fn is_relative(elf: &Elf<'_>, r: &Reloc) -> Option<bool> {
    let relative = match elf.header.e_machine {
        EM_AARCH64 => 1027,
        EM_ARM => 23,
        EM_MIPS => return mips_got::is_relative(r),
        _ => 8,
    };
    (r.r_type == relative).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_alone_is_writable() {
        let image = HookImage::new().expect("the hook");
        let [(at, flags)] = image.flags_without_write() else { panic!("one writable segment") };
        let there: [u8; 4] = *image.bytes[*at..].first_chunk().expect("in the image");
        assert_eq!(u32::from_ne_bytes(there), flags | PF_W);
        assert_eq!(flags & PF_W, 0);
    }
}
