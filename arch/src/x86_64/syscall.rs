//! System calls: numbers, instruction bytes, gadgets, and raw calls for code that runs natively
//! without a libc.
//!
//! Numbers: `arch/x86/entry/syscalls/syscall_64.tbl` of the kernel. Convention: System V ABI, AMD64
//! supplement, appendix A.2.1: number in `rax`, arguments in `rdi rsi rdx r10 r8 r9`, result in
//! `rax`, `rcx` and `r11` clobbered.

use crate::generic::syscall;
pub use crate::generic::syscall::{ALL_BUT_FAULTS, ALL_SIGNALS, SIGSET_LEN, SignalSet, popped};
#[cfg(feature = "relocate")]
use memchr::memmem;

/// The instruction `syscall`.
pub const SYSCALL_INSN: [u8; 2] = [0x0f, 0x05];
/// The instructions `syscall; ret`.
pub const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
/// Length of the instruction that loads a system call's number, in bytes.
pub const LOAD_NUMBER_LEN: usize = 5;
/// The instructions `pop rax; ret`.
pub const POP_NUMBER_RET: [u8; 2] = [0x58, 0xc3];
/// A signal restorer: `mov eax, 15; syscall`.
pub const RESTORER: [u8; 7] = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// A signal restorer as glibc has it: `mov rax, 15; syscall`.
pub const RESTORER_REX: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// Size of the kernel's `struct sigaction`, in bytes: handler, flags, restorer, mask.
pub const SIGACTION_LEN: usize = 32;

/// Returns the kernel's `struct sigaction` for a handler with these flags and an empty mask.
#[must_use]
pub fn sigaction(handler: u64, flags: u64, restorer: u64) -> [u8; SIGACTION_LEN] {
    syscall::sigaction(8, handler, flags, restorer)
}

/// Returns the handler in such a structure.
#[must_use]
pub fn sigaction_handler(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

/// Numbers of the system calls that `prof` makes, in itself or in a target.
#[allow(missing_docs)]
pub mod nr {
    pub const READ: u64 = 0;
    pub const WRITE: u64 = 1;
    pub const POLL: u64 = 7;
    pub const CLOSE: u64 = 3;
    pub const MMAP: u64 = 9;
    pub const MPROTECT: u64 = 10;
    pub const MUNMAP: u64 = 11;
    pub const MREMAP: u64 = 25;
    pub const MUNLOCK: u64 = 150;
    pub const RT_SIGACTION: u64 = 13;
    pub const RT_SIGPROCMASK: u64 = 14;
    pub const SIGALTSTACK: u64 = 131;
    pub const RT_SIGRETURN: u64 = 15;
    pub const SCHED_YIELD: u64 = 24;
    pub const MADVISE: u64 = 28;
    pub const NANOSLEEP: u64 = 35;
    pub const GETPID: u64 = 39;
    pub const CLONE: u64 = 56;
    pub const EXIT_GROUP: u64 = 231;
    pub const WAIT4: u64 = 61;
    pub const FORK: u64 = 57;
    pub const CLONE3: u64 = 435;
    pub const FCNTL: u64 = 72;
    pub const FTRUNCATE: u64 = 77;
    pub const PRCTL: u64 = 157;
    pub const GETTID: u64 = 186;
    pub const FUTEX: u64 = 202;
    pub const RESTART_SYSCALL: u64 = 219;
    pub const CLOCK_GETTIME: u64 = 228;
    pub const CLOCK_NANOSLEEP: u64 = 230;
    pub const TGKILL: u64 = 234;
    pub const PROCESS_VM_READV: u64 = 310;
    pub const MEMFD_CREATE: u64 = 319;
    pub const UNSHARE: u64 = 272;
}

/// Returns the offset of a `syscall; ret` in executable bytes (of libc, say, or the vDSO).
#[cfg(feature = "relocate")]
#[must_use]
pub fn find_syscall_ret_gadget(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, &SYSCALL_RET)
}

/// Returns the offset of a signal restorer in executable bytes (every libc has one).
#[cfg(feature = "relocate")]
#[must_use]
pub fn find_restorer(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, &RESTORER_REX).or_else(|| memmem::find(bytes, &RESTORER))
}

/// Returns the number of the system call that `code` ends before, if it is loaded right before it: `mov eax,
/// imm32`.
#[must_use]
pub fn number_before(code: &[u8]) -> Option<u64> {
    const MOV_EAX: u8 = 0xb8;
    let last = code.last_chunk::<LOAD_NUMBER_LEN>()?;
    (last[0] == MOV_EAX).then(|| u32::from_le_bytes([last[1], last[2], last[3], last[4]]).into())
}

/// Returns the offset of code that pops a system call's number and returns: with a system call instruction to
/// return to, it does what a restorer does.
#[cfg(feature = "relocate")]
#[must_use]
pub fn find_pop_number_gadget(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, &POP_NUMBER_RET)
}

#[cfg(target_arch = "x86_64")]
pub use raw::*;

/// Raw system calls of this process. Results are the kernel's: -4095 to -1 are negated error numbers.
#[cfg(target_arch = "x86_64")]
mod raw {
    use core::arch::asm;

    macro_rules! raw_syscall {
        ($(#[$doc:meta])* $name:ident($($arg:ident in $reg:tt),*)) => {
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// The call's effects must be such as this process can stand: the kernel does what it is told.
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $name(nr: u64 $(, $arg: u64)*) -> i64 {
                let result: i64;
                // SAFETY: the instruction clobbers nothing but what is declared; the caller answers for its
                // effects.
                unsafe {
                    asm!(
                        "syscall",
                        inlateout("rax") nr as i64 => result,
                        $(in($reg) $arg,)*
                        lateout("rcx") _,
                        lateout("r11") _,
                        options(nostack),
                    );
                }
                result
            }
        };
    }

    raw_syscall!(
        /// Makes a system call without arguments.
        syscall0()
    );
    raw_syscall!(
        /// Makes a system call with one argument.
        syscall1(a in "rdi")
    );
    raw_syscall!(
        /// Makes a system call with two arguments.
        syscall2(a in "rdi", b in "rsi")
    );
    raw_syscall!(
        /// Makes a system call with three arguments.
        syscall3(a in "rdi", b in "rsi", c in "rdx")
    );
    raw_syscall!(
        /// Makes a system call with four arguments.
        syscall4(a in "rdi", b in "rsi", c in "rdx", d in "r10")
    );
    raw_syscall!(
        /// Makes a system call with five arguments.
        syscall5(a in "rdi", b in "rsi", c in "rdx", d in "r10", e in "r8")
    );
    raw_syscall!(
        /// Makes a system call with six arguments.
        syscall6(a in "rdi", b in "rsi", c in "rdx", d in "r10", e in "r8", f in "r9")
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::syscall::test_raw_calls;

    #[cfg(feature = "relocate")]
    #[test]
    fn gadgets() {
        assert_eq!(find_syscall_ret_gadget(&[0x90, 0x0f, 0x05, 0x48, 0x0f, 0x05, 0xc3]), Some(4));
        assert_eq!(find_syscall_ret_gadget(&[0x0f, 0x05]), None);
        assert_eq!(find_restorer(&[0x90, 0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]), Some(1));
        assert_eq!(find_restorer(&[]), None);
        assert_eq!(find_pop_number_gadget(&[0x41, 0x58, 0xc3]), Some(1));
    }

    #[test]
    fn numbers() {
        assert_eq!(number_before(&[0x90, 0xb8, 0xe6, 0, 0, 0]), Some(230));
        assert_eq!(number_before(&[0xb8, 0xe6, 0, 0, 0, 0x90]), None);
        assert_eq!(number_before(&[0xe6, 0, 0, 0]), None);
    }

    #[test]
    fn sigactions() {
        assert_eq!(sigaction_handler(&sigaction(0x1234, 1 << 28, 0x5678)), 0x1234);
        assert_eq!(sigaction_handler(&[1, 2, 3]), 0);
    }

    test_raw_calls!("x86_64");
}
