//! The hook as a shared library: the logic of `prof-hook`, and what a freestanding library must
//! bring itself.
#![no_std]

pub use prof_hook::header::PROF_HOOK;

use prof_arch::native::capture;

/// The way out if a library that reads the target's unwind tables meets what it takes for impossible:
/// the work on the scratch stack is dropped, and with it the one stack that it was about. Code that
/// runs on the thread's own stack cannot panic (a test looks for it in the library).
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    prof_hook::thread::give_up()
}

/// Never called: nothing here unwinds. The compiler's own helpers refer to it where the standard
/// library was built from source with unwinding (tests/vm).
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}

/// Never called, likewise: ARM's unwind tables refer to it.
#[cfg(target_arch = "arm")]
#[unsafe(no_mangle)]
pub extern "C" fn __aeabi_unwind_cpp_pr0() {}

/// Never called, likewise.
#[cfg(target_arch = "arm")]
#[unsafe(no_mangle)]
pub extern "C" fn __aeabi_unwind_cpp_pr1() {}

/// As C's; the compiler calls it.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { capture::copy_forward(dst, src, n) };
    dst
}

/// As C's; the compiler calls it.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    if (dst as usize).wrapping_sub(src as usize) >= n {
        // SAFETY: the caller's promise; the destination does not begin inside the source.
        unsafe { capture::copy_forward(dst, src, n) };
    } else {
        for i in (0..n).rev() {
            // SAFETY: the caller's promise; volatile, so that this loop does not become a memmove.
            unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
        }
    }
    dst
}

/// As C's; the compiler calls it.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(dst: *mut u8, byte: i32, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { capture::fill(dst, byte as u8, n) };
    dst
}

/// As C's; the compiler calls it.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: the caller's promise; volatile, so that this loop does not become a memcmp.
        let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if x != y {
            return x as i32 - y as i32;
        }
    }
    0
}

/// As BSD's; the compiler calls it.
///
/// # Safety
/// As BSD's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, n) }
}
