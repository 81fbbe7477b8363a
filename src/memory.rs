//! prof's allocator: the system's, with a reserve of address space for when memory runs out.
//!
//! A failed allocation ends a Rust program at once, possibly in the middle of an attach. So the first failure releases
//! the reserve, the attach is undone (`prof_inject::note_shortage`), and prof ends with an error. If the reserve is
//! used up, too, prof ends as if it were killed, which does no harm to any target: what it had begun is removed by the
//! next `prof detach`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel};

/// Bytes needed to undo an attach. It is address space only: no page of it is used.
const RESERVE: usize = 32 << 20;

static HELD: AtomicPtr<libc::c_void> = AtomicPtr::new(null_mut());

/// Maps the reserve. If there is no room for it, no attach begins.
pub(crate) fn hold() {
    let (none, how) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses the address of the new mapping, so no existing memory is affected.
    let p = unsafe { libc::mmap(null_mut(), RESERVE, none, how | libc::MAP_NORESERVE, -1, 0) };
    if p == libc::MAP_FAILED {
        prof_inject::note_shortage();
    } else {
        HELD.store(p, std::sync::atomic::Ordering::Release);
    }
}

/// Releases the reserve to the allocator; returns false if that was done before.
fn release() -> bool {
    let p = HELD.swap(null_mut(), AcqRel);
    if p.is_null() {
        return false;
    }
    prof_inject::note_shortage();
    // SAFETY: `hold` mapped this address with that length, and the swap lets only one thread unmap it.
    unsafe { libc::munmap(p, RESERVE) };
    true
}

/// The beginning of the error of a prof that has no more memory.
pub(crate) const NO_MEMORY: &str = "prof: no more memory";

/// Ends prof with an error, which it reports without allocating.
fn out_of_memory(size: usize) -> *mut u8 {
    const TEXT: &[u8] = b"prof: no more memory; `prof detach` removes what an attach has begun\n";
    // A request that no machine could satisfy is left to the caller.
    if size as u64 > 1 << 40 {
        return null_mut();
    }
    // SAFETY: `write` gets a valid buffer and its length; neither call needs memory.
    unsafe {
        libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
        libc::_exit(i32::from(crate::failure::FAILED))
    }
}

/// The allocator.
pub(crate) struct Frugal;

// SAFETY: all methods delegate to the system's allocator, which upholds the contract; a second attempt only follows a
// failure.
unsafe impl GlobalAlloc for Frugal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        loop {
            // SAFETY: the caller upholds the contract of `alloc`.
            let p = unsafe { System.alloc(layout) };
            if !p.is_null() {
                return p;
            }
            if !release() {
                return out_of_memory(layout.size());
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        loop {
            // SAFETY: the caller upholds the contract of `alloc_zeroed`.
            let p = unsafe { System.alloc_zeroed(layout) };
            if !p.is_null() {
                return p;
            }
            if !release() {
                return out_of_memory(layout.size());
            }
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        loop {
            // SAFETY: the caller upholds the contract of `realloc`; after a failure the block is still valid.
            let p = unsafe { System.realloc(ptr, layout, size) };
            if !p.is_null() {
                return p;
            }
            if !release() {
                return out_of_memory(size);
            }
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}
