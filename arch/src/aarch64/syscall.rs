//! System calls: numbers, instruction bytes, gadgets, and raw calls for code that runs natively
//! without a libc.
//!
//! Numbers: `include/uapi/asm-generic/unistd.h` of the kernel. Convention: number in `x8`, arguments
//! in `x0` to `x5`, result in `x0`; the kernel preserves all other registers
//! (`arch/arm64/kernel/entry.S`).

use crate::generic::syscall;
pub use crate::generic::syscall::{
    ALL_BUT_FAULTS, ALL_SIGNALS, SIGSET_LEN, SignalSet, find_pop_number_gadget, popped,
};

/// The instruction `svc #0`.
pub const SYSCALL_INSN: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];
/// The instructions `svc #0; ret`.
pub const SYSCALL_RET: [u8; 8] = [0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
/// A signal restorer: `mov x8, #139; svc #0`. The kernel's own is in the vDSO.
pub const RESTORER: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];
/// Length of the instruction that loads a system call's number, in bytes.
pub const LOAD_NUMBER_LEN: usize = 4;

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
    pub const FCNTL: u64 = 25;
    pub const FTRUNCATE: u64 = 46;
    pub const CLOSE: u64 = 57;
    pub const READ: u64 = 63;
    pub const WRITE: u64 = 64;
    pub const FUTEX: u64 = 98;
    pub const NANOSLEEP: u64 = 101;
    pub const CLOCK_GETTIME: u64 = 113;
    pub const CLOCK_NANOSLEEP: u64 = 115;
    pub const SCHED_YIELD: u64 = 124;
    pub const RESTART_SYSCALL: u64 = 128;
    pub const TGKILL: u64 = 131;
    pub const RT_SIGACTION: u64 = 134;
    pub const RT_SIGPROCMASK: u64 = 135;
    pub const SIGALTSTACK: u64 = 132;
    pub const RT_SIGRETURN: u64 = 139;
    pub const PRCTL: u64 = 167;
    pub const GETPID: u64 = 172;
    pub const CLONE: u64 = 220;
    pub const EXIT_GROUP: u64 = 94;
    pub const WAIT4: u64 = 260;
    /// A number that no system call has.
    pub const FORK: u64 = u64::MAX;
    pub const CLONE3: u64 = 435;
    pub const GETTID: u64 = 178;
    pub const MUNMAP: u64 = 215;
    pub const MREMAP: u64 = 216;
    pub const MUNLOCK: u64 = 229;
    pub const MMAP: u64 = 222;
    pub const MPROTECT: u64 = 226;
    pub const MADVISE: u64 = 233;
    pub const PROCESS_VM_READV: u64 = 270;
    pub const MEMFD_CREATE: u64 = 279;
    pub const UNSHARE: u64 = 97;
}

/// Returns the offset of the instructions `pattern` in `bytes`, which begin with a whole instruction.
fn find(bytes: &[u8], pattern: &[u8; 8]) -> Option<usize> {
    let step = |n: usize| n.wrapping_mul(4);
    (0..bytes.len() / 4)
        .map(step)
        .find(|&at| bytes.get(at..).is_some_and(|b| b.starts_with(pattern)))
}

/// Returns the offset of a `svc #0; ret` in executable bytes (of libc, say, or the vDSO).
#[must_use]
pub fn find_syscall_ret_gadget(bytes: &[u8]) -> Option<usize> {
    find(bytes, &SYSCALL_RET)
}

/// Returns the offset of a signal restorer in executable bytes (the vDSO has one).
#[must_use]
pub fn find_restorer(bytes: &[u8]) -> Option<usize> {
    find(bytes, &RESTORER)
}

/// Returns the number of the system call that `code` ends before, if it is loaded right before it: `mov x8,
/// #number`, or `mov w8, #number`.
#[must_use]
pub fn number_before(code: &[u8]) -> Option<u64> {
    let load = u32::from_le_bytes(*code.last_chunk::<LOAD_NUMBER_LEN>()?);
    (load & 0x7fe0_001f == 0x5280_0008).then_some((load >> 5 & 0xffff).into())
}

#[cfg(target_arch = "aarch64")]
pub use raw::*;

/// Raw system calls of this process. Results are the kernel's: -4095 to -1 are negated error numbers.
#[cfg(target_arch = "aarch64")]
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
            pub unsafe fn $name(nr: u64, first: u64 $(, $arg: u64)*) -> i64 {
                let result: i64;
                // SAFETY: the instruction clobbers nothing but what is declared; the caller answers for its
                // effects.
                unsafe {
                    asm!(
                        "svc #0",
                        in("x8") nr,
                        inlateout("x0") first as i64 => result,
                        $(in($reg) $arg,)*
                        options(nostack, preserves_flags),
                    );
                }
                result
            }
        };
    }

    /// Makes a system call without arguments.
    ///
    /// # Safety
    ///
    /// As for [`syscall1`].
    #[inline(always)]
    pub unsafe fn syscall0(nr: u64) -> i64 {
        // SAFETY: the caller answers for the effects; an extra argument does no harm.
        unsafe { syscall1(nr, 0) }
    }

    raw_syscall!(
        /// Makes a system call with one argument.
        syscall1()
    );
    raw_syscall!(
        /// Makes a system call with two arguments.
        syscall2(b in "x1")
    );
    raw_syscall!(
        /// Makes a system call with three arguments.
        syscall3(b in "x1", c in "x2")
    );
    raw_syscall!(
        /// Makes a system call with four arguments.
        syscall4(b in "x1", c in "x2", d in "x3")
    );
    raw_syscall!(
        /// Makes a system call with five arguments.
        syscall5(b in "x1", c in "x2", d in "x3", e in "x4")
    );
    raw_syscall!(
        /// Makes a system call with six arguments.
        syscall6(b in "x1", c in "x2", d in "x3", e in "x4", f in "x5")
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generic::syscall::test_raw_calls;

    #[test]
    fn gadgets() {
        let mut code = [0; 20];
        code[4..12].copy_from_slice(&SYSCALL_RET);
        code[12..20].copy_from_slice(&RESTORER);
        assert_eq!(find_syscall_ret_gadget(&code), Some(4));
        assert_eq!(find_restorer(&code), Some(12));
        assert_eq!(find_syscall_ret_gadget(&code[1..]), None);
        assert_eq!(find_restorer(&code[..19]), None);
        assert_eq!(find_restorer(&[]), None);
    }

    #[test]
    fn numbers() {
        let code = |words: [u32; 2]| words.map(u32::to_le_bytes).concat();
        assert_eq!(number_before(&code([0xd503_201f, 0xd280_0e68])), Some(nr::CLOCK_NANOSLEEP));
        assert_eq!(number_before(&code([0xd503_201f, 0x5280_0c48])), Some(nr::FUTEX));
        assert_eq!(number_before(&code([0xd280_0e68, 0xd503_201f])), None);
        assert_eq!(number_before(&code([0, 0xd280_0e69])), None); // mov x9
        assert_eq!(number_before(&code([0, 0xd2a0_0e68])), None); // shifted
        assert_eq!(number_before(&[0x68, 0x0e, 0x80]), None);
    }

    #[test]
    fn sigactions() {
        assert_eq!(sigaction_handler(&sigaction(0x1234, 1 << 28, 0x5678)), 0x1234);
        assert_eq!(sigaction_handler(&[1, 2, 3]), 0);
    }

    test_raw_calls!("aarch64");
}
