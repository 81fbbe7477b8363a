//! Entries of the hook: the code that stubs jump to, and the registers that it saves.
//!
//! A stub jumps here with the [`Call::function`] in r11 and everything else as the caller left it (System V
//! AMD64 psABI, 3.2.3). The entry saves the arguments and the callee-saved registers that unwinding needs,
//! asks `before` where to go, goes there, and passes the result to `after`.

use super::regs::{R12, R13, R14, R15, RBX, X86_64};
use crate::generic::capture::{self, Entry, check_layout};

pub use crate::generic::capture::Go;

/// See [`capture::Call`].
pub type Call = capture::Call<X86_64>;

impl Entry for X86_64 {
    type Word = u64;
    type Saved = [u64; 5];
    type Padding = [u64; 0];
    const SAVES: &[u16] = &[RBX, R12, R13, R14, R15];
}

// As the assembly below has it.
const _: () = check_layout::<X86_64>(0, 144, 48, 64, 88);

/// Defines an entry `$name` that stubs jump to, around `$before: extern "C" fn(&mut Call) -> Go` and `$after:
/// extern "C" fn(&mut Call) -> u64`. `$after` returns 0, or an address to jump to instead of returning the
/// result.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! hook_entry {
    ($(#[$doc:meta])* $name:ident, $before:path, $after:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                // Unwinders in the program find these rows if its dynamic linker has loaded the hook.
                ".cfi_startproc",
                "endbr64",
                // A frame of the usual form, so that debuggers can unwind through it.
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "sub rsp, 144",
                ".cfi_def_cfa_offset 160",
                "mov [rsp + 80], rbp", // the caller's
                "lea rbp, [rsp + 144]",
                ".cfi_def_cfa rbp, 16",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov [rsp + 48], r11",
                "mov rax, [rbp + 8]", // return address
                "mov [rsp + 64], rax",
                "lea rax, [rbp + 16]", // stack pointer after the return
                "mov [rsp + 72], rax",
                "mov [rsp + 88], rbx",
                "mov [rsp + 96], r12",
                "mov [rsp + 104], r13",
                "mov [rsp + 112], r14",
                "mov [rsp + 120], r15",
                "mov rdi, rsp",
                "call {before}",
                "test rdx, rdx",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "jz 2f",
                "call rax",
                "mov [rsp + 56], rax",
                "mov rdi, rsp",
                "call {after}",
                "test rax, rax",
                "jnz 3f",
                "mov rax, [rsp + 56]",
                ".cfi_remember_state",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_same_value rbp",
                "ret",
                ".cfi_restore_state",
                "3:", // elsewhere instead of returning
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "2:", // jump, as if the hook had never been entered
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_same_value rbp",
                "jmp rax",
                ".cfi_endproc",
                before = sym $before,
                after = sym $after,
            )
        }
    };
}

/// Defines an entry `$name` that stubs jump to. If `$goes_on: fn(argument 0: u64, descriptor: &Function) ->
/// u64` returns an address, the call continues there, with registers as if nothing had been done; if it
/// returns 0, at the entry `$full`. For functions with at most three arguments.
///
/// With `$marks` and the static that they are in, the mark of argument 0 is checked before that (see
/// [`Marks`](crate::Marks)).
///
/// `$goes_on` is called by the convention of another system, in which rdi and rsi are preserved: it is short,
/// and does not need them.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! pass_entry {
    ($(#[$doc:meta])* $name:ident, $goes_on:path, $full:path) => {
        $crate::pass_entry!(@define $(#[$doc])* $name, $goes_on, $full,
            ["endbr64"], []);
    };
    ($(#[$doc:meta])* $name:ident, $goes_on:path, $full:path, $within:path, $marks:path) => {
        $crate::pass_entry!(@define $(#[$doc])* $name, $goes_on, $full,
            ["endbr64",
            "mov rax, [rip + {within} + {base}]",
            "mov r10d, edi",
            "shr r10d, {shift}",
            "and r10d, {mask}",
            "cmp byte ptr [rax + r10 + {first}], 0",
            "jne 2f",
            "cmp dword ptr [rax + {void}], 0",
            "jne 2f",
            "jmp [r11 + {original}]",
            "2:"],
            [within = sym $within,
            base = const $marks.base,
            shift = const $marks.granule.ilog2(),
            mask = const $marks.count - 1,
            first = const $marks.first,
            void = const $marks.void,
            original = const $marks.original,]);
        const _: () = assert!($marks.is_low());
    };
    (@define $(#[$doc:meta])* $name:ident, $goes_on:path, $full:path, [$($first:literal),*], [$($operands:tt)*]) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            extern "win64" fn goes_on(argument: u64, function: &Function) -> u64 {
                $goes_on(argument, function)
            }
            core::arch::naked_asm!(
                ".cfi_startproc",
                $($first,)*
                "push rdx",
                ".cfi_def_cfa_offset 16",
                "push r11",
                ".cfi_def_cfa_offset 24",
                "sub rsp, 40", // 32 bytes are the callee's
                ".cfi_def_cfa_offset 64",
                "mov rcx, rdi",
                "mov rdx, r11",
                "call {goes_on}",
                "add rsp, 40",
                ".cfi_def_cfa_offset 24",
                "pop r11",
                ".cfi_def_cfa_offset 16",
                "pop rdx",
                ".cfi_def_cfa_offset 8",
                "test rax, rax",
                "jz {full}",
                "jmp rax",
                ".cfi_endproc",
                goes_on = sym goes_on,
                full = sym $full,
                $($operands)*
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
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn call_on_stack(
    f: unsafe extern "C" fn(*mut ()),
    arg: *mut (),
    top: *mut u8,
) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa rbp, 16",
        "push rbx",
        ".cfi_offset rbx, -24",
        "push r12",
        ".cfi_offset r12, -32",
        "push r13",
        ".cfi_offset r13, -40",
        "push r14",
        ".cfi_offset r14, -48",
        "push r15",
        ".cfi_offset r15, -56",
        "mov [rdx], rsp",
        "mov rbx, rdx",
        "mov rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov rsp, [rbx]",
        "pop r15",
        ".cfi_same_value r15",
        "pop r14",
        ".cfi_same_value r14",
        "pop r13",
        ".cfi_same_value r13",
        "pop r12",
        ".cfi_same_value r12",
        "pop rbx",
        ".cfi_same_value rbx",
        "pop rbp",
        ".cfi_same_value rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// Returns at once from the [`call_on_stack`] with this `top`.
///
/// # Safety
/// That call must be in progress, on this thread.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn leave_stack(top: *mut u8) -> ! {
    core::arch::naked_asm!(
        "mov rsp, [rdi]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Code that a signal handler of prof's returns to (`sa_restorer`).
///
/// # Safety
/// Only the kernel may use this: it puts the address on the stack, below a signal frame.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("mov rax, 15", "syscall") // rt_sigreturn
}

/// Jumps to an entry of the hook as a stub does, with `arg`, and the descriptor where [`Call::function`] is
/// taken from. Returns what the entry's original returns. For tests that have the hook in their own process.
///
/// # Safety
/// An entry that [`hook_entry`] has defined, and a descriptor that it takes.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn enter_as_stub(arg: usize, descriptor: usize, entry: *const ()) -> *mut u8 {
    core::arch::naked_asm!("mov r11, rsi", "jmp rdx")
}

/// Returns the thread pointer: the word at fs:0 under every libc (System V psABI TLS, variant II).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: the instruction reads the TLS self pointer, which exists wherever malloc can be called.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly, preserves_flags));
    }
    tp
}

/// The time stamp counter is read in steps of 2 to the power of this, some 3 ns: times then take a byte less
/// in recordings, and order is not lost. A block that one thread frees and another gets has passed both locks
/// of the allocator and has moved from one processor's cache into the other's, which takes several steps.
#[cfg(target_arch = "x86_64")]
const STEP: u32 = 3;

/// Reads the time stamp counter, in steps of 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn counter() -> u64 {
    // SAFETY: the instruction exists on every AMD64 processor.
    unsafe { core::arch::x86_64::_rdtsc() >> STEP }
}

/// Whether processors do loads in the program's order, as far as other processors can tell: these do (Intel
/// SDM volume 3, 9.2.2; AMD APM volume 2, 7.2).
pub const LOADS_IN_ORDER: bool = true;

/// Reads the counter after all earlier loads have been done. LFENCE waits for them on Intel's processors
/// always, and on AMD's as Linux sets them up; the pair takes less time than RDTSCP.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn counter_after_loads() -> u64 {
    // SAFETY: the instructions read a counter, which Linux leaves open to all.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc() >> STEP
    }
}

/// Makes the processor fetch the cache line of an address, without waiting for it. An address that can't be
/// read does no harm (Intel SDM volume 2, PREFETCHh).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    // SAFETY: a hint, which changes no state of the program.
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast()) };
}

/// Copies `n` bytes forward.
///
/// # Safety
/// As for C's `memcpy`; the ranges may overlap where `dst` is below `src`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn copy_forward(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: both ranges are valid, by the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!("rep movsb", inout("rdi") dst => _, inout("rsi") src => _,
            inout("rcx") n => _, options(nostack, preserves_flags));
    }
}

/// Sets `n` bytes to `byte`.
///
/// # Safety
/// As for C's `memset`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn fill(dst: *mut u8, byte: u8, n: usize) {
    // SAFETY: the range is writable, by the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!("rep stosb", inout("rdi") dst => _, inout("rcx") n => _, in("al") byte,
            options(nostack, preserves_flags));
    }
}

/// Range in which libc's thread descriptor, which has the thread's id, may lie relative to the thread
/// pointer, which points to it (System V psABI TLS, variant II).
pub const DESCRIPTOR: core::ops::Range<i32> = 0..4096;

/// Returns whether [`counter`] can be read and runs at one speed on all processors: by the name of the clock
/// source that the kernel has chosen, and by what `/proc/cpuinfo` says of the processors.
#[must_use]
pub fn counter_is_steady(clocksource: &str, cpuinfo: &str) -> bool {
    let invariant = cpuinfo.lines().find(|l| l.starts_with("flags")).is_some_and(|l| {
        l.contains("constant_tsc") && l.contains("nonstop_tsc") && l.contains("rdtscp")
    });
    clocksource == "tsc" || (invariant && clocksource == "kvm-clock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::capture::test_copies;
    use crate::x86_64::{FullRegs, Regs};

    #[test]
    fn a_call_as_registers() {
        let regs = Regs { pc: 1, sp: 2, fp: 3 };
        let saved = [13, 14, 15, 16, 17];
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
        let found = [RBX, R12, R13, R14, R15].map(|n| full.gpr[usize::from(n)]);
        assert_eq!((found, full.gpr[0]), (saved, 0));
    }

    test_copies!("x86_64");
}
