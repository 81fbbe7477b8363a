//! A Rust program with an allocator linked in, of which the linker keeps only the functions that Rust calls. "go":
//! 500 boxes of 128 bytes, of which every second one is dropped; a vector that grows from 1,000 to 100,000 bytes;
//! 3,000 zeroed bytes; 8,192 bytes aligned to 4,096. All but the dropped boxes are kept.
//!
//! `--cfg jemalloc`, `--cfg snmalloc`: the interface, called as the crates tikv-jemallocator and snmalloc-rs call
//! it.

use std::alloc::{GlobalAlloc, Layout, alloc};
use std::hint::black_box;
use std::io::{BufRead, Write};

struct Own;

#[global_allocator]
static GLOBAL: Own = Own;

#[cfg(jemalloc)]
unsafe extern "C" {
    fn _rjem_mallocx(size: usize, flags: i32) -> *mut u8;
    fn _rjem_rallocx(block: *mut u8, size: usize, flags: i32) -> *mut u8;
    fn _rjem_sdallocx(block: *mut u8, size: usize, flags: i32);
}

/// Returns MALLOCX_LG_ALIGN and MALLOCX_ZERO.
#[cfg(jemalloc)]
fn flags(l: Layout, zero: bool) -> i32 {
    l.align().trailing_zeros() as i32 | if zero { 0x40 } else { 0 }
}

// SAFETY: jemalloc's functions uphold the contract of the trait's methods, which they implement.
#[cfg(jemalloc)]
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        unsafe { _rjem_mallocx(l.size(), flags(l, false)) }
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        unsafe { _rjem_mallocx(l.size(), flags(l, true)) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        unsafe { _rjem_sdallocx(p, l.size(), flags(l, false)) }
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, size: usize) -> *mut u8 {
        unsafe { _rjem_rallocx(p, size, flags(l, false)) }
    }
}

/// An allocator of this program's own, which allocates pieces of a static area and frees none, with snmalloc's names:
/// Debian has no package of snmalloc.
#[cfg(snmalloc)]
mod snmalloc {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[repr(align(4096))]
    struct Area(std::cell::UnsafeCell<[u8; 16 << 20]>);
    // SAFETY: each piece of the area is handed out only once.
    unsafe impl Sync for Area {}
    static AREA: Area = Area(std::cell::UnsafeCell::new([0; 16 << 20]));
    static NEXT: AtomicUsize = AtomicUsize::new(0);

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub unsafe extern "C" fn sn_rust_alloc(align: usize, size: usize) -> *mut u8 {
        let place = |at: usize| at.next_multiple_of(align);
        let at = NEXT.fetch_update(Relaxed, Relaxed, |at| Some(place(at) + size)).unwrap_or(0);
        // SAFETY: the test allocates far less than the size of the area.
        unsafe { AREA.0.get().cast::<u8>().add(place(at)) }
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub unsafe extern "C" fn sn_rust_alloc_zeroed(align: usize, size: usize) -> *mut u8 {
        std::hint::black_box(unsafe { sn_rust_alloc(align, size) })
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub unsafe extern "C" fn sn_rust_dealloc(block: *mut u8, align: usize, size: usize) {
        // SAFETY: the caller passes a block of this size that it does not use again.
        unsafe { std::ptr::write_bytes(block, 0xdd, size.min(align)) }
    }

    #[unsafe(no_mangle)]
    #[inline(never)]
    pub unsafe extern "C" fn sn_rust_realloc(
        block: *mut u8,
        align: usize,
        old: usize,
        new: usize,
    ) -> *mut u8 {
        // SAFETY: both blocks are at least as large as what is copied, and do not overlap.
        unsafe {
            let to = sn_rust_alloc(align, new);
            std::ptr::copy_nonoverlapping(block, to, old.min(new));
            to
        }
    }
}

// SAFETY: the functions uphold the contract of the trait's methods, which they implement.
#[cfg(snmalloc)]
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        unsafe { snmalloc::sn_rust_alloc(l.align(), l.size()) }
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        unsafe { snmalloc::sn_rust_alloc_zeroed(l.align(), l.size()) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        unsafe { snmalloc::sn_rust_dealloc(p, l.align(), l.size()) }
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, size: usize) -> *mut u8 {
        unsafe { snmalloc::sn_rust_realloc(p, l.align(), l.size(), size) }
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{word}").and_then(|()| out.flush()).expect("stdout");
}

#[inline(never)]
fn go(kept: &mut Vec<Box<[u8; 128]>>, grown: &mut Vec<Vec<u8>>) {
    for n in 0..500 {
        let block = black_box(Box::new([n as u8; 128]));
        if n % 2 == 0 {
            kept.push(block);
        }
    }
    let mut v = vec![1u8; 1000];
    v.reserve_exact(99_000);
    grown.push(black_box(v));
    grown.push(black_box(vec![0u8; 3000]));
    let layout = Layout::from_size_align(8192, 4096).expect("a layout");
    // SAFETY: the layout's size is not 0.
    unsafe { black_box(alloc(layout)).write(1) };
}

fn main() {
    let mut kept = Vec::with_capacity(10_000);
    let mut grown = Vec::with_capacity(100);
    let mut line = String::with_capacity(64);
    say("ready");
    while std::io::stdin().lock().read_line(&mut line).expect("stdin") > 0 {
        match line.trim() {
            "go" => {
                go(&mut kept, &mut grown);
                say("done");
            }
            "quit" => {
                say("bye");
                break;
            }
            _ => {}
        }
        line.clear();
    }
}
