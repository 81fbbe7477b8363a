//! Entries of the hook: the code that stubs jump to, and the registers that it saves.
//!
//! A stub jumps here with the [`Call::function`] in `$t8`, this code's own address in `$t9` and everything
//! else as the caller left it. The entry saves the arguments and the callee-saved registers that unwinding
//! needs, asks `before` where to go, goes there, and passes the result to `after`.

use super::regs::{GP, Mips64};
use crate::generic::capture::{self, Entry, check_layout};

pub use crate::generic::capture::Go;

/// Range in which libc's thread descriptor, which has the thread's id, may lie relative to the thread
/// pointer, which points 0x7000 bytes above the end of the descriptor (TLS, variant I, as glibc and musl have
/// it).
pub const DESCRIPTOR: core::ops::Range<i32> = -0x7000 - 4096..-0x7000;

/// See [`capture::Call`].
pub type Call = capture::Call<Mips64>;

impl Entry for Mips64 {
    type Word = u64;
    type Saved = [u64; 9];
    type Padding = [u64; 0];
    const SAVES: &[u16] = &[16, 17, 18, 19, 20, 21, 22, 23, GP];
}

// As the assembly below has it.
const _: () = check_layout::<Mips64>(0, 176, 48, 64, 88);

/// Defines an entry `$name` that stubs jump to, around `$before: extern "C" fn(&mut Call) -> Go` and `$after:
/// extern "C" fn(&mut Call) -> u64`. `$after` returns 0, or an address to jump to instead of returning the
/// result.
#[cfg(target_arch = "mips64")]
#[macro_export]
macro_rules! hook_entry {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".set push",
                ".set noreorder",
                ".set noat",
                ".cfi_startproc",
                "daddiu $29, $29, -208",
                ".cfi_def_cfa_offset 208",
                "sd $31, 176($29)",
                ".cfi_offset 31, -32",
                "sd $28, 184($29)",
                ".cfi_offset 28, -24",
                "lui $28, %hi(%neg(%gp_rel({name})))",
                "daddu $28, $28, $25",
                "daddiu $28, $28, %lo(%neg(%gp_rel({name})))",
                "sd $4, 0($29)",
                "sd $5, 8($29)",
                "sd $6, 16($29)",
                "sd $7, 24($29)",
                "sd $8, 32($29)",
                "sd $9, 40($29)",
                "sd $24, 48($29)",
                "sd $31, 64($29)",
                "daddiu $1, $29, 208", // stack pointer after the return
                "sd $1, 72($29)",
                "sd $30, 80($29)",
                "sd $16, 88($29)",
                "sd $17, 96($29)",
                "sd $18, 104($29)",
                "sd $19, 112($29)",
                "sd $20, 120($29)",
                "sd $21, 128($29)",
                "sd $22, 136($29)",
                "sd $23, 144($29)",
                "ld $1, 184($29)",
                "sd $1, 152($29)",
                "ld $25, %got_disp({before})($28)",
                "jalr $25",
                "move $4, $29",
                "move $25, $2",
                "ld $4, 0($29)",
                "ld $5, 8($29)",
                "ld $6, 16($29)",
                "ld $7, 24($29)",
                "ld $8, 32($29)",
                "beqz $3, 2f",
                "ld $9, 40($29)",
                "jalr $25",
                "nop",
                "sd $2, 56($29)",
                "ld $25, %got_disp({after})($28)",
                "jalr $25",
                "move $4, $29",
                "bnez $2, 3f",
                "ld $31, 176($29)",
                "ld $2, 56($29)",
                "ld $28, 184($29)",
                "jr $31",
                "daddiu $29, $29, 208",
                "3:", // elsewhere instead of returning
                "move $25, $2",
                "ld $4, 0($29)",
                "ld $5, 8($29)",
                "ld $6, 16($29)",
                "ld $7, 24($29)",
                "ld $8, 32($29)",
                "ld $9, 40($29)",
                "2:", // jump, as if the hook had never been entered
                "ld $31, 176($29)",
                "ld $28, 184($29)",
                "jr $25",
                "daddiu $29, $29, 208", // an interrupted delay slot has the address of its branch
                ".cfi_endproc",
                ".set pop",
                name = sym $name,
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
#[cfg(target_arch = "mips64")]
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
                ".set push",
                ".set noreorder",
                ".set noat",
                ".cfi_startproc",
                "daddiu $29, $29, -48",
                ".cfi_def_cfa_offset 48",
                "sd $31, 0($29)",
                ".cfi_offset 31, -48",
                "sd $28, 8($29)",
                ".cfi_offset 28, -40",
                "lui $28, %hi(%neg(%gp_rel({name})))",
                "daddu $28, $28, $25",
                "daddiu $28, $28, %lo(%neg(%gp_rel({name})))",
                "sd $4, 16($29)",
                "sd $5, 24($29)",
                "sd $6, 32($29)",
                "sd $24, 40($29)",
                "ld $25, %got_disp({goes_on})($28)",
                "jalr $25",
                "move $5, $24",
                "move $25, $2",
                "ld $4, 16($29)",
                "ld $5, 24($29)",
                "ld $6, 32($29)",
                "bnez $2, 2f",
                "ld $24, 40($29)",
                "ld $25, %got_disp({full})($28)",
                "2:",
                "ld $31, 0($29)",
                "ld $28, 8($29)",
                "jr $25",
                "daddiu $29, $29, 48",
                ".cfi_endproc",
                ".set pop",
                name = sym $name,
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
#[cfg(target_arch = "mips64")]
#[unsafe(naked)]
pub unsafe extern "C" fn call_on_stack(
    f: unsafe extern "C" fn(*mut ()),
    arg: *mut (),
    top: *mut u8,
) {
    core::arch::naked_asm!(
        ".set push",
        ".set noreorder",
        ".cfi_startproc",
        "daddiu $29, $29, -160",
        ".cfi_def_cfa_offset 160",
        "sd $31, 0($29)",
        ".cfi_offset 31, -160",
        "sd $30, 8($29)",
        ".cfi_offset 30, -152",
        "sd $28, 16($29)",
        ".cfi_offset 28, -144",
        "sd $16, 24($29)",
        ".cfi_offset 16, -136",
        "sd $17, 32($29)",
        ".cfi_offset 17, -128",
        "sd $18, 40($29)",
        ".cfi_offset 18, -120",
        "sd $19, 48($29)",
        ".cfi_offset 19, -112",
        "sd $20, 56($29)",
        ".cfi_offset 20, -104",
        "sd $21, 64($29)",
        ".cfi_offset 21, -96",
        "sd $22, 72($29)",
        ".cfi_offset 22, -88",
        "sd $23, 80($29)",
        ".cfi_offset 23, -80",
        "sdc1 $f24, 88($29)",
        ".cfi_offset 56, -72",
        "sdc1 $f25, 96($29)",
        ".cfi_offset 57, -64",
        "sdc1 $f26, 104($29)",
        ".cfi_offset 58, -56",
        "sdc1 $f27, 112($29)",
        ".cfi_offset 59, -48",
        "sdc1 $f28, 120($29)",
        ".cfi_offset 60, -40",
        "sdc1 $f29, 128($29)",
        ".cfi_offset 61, -32",
        "sdc1 $f30, 136($29)",
        ".cfi_offset 62, -24",
        "sdc1 $f31, 144($29)",
        ".cfi_offset 63, -16",
        "lui $28, %hi(%neg(%gp_rel({me})))",
        "daddu $28, $28, $25",
        "daddiu $28, $28, %lo(%neg(%gp_rel({me})))",
        "sd $29, 0($6)",
        "move $16, $6",
        // The frame is at the address that stands where $16 points: DW_CFA_def_cfa_expression of DW_OP_breg16 0, DW_OP_deref,
        // DW_OP_plus_uconst 160.
        ".cfi_escape 0x0f, 6, 0x80, 0, 0x06, 0x23, 0xa0, 0x01",
        "move $29, $6",
        "move $25, $4",
        "jalr $25",
        "move $4, $5",
        "ld $25, %got_disp({leave})($28)",
        "jr $25",
        "move $4, $16",
        ".cfi_endproc",
        ".set pop",
        me = sym call_on_stack,
        leave = sym leave_stack,
    )
}

/// Returns at once from the [`call_on_stack`] with this `top`.
///
/// # Safety
/// That call must be in progress, on this thread.
#[cfg(target_arch = "mips64")]
#[unsafe(naked)]
pub unsafe extern "C" fn leave_stack(top: *mut u8) -> ! {
    core::arch::naked_asm!(
        ".set push",
        ".set noreorder",
        "ld $29, 0($4)",
        "ld $31, 0($29)",
        "ld $30, 8($29)",
        "ld $28, 16($29)",
        "ld $16, 24($29)",
        "ld $17, 32($29)",
        "ld $18, 40($29)",
        "ld $19, 48($29)",
        "ld $20, 56($29)",
        "ld $21, 64($29)",
        "ld $22, 72($29)",
        "ld $23, 80($29)",
        "ldc1 $f24, 88($29)",
        "ldc1 $f25, 96($29)",
        "ldc1 $f26, 104($29)",
        "ldc1 $f27, 112($29)",
        "ldc1 $f28, 120($29)",
        "ldc1 $f29, 128($29)",
        "ldc1 $f30, 136($29)",
        "ldc1 $f31, 144($29)",
        "jr $31",
        "daddiu $29, $29, 160",
        ".set pop",
    )
}

/// Code that a signal handler of prof's would return to; Linux on MIPS has one of its own and takes none.
///
/// # Safety
/// Only a signal handler may return to it.
#[cfg(target_arch = "mips64")]
#[unsafe(naked)]
pub unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("addiu $2, $0, 5211", "syscall") // rt_sigreturn
}

/// Jumps to an entry of the hook as a stub does, with `arg`, and the descriptor where [`Call::function`] is
/// taken from. Returns what the entry's original returns. For tests that have the hook in their own process.
///
/// # Safety
/// An entry that [`hook_entry`](crate::hook_entry) has defined, and a descriptor that it takes.
#[cfg(target_arch = "mips64")]
#[unsafe(naked)]
pub unsafe extern "C" fn enter_as_stub(arg: usize, descriptor: usize, entry: *const ()) -> *mut u8 {
    core::arch::naked_asm!(
        ".set push",
        ".set noreorder",
        "move $24, $5",
        "move $25, $6",
        "jr $25",
        "nop",
        ".set pop",
    )
}

/// Returns the thread pointer. Where the processor has no such register, the kernel emulates it.
#[cfg(target_arch = "mips64")]
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: the instruction only reads a register.
    unsafe {
        core::arch::asm!(
            ".set push", ".set mips64r2", "rdhwr $3, $29", ".set pop",
            out("$3") tp, options(nostack, nomem, preserves_flags)
        );
    }
    tp
}

/// Returns whether `counter` runs at one speed on all processors and can be read: never. The counter has 32
/// bits, which overflow within seconds, each processor has its own, and not every one lets programs read it.
/// So the kernel's clock is used.
#[must_use]
pub fn counter_is_steady(_clocksource: &str, _cpuinfo: &str) -> bool {
    false
}

/// Whether processors do loads in the program's order, also as other processors see it: these may not.
pub const LOADS_IN_ORDER: bool = false;

/// Reads the processor's cycle counter, where programs may read it: 32 bits, see [`counter_is_steady`].
#[cfg(target_arch = "mips64")]
#[inline(always)]
pub fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: the instruction only reads a register.
    unsafe {
        core::arch::asm!(
            ".set push", ".set noat", ".set mips64r2", "rdhwr {}, $2", ".set pop",
            out(reg) ticks, options(nostack, preserves_flags)
        );
    }
    ticks & 0xffff_ffff
}

/// Reads the counter after all earlier loads have been done.
#[cfg(target_arch = "mips64")]
#[inline(always)]
pub fn counter_after_loads() -> u64 {
    // SAFETY: a barrier, which changes no state of the program.
    unsafe { core::arch::asm!("sync", options(nostack, preserves_flags)) };
    counter()
}

/// Loads or stores 8 unaligned bytes, in two parts: which instruction has which end of them depends on the
/// byte order.
#[cfg(all(target_arch = "mips64", target_endian = "little"))]
macro_rules! unaligned {
    ($left:literal, $right:literal, $base:literal) => {
        concat!($right, " {w}, 0({", $base, "})\n", $left, " {w}, 7({", $base, "})")
    };
}
/// Loads or stores 8 unaligned bytes, in two parts, in the big byte order.
#[cfg(all(target_arch = "mips64", target_endian = "big"))]
macro_rules! unaligned {
    ($left:literal, $right:literal, $base:literal) => {
        concat!($left, " {w}, 0({", $base, "})\n", $right, " {w}, 7({", $base, "})")
    };
}

/// Makes the processor fetch the cache line of an address, without waiting for it. An address that can't be
/// read does no harm (MIPS64 architecture, volume II, PREF).
#[cfg(target_arch = "mips64")]
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    // SAFETY: a hint, which changes no state of the program.
    unsafe {
        core::arch::asm!("pref 0, 0({})", in(reg) p, options(nostack, preserves_flags, readonly));
    }
}

/// Copies `n` bytes forward.
///
/// # Safety
/// As for C's `memcpy`; the ranges may overlap where `dst` is below `src`.
#[cfg(target_arch = "mips64")]
#[inline(always)]
pub unsafe fn copy_forward(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: both ranges are valid, by the caller's promise, and each loop ends with the last byte. `ldl`
    // and `ldr` load the two parts of an unaligned word.
    unsafe {
        core::arch::asm!(
            ".set push",
            ".set noreorder",
            ".set noat",
            "2:",
            "sltiu {w}, {n}, 8",
            "bnez {w}, 3f",
            "nop",
            unaligned!("ldl", "ldr", "src"),
            unaligned!("sdl", "sdr", "dst"),
            "daddiu {src}, {src}, 8",
            "daddiu {dst}, {dst}, 8",
            "b 2b",
            "daddiu {n}, {n}, -8",
            "3:",
            "beqz {n}, 5f",
            "nop",
            "4:",
            "lbu {w}, 0({src})",
            "sb {w}, 0({dst})",
            "daddiu {src}, {src}, 1",
            "daddiu {n}, {n}, -1",
            "bnez {n}, 4b",
            "daddiu {dst}, {dst}, 1",
            "5:",
            ".set pop",
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
#[cfg(target_arch = "mips64")]
#[inline(always)]
pub unsafe fn fill(dst: *mut u8, byte: u8, n: usize) {
    // SAFETY: the range is writable, by the caller's promise, and the loop ends with the last byte.
    unsafe {
        core::arch::asm!(
            ".set push",
            ".set noreorder",
            ".set noat",
            "beqz {n}, 3f",
            "nop",
            "2:",
            "sb {w}, 0({dst})",
            "daddiu {n}, {n}, -1",
            "bnez {n}, 2b",
            "daddiu {dst}, {dst}, 1",
            "3:",
            ".set pop",
            n = inout(reg) n => _,
            dst = inout(reg) dst => _,
            w = in(reg) u64::from(byte),
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::capture::test_copies;
    use crate::mips64::{FullRegs, Regs};

    #[test]
    fn the_counter_is_not_used() {
        assert!(!counter_is_steady("MIPS", "") && !counter_is_steady("GIC", ""));
    }

    #[test]
    fn a_call_as_registers() {
        let regs = Regs { pc: 1, sp: 2, fp: 3 };
        let saved = [16, 17, 18, 19, 20, 21, 22, 23, 28];
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
        assert_eq!((full.gpr[16], full.gpr[23], full.gpr[28], full.gpr[31]), (16, 23, 28, 1));
        assert_eq!((full.gpr[24], full.gpr[4]), (0, 0));
    }
    test_copies!("mips64");
}
