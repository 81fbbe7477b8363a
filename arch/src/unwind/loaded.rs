//! Finds the unwind tables of a loaded module by the program headers in its memory (System V gABI, "ELF
//! Header", "Program Header"), of both widths.

use super::cfi::eh_frame_address;

/// A part of memory: its address and its length; length 0: there is none.
pub type Part = (u64, u64);

/// A loaded module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// First mapped address.
    pub start: u64,
    /// End address of the last mapping.
    pub end: u64,
    /// Load bias: address minus the file's virtual address.
    pub bias: u64,
    /// `.eh_frame_hdr`; `.eh_frame`, to the end of its segment; `.ARM.exidx`; what that refers to.
    pub tables: [Part; 4],
}

/// Bytes from the module's start in which the program headers must be.
const HEAD: u64 = 4096;
const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PT_ARM_EXIDX: u32 = 0x7000_0001; // of other machines something else
const PF_R: u64 = 4;

/// A program header: type, flags, address, size in the file, size in memory.
type Header = (u32, u64, u64, u64, u64);

fn field<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0u8; 8];
    let Some(b) = bytes.get(at..at + N) else { return 0 };
    if cfg!(target_endian = "little") {
        out[..N].copy_from_slice(b);
        u64::from_le_bytes(out)
    } else {
        out[8 - N..].copy_from_slice(b);
        u64::from_be_bytes(out)
    }
}

/// Calls `see` for each program header of the module that is mapped at `start`.
fn each(
    start: u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    see: &mut dyn FnMut(Header),
) -> Option<()> {
    let mut head = [0u8; 64];
    // The last field of a 32-bit ELF header ends at 52, and a mapping has at least a page.
    if !read(start, &mut head) || head[..4] != *b"\x7fELF" {
        return None;
    }
    let wide = head[4] == 2;
    let (at, size, count) = if wide {
        (field::<8>(&head, 32), field::<2>(&head, 54), field::<2>(&head, 56))
    } else {
        (field::<4>(&head, 28), field::<2>(&head, 42), field::<2>(&head, 44))
    };
    let len = if wide { 56 } else { 32 };
    if at > HEAD || size < len || count * size > HEAD - at {
        return None;
    }
    for i in 0..count {
        let mut p = [0u8; 56];
        let p = p.get_mut(..len as usize)?;
        if !read(start.wrapping_add(at + i * size), p) {
            return None;
        }
        let kind = field::<4>(p, 0) as u32;
        see(if wide {
            (kind, field::<4>(p, 4), field::<8>(p, 16), field::<8>(p, 32), field::<8>(p, 40))
        } else {
            (kind, field::<4>(p, 24), field::<4>(p, 8), field::<4>(p, 16), field::<4>(p, 20))
        });
    }
    Some(())
}

/// Finds the tables of the module at `start`. `read` reads memory, and returns false if not all of it can be
/// read; it is called only for what the headers call readable.
pub fn loaded(start: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<Loaded> {
    let (mut low, mut high) = (u64::MAX, 0);
    let (mut hdr, mut exidx) = ((0, 0), (0, 0));
    each(start, read, &mut |(kind, _, addr, _, size)| match kind {
        PT_LOAD => {
            low = low.min(addr & !(HEAD - 1));
            high = high.max(addr.saturating_add(size));
        }
        PT_GNU_EH_FRAME => hdr = (addr, size),
        PT_ARM_EXIDX if cfg!(target_arch = "arm") => exidx = (addr, size),
        _ => {}
    })?;
    let bias = start.wrapping_sub(low);
    let end = start.checked_add(high.checked_sub(low)?)?.checked_add(HEAD - 1)? & !(HEAD - 1);
    let mut l = Loaded { start, end, bias, ..Loaded::default() };
    let rest = |addr: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool| {
        let mut found = 0;
        each(start, read, &mut |(kind, flags, at, size, _)| {
            let at = at.wrapping_add(bias);
            let inside = at <= addr && addr.wrapping_sub(at) < size;
            if kind == PT_LOAD && flags & PF_R != 0 && inside && at.checked_add(size).is_some() {
                found = size - (addr - at);
            }
        });
        found
    };
    let there = |(addr, len): Part, read: &mut dyn FnMut(u64, &mut [u8]) -> bool| {
        let addr = addr.wrapping_add(bias);
        (len != 0 && len <= rest(addr, read)).then_some((addr, len))
    };
    if let Some(hdr) = there(hdr, read) {
        l.tables[0] = hdr;
        let mut first = [0u8; 16];
        if hdr.1 >= 16
            && read(hdr.0, &mut first)
            && let Some(eh_frame) = eh_frame_address(&first, hdr.0)
        {
            l.tables[1] =
                Some((eh_frame, rest(eh_frame, read))).filter(|t| t.1 > 4).unwrap_or((0, 0));
        }
    }
    if let Some(exidx) = there(exidx, read) {
        l.tables[2] = exidx;
        if let Some(first) = first_entry(exidx, read) {
            let len = rest(first, read);
            // Linkers put them right before the index.
            let before = exidx.0.checked_sub(first).map_or(len, |n| n.min(len));
            l.tables[3] = if len == 0 { (0, 0) } else { (first, before) };
        }
    }
    Some(l)
}

/// Returns the lowest address in `.ARM.extab` that an index leads to (Exception Handling ABI for the Arm
/// Architecture, section 6).
fn first_entry((addr, len): Part, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<u64> {
    let mut lowest = None;
    let mut at = 0;
    while at < len {
        let mut piece = [0u8; 256];
        let n = (len - at).min(256) & !7;
        let piece = piece.get_mut(..n as usize)?;
        if n == 0 || !read(addr + at, piece) {
            break;
        }
        for (i, entry) in piece.chunks_exact(8).enumerate() {
            let word = field::<4>(entry, 4) as u32;
            if word == 1 || word >> 31 == 1 {
                continue; // no unwinding, or what it says stands here
            }
            let offset = i64::from((word << 1) as i32 >> 1);
            let to = (addr + at + i as u64 * 8 + 4).wrapping_add_signed(offset);
            lowest = Some(lowest.map_or(to, |l: u64| l.min(to)));
        }
        at += n;
    }
    lowest
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn put(to: &mut [u8], at: usize, value: u64, len: usize) {
        let bytes = if cfg!(target_endian = "little") {
            value.to_le_bytes()[..len].to_vec()
        } else {
            value.to_be_bytes()[8 - len..].to_vec()
        };
        to[at..at + len].copy_from_slice(&bytes);
    }

    /// Builds a module of two segments, the first of which is linked to begin at `base`; the second can't be
    /// read.
    fn module(base: u64) -> Vec<u8> {
        let mut m = vec![0u8; 0x3000];
        m[..5].copy_from_slice(b"\x7fELF\x02");
        put(&mut m, 32, 64, 8);
        put(&mut m, 54, 56, 2);
        put(&mut m, 56, 3, 2);
        let headers = [
            (PT_LOAD, 4, base, 0x2000, 0x2000),
            (PT_LOAD, 1, base + 0x2000, 0x800, 0x1800),
            (PT_GNU_EH_FRAME, 4, base + 0x1000, 0x20, 0x20),
        ];
        for (i, (kind, flags, addr, file, memory)) in headers.into_iter().enumerate() {
            let at = 64 + i * 56;
            put(&mut m, at, u64::from(kind), 4);
            put(&mut m, at + 4, flags, 4);
            put(&mut m, at + 16, addr, 8);
            put(&mut m, at + 32, file, 8);
            put(&mut m, at + 40, memory, 8);
        }
        // Version 1; .eh_frame relative to the field, 4 bytes, signed.
        m[0x1000..0x1004].copy_from_slice(&[1, 0x1b, 3, 0x3b]);
        put(&mut m, 0x1004, 0x20 - 4, 4);
        m
    }

    fn look(m: &[u8], start: u64) -> Option<Loaded> {
        let mut read = |at: u64, to: &mut [u8]| {
            let from = at.checked_sub(start).and_then(|at| usize::try_from(at).ok());
            let bytes = from.and_then(|f| m.get(f..f.checked_add(to.len())?));
            bytes.map(|b| to.copy_from_slice(b)).is_some()
        };
        loaded(start, &mut read)
    }

    #[test]
    fn tables_are_found_wherever_a_module_was_linked_to_begin() {
        for base in [0, 0x10_0000] {
            let at = 0x7f00_0000_0000;
            let l = look(&module(base), at).expect("a module");
            assert_eq!((l.start, l.end, l.bias), (at, at + 0x4000, at - base));
            assert_eq!(l.tables[0], (at + 0x1000, 0x20));
            assert_eq!(l.tables[1], (at + 0x1020, 0xfe0));
        }
    }

    #[test]
    fn tables_outside_of_readable_segments_are_none() {
        let mut m = module(0);
        put(&mut m, 64 + 2 * 56 + 16, 0x2100, 8);
        let l = look(&m, 0x10_0000).expect("a module");
        assert_eq!(l.tables, [(0, 0); 4]);
    }

    #[test]
    fn any_header_is_safe() {
        let m = module(0);
        for at in 0..64 + 3 * 56 {
            for value in [0, 0x7f, 0xff] {
                let mut other = m.clone();
                other[at] = value;
                let _ = look(&other, u64::MAX - 0xfff);
                let _ = look(&other, 0x1000);
            }
        }
    }
}
