//! Converts `.debug_frame`, call frame information that is in the file only, for modules that have no other.
//!
//! The section is not loaded. So prof converts it to what the hook can read, a sorted `.eh_frame_hdr` and an
//! `.eh_frame` (Linux Standard Base, "Exception Frames"), and puts these into the shared memory. The two formats
//! differ in how an FDE refers to its CIE, and in addresses (DWARF 5, 6.4.1).

use crate::RemoteMemory;
use crate::process::elf::Module;
use std::collections::HashMap;

/// Size of the largest section that is converted.
const MAX_SECTION: u64 = if cfg!(target_pointer_width = "64") { 64 << 20 } else { 8 << 20 };
const WORD: usize = size_of::<usize>();
/// `DW_EH_PE_udata4` or `DW_EH_PE_udata8`, by the word's size: an absolute address.
const ADDRESS: u8 = if WORD == 4 { 0x03 } else { 0x04 };
const UDATA4: u8 = 0x03;

/// Tables converted from one module's section.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Start address of each function, and the offset of its FDE in `eh_frame`; sorted.
    functions: Vec<(u64, usize)>,
    eh_frame: Vec<u8>,
}

fn address(n: u64) -> [u8; WORD] {
    (n as usize).to_ne_bytes()
}

/// Reads integers from the front of a slice, which it shortens.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn word4(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.take(4)?.first_chunk()?))
    }

    fn address(&mut self) -> Option<u64> {
        Some(usize::from_ne_bytes(*self.take(WORD)?.first_chunk()?) as u64)
    }

    /// Returns the bytes of an LEB128 number, undecoded.
    fn leb(&mut self) -> Option<&'a [u8]> {
        let len = self.0.iter().position(|b| b & 0x80 == 0)?;
        self.take(len + 1)
    }
}

impl Frames {
    /// Converts the section of a module's file. Returns `None` if the file has none, if it is compressed, or if it
    /// describes no functions.
    pub(crate) fn of(mem: &RemoteMemory, m: &Module) -> Option<Self> {
        let file = m.open(mem.pid(), mem)?;
        let section = file.section_bytes(".debug_frame", MAX_SECTION)?;
        Some(Self::parse(&section, m.bias)).filter(|f| !f.functions.is_empty())
    }

    fn parse(section: &[u8], bias: u64) -> Self {
        let mut made = Self::default();
        // Maps the offset of a CIE in the section to its offset in `eh_frame`.
        let mut cies = HashMap::new();
        let mut rest = Reader(section);
        loop {
            let at = section.len() - rest.0.len();
            let Some(entry) = rest.word4().and_then(|len| rest.take(len as usize)) else { break };
            // Entries that are not understood are skipped.
            let mut entry = Reader(entry);
            match entry.word4() {
                Some(u32::MAX) => {
                    if let Some(new) = made.cie(entry) {
                        cies.insert(at, new);
                    }
                }
                Some(cie) => {
                    if let Some(cie) = cies.get(&(cie as usize)) {
                        made.fde(entry, *cie, bias);
                    }
                }
                None => {}
            }
        }
        made.functions.sort_unstable();
        made
    }

    /// Appends an entry with this id, padded with `DW_CFA_nop`. Returns its offset.
    fn entry(&mut self, id: u32, body: &[u8]) -> usize {
        let at = self.eh_frame.len();
        let len = (4 + body.len()).next_multiple_of(WORD) + WORD - 4;
        self.eh_frame.extend_from_slice(&(len as u32).to_ne_bytes());
        self.eh_frame.extend_from_slice(&id.to_ne_bytes());
        self.eh_frame.extend_from_slice(body);
        self.eh_frame.resize(at + 4 + len, 0);
        at
    }

    fn cie(&mut self, mut from: Reader<'_>) -> Option<usize> {
        let version = from.byte()?;
        // Entries with an augmentation are skipped.
        if ![1, 3, 4].contains(&version) || from.byte()? != 0 {
            return None;
        }
        if version == 4 && from.take(2)? != [WORD as u8, 0] {
            return None;
        }
        let mut body = vec![1, 0];
        body.extend_from_slice(from.leb()?);
        body.extend_from_slice(from.leb()?);
        // The return address column is a byte, or an LEB128 number of one byte.
        body.push(from.byte().filter(|b| b & 0x80 == 0)?);
        body.extend_from_slice(from.0);
        Some(self.entry(0, &body))
    }

    fn fde(&mut self, mut from: Reader<'_>, cie: usize, bias: u64) -> Option<()> {
        let (start, len) = (from.address()?, from.address()?);
        // The linker has removed this function.
        if start == 0 || len == 0 {
            return None;
        }
        let start = start.wrapping_add(bias);
        let body = [&address(start)[..], &address(len), from.0].concat();
        let pointer = self.eh_frame.len() + 4 - cie;
        let at = self.entry(u32::try_from(pointer).ok()?, &body);
        self.functions.push((start, at));
        Some(())
    }

    /// Returns the length of the search table (`.eh_frame_hdr`), which comes first.
    pub(crate) fn hdr_len(&self) -> usize {
        (4 + WORD + 4 + self.functions.len() * 2 * WORD).next_multiple_of(8)
    }

    /// Returns the length of both tables.
    pub(crate) fn len(&self) -> usize {
        (self.hdr_len() + self.eh_frame.len() + 4).next_multiple_of(8)
    }

    /// Returns the bytes of both tables, to be placed at address `at`.
    pub(crate) fn at(&self, at: u64) -> Vec<u8> {
        let eh_frame = at + self.hdr_len() as u64;
        let mut all = vec![1, ADDRESS, UDATA4, ADDRESS];
        all.extend_from_slice(&address(eh_frame));
        all.extend_from_slice(&(self.functions.len() as u32).to_ne_bytes());
        for (start, entry) in &self.functions {
            all.extend_from_slice(&address(*start));
            all.extend_from_slice(&address(eh_frame + *entry as u64));
        }
        all.resize(self.hdr_len(), 0);
        all.extend_from_slice(&self.eh_frame);
        all.resize(self.len(), 0);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_arch::native::Rule;
    use prof_arch::unwind::{CfiModule, function_range};

    /// Returns a section with a CIE and the FDEs of three functions, one of which is not in the program.
    fn section() -> Vec<u8> {
        let mut s = Vec::new();
        let mut entry = |id: u32, body: &[u8]| {
            s.extend_from_slice(&(4 + body.len() as u32).to_ne_bytes());
            s.extend_from_slice(&id.to_ne_bytes());
            s.extend_from_slice(body);
        };
        // Version 1, code alignment 2, data alignment -4, return address 14; def_cfa r13, 0
        entry(u32::MAX, &[1, 0, 2, 0x7c, 14, 0x0c, 13, 0]);
        for (start, len) in [(0x5000, 0x40), (0x1000, 0x20), (0, 0x10)] {
            entry(0, &[&address(start)[..], &address(len), &[0x42, 0x0e, 8]].concat());
        }
        // An unknown version, and its function.
        entry(u32::MAX, &[9, 0, 2, 0x7c, 14]);
        s
    }

    #[test]
    fn functions_are_found() {
        let frames = Frames::parse(&section(), 0x10_0000);
        assert_eq!(frames.functions.len(), 2);
        let at = 0x7000_0000;
        let all = frames.at(at);
        assert_eq!(all.len(), frames.len());
        let (hdr, eh_frame) = all.split_at(frames.hdr_len());
        let cfi = CfiModule {
            hdr,
            hdr_addr: at,
            eh_frame,
            eh_frame_addr: at + hdr.len() as u64,
            narrow: WORD == 4,
            ..CfiModule::default()
        };
        assert_eq!(function_range::<Rule>(&cfi, 0x10_5010), Some(0x10_5000..0x10_5040));
        assert_eq!(function_range::<Rule>(&cfi, 0x10_101f), Some(0x10_1000..0x10_1020));
        assert_eq!(function_range::<Rule>(&cfi, 0x10_1020), None);
        assert_eq!(prof_arch::unwind::eh_frame_address(hdr, at), Some(at + hdr.len() as u64));
    }

    #[test]
    fn any_bytes_are_safe() {
        let all = section();
        for cut in 0..all.len() {
            let _ = Frames::parse(&all[..cut], 0);
        }
        for at in 0..all.len() {
            let mut other = all.clone();
            other[at] ^= 0xff;
            let _ = Frames::parse(&other, u64::MAX).at(0);
        }
    }
}
