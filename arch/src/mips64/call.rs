//! The registers of a stopped thread, and how to make it run a system call and go on as if nothing
//! had happened.
//!
//! `struct pt_regs` is from `arch/mips/include/uapi/asm/ptrace.h`; what a system call leaves in the
//! registers from `arch/mips/kernel/scall64-n64.S`; how the kernel restarts interrupted calls from
//! `do_signal` in `arch/mips/kernel/signal.c`; which calls are never restarted from signal(7).
//!
//! A failed call leaves the error's number in `$v0` and 1 in `$a3`. The kernel keeps the call's number
//! in the place of `$zero`, which a call that has succeeded leaves 0, and what `$a3` was in the place
//! of `$k0`. Only `PTRACE_GETREGS` and `PTRACE_SETREGS` carry those two, so they are what is used, and
//! not `NT_PRSTATUS`: with that, threads see the kernel's internal error numbers.

use super::regs::{A0, A3, FP, K0, RA, SP, V0};
use super::syscall::nr;
use crate::blocked::{Blocked, Timeout};
use crate::registers::Registers;

/// The general registers: `PTRACE_GETREGS` and `PTRACE_SETREGS`.
pub const REGSET: Registers = Registers::Requests { get: 12, set: 13 };
/// The thread pointer: `PTRACE_GET_THREAD_AREA`.
pub const THREAD_POINTER_REGSET: Option<Registers> = Some(Registers::Requests { get: 25, set: 0 });
/// The number of the system call that the thread is in is among the registers.
pub const SYSTEM_CALL_REGSET: Option<i32> = None;
/// The registers say what a stop has interrupted.
pub const NEEDS_BLOCKED: bool = false;

/// Interrupted; restarted unless a handler without `SA_RESTART` ran. Kernel-internal, seen by
/// tracers only.
pub const ERESTARTSYS: u64 = 512;
/// Interrupted; always restarted.
pub const ERESTARTNOINTR: u64 = 513;
/// Interrupted; restarted if no handler ran.
pub const ERESTARTNOHAND: u64 = 514;
/// Interrupted; continued by `restart_syscall` with what is left of its timeout.
pub const ERESTART_RESTARTBLOCK: u64 = 516;
const EINTR: u64 = 4;

/// Calls that return EINTR at a ptrace stop instead of being restarted by the kernel, and that can
/// be issued again with no harm: where they return EINTR they have done nothing yet. Reads and
/// writes are here for inotify and for sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
/// A `connect` with a timeout goes on waiting for the handshake that it has begun, as the kernel's own
/// restart of one without a timeout does. `close` is not here: again is not the same as once.
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
    /// The general registers. In the place of the first, which is always 0, stands the number of the
    /// system call that has failed, if the thread is in one.
    pub gpr: [u64; 32],
    /// Low part of a product.
    pub lo: u64,
    /// High part of a product.
    pub hi: u64,
    /// Program counter. Of a thread that is in a delay slot, the branch.
    pub pc: u64,
    /// Of no use here, and not written back.
    pub bad_address: u64,
    /// As above.
    pub status: u64,
    /// As above.
    pub cause: u64,
    /// The thread pointer.
    pub tp: u64,
}

/// Whether a stop by a tracer ends this system call with EINTR, which the tracer has to mend.
#[must_use]
pub fn is_never_restarted(number: u64) -> bool {
    NEVER_RESTARTED.contains(&number)
}

/// How long this system call waits, of those that a stop ends with EINTR: the ones whose time begins
/// anew when they are issued again.
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

/// Whether prof makes other processes do this system call.
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
    /// Bytes at the start that are the kernel's structure.
    pub const KERNEL_LEN: usize = 38 * 8;

    /// Program counter.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// Whether the thread faults at words that are not aligned although others do not: a program can't choose that
    /// here.
    #[must_use]
    pub fn checks_alignment(&self) -> bool {
        false
    }

    /// Stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.gpr[SP as usize]
    }

    /// Sets the program counter, to go on with the same code elsewhere: `$t9`, which a function finds
    /// its address in, stays.
    pub fn set_pc(&mut self, pc: u64) {
        self.pc = pc;
    }

    /// Sends the thread to the system call gadget at `gadget`, from where it returns to the restorer
    /// of the signal frame at `sp`.
    pub fn enter(&mut self, gadget: u64, sp: u64, restorer: u64) {
        self.pc = gadget;
        self.gpr[SP as usize] = sp;
        self.gpr[RA as usize] = restorer;
    }

    /// The thread pointer, which keys the hook's table of threads.
    #[must_use]
    pub fn thread_pointer(&self) -> u64 {
        self.tp
    }

    /// Takes the thread pointer, as [`THREAD_POINTER_REGSET`] has it.
    pub fn set_thread_pointer(&mut self, tp: u64) {
        self.tp = tp;
    }

    /// Takes what the thread did just before it was stopped; the registers say it (see
    /// [`NEEDS_BLOCKED`]).
    pub fn set_blocked(&mut self, _blocked: Option<Blocked>) {}

    /// The number of the call that has ended with EINTR, where only having seen the thread asleep tells whether by the
    /// stop: the registers tell here.
    #[must_use]
    pub fn ended_unseen(&self) -> Option<u64> {
        None
    }

    /// See [`ended_unseen`](Self::ended_unseen).
    #[must_use]
    pub fn first_argument(&self) -> Option<u64> {
        None
    }

    /// See [`ended_unseen`](Self::ended_unseen).
    #[must_use]
    pub fn is_behind_call(&self, _before: &[u8]) -> bool {
        false
    }

    /// See [`ended_unseen`](Self::ended_unseen).
    #[must_use]
    pub fn has_signal_frame(&self, _below: &[u8]) -> bool {
        false
    }

    /// Prepares a system call: the thread is to go on at a `syscall` instruction. "Not in a system
    /// call" stands in the place of `$zero`, so that the kernel does not take the number in `$v0` for
    /// the error of an interrupted one.
    pub fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        for (to, from) in self.gpr.iter_mut().skip(A0 as usize).zip(args) {
            *to = from;
        }
        self.gpr[V0 as usize] = number;
        self.gpr[0] = 0;
    }

    /// An argument of the system call that the thread is about to make, or is in, counted from 0.
    #[must_use]
    pub fn argument(&self, index: usize) -> u64 {
        self.gpr.iter().skip(A0 as usize).take(6).nth(index).copied().unwrap_or(0)
    }

    /// Changes such an argument.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        if let Some(to) = self.gpr.iter_mut().skip(A0 as usize).take(6).nth(index) {
            *to = value;
        }
    }

    /// The result of a system call that has returned; errors are negative.
    #[must_use]
    pub fn syscall_result(&self) -> i64 {
        let result = self.gpr[V0 as usize] as i64;
        if self.gpr[A3 as usize] == 0 { result } else { result.wrapping_neg() }
    }

    /// The thread stopped in a system call that has failed, if only by being interrupted.
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.gpr[0] != 0
    }

    /// The number of that system call.
    #[must_use]
    pub fn syscall_number(&self) -> Option<u64> {
        self.is_in_call().then_some(self.gpr[0])
    }

    /// The system call was interrupted by the stop and the kernel is going to restart it: `$v0`
    /// holds one of its internal codes.
    #[must_use]
    pub fn restart_pending(&self) -> bool {
        let codes = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
        self.is_in_call() && codes.contains(&self.gpr[V0 as usize])
    }

    /// The system call was interrupted by the stop, the kernel is *not* going to restart it, and it
    /// must be issued again. True only of a thread for which no signal is pending or about to be
    /// delivered: otherwise EINTR is its due.
    #[must_use]
    pub fn wants_reissue(&self) -> bool {
        self.gpr[V0 as usize] == EINTR
            && self.gpr[A3 as usize] != 0
            && NEVER_RESTARTED.contains(&self.gpr[0])
    }

    /// Back to before the `syscall` instruction, to issue the same call again.
    #[must_use]
    fn reissued(&self) -> Self {
        let mut regs = *self;
        regs.pc = self.syscall_pc();
        regs.gpr[V0 as usize] = self.gpr[0];
        regs.gpr[A3 as usize] = self.gpr[K0 as usize];
        regs.gpr[0] = 0;
        regs
    }

    /// The registers to write back at a signal-delivery or `PTRACE_INTERRUPT` stop, `self` being
    /// those from the first stop: there the kernel still decides about the restart by itself, so
    /// they are as they were; only a call that it would not restart is put back. `signal_pending`:
    /// see [`wants_reissue`](Self::wants_reissue).
    #[must_use]
    pub fn restored_at_stop(&self, signal_pending: bool) -> Self {
        if !signal_pending && self.wants_reissue() { self.reissued() } else { *self }
    }

    /// The registers to write back behind a remote call, `self` being those from the first stop: the
    /// kernel makes its decision about a restart at the stop that follows.
    ///
    /// The remote calls made in between must not have been of the kind that sets the thread's
    /// restart state themselves (sleeps, futex waits, polls).
    #[must_use]
    pub fn restored_behind_call(&self) -> Self {
        *self
    }

    /// The thread waits in `restart_syscall`: its call was interrupted once before.
    #[must_use]
    pub fn is_restarted(&self) -> bool {
        self.restart_pending() && self.gpr[0] == nr::RESTART_SYSCALL
    }

    /// The call that a thread in `restart_syscall` has made first, if that can be told for certain:
    /// the kernel keeps only what is left of it. `code` is the code up to the system call
    /// instruction, `waits_in` the kernel function that the thread was asleep in
    /// (`/proc/PID/wchan`).
    #[must_use]
    pub fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        // The calls that end with ERESTART_RESTARTBLOCK.
        let known = [nr::NANOSLEEP, nr::CLOCK_NANOSLEEP, nr::POLL, nr::FUTEX];
        let loaded = super::syscall::number_before(code).filter(|n| known.contains(n));
        loaded.or_else(|| {
            let is = |names: &[&str]| names.iter().any(|n| waits_in.starts_with(n));
            if is(&["poll_schedule_timeout", "do_sys_poll", "do_restart_poll"]) {
                return Some(nr::POLL);
            }
            if is(&["futex_", "__futex_"]) {
                return Some(nr::FUTEX);
            }
            // Sleeping functions are passed over there, and a restarted sleep has no other.
            if !is(&["hrtimer_nanosleep", "do_nanosleep", "syscall_common"]) {
                return None;
            }
            // A clock, or a pointer.
            let first = self.gpr[A0 as usize];
            let clock = (-(1 << 31)..4096).contains(&(first as i64));
            Some(if clock { nr::CLOCK_NANOSLEEP } else { nr::NANOSLEEP })
        })
    }

    /// The program counter at the system call instruction that the thread is in.
    #[must_use]
    pub fn syscall_pc(&self) -> u64 {
        self.pc.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64)
    }

    /// The registers to put into a signal frame, from which nothing is restarted by the kernel: any
    /// interrupted call is issued again, from its start. A timeout then starts again too; that is
    /// what remains if the tracer dies. `rt_sigreturn` makes the kernel forget what is left of a
    /// call, so a thread in `restart_syscall` needs its first call, which is `restarted`.
    #[must_use]
    pub fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
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

    /// Whether the kernel may take a thread that is sent to `gadget` for one whose call is to be
    /// restarted there. It never does: [`set_syscall`](Self::set_syscall) says that there is none.
    #[must_use]
    pub fn stands_on(&self, _gadget: u64) -> bool {
        false
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

    /// Stopped behind the `syscall` at 0x1000 of a call that has failed so.
    fn failed(number: u64, error: u64) -> UserRegs {
        let mut regs = UserRegs { pc: 0x1004, ..UserRegs::default() };
        regs.gpr[0] = number;
        regs.gpr[2] = error;
        regs.gpr[4..10].copy_from_slice(&[10, 11, 12, 1, 14, 15]);
        regs.gpr[26] = 13;
        regs.gpr[29] = 0x7000;
        regs
    }

    /// The same call is about to be made again.
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
        // The number itself as a result: the place of `$zero` says that it is one.
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
        let loaded = super::super::isa::Order::NATIVE.bytes4(0x2402_13c2); // li v0, 5058
        assert_eq!(again.restarted_call(&loaded, "do_sys_poll"), Some(nr::POLL));
        let poll = super::super::isa::Order::NATIVE.bytes4(0x2402_138f); // li v0, 5007
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
    fn for_the_unwinder() {
        let mut regs = failed(nr::POLL, EINTR);
        regs.gpr[30] = 0x77;
        assert_eq!(Regs::from(&regs), Regs { pc: 0x1004, sp: 0x7000, fp: 0x77 });
        let full = FullRegs::from(&regs);
        assert_eq!((full.pc, full.gpr[0], full.gpr[29]), (0x1004, 0, 0x7000));
    }
}
