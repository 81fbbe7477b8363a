//! The hook as a shared library: the logic of `prof-hook`, and the symbols that a freestanding library must
//! define itself.
#![no_std]

pub use prof_hook::table::PROF_HOOK;

use prof_arch::native::capture;

/// Ends the work on the scratch stack if code that reads the target's unwind tables panics; one stack of the
/// recording is lost with it. Code that runs on the thread's own stack cannot panic (a test looks for it in
/// the library).
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    prof_hook::give_up::give_up()
}

/// Never called, as nothing here unwinds. The compiler's own helpers refer to it where the standard library
/// was built from source with unwinding (tests/vm).
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}

/// Never called: ARM's unwind tables refer to it.
#[cfg(target_arch = "arm")]
#[unsafe(no_mangle)]
pub extern "C" fn __aeabi_unwind_cpp_pr0() {}

/// Never called: ARM's unwind tables refer to it.
#[cfg(target_arch = "arm")]
#[unsafe(no_mangle)]
pub extern "C" fn __aeabi_unwind_cpp_pr1() {}

/// C's `memcpy`; the compiler emits calls of it.
///
/// # Safety
/// As for C's `memcpy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    // SAFETY: both ranges are valid and do not overlap, by the caller's promise.
    unsafe { capture::copy_forward(dst, src, n) };
    dst
}

/// C's `memmove`; the compiler emits calls of it.
///
/// # Safety
/// As for C's `memmove`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    if (dst as usize).wrapping_sub(src as usize) >= n {
        // SAFETY: both ranges are valid by the caller's promise; the destination does not begin inside the
        // source.
        unsafe { capture::copy_forward(dst, src, n) };
    } else {
        for i in (0..n).rev() {
            // SAFETY: `i` is inside both ranges. Volatile, so that this loop does not become a call of
            // memmove.
            unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
        }
    }
    dst
}

/// C's `memset`; the compiler emits calls of it.
///
/// # Safety
/// As for C's `memset`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(dst: *mut u8, byte: i32, n: usize) -> *mut u8 {
    // SAFETY: the range is writable, by the caller's promise.
    unsafe { capture::fill(dst, byte as u8, n) };
    dst
}

/// C's `memcmp`; the compiler emits calls of it.
///
/// # Safety
/// As for C's `memcmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: `i` is inside both ranges. Volatile, so that this loop does not become a call of memcmp.
        let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if x != y {
            return x as i32 - y as i32;
        }
    }
    0
}

/// BSD's `bcmp`; the compiler emits calls of it.
///
/// # Safety
/// As for `memcmp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: both ranges are readable, by the caller's promise.
    unsafe { memcmp(a, b, n) }
}
