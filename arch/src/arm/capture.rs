//! Entries of the hook: the code that stubs jump to, and the registers that it saves. All of it is ARM code.
//!
//! A stub jumps here with the [`Call::function`] in ip and everything else as the caller left it (AAPCS32,
//! 6.1.1). The entry saves the arguments and the callee-saved registers that unwinding needs, asks `before`
//! where to go, goes there, and passes the result to `after`.

use super::regs::{Arm, R7, R11};
use crate::generic::capture::{self, Entry, check_layout};

pub use crate::generic::capture::Go;

/// Range in which libc's thread descriptor, which has the thread's id, may lie relative to the thread
/// pointer: below it (aaelf32 TLS, variant I, as glibc and musl have it).
pub const DESCRIPTOR: core::ops::Range<i32> = -4096..0;

/// See [`capture::Call`].
pub type Call = capture::Call<Arm>;

impl Entry for Arm {
    type Word = u32;
    type Saved = [u32; 8];
    type Padding = [u64; 0];
    const SAVES: &[u16] = &[4, 5, 6, R7, 8, 9, 10, R11];
}

/// Offset of the [`Call`] in the stack frame of an entry: two arguments for the original, [`Go`], [`Call`],
/// r11 and lr.
const CALL_AT: usize = 24;
const _: () = check_layout::<Arm>(CALL_AT, 160 - CALL_AT, 72, 88, 112);

/// Defines an entry `$name` that stubs jump to, around `$before: extern "C" fn(&mut Call) -> Go` and `$after:
/// extern "C" fn(&mut Call) -> u64`. `$after` returns 0, or an address to jump to instead of returning the
/// result. For functions with at most four arguments.
#[cfg(target_arch = "arm")]
#[macro_export]
macro_rules! hook_entry {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                // Unwinders in the program find this row if its dynamic linker has loaded the hook. It holds for the calls.
                ".fnstart",
                ".save {{r11, lr}}",
                "push {{r11, lr}}",
                ".pad #20",
                ".save {{r4-r10}}",
                ".pad #112",
                "sub sp, sp, #160",
                "str ip, [sp, #72]",
                "add ip, sp, #112",
                "stmia ip, {{r4-r11}}",
                "add r11, sp, #160",
                "mov ip, #0", // the upper halves
                "str r0, [sp, #24]",
                "str ip, [sp, #28]",
                "str r1, [sp, #32]",
                "str ip, [sp, #36]",
                "str r2, [sp, #40]",
                "str ip, [sp, #44]",
                "str r3, [sp, #48]",
                "str ip, [sp, #52]",
                "str ip, [sp, #56]",
                "str ip, [sp, #60]",
                "str ip, [sp, #64]",
                "str ip, [sp, #68]",
                "str ip, [sp, #76]",
                "str ip, [sp, #84]",
                "bic r4, lr, #1",
                "str r4, [sp, #88]",
                "str ip, [sp, #92]",
                "add r4, r11, #8", // stack pointer after the return
                "str r4, [sp, #96]",
                "str ip, [sp, #100]",
                "str r7, [sp, #104]",
                "str ip, [sp, #108]",
                "add r0, sp, #8",
                "add r1, sp, #24",
                "bl {before}",
                "ldr ip, [sp, #8]",
                "ldr lr, [sp, #16]",
                "ldr r0, [sp, #24]",
                "ldr r1, [sp, #32]",
                "ldr r2, [sp, #40]",
                "ldr r3, [sp, #48]",
                "cmp lr, #0",
                "beq 2f",
                "blx ip",
                "str r0, [sp, #80]",
                "add r0, sp, #24",
                "bl {after}",
                "cmp r0, #0",
                "bne 3f",
                "ldr r0, [sp, #80]",
                // All of it by the stack pointer: unwinding, which knows nothing of r11, follows this when the
                // original calls another hooked function.
                "add sp, sp, #112",
                "pop {{r4-r10}}",
                "add sp, sp, #20",
                "pop {{r11, pc}}",
                "3:", // elsewhere instead of returning
                "mov ip, r0",
                "ldr r0, [sp, #24]",
                "ldr r1, [sp, #32]",
                "ldr r2, [sp, #40]",
                "ldr r3, [sp, #48]",
                "2:", // jump, as if the hook had never been entered
                "add lr, sp, #112",
                "ldmia lr, {{r4-r10}}",
                "mov sp, r11",
                "pop {{r11, lr}}",
                "bx ip",
                ".fnend",
                before = sym $before,
                after = sym $after,
            )
        }
    };
}

/// Defines an entry `$name` that stubs jump to. If `$goes_on: fn(argument 0: u64, descriptor: &Function) ->
/// u64` returns an address, the call continues there, with registers as if nothing had been done; if it
/// returns 0, at the entry `$full`. `$goes_on` checks marks by itself (see [`Marks`](crate::Marks)). For
/// functions with at most four arguments.
#[cfg(target_arch = "arm")]
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
                ".fnstart",
                ".save {{lr}}",
                ".pad #20",
                "push {{r0-r3, ip, lr}}",
                "mov r1, #0",
                "mov r2, ip",
                "bl {goes_on}",
                "cmp r0, #0",
                "beq 2f",
                "str r0, [sp, #16]",
                "pop {{r0-r3, ip, lr}}",
                "bx ip",
                "2:",
                "pop {{r0-r3, ip, lr}}",
                "b {full}",
                ".fnend",
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
/// `top` must be 8-byte aligned, with enough writable memory below it, and a word above it, that nobody else
/// uses.
#[cfg(target_arch = "arm")]
#[unsafe(naked)]
pub unsafe extern "C" fn call_on_stack(
    f: unsafe extern "C" fn(*mut ()),
    arg: *mut (),
    top: *mut u8,
) {
    core::arch::naked_asm!(
        "push {{r3-r11, lr}}",
        "vpush {{d8-d15}}",
        "str sp, [r2]",
        "mov r4, r2",
        "mov sp, r2",
        "mov ip, r0",
        "mov r0, r1",
        "blx ip",
        "mov r0, r4",
        "b {leave}",
        leave = sym leave_stack,
    )
}

/// Returns at once from the [`call_on_stack`] with this `top`.
///
/// # Safety
/// That call must be in progress, on this thread.
#[cfg(target_arch = "arm")]
#[unsafe(naked)]
pub unsafe extern "C" fn leave_stack(top: *mut u8) -> ! {
    core::arch::naked_asm!("ldr sp, [r0]", "vpop {{d8-d15}}", "pop {{r3-r11, pc}}")
}

/// Code that a signal handler of prof's without `SA_SIGINFO` returns to (`sa_restorer`).
///
/// # Safety
/// Only for the kernel to put into the link register of a signal handler.
#[cfg(target_arch = "arm")]
#[unsafe(naked)]
pub unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("mov r7, #119", "svc #0") // sigreturn
}

/// Jumps to an entry of the hook as a stub does, with `arg`, and the descriptor where [`Call::function`] is
/// taken from. Returns what the entry's original returns. For tests that have the hook in their own process.
///
/// # Safety
/// `entry` must be one of [`hook_entry`](crate::hook_entry), and the descriptor one that it takes.
#[cfg(target_arch = "arm")]
#[unsafe(naked)]
pub unsafe extern "C" fn enter_as_stub(arg: usize, descriptor: usize, entry: *const ()) -> *mut u8 {
    core::arch::naked_asm!("mov ip, r1", "bx r2")
}

/// Returns the thread pointer.
#[cfg(target_arch = "arm")]
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let tp: u32;
    // SAFETY: the instruction only reads a register.
    unsafe {
        core::arch::asm!("mrc p15, 0, {}, c13, c0, 3", out(reg) tp,
            options(nostack, nomem, preserves_flags));
    }
    tp.into()
}

/// Returns whether `counter` can be read and runs at one speed on all processors: by the name of the clock
/// source that the kernel has chosen, and by what `/proc/cpuinfo` says of the processors.
#[must_use]
pub fn counter_is_steady(clocksource: &str, _cpuinfo: &str) -> bool {
    clocksource == "arch_sys_counter"
}

/// Whether processors do loads in the program's order, also as other processors see it: these may not (Arm
/// ARM, A3.8).
pub const LOADS_IN_ORDER: bool = false;

/// Reads the virtual counter of the generic timer, which Linux makes readable where it is the kernel's
/// choice.
#[cfg(target_arch = "arm")]
#[inline(always)]
pub fn counter() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the instructions only read a register, and only where `counter_is_steady`.
    unsafe {
        core::arch::asm!("isb", "mrrc p15, 1, {}, {}, c14", out(reg) low, out(reg) high,
            options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Reads the counter after all earlier loads have been done. The register may be read out of order, so the
/// loads are waited for, and the read is kept behind that (Arm ARM, B8.1.2).
#[cfg(target_arch = "arm")]
#[inline(always)]
pub fn counter_after_loads() -> u64 {
    // SAFETY: a barrier, which changes no state of the program.
    unsafe { core::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
    counter()
}

/// Makes the processor fetch the cache line of an address, without waiting for it. An address that can't be
/// read does no harm (Arm ARM, A8.8, PLD).
#[cfg(target_arch = "arm")]
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    // SAFETY: a hint, which changes no state of the program.
    unsafe { core::arch::asm!("pld [{}]", in(reg) p, options(nostack, preserves_flags, readonly)) };
}

/// Copies `n` bytes forward.
///
/// # Safety
/// As for C's `memcpy`; the ranges may overlap where `dst` is below `src`.
#[cfg(target_arch = "arm")]
#[inline(always)]
pub unsafe fn copy_forward(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: both ranges are valid, by the caller's promise, and each loop ends with the last byte. Words
    // need not be aligned.
    unsafe {
        core::arch::asm!(
            "2:",
            "subs {n}, {n}, #4",
            "blo 3f",
            "ldr {w}, [{src}], #4",
            "str {w}, [{dst}], #4",
            "b 2b",
            "3:",
            "adds {n}, {n}, #4",
            "beq 5f",
            "4:",
            "ldrb {w}, [{src}], #1",
            "strb {w}, [{dst}], #1",
            "subs {n}, {n}, #1",
            "bne 4b",
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
#[cfg(target_arch = "arm")]
#[inline(always)]
pub unsafe fn fill(dst: *mut u8, byte: u8, n: usize) {
    let word = u32::from(byte).wrapping_mul(0x0101_0101);
    // SAFETY: the range is writable, by the caller's promise, and each loop ends with the last byte. Words
    // need not be aligned.
    unsafe {
        core::arch::asm!(
            "2:",
            "subs {n}, {n}, #4",
            "blo 3f",
            "str {w}, [{dst}], #4",
            "b 2b",
            "3:",
            "adds {n}, {n}, #4",
            "beq 5f",
            "4:",
            "strb {w}, [{dst}], #1",
            "subs {n}, {n}, #1",
            "bne 4b",
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
    use crate::arm::{FullRegs, Regs};
    use crate::generic::capture::test_copies;

    #[test]
    fn the_counter_is_the_kernels_choice() {
        assert!(counter_is_steady("arch_sys_counter", ""));
        assert!(!counter_is_steady("jiffies", ""));
    }

    #[test]
    fn a_call_as_registers() {
        let regs = Regs { pc: 1, sp: 2, fp: 7 };
        let saved = [4, 5, 6, 7, 8, 9, 10, 11];
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
        assert_eq!((full.gpr[4], full.gpr[11], full.gpr[14], full.gpr[0]), (4, 11, 1, 0));
    }

    test_copies!("arm");
}
