//! Finds the thread-local variables that do not lie behind a stack of libc's own. Those of the first thread lie somewhere in a
//! mapping, and the kernel may join it with mappings beside it.

use prof_arch::native::capture::DESCRIPTOR;
use prof_os::maps::Map;
use prof_os::memory::Reader;
use prof_os::page_size;
use std::ops::Range;

/// Bytes that libc has on each side of the border for modules to come and for its descriptor of the thread.
const SPARE: u64 = 8 << 10;
/// Bytes of a file's beginning that are searched for program headers.
const HEADERS: usize = 4096;
/// The type of a program header for thread-local variables (ELF specification, part 1, "Program Header").
const PT_TLS: u32 = 7;
const IS_64: bool = size_of::<usize>() == 8;

/// Drepper, "ELF Handling For Thread-Local Storage": the variables lie on the other side of the border between them and the
/// descriptor.
const ARE_BELOW: bool = DESCRIPTOR.start >= 0;

/// Returns the border between a thread's variables and libc's descriptor of the thread. The thread pointer may point to neither
/// of them.
pub(crate) fn border(thread_pointer: u64) -> u64 {
    let distance = if ARE_BELOW { DESCRIPTOR.start } else { DESCRIPTOR.end };
    thread_pointer.wrapping_add_signed(i64::from(distance))
}

/// Returns the range of a thread's variables and descriptor, at most, in whole pages. `size`: see [`size`].
pub(crate) fn range(border: u64, size: u64) -> Range<u64> {
    let page = page_size();
    let (below, above) = if ARE_BELOW { (size + SPARE, SPARE) } else { (SPARE, size + SPARE) };
    let start = border.saturating_sub(below) / page * page;
    let end = border.saturating_add(above);
    start..end.checked_next_multiple_of(page).unwrap_or(end)
}

/// Returns the bytes of thread-local variables that the loaded modules have together, with what their alignment may take.
pub(crate) fn size(reader: &Reader, maps: &[Map]) -> u64 {
    let first = maps.iter().filter(|m| m.inode != 0 && m.offset == 0 && m.read && !m.shared);
    first.map(|m| of_module(reader, m.start.0)).fold(0, u64::saturating_add)
}

/// Returns those of the module whose first page lies at an address.
fn of_module(reader: &Reader, at: u64) -> u64 {
    let mut bytes = vec![0; HEADERS];
    let n = reader.read(at, &mut bytes);
    of_headers(&bytes[..n])
}

fn of_headers(bytes: &[u8]) -> u64 {
    let half = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let word = |at: usize| {
        let w = bytes.get(at..at + size_of::<usize>())?;
        w.try_into().ok().map(|w| usize::from_ne_bytes(w) as u64)
    };
    // Elf64_Ehdr and Elf64_Phdr, or those of 32 bits.
    let [headers, each, many, memory, align] =
        if IS_64 { [0x20, 0x36, 0x38, 0x28, 0x30] } else { [0x1c, 0x2a, 0x2c, 0x14, 0x1c] };
    let found = || {
        let start = usize::try_from(word(headers)?).ok().filter(|s| *s < HEADERS)?;
        let (each, many) = (usize::from(half(each)?), usize::from(half(many)?));
        let starts = (0..many).map(|i| start + i * each).take_while(|at| *at < HEADERS);
        let at = starts.into_iter().find(|at| number(*at) == Some(PT_TLS))?;
        word(at + memory)?.checked_add(word(at + align)?)
    };
    // A header that a program has written over says anything: no module has so much.
    found().filter(|n| bytes.starts_with(b"\x7fELF") && *n < 1 << 30).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::{Pid, maps};

    thread_local! {
        static LARGE: std::cell::Cell<[u8; 20_000]> = const { std::cell::Cell::new([7; 20_000]) };
    }

    #[test]
    fn the_variables_of_modules_are_counted_and_lie_in_the_range() {
        let at = LARGE.with(|l| std::ptr::from_ref(l) as u64);
        let reader = Reader::open(Pid::this()).expect("own memory");
        let maps = maps::of(Pid::this()).expect("maps");
        let size = size(&reader, &maps);
        assert!((20_000..4 << 20).contains(&size), "{size}");
        let border = border(prof_arch::native::capture::thread_pointer());
        let range = range(border, size);
        assert!(range.contains(&at) && range.contains(&border), "{at:x} {range:x?}");
        assert!(range.end - range.start < size + 8 * SPARE);
        for bytes in [&b""[..], b"\x7fELF", &[0xff; 64], &[0x7f; 4096]] {
            assert_eq!(of_headers(bytes), 0);
        }
    }
}
