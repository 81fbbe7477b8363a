//! Reads of this process's memory that may be unmapped.

use crate::mapping::Shared;
use crate::sys;

/// Reads `out.len()` bytes; returns false if not all can be read, or if system calls are not allowed.
pub fn read(shared: &Shared, addr: u64, out: &mut [u8]) -> bool {
    sys::allowed(shared)
        && addr != 0
        && sys::read_own(shared.control().main_tid, addr, out.as_mut_ptr(), out.len()) == out.len()
}

/// Size of a machine word, in bytes; unwinding reads words of this size.
pub const WORD: u64 = size_of::<usize>() as u64;

/// Returns the word at an address, which need not be aligned.
///
/// # Safety
/// The word must be readable.
#[inline(always)]
pub unsafe fn load(addr: u64) -> u64 {
    // SAFETY: the word is readable, by the caller's promise.
    unsafe { (addr as *const usize).read_unaligned() as u64 }
}

/// Reads a machine word; returns `None` if it can't be read.
pub fn word(shared: &Shared, addr: u64) -> Option<u64> {
    let mut b = [0u8; size_of::<usize>()];
    read(shared, addr, &mut b).then(|| usize::from_ne_bytes(b) as u64)
}

/// Size of the smallest page.
pub const PAGE: u64 = 4096;

/// Returns whether this many pages can be read, the first of which is at `from`.
pub fn readable(shared: &Shared, from: u64, pages: u64) -> bool {
    let pid = shared.control().main_tid;
    let mut done = 0;
    while done < pages {
        let want = (pages - done).min(16);
        if sys::readable_pages(pid, from + done * PAGE, PAGE, want) != want {
            return false;
        }
        done += want;
    }
    true
}
