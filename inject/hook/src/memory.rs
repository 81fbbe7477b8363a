//! Reading memory of this process that may not be there.

use crate::sys;
use prof_trace::shared::Shared;

/// Reads `out.len()` bytes; false if they are not all there, or system calls are not allowed.
pub fn read(shared: &Shared, addr: u64, out: &mut [u8]) -> bool {
    sys::allowed(shared)
        && addr != 0
        && sys::read_own(shared.control().main_tid, addr, out.as_mut_ptr(), out.len()) == out.len()
}

/// Bytes of a word of the machine's size, as unwinding reads them.
pub const WORD: u64 = size_of::<usize>() as u64;

/// The word at an address, which need not be aligned.
///
/// # Safety
/// It must be readable.
#[inline(always)]
pub unsafe fn load(addr: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { (addr as *const usize).read_unaligned() as u64 }
}

/// Reads a word of the machine's size.
pub fn word(shared: &Shared, addr: u64) -> Option<u64> {
    let mut b = [0u8; size_of::<usize>()];
    read(shared, addr, &mut b).then(|| usize::from_ne_bytes(b) as u64)
}
