//! Entries of the hook: the code that stubs jump to, and the registers that it saves.
//!
//! A stub jumps here with the [`Call::function`] in x17 and everything else as the caller left it (AAPCS64,
//! 6.1.1). The entry saves the arguments and the callee-saved registers that unwinding needs, asks `before`
//! where to go, goes there, and passes the result to `after`.

use super::regs::Aarch64;
use crate::generic::capture::{self, Entry, check_layout};

pub use crate::generic::capture::Go;

/// Range in which libc's thread descriptor, which has the thread's id, may lie relative to the thread
/// pointer: below it (aaelf64 TLS, variant I, as glibc and musl have it).
pub const DESCRIPTOR: core::ops::Range<i32> = -4096..0;

/// See [`capture::Call`].
pub type Call = capture::Call<Aarch64>;

impl Entry for Aarch64 {
    type Word = u64;
    type Saved = [u64; 10];
    /// The stack pointer must be a multiple of 16.
    type Padding = [u64; 1];
    const SAVES: &[u16] = &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28];
}

// As the assembly below has it.
const _: () = check_layout::<Aarch64>(0, 192, 48, 64, 88);

/// Defines an entry `$name` that stubs jump to, around `$before: extern "C" fn(&mut Call) -> Go` and `$after:
/// extern "C" fn(&mut Call) -> u64`. `$after` returns 0, or an address to jump to instead of returning the
/// result.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! hook_entry {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                // Unwinders in the program find these rows if its dynamic linker has loaded the hook.
                ".cfi_startproc",
                "hint #34", // bti c
                // A frame record, so that debuggers can unwind through it.
                "stp x29, x30, [sp, #-16]!",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset x29, -16",
                ".cfi_offset x30, -8",
                "sub sp, sp, #192",
                ".cfi_def_cfa_offset 208",
                "stp x0, x1, [sp]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "str x17, [sp, #48]",
                "add x16, sp, #208", // stack pointer after the return
                "stp x30, x16, [sp, #64]",
                "stp x29, x19, [sp, #80]",
                "add x29, sp, #192",
                ".cfi_def_cfa x29, 16",
                "stp x20, x21, [sp, #96]",
                "stp x22, x23, [sp, #112]",
                "stp x24, x25, [sp, #128]",
                "stp x26, x27, [sp, #144]",
                "str x28, [sp, #160]",
                "mov x0, sp",
                "bl {before}",
                "mov x16, x0",
                "mov x17, x1",
                "ldp x0, x1, [sp]",
                "ldp x2, x3, [sp, #16]",
                "ldp x4, x5, [sp, #32]",
                "cbz x17, 2f",
                "blr x16",
                "str x0, [sp, #56]",
                "mov x0, sp",
                "bl {after}",
                "cbnz x0, 3f",
                "ldr x0, [sp, #56]",
                "mov sp, x29",
                ".cfi_remember_state",
                "ldp x29, x30, [sp], #16",
                ".cfi_def_cfa sp, 0",
                ".cfi_same_value x29",
                ".cfi_same_value x30",
                "ret",
                ".cfi_restore_state",
                "3:", // elsewhere instead of returning
                "mov x16, x0",
                "ldp x0, x1, [sp]",
                "ldp x2, x3, [sp, #16]",
                "ldp x4, x5, [sp, #32]",
                "2:", // jump, as if the hook had never been entered
                "mov sp, x29",
                "ldp x29, x30, [sp], #16",
                ".cfi_def_cfa sp, 0",
                ".cfi_same_value x29",
                ".cfi_same_value x30",
                "br x16",
                ".cfi_endproc",
                before = sym $before,
                after = sym $after,
            )
        }
    };
}

/// Defines an entry `$name` that stubs jump to. If `$goes_on: fn(argument 0: u64, descriptor: &Function) ->
/// u64` returns an address, the call continues there, with registers as if nothing had been done; if it
/// returns 0, at the entry `$full`. `$goes_on` checks marks by itself (see [`Marks`](crate::Marks)). For
/// functions with at most three arguments.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! pass_entry {
    ($(#[$doc:meta])* $name:ident, $goes_on:path, $full:path $(, $within:path, $marks:path)?) => {
        // These names are used where the entry itself checks marks; here they are only mentioned.
        $(const _: () = {
            let _ = &raw const $within;
            assert!($marks.is_low());
        };)?
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn goes_on(argument: u64, function: &Function) -> u64 {
                $goes_on(argument, function)
            }
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint #34", // bti c
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x17, [sp, #32]",
                "mov x1, x17",
                "bl {goes_on}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x17, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                ".cfi_same_value x29",
                ".cfi_same_value x30",
                "cbnz x16, 2f",
                "b {full}",
                "2:",
                "br x16",
                ".cfi_endproc",
                goes_on = sym goes_on,
                full = sym $full,
            )
        }
    };
}

/// Calls `f(arg)` with the stack pointer at `top`. Returns to this stack when `f` returns, or when something
/// that it called gives up with [`leave_stack`]. The word at `top` is used for that.
///
/// # Safety
/// `top` must be 16-byte aligned, with enough writable memory below it, and a word above it, that nobody else
/// uses.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn call_on_stack(
    f: unsafe extern "C" fn(*mut ()),
    arg: *mut (),
    top: *mut u8,
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-160]!",
        ".cfi_def_cfa_offset 160",
        ".cfi_offset x29, -160",
        ".cfi_offset x30, -152",
        "mov x29, sp",
        ".cfi_def_cfa x29, 160",
        "stp x19, x20, [sp, #16]",
        ".cfi_offset x19, -144",
        ".cfi_offset x20, -136",
        "stp x21, x22, [sp, #32]",
        ".cfi_offset x21, -128",
        ".cfi_offset x22, -120",
        "stp x23, x24, [sp, #48]",
        ".cfi_offset x23, -112",
        ".cfi_offset x24, -104",
        "stp x25, x26, [sp, #64]",
        ".cfi_offset x25, -96",
        ".cfi_offset x26, -88",
        "stp x27, x28, [sp, #80]",
        ".cfi_offset x27, -80",
        ".cfi_offset x28, -72",
        "stp d8, d9, [sp, #96]",
        ".cfi_offset d8, -64",
        ".cfi_offset d9, -56",
        "stp d10, d11, [sp, #112]",
        ".cfi_offset d10, -48",
        ".cfi_offset d11, -40",
        "stp d12, d13, [sp, #128]",
        ".cfi_offset d12, -32",
        ".cfi_offset d13, -24",
        "stp d14, d15, [sp, #144]",
        ".cfi_offset d14, -16",
        ".cfi_offset d15, -8",
        "str x29, [x2]",
        "mov x19, x2",
        "mov sp, x2",
        "mov x16, x0",
        "mov x0, x1",
        "blr x16",
        "mov x0, x19",
        "b {leave}",
        ".cfi_endproc",
        leave = sym leave_stack,
    )
}

/// Returns at once from the [`call_on_stack`] with this `top`.
///
/// # Safety
/// That call must be in progress, on this thread.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn leave_stack(top: *mut u8) -> ! {
    core::arch::naked_asm!(
        "ldr x16, [x0]",
        "mov sp, x16",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "ldp x29, x30, [sp], #160",
        "ret",
    )
}

/// Code that a signal handler of prof's returns to (`sa_restorer`).
///
/// # Safety
/// Only the kernel may use this, as the return address of a signal handler.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("mov x8, #139", "svc #0") // rt_sigreturn
}

/// Jumps to an entry of the hook as a stub does, with `arg`, and the descriptor where [`Call::function`] is
/// taken from. Returns what the entry's original returns. For tests that have the hook in their own process.
///
/// # Safety
/// An entry that [`hook_entry`](crate::hook_entry) has defined, and a descriptor that it takes.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn enter_as_stub(arg: usize, descriptor: usize, entry: *const ()) -> *mut u8 {
    core::arch::naked_asm!("mov x17, x1", "br x2")
}

/// Returns the thread pointer.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: the instruction only reads a register.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) tp, options(nostack, nomem, preserves_flags));
    }
    tp
}

/// Returns whether `counter` can be read and runs at one speed on all processors: by the name of the clock
/// source that the kernel has chosen, and by what `/proc/cpuinfo` says of the processors.
#[must_use]
pub fn counter_is_steady(clocksource: &str, _cpuinfo: &str) -> bool {
    clocksource == "arch_sys_counter"
}

/// Whether processors do loads in the program's order, also as other processors see it: these may not (Arm
/// ARM, B2.3).
pub const LOADS_IN_ORDER: bool = false;

/// Reads the virtual counter of the generic timer.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: the instructions only read a register, which Linux makes readable.
    unsafe {
        core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks,
            options(nostack, preserves_flags));
    }
    ticks
}

/// Reads the counter after all earlier loads have been done. The register may be read out of order, so the
/// loads are waited for, and the read is kept behind that (Arm ARM, D12.2.2).
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn counter_after_loads() -> u64 {
    let ticks: u64;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("dsb ishld", "isb", "mrs {}, cntvct_el0", out(reg) ticks,
            options(nostack, preserves_flags));
    }
    ticks
}

/// Makes the processor fetch the cache line of an address, without waiting for it. An address that can't be
/// read does no harm (Arm ARM, C6.2, PRFM).
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    // SAFETY: a hint, which changes no state of the program.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) p,
            options(nostack, preserves_flags, readonly));
    }
}

/// Copies `n` bytes forward.
///
/// # Safety
/// As for C's `memcpy`; the ranges may overlap where `dst` is below `src`.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn copy_forward(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: both ranges are valid, by the caller's promise, and each loop ends with the last byte.
    unsafe {
        core::arch::asm!(
            "2:",
            "subs {n}, {n}, #8",
            "b.lo 3f",
            "ldr {w}, [{src}], #8",
            "str {w}, [{dst}], #8",
            "b 2b",
            "3:",
            "adds {n}, {n}, #8",
            "b.eq 5f",
            "4:",
            "ldrb {w:w}, [{src}], #1",
            "strb {w:w}, [{dst}], #1",
            "subs {n}, {n}, #1",
            "b.ne 4b",
            "5:",
            n = inout(reg) n => _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            w = out(reg) _,
            options(nostack),
        );
    }
}

/// Sets `n` bytes to `byte`.
///
/// # Safety
/// As for C's `memset`.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn fill(dst: *mut u8, byte: u8, n: usize) {
    let word = u64::from(byte).wrapping_mul(0x0101_0101_0101_0101);
    // SAFETY: the range is writable, by the caller's promise, and each loop ends with the last byte.
    unsafe {
        core::arch::asm!(
            "2:",
            "subs {n}, {n}, #8",
            "b.lo 3f",
            "str {w}, [{dst}], #8",
            "b 2b",
            "3:",
            "adds {n}, {n}, #8",
            "b.eq 5f",
            "4:",
            "strb {w:w}, [{dst}], #1",
            "subs {n}, {n}, #1",
            "b.ne 4b",
            "5:",
            n = inout(reg) n => _,
            dst = inout(reg) dst => _,
            w = in(reg) word,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::{FullRegs, Regs};
    use crate::generic::capture::test_copies;

    #[test]
    fn the_counter_is_the_kernels_choice() {
        assert!(counter_is_steady("arch_sys_counter", ""));
        assert!(!counter_is_steady("jiffies", ""));
    }

    #[test]
    fn a_call_as_registers() {
        let regs = Regs { pc: 1, sp: 2, fp: 3 };
        let mut saved = [0; 10];
        saved[0] = 19;
        saved[9] = 28;
        let call = Call {
            args: [9; 6],
            function: 0,
            result: 0,
            regs,
            saved,
            note: [0; 2],
            padding: Default::default(),
        };
        let full = FullRegs::from(&call);
        assert_eq!(Regs::from(full), regs);
        assert_eq!((full.gpr[19], full.gpr[28], full.gpr[30], full.gpr[0]), (19, 28, 1, 0));
    }

    test_copies!("aarch64");
}
