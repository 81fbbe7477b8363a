//! Runs functions that begin with each form of instruction that is relocated: unpatched, patched with the
//! flag off, and patched with the flag on and an entry that goes straight to the original.
#![cfg(all(feature = "relocate", target_arch = "aarch64"))]

use core::arch::global_asm;
use prof_arch::aarch64::insn::plan_patch;
use prof_arch::aarch64::relocate::{StubParams, build_stub};
use std::arch::asm;

// Each function takes x0 and the condition flags, and returns x0. Each has its literal in its own bytes, so
// that these can be copied unchanged.
macro_rules! functions {
    ($($name:ident: $($line:literal),+;)*) => {
        global_asm!($(
            concat!(".globl t_", stringify!($name)), concat!("t_", stringify!($name), ":"),
            $($line,)+
            concat!(".globl t_", stringify!($name), "_end"),
            concat!("t_", stringify!($name), "_end:"),
            ".balign 8",
        )*);
        unsafe extern "C" {
            $(
                #[link_name = concat!("t_", stringify!($name))]
                static $name: u8;
            )*
        }
        mod ends {
            unsafe extern "C" {
                $(
                    #[link_name = concat!("t_", stringify!($name), "_end")]
                    pub static $name: u8;
                )*
            }
        }
        fn all() -> Vec<(&'static str, &'static [u8])> {
            // SAFETY: both labels are in one function's assembly, the second behind the first, so the bytes
            // between are mapped.
            vec![$((stringify!($name), unsafe {
                let (from, to) = (&raw const $name, &raw const ends::$name);
                std::slice::from_raw_parts(from, to as usize - from as usize)
            }),)*]
        }
    };
}

functions! {
    plain: "add x0, x0, #1", "lsl x0, x0, #3", "ret";
    b: "b 1f", "mov x0, #5", "ret", "1: add x0, x0, #77", "ret";
    b_eq: "b.eq 1f", "add x0, x0, #5", "ret", "1: add x0, x0, #9", "ret";
    b_lt: "b.lt 1f", "add x0, x0, #5", "ret", "1: add x0, x0, #9", "ret";
    b_al: "b.al 1f", "add x0, x0, #5", "ret", "1: add x0, x0, #9", "ret";
    cbz_x: "cbz x0, 1f", "add x0, x0, #5", "ret", "1: mov x0, #9", "ret";
    cbz_w: "cbz w0, 1f", "add x0, x0, #5", "ret", "1: mov x0, #9", "ret";
    cbnz: "cbnz x0, 1f", "mov x0, #5", "ret", "1: add x0, x0, #9", "ret";
    tbz: "tbz x0, #33, 1f", "add x0, x0, #5", "ret", "1: add x0, x0, #9", "ret";
    tbnz: "tbnz w0, #0, 1f", "add x0, x0, #5", "ret", "1: add x0, x0, #9", "ret";
    adr: "adr x1, 1f", "ldr x1, [x1]", "add x0, x0, x1", "ret", "1: .quad 0x1122334455667788";
    adrp: "adrp x0, .", "ret";
    ldr_w: "ldr w1, 1f", "add x0, x0, x1", "ret", "1: .word 0x89abcdef";
    ldr_x: "ldr x1, 1f", "add x0, x0, x1", "ret", ".balign 8", "1: .quad 0x8899aabbccddeeff";
    ldr_sw: "ldrsw x1, 1f", "add x0, x0, x1", "ret", "1: .word 0x89abcdef";
    ldr_xzr: "ldr xzr, 1f", "add x0, x0, #3", "ret", ".balign 8", "1: .quad 1";
    ldr_s: "ldr s1, 1f", "fmov w1, s1", "add x0, x0, x1", "ret", "1: .word 0x89abcdef";
    ldr_d: "ldr d1, 1f", "fmov x1, d1", "add x0, x0, x1", "ret", ".balign 8", "1: .quad 0x123456789";
    ldr_q: "ldr q1, 1f", "mov x1, v1.d[1]", "add x0, x0, x1", "ret", ".balign 16",
        "1: .quad 1", ".quad 0x7777";
    prfm: "prfm pldl1keep, 1f", "add x0, x0, #3", "ret", "1: .word 0";
    bti: "hint #34", "cbz x0, 1f", "add x0, x0, #5", "ret", "1: mov x0, #9", "ret";
    signed: "hint #25", "cbz x0, 1f", "stp x29, x30, [sp, #-16]!", "add x0, x0, #5",
        "ldp x29, x30, [sp], #16", "hint #29", "ret", "1: mov x0, #9", "hint #29", "ret";
    signed_b: "hint #27", "stp x29, x30, [sp, #-16]!", "add x0, x0, #5",
        "ldp x29, x30, [sp], #16", "hint #31", "ret";
    only_ret: "ret";
}

// Stubs jump to this entry; the descriptor's first word is the address to continue at.
global_asm!(".globl t_entry", "t_entry:", "ldr x16, [x17]", "br x16");
unsafe extern "C" {
    fn t_entry();
}

/// Calls code with a value and condition flags.
fn call(code: u64, x0: u64, flags: u64) -> u64 {
    let result;
    // SAFETY: `code` is one of the functions above, its copy or its stub; all follow the calling convention.
    unsafe {
        asm!("msr nzcv, {flags}", "blr {code}", code = in(reg) code, flags = in(reg) flags,
            inout("x0") x0 => result, out("x30") _, clobber_abi("C"));
    }
    result
}

const PAGE: usize = 64 << 10;

fn pages() -> *mut u8 {
    // SAFETY: the call maps new memory and touches no other.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(p, libc::MAP_FAILED);
    p.cast()
}

fn put(at: *mut u8, bytes: &[u8]) {
    unsafe extern "C" {
        fn __clear_cache(from: *mut u8, to: *mut u8);
    }
    // SAFETY: the bytes fit into the pages, and no thread runs code there now.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        __clear_cache(at, at.add(bytes.len()));
    }
}

fn results(code: u64) -> Vec<u64> {
    let values = [0, 1, 2, 1 << 32, 1 << 33, u64::MAX, 0xffff_ffff_0000_0000];
    let flags = [0, 1 << 30, 1 << 31, 9 << 28];
    values.iter().flat_map(|v| flags.iter().map(move |f| call(code, *v, *f))).collect()
}

#[test]
fn patched_functions_do_the_same() {
    let base = pages();
    // SAFETY: the mapping has two pages.
    let (func, stub_at) = (base as u64, unsafe { base.add(PAGE) });
    for (name, code) in all() {
        put(base, code);
        let before = results(func);
        let size = code.len() as u64;
        let plan = plan_patch(code, func, Some(size)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut flag = Box::new(0_u32);
        let mut descriptor = Box::new(0_u64);
        let stub = build_stub(&StubParams {
            many: false,
            stub_addr: stub_at as u64,
            flag_addr: std::ptr::from_mut(&mut *flag) as u64,
            desc_addr: std::ptr::from_mut(&mut *descriptor) as u64,
            entry_addr: t_entry as *const () as u64,
            func_addr: func,
            code,
            plan: &plan,
        })
        .unwrap_or_else(|e| panic!("{name}: {e}"));
        *descriptor = stub.original_addr;
        put(stub_at, &stub.bytes);
        // SAFETY: the patch is inside the function.
        put(unsafe { base.add(plan.patch_offset) }, &stub.patch);
        assert_eq!(results(func), before, "{name}, off");
        // SAFETY: `flag` is a live word; besides this test, only the stub reads it.
        unsafe { std::ptr::from_mut(&mut *flag).write_volatile(1) };
        assert_eq!(results(func), before, "{name}, on");
        assert_eq!(results(stub.original_addr), before, "{name}, the original");
    }
}
