//! prof's allocator: the system's, with address space put by for the time when that has no more.
//!
//! An allocation that fails ends a Rust program at once, and that may be in the midst of an attach. So the
//! first that fails gets the reserve, the attach is taken back (`prof_inject::note_shortage`), and prof ends
//! with an error. When the reserve is used up, too, prof ends as if it were killed, which no target minds:
//! what it had begun is removed by the next `prof detach`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel};

/// Enough for taking an attach back. Address space only: no page of it is used.
const RESERVE: usize = 32 << 20;

static HELD: AtomicPtr<libc::c_void> = AtomicPtr::new(null_mut());

/// Puts the reserve by. Without room for it, nothing is begun.
pub fn hold() {
    let (none, how) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping that nobody uses.
    let p = unsafe { libc::mmap(null_mut(), RESERVE, none, how | libc::MAP_NORESERVE, -1, 0) };
    if p == libc::MAP_FAILED {
        prof_inject::note_shortage();
    } else {
        HELD.store(p, std::sync::atomic::Ordering::Release);
    }
}

/// Gives the reserve to the allocator; false if it has it already.
fn release() -> bool {
    let p = HELD.swap(null_mut(), AcqRel);
    if p.is_null() {
        return false;
    }
    prof_inject::note_shortage();
    // SAFETY: mapped by `hold` with that length, and given back once.
    unsafe { libc::munmap(p, RESERVE) };
    true
}

/// Ends prof with an error: it can't go on, and can't allocate to say so.
fn out_of_memory(size: usize) -> *mut u8 {
    const TEXT: &[u8] = b"prof: no more memory; `prof detach` removes what an attach has begun\n";
    // What nobody can have is for the caller to say.
    if size as u64 > 1 << 40 {
        return null_mut();
    }
    // SAFETY: system calls that need no memory.
    unsafe {
        libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
        libc::_exit(i32::from(crate::failure::FAILED))
    }
}

/// The allocator.
pub struct Frugal;

// SAFETY: the system's allocator, asked a second time where it has failed.
unsafe impl GlobalAlloc for Frugal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        loop {
            // SAFETY: the caller's promise.
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
            // SAFETY: the caller's promise.
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
            // SAFETY: the caller's promise; a block that could not be moved is as it was.
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
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}
