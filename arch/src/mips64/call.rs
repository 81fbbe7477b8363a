//! The registers of a stopped thread, and how to make the thread run a system call and continue as if nothing
//! had happened.
//!
//! Sources: `struct pt_regs`: `arch/mips/include/uapi/asm/ptrace.h`; what a system call leaves in the
//! registers: `arch/mips/kernel/scall64-n64.S`; restart of interrupted calls: `do_signal` in
//! `arch/mips/kernel/signal.c`; calls that are never restarted: signal(7).
//!
//! A failed call leaves the error's number in `$v0` and 1 in `$a3`. The kernel keeps the call's number in the
//! place of `$zero`, where a successful call leaves 0, and the former value of `$a3` in the place of `$k0`.
//! Only `PTRACE_GETREGS` and `PTRACE_SETREGS` carry those two, so these are used, and not `NT_PRSTATUS`: with
//! that, threads see the kernel's internal error numbers.

use super::regs::{A0, A3, FP, K0, RA, SP, T9, V0};
use super::syscall::nr;
use crate::blocked::Timeout;
use crate::generic::stopped::{Restarts, StoppedRegs};
use crate::registers::Registers;

/// Requests for the general registers: `PTRACE_GETREGS` and `PTRACE_SETREGS`.
pub const REGSET: Registers = Registers::Requests { get: 12, set: 13 };
/// Request for the thread pointer: `PTRACE_GET_THREAD_AREA`.
pub const THREAD_POINTER_REGSET: Option<Registers> = Some(Registers::Requests { get: 25, set: 0 });
/// Register set with the number of the system call that the thread is in: it is among the general registers.
pub const SYSTEM_CALL_REGSET: Option<i32> = None;
/// Request that sets the number of the system call that a thread is about to make, where that is neither in a register
/// set nor in [`SYSTEM_CALL_REGSET`]: there is none.
pub const SET_CALL: Option<u32> = None;
/// Whether a thread must be inspected before it is stopped: no, the registers say what a stop has
/// interrupted.
pub const NEEDS_BLOCKED: bool = false;

/// Result of an interrupted call that is restarted unless a handler without `SA_RESTART` ran. It is internal
/// to the kernel, and seen by tracers only.
pub const ERESTARTSYS: u64 = 512;
/// Result of an interrupted call that is always restarted.
pub const ERESTARTNOINTR: u64 = 513;
/// Result of an interrupted call that is restarted if no handler ran.
pub const ERESTARTNOHAND: u64 = 514;
/// Result of an interrupted call that `restart_syscall` continues with the rest of its timeout.
pub const ERESTART_RESTARTBLOCK: u64 = 516;
const EINTR: u64 = 4;

/// System calls that return EINTR at a ptrace stop instead of being restarted by the kernel, and that can be
/// issued again without harm: where they return EINTR they have done nothing yet. Reads and writes are listed
/// for inotify and for sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`). A `connect` with a timeout
/// continues to wait for the handshake that it has begun, as the kernel's own restart of one without a
/// timeout does. `close` is not listed: it must not be done twice.
const NEVER_RESTARTED: [u64; 25] = [
    5000, // read (inotify)
    5001, // write
    5018, // readv
    5019, // writev
    5041, // connect
    5042, // accept
    5043, // sendto
    5044, // recvfrom
    5045, // sendmsg
    5046, // recvmsg
    5063, // semop
    5126, // rt_sigtimedwait
    5202, // io_getevents
    5209, // epoll_wait
    5214, // semtimedop
    5232, // mq_timedsend
    5233, // mq_timedreceive
    5272, // epoll_pwait
    5293, // accept4
    5294, // recvmmsg
    5302, // sendmmsg
    5313, // getrandom
    5328, // io_pgetevents
    5426, // io_uring_enter
    5441, // epoll_pwait2
];

/// The registers of a stopped thread: the kernel's `struct pt_regs` as `PTRACE_GETREGS` has it, and
/// the thread pointer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct UserRegs {
    /// General registers. In the place of the first, which is always 0, is the number of the system call that
    /// has failed, if the thread is in one.
    pub gpr: [u64; 32],
    /// Low part of a product.
    pub lo: u64,
    /// High part of a product.
    pub hi: u64,
    /// Program counter; in a delay slot, that of the branch.
    pub pc: u64,
    /// Not used here, and not written back.
    pub bad_address: u64,
    /// Not used here, and not written back.
    pub status: u64,
    /// Not used here, and not written back.
    pub cause: u64,
    /// Thread pointer.
    pub tp: u64,
}

/// Returns whether a stop by a tracer ends this system call with EINTR, which the tracer has to mend.
#[must_use]
pub fn is_never_restarted(number: u64) -> bool {
    NEVER_RESTARTED.contains(&number)
}

/// Returns the timeout of a system call that a stop ends with EINTR and whose time starts anew when the call
/// is issued again; `None`: it has no such timeout.
#[must_use]
pub fn timeout(number: u64) -> Option<Timeout> {
    Some(match number {
        5202 | 5328 => Timeout::Wide(4), // io_getevents, io_pgetevents
        5126 => Timeout::Wide(2),        // rt_sigtimedwait
        5214 | 5441 => Timeout::Wide(3), // semtimedop, epoll_pwait2
        5209 | 5272 => Timeout::Milliseconds(3), // epoll_wait, epoll_pwait
        5426 => Timeout::Ring(4),        // io_uring_enter
        _ => return None,
    })
}

/// Returns whether prof makes other processes do this system call.
#[must_use]
pub fn is_remote(number: u64) -> bool {
    use nr::{CLOSE, MADVISE, MEMFD_CREATE, MMAP, MPROTECT, MREMAP, MUNLOCK, MUNMAP};
    use nr::{RT_SIGACTION, RT_SIGRETURN};
    [CLOSE, MADVISE, MEMFD_CREATE, MMAP, MPROTECT, MREMAP, MUNLOCK, MUNMAP]
        .into_iter()
        .chain([RT_SIGACTION, RT_SIGRETURN])
        .any(|made| made == number)
}

impl UserRegs {
    /// Returns whether the stop has interrupted a system call that the kernel is going to restart: `$v0`
    /// holds one of its internal codes.
    #[must_use]
    pub fn restart_pending(&self) -> bool {
        let codes = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
        self.is_in_call() && codes.contains(&self.gpr[V0 as usize])
    }
}

impl StoppedRegs for UserRegs {
    const KERNEL_LEN: usize = 38 * 8;

    fn pc(&self) -> u64 {
        self.pc
    }

    fn sp(&self) -> u64 {
        self.gpr[SP as usize]
    }

    /// `$t9`, in which a function finds its address, stays: the code is the same elsewhere.
    fn set_pc(&mut self, pc: u64) {
        self.pc = pc;
    }

    fn enter(&mut self, gadget: u64, sp: u64, restorer: u64) {
        self.pc = gadget;
        self.gpr[SP as usize] = sp;
        self.gpr[RA as usize] = restorer;
    }

    fn thread_pointer(&self) -> u64 {
        self.tp
    }

    fn set_thread_pointer(&mut self, tp: u64) {
        self.tp = tp;
    }

    /// Sets the place of `$zero` to "not in a system call", so that the kernel does not take the number in `$v0` for
    /// the error of an interrupted one.
    fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        for (to, from) in self.gpr.iter_mut().skip(A0 as usize).zip(args) {
            *to = from;
        }
        self.gpr[V0 as usize] = number;
        self.gpr[0] = 0;
    }

    fn argument(&self, index: usize) -> u64 {
        self.gpr.iter().skip(A0 as usize).take(6).nth(index).copied().unwrap_or(0)
    }

    fn set_argument(&mut self, index: usize, value: u64) {
        if let Some(to) = self.gpr.iter_mut().skip(A0 as usize).take(6).nth(index) {
            *to = value;
        }
    }

    fn syscall_result(&self) -> i64 {
        let result = self.gpr[V0 as usize] as i64;
        if self.gpr[A3 as usize] == 0 { result } else { result.wrapping_neg() }
    }

    /// Returns true for a call that has failed, if only by being interrupted.
    fn is_in_call(&self) -> bool {
        self.gpr[0] != 0
    }

    fn syscall_number(&self) -> Option<u64> {
        self.is_in_call().then_some(self.gpr[0])
    }

    fn wants_reissue(&self) -> bool {
        self.gpr[V0 as usize] == EINTR
            && self.gpr[A3 as usize] != 0
            && NEVER_RESTARTED.contains(&self.gpr[0])
    }

    fn reissued(&self) -> Self {
        let mut regs = *self;
        regs.pc = self.syscall_pc();
        regs.gpr[V0 as usize] = self.gpr[0];
        regs.gpr[A3 as usize] = self.gpr[K0 as usize];
        regs.gpr[0] = 0;
        regs
    }

    fn is_restarted(&self) -> bool {
        self.restart_pending() && self.gpr[0] == nr::RESTART_SYSCALL
    }

    fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        const RESTARTS: Restarts<'_> = Restarts {
            known: &[nr::NANOSLEEP, nr::CLOCK_NANOSLEEP, nr::POLL, nr::FUTEX],
            futex: Some(nr::FUTEX),
            poll: Some(nr::POLL),
            sleeps: Some((nr::CLOCK_NANOSLEEP, nr::NANOSLEEP, &["syscall_common"])),
        };
        // The argument of a sleep is a clock's number, or a pointer.
        let clock = (-(1 << 31)..4096).contains(&(self.gpr[A0 as usize] as i64));
        RESTARTS.find(super::syscall::number_before(code), clock, waits_in)
    }

    fn syscall_pc(&self) -> u64 {
        self.pc.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64)
    }

    fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
        let mut regs = *self;
        if self.restart_pending() || (!signal_pending && self.wants_reissue()) {
            regs = self.reissued();
            if let Some(first) = restarted.filter(|_| self.is_restarted()) {
                regs.gpr[V0 as usize] = first;
            }
        }
        regs.gpr[0] = 0;
        regs
    }

    /// Compilers write tables for C code only where they are asked to, and many functions of glibc's have none.
    const COARSE_TABLES: bool = true;

    /// The kernel does not touch the vector registers of MSA in a system call (`arch/mips/kernel/scall64-n64.S`).
    const CALLS_KEEP_VECTORS: bool = true;

    /// Ends the chain of frames, for unwinders that the function may call. A function finds its own address in `$t9`
    /// (MIPS64 ABI, position-independent calls).
    fn calling(&self, at: u64, sp: u64, args: [u64; 2], back: u64) -> Self {
        let mut regs = *self;
        regs.enter(at, sp, back);
        for (to, arg) in regs.gpr.iter_mut().skip(A0 as usize).zip(args) {
            *to = arg;
        }
        (regs.gpr[T9 as usize], regs.gpr[FP as usize], regs.gpr[0]) = (at, 0, 0);
        regs
    }

    /// At the entry, the number is in `$v0`; the place of `$zero` has one only when a call has failed. At the exit, a result
    /// is in `$v0`.
    fn is_about_to_make(&self, number: u64, restorer: u64) -> bool {
        let behind = restorer.wrapping_add(super::syscall::RESTORER.len() as u64);
        self.gpr[V0 as usize] == number && self.pc == behind
    }

    /// The kernel takes the number from the registers that a tracer sets (`mips_syscall_update_nr`, since Linux 4.13), and
    /// makes no call with a negative one (`syscall_trace_entry` in `arch/mips/kernel/scall64-n64.S`).
    fn skipping(&self, pc: u64) -> Self {
        let mut regs = *self;
        (regs.pc, regs.gpr[V0 as usize], regs.gpr[0]) = (pc, u64::MAX, 0);
        regs
    }
}

impl From<&UserRegs> for super::FullRegs {
    fn from(r: &UserRegs) -> Self {
        let mut full = super::FullRegs { pc: r.pc, gpr: r.gpr };
        full.gpr[0] = 0;
        full
    }
}

impl From<&UserRegs> for super::Regs {
    fn from(r: &UserRegs) -> Self {
        super::Regs { pc: r.pc, sp: r.gpr[SP as usize], fp: r.gpr[FP as usize] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mips64::{FullRegs, Regs};

    /// Returns the registers of a thread stopped behind the `syscall` at 0x1000 of a call that has failed
    /// with this error.
    fn failed(number: u64, error: u64) -> UserRegs {
        let mut regs = UserRegs { pc: 0x1004, ..UserRegs::default() };
        regs.gpr[0] = number;
        regs.gpr[2] = error;
        regs.gpr[4..10].copy_from_slice(&[10, 11, 12, 1, 14, 15]);
        regs.gpr[26] = 13;
        regs.gpr[29] = 0x7000;
        regs
    }

    /// Returns whether the same call is about to be made again.
    fn is_again(regs: &UserRegs, number: u64) -> bool {
        (regs.pc, regs.gpr[0], regs.gpr[2]) == (0x1000, 0, number)
            && regs.gpr[4..10] == [10, 11, 12, 13, 14, 15]
    }

    #[test]
    fn the_struct_is_the_kernels() {
        assert_eq!(core::mem::offset_of!(UserRegs, pc), 34 * 8);
        assert_eq!(core::mem::offset_of!(UserRegs, tp), UserRegs::KERNEL_LEN);
    }

    #[test]
    fn the_kernel_restarts_what_it_can() {
        let codes = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
        for code in codes {
            let regs = failed(nr::FUTEX, code);
            assert!(regs.restart_pending() && !regs.wants_reissue() && regs.is_in_call());
            assert_eq!(regs.syscall_number(), Some(nr::FUTEX));
            assert_eq!(regs.restored_at_stop(false), regs);
            assert_eq!(regs.restored_behind_call(), regs);
            for pending in [false, true] {
                assert!(is_again(&regs.for_sigframe(pending, None), nr::FUTEX));
            }
        }
        // A result that equals the number: the place of `$zero` says that it is a result.
        let mut result = failed(nr::READ, ERESTARTSYS);
        result.gpr[0] = 0;
        result.gpr[7] = 0;
        assert!(!result.restart_pending() && result.for_sigframe(false, None) == result);
        assert_eq!(result.syscall_result(), 512);
    }

    #[test]
    fn calls_that_are_never_restarted() {
        let epoll = failed(5209, EINTR);
        assert!(epoll.wants_reissue() && is_never_restarted(5209));
        assert!(is_again(&epoll.restored_at_stop(false), 5209));
        assert!(is_again(&epoll.for_sigframe(false, None), 5209));
        assert_eq!(epoll.restored_at_stop(true), epoll);
        let due = epoll.for_sigframe(true, None);
        assert_eq!((due.pc, due.gpr[0], due.gpr[2], due.gpr[7]), (0x1004, 0, EINTR, 1));
        let mut four_bytes = failed(nr::READ, EINTR);
        four_bytes.gpr[7] = 0;
        for other in [failed(nr::CLOSE, EINTR), failed(5209, 11), four_bytes] {
            assert!(!other.wants_reissue());
            assert_eq!(other.restored_at_stop(false), other);
        }
    }

    #[test]
    fn calls_that_were_interrupted_before() {
        let again = failed(nr::RESTART_SYSCALL, ERESTART_RESTARTBLOCK);
        assert!(again.is_restarted() && !failed(nr::POLL, ERESTART_RESTARTBLOCK).is_restarted());
        assert_eq!(again.syscall_pc(), 0x1000);
        assert!(is_again(&again.for_sigframe(false, Some(nr::POLL)), nr::POLL));
        let other = failed(nr::FUTEX, ERESTART_RESTARTBLOCK);
        assert!(is_again(&other.for_sigframe(false, Some(nr::POLL)), nr::FUTEX));
        assert_eq!(again.restarted_call(&[], "futex_wait_queue"), Some(nr::FUTEX));
        assert_eq!(again.restarted_call(&[], "do_sys_poll"), Some(nr::POLL));
        assert_eq!(again.restarted_call(&[], "hrtimer_nanosleep"), Some(nr::CLOCK_NANOSLEEP));
        let mut pointer = again;
        pointer.gpr[4] = 0xff_ffe2_c4d0;
        assert_eq!(pointer.restarted_call(&[], "hrtimer_nanosleep"), Some(nr::NANOSLEEP));
        assert_eq!(again.restarted_call(&[], "0"), None);
        let loaded = super::super::variant::Order::NATIVE.bytes4(0x2402_13c2); // li v0, 5058
        assert_eq!(again.restarted_call(&loaded, "do_sys_poll"), Some(nr::POLL));
        let poll = super::super::variant::Order::NATIVE.bytes4(0x2402_138f); // li v0, 5007
        assert_eq!(again.restarted_call(&poll, "futex_wait"), Some(nr::POLL));
    }

    #[test]
    fn a_thread_is_sent_to_a_call() {
        let mut regs = failed(nr::POLL, ERESTART_RESTARTBLOCK);
        regs.set_syscall(nr::MMAP, [1, 2, 3, 4, 5, 6]);
        regs.enter(0x9000, 0x6ff0, 0xa000);
        assert_eq!(regs.gpr[4..10], [1, 2, 3, 4, 5, 6]);
        assert_eq!((regs.gpr[0], regs.gpr[2], regs.pc, regs.sp()), (0, 5009, 0x9000, 0x6ff0));
        assert_eq!(regs.gpr[31], 0xa000);
        assert!(!regs.stands_on(0x9000) && !regs.is_in_call());
        regs.gpr[2] = 22;
        regs.gpr[7] = 1;
        assert_eq!(regs.syscall_result(), -22);
        regs.set_pc(0x1234);
        assert_eq!((regs.pc, regs.gpr[25]), (0x1234, 0));
    }

    #[test]
    fn a_thread_calls_a_function() {
        let regs = failed(nr::POLL, ERESTART_RESTARTBLOCK);
        let calling = regs.calling(0x5000, 0x6fc0, [1, 2], 0x9000);
        assert_eq!((calling.pc, calling.sp(), calling.gpr[31]), (0x5000, 0x6fc0, 0x9000));
        assert_eq!(calling.gpr[4..6], [1, 2]);
        assert_eq!((calling.gpr[25], calling.gpr[30]), (0x5000, 0));
        assert!(!calling.is_in_call() && !calling.restart_pending());
        // The restorer's system call: at its entry, at the exit of a call with that result, and at another call.
        let mut entry = calling;
        (entry.pc, entry.gpr[2]) = (0x9008, nr::RT_SIGRETURN);
        assert!(entry.is_about_to_make(nr::RT_SIGRETURN, 0x9000));
        assert!(!entry.is_about_to_make(nr::RT_SIGRETURN, 0x8000));
        assert!(!entry.is_about_to_make(nr::READ, 0x9000));
        assert_eq!(entry.function_result(), None);
        let skipping = entry.skipping(0x9000);
        assert_eq!((skipping.pc, skipping.gpr[2], skipping.gpr[0]), (0x9000, u64::MAX, 0));
        assert!(!skipping.restart_pending());
    }

    #[test]
    fn for_the_unwinder() {
        let mut regs = failed(nr::POLL, EINTR);
        regs.gpr[30] = 0x77;
        assert_eq!(Regs::from(&regs), Regs { pc: 0x1004, sp: 0x7000, fp: 0x77 });
        let full = FullRegs::from(&regs);
        assert_eq!((full.pc, full.gpr[0], full.gpr[29]), (0x1004, 0, 0x7000));
    }
}
