//! System calls: numbers, instruction bytes, gadgets, and raw calls for code that runs natively
//! without a libc.
//!
//! Numbers: `arch/mips/kernel/syscalls/syscall_n64.tbl` of the kernel, from 5000. Convention: number
//! in `$v0`, arguments in `$a0` to `$a5`, result in `$v0`, and in `$a3` whether that is an error; the
//! kernel preserves `$s0` to `$s7`, `$gp`, `$sp`, `$fp` and `$ra`.

use super::regs::RA;
use super::variant::{JR_RA, NOP, Order, SYSCALL, jump_register};
pub use crate::generic::syscall::{find_pop_number_gadget, popped};

/// The instruction `syscall`.
pub const SYSCALL_INSN: [u8; 4] = Order::NATIVE.bytes4(SYSCALL);
/// The instructions `syscall; jr $ra; nop`.
pub const SYSCALL_RET: [u8; 12] = {
    let (a, b, c) =
        (Order::NATIVE.bytes4(SYSCALL), Order::NATIVE.bytes4(JR_RA), Order::NATIVE.bytes4(NOP));
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3]]
};
/// A signal restorer: `li $v0, 5211; syscall`. The kernel's own is in the vDSO.
pub const RESTORER: [u8; 8] = restorer_in(Order::NATIVE);
/// Length of the instruction that loads a system call's number, in bytes.
pub const LOAD_NUMBER_LEN: usize = 4;

/// The instruction `addiu $v0, $zero, number`, without the number.
const LOAD_NUMBER: u32 = 0x2402_0000;

/// Size of the kernel's signal set, in bytes.
pub const SIGSET_LEN: usize = 16;
/// The kernel's signal set: 64 signals in each word.
pub type SignalSet = [u64; 2];
/// Set of all signals.
pub const ALL_SIGNALS: SignalSet = [u64::MAX; 2];
/// Set of all signals but those by which the kernel reports a fault to the thread that has made it: SIGILL, SIGTRAP, SIGFPE,
/// SIGBUS, SIGSEGV and SIGSYS (signal(7)). If a thread has blocked such a signal, the kernel kills the process instead.
pub const ALL_BUT_FAULTS: SignalSet =
    [!(1 << 3 | 1 << 4 | 1 << 7 | 1 << 9 | 1 << 10 | 1 << 11), u64::MAX];
/// Size of the kernel's `struct sigaction`, in bytes: flags, handler, mask. There is no restorer: signal
/// handlers return to the vDSO.
pub const SIGACTION_LEN: usize = 32;

/// Returns [`RESTORER`] in a byte order.
#[must_use]
pub const fn restorer_in(order: Order) -> [u8; 8] {
    let (a, b) = (order.bytes4(LOAD_NUMBER | nr::RT_SIGRETURN as u32), order.bytes4(SYSCALL));
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

/// Returns the kernel's `struct sigaction` for a handler with these flags and an empty mask.
#[must_use]
pub fn sigaction_in(order: Order, handler: u64, flags: u64) -> [u8; SIGACTION_LEN] {
    let mut bytes = [0; SIGACTION_LEN];
    // The flags have 4 bytes; 4 more align the handler.
    for (to, from) in bytes.iter_mut().zip(order.bytes4(flags as u32)) {
        *to = from;
    }
    for (to, from) in bytes.iter_mut().skip(8).zip(order.bytes8(handler)) {
        *to = from;
    }
    bytes
}

/// Does what [`sigaction_in`] does, in this machine's byte order. The restorer is always the kernel's.
#[must_use]
pub fn sigaction(handler: u64, flags: u64, _restorer: u64) -> [u8; SIGACTION_LEN] {
    sigaction_in(Order::NATIVE, handler, flags)
}

/// Returns the handler in such a structure.
#[must_use]
pub fn sigaction_handler_in(order: Order, bytes: &[u8]) -> u64 {
    order.word8(bytes, 8).unwrap_or(0)
}

/// Does what [`sigaction_handler_in`] does, in this machine's byte order.
#[must_use]
pub fn sigaction_handler(bytes: &[u8]) -> u64 {
    sigaction_handler_in(Order::NATIVE, bytes)
}

/// Numbers of the system calls that `prof` makes, in itself or in a target.
#[allow(missing_docs)]
pub mod nr {
    pub const READ: u64 = 5000;
    pub const WRITE: u64 = 5001;
    pub const CLOSE: u64 = 5003;
    pub const POLL: u64 = 5007;
    pub const MMAP: u64 = 5009;
    pub const MPROTECT: u64 = 5010;
    pub const MUNMAP: u64 = 5011;
    pub const MREMAP: u64 = 5024;
    pub const MUNLOCK: u64 = 5147;
    pub const RT_SIGACTION: u64 = 5013;
    pub const RT_SIGPROCMASK: u64 = 5014;
    pub const SIGALTSTACK: u64 = 5129;
    pub const SCHED_YIELD: u64 = 5023;
    pub const MADVISE: u64 = 5027;
    pub const NANOSLEEP: u64 = 5034;
    pub const GETPID: u64 = 5038;
    pub const CLONE: u64 = 5055;
    pub const EXIT_GROUP: u64 = 5205;
    pub const WAIT4: u64 = 5059;
    pub const FORK: u64 = 5056;
    pub const CLONE3: u64 = 5435;
    pub const FCNTL: u64 = 5070;
    pub const FTRUNCATE: u64 = 5075;
    pub const PRCTL: u64 = 5153;
    pub const GETTID: u64 = 5178;
    pub const FUTEX: u64 = 5194;
    pub const RT_SIGRETURN: u64 = 5211;
    pub const RESTART_SYSCALL: u64 = 5213;
    pub const CLOCK_GETTIME: u64 = 5222;
    pub const CLOCK_NANOSLEEP: u64 = 5224;
    pub const TGKILL: u64 = 5225;
    pub const PROCESS_VM_READV: u64 = 5304;
    pub const MEMFD_CREATE: u64 = 5314;
    pub const UNSHARE: u64 = 5262;
}

/// Returns the offset of the first place in `bytes`, which begin with a whole instruction, where `is` returns
/// true for the instruction and the two behind it.
fn find(order: Order, bytes: &[u8], is: impl Fn([Option<u32>; 3]) -> bool) -> Option<usize> {
    let at = |n: usize| order.word4(bytes, n.wrapping_mul(4));
    let mut places = 0..bytes.len() / 4;
    let found = places.find(|&n| is([at(n), at(n.wrapping_add(1)), at(n.wrapping_add(2))]));
    found.map(|n| n.wrapping_mul(4))
}

/// Returns the offset of a `syscall; jr $ra; nop` in executable bytes (of libc, say: `getpid` ends so).
#[must_use]
pub fn find_syscall_ret_gadget_in(order: Order, bytes: &[u8]) -> Option<usize> {
    // The encodings of the return before release 6 and since.
    let returns = [Some(JR_RA), Some(jump_register(RA as u32))];
    find(order, bytes, |[call, jump, slot]| {
        call == Some(SYSCALL) && returns.contains(&jump) && slot == Some(NOP)
    })
}

/// Does what [`find_syscall_ret_gadget_in`] does, in this machine's byte order.
#[must_use]
pub fn find_syscall_ret_gadget(bytes: &[u8]) -> Option<usize> {
    find_syscall_ret_gadget_in(Order::NATIVE, bytes)
}

/// Returns the offset of a signal restorer in executable bytes (the vDSO has one).
#[must_use]
pub fn find_restorer_in(order: Order, bytes: &[u8]) -> Option<usize> {
    let load = Some(LOAD_NUMBER | nr::RT_SIGRETURN as u32);
    find(order, bytes, |[number, call, _]| number == load && call == Some(SYSCALL))
}

/// Does what [`find_restorer_in`] does, in this machine's byte order.
#[must_use]
pub fn find_restorer(bytes: &[u8]) -> Option<usize> {
    find_restorer_in(Order::NATIVE, bytes)
}

/// Returns the number of the system call that `code` ends before, if it is loaded right before it: `li $v0,
/// number`.
#[must_use]
pub fn number_before_in(order: Order, code: &[u8]) -> Option<u64> {
    let load = order.word4(code.last_chunk::<LOAD_NUMBER_LEN>()?, 0)?;
    (load & 0xffff_8000 == LOAD_NUMBER).then_some((load & 0x7fff).into())
}

/// Does what [`number_before_in`] does, in this machine's byte order.
#[must_use]
pub fn number_before(code: &[u8]) -> Option<u64> {
    number_before_in(Order::NATIVE, code)
}

#[cfg(target_arch = "mips64")]
pub use raw::*;

/// Raw system calls of this process. Results are as on the other architectures: -4095 to -1 are
/// negated error numbers.
#[cfg(target_arch = "mips64")]
mod raw {
    use core::arch::asm;

    /// Makes a system call with six arguments.
    ///
    /// # Safety
    ///
    /// The call's effects must be such as this process can stand: the kernel does what it is told.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn syscall6(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
        let (result, failed): (u64, u64);
        // SAFETY: the instruction clobbers what is declared, and `$at`, which the compiler uses and which
        // can't be declared, so it is kept in a callee-saved register. (It also clobbers the parts of a
        // product, in which the compiler keeps nothing.) The caller answers for the call's effects.
        unsafe {
            asm!(
                ".set push",
                ".set noat",
                "move $17, $1",
                "syscall",
                "move $1, $17",
                ".set pop",
                out("$17") _,
                inlateout("$2") nr => result,
                in("$4") a,
                in("$5") b,
                in("$6") c,
                inlateout("$7") d => failed,
                inlateout("$8") e => _,
                inlateout("$9") f => _,
                lateout("$3") _, lateout("$10") _, lateout("$11") _, lateout("$12") _,
                lateout("$13") _, lateout("$14") _, lateout("$15") _, lateout("$24") _,
                lateout("$25") _,
                options(nostack),
            );
        }
        let result = result as i64;
        if failed == 0 { result } else { result.wrapping_neg() }
    }

    /// Makes a system call without arguments.
    ///
    /// # Safety
    ///
    /// As for [`syscall6`].
    #[inline(always)]
    pub unsafe fn syscall0(nr: u64) -> i64 {
        // SAFETY: the caller answers for the effects; extra arguments do no harm.
        unsafe { syscall6(nr, 0, 0, 0, 0, 0, 0) }
    }

    /// Makes a system call with one argument.
    ///
    /// # Safety
    ///
    /// As for [`syscall6`].
    #[inline(always)]
    pub unsafe fn syscall1(nr: u64, a: u64) -> i64 {
        // SAFETY: as above.
        unsafe { syscall6(nr, a, 0, 0, 0, 0, 0) }
    }

    /// Makes a system call with two arguments.
    ///
    /// # Safety
    ///
    /// As for [`syscall6`].
    #[inline(always)]
    pub unsafe fn syscall2(nr: u64, a: u64, b: u64) -> i64 {
        // SAFETY: as above.
        unsafe { syscall6(nr, a, b, 0, 0, 0, 0) }
    }

    /// Makes a system call with three arguments.
    ///
    /// # Safety
    ///
    /// As for [`syscall6`].
    #[inline(always)]
    pub unsafe fn syscall3(nr: u64, a: u64, b: u64, c: u64) -> i64 {
        // SAFETY: as above.
        unsafe { syscall6(nr, a, b, c, 0, 0, 0) }
    }

    /// Makes a system call with four arguments.
    ///
    /// # Safety
    ///
    /// As for [`syscall6`].
    #[inline(always)]
    pub unsafe fn syscall4(nr: u64, a: u64, b: u64, c: u64, d: u64) -> i64 {
        // SAFETY: as above.
        unsafe { syscall6(nr, a, b, c, d, 0, 0) }
    }

    /// Makes a system call with five arguments.
    ///
    /// # Safety
    ///
    /// As for [`syscall6`].
    #[inline(always)]
    pub unsafe fn syscall5(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64) -> i64 {
        // SAFETY: as above.
        unsafe { syscall6(nr, a, b, c, d, e, 0) }
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use crate::generic::syscall::test_raw_calls;
    use alloc::vec::Vec;

    const ORDERS: [Order; 2] = [Order::Little, Order::Big];

    fn code(order: Order, insns: &[u32]) -> Vec<u8> {
        insns.iter().flat_map(|i| order.bytes4(*i)).collect()
    }

    #[test]
    fn gadgets() {
        for order in ORDERS {
            // li v0, 5038; syscall; jr ra; nop
            let getpid = code(order, &[0x2402_13ae, 0x0c, 0x03e0_0008, 0]);
            assert_eq!(find_syscall_ret_gadget_in(order, &getpid), Some(4));
            let newer = code(order, &[0x2402_13ae, 0x0c, 0x03e0_0009, 0]);
            assert_eq!(find_syscall_ret_gadget_in(order, &newer), Some(4));
            for other in [
                &[0x0c, 0x03e0_0008][..],
                &[0x0c, 0x03e0_0008, 1],
                &[0x0c, 0x0320_0008, 0],
                &[0x0c, 0, 0x03e0_0008],
            ] {
                assert_eq!(find_syscall_ret_gadget_in(order, &code(order, other)), None);
            }
            // The code of the kernel's vDSO, with a nop in front.
            let vdso = code(order, &[0, 0x2402_145b, 0x0c]);
            assert_eq!(find_restorer_in(order, &vdso), Some(4));
            assert_eq!(find_restorer_in(order, &vdso[..11]), None);
            assert_eq!(restorer_in(order), vdso[4..]);
            assert_eq!(number_before_in(order, &vdso[..8]), Some(nr::RT_SIGRETURN));
            assert_eq!(number_before_in(order, &vdso[..4]), None);
            assert_eq!(number_before_in(order, &[0; 3]), None);
            assert_eq!(find_restorer_in(order, &[]), None);
        }
        assert_eq!(find_syscall_ret_gadget(&SYSCALL_RET), Some(0));
        assert_eq!(find_restorer(&RESTORER), Some(0));
    }

    #[test]
    fn sigactions() {
        let little = sigaction_in(Order::Little, 0x12_3456_789a, 8);
        assert_eq!(little[..8], [8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(little[8..16], 0x12_3456_789a_u64.to_le_bytes());
        assert_eq!(little[16..], [0; 16]);
        let big = sigaction_in(Order::Big, 0x12_3456_789a, 0x1000_0008);
        assert_eq!(big[..8], [0x10, 0, 0, 8, 0, 0, 0, 0]);
        for order in ORDERS {
            let bytes = sigaction_in(order, 0x1234, 0);
            assert_eq!(sigaction_handler_in(order, &bytes), 0x1234);
        }
        assert_eq!(sigaction_handler(&sigaction(7, 0, 0)), 7);
        assert_eq!(sigaction_handler(&[0; 15]), 0);
    }

    test_raw_calls!("mips64");
}
