//! The registers of a stopped thread, and how to make the thread run a system call and continue as if nothing
//! had happened.
//!
//! Sources: `struct user_pt_regs`: `arch/arm64/include/uapi/asm/ptrace.h`; restart of interrupted calls:
//! `do_signal` in `arch/arm64/kernel/signal.c`; calls that are never restarted: signal(7).
//!
//! At a signal-delivery or `PTRACE_INTERRUPT` stop the kernel has already decided on a restart. For a call to
//! be restarted, `x0` holds the first argument again and `pc` is back on the `svc`; only what follows from
//! `ERESTART_RESTARTBLOCK` (`x8` becomes `restart_syscall`) is done when the thread continues. The registers
//! do not show whether the thread was in a call at all, nor the first argument of a call that has ended with
//! EINTR. So the tracer inspects the thread before it stops it: [`Blocked`].

use super::regs::{FP, LR, SP};
use super::syscall::nr;
use crate::blocked::{Blocked, Timeout};
use crate::generic::stopped::{Restarts, StoppedRegs};
use crate::registers::Registers;

const EINTR: i64 = 4;

/// Register set with the general registers (`NT_PRSTATUS`).
pub const REGSET: Registers = Registers::Set(1);
/// Register set with the thread pointer (`NT_ARM_TLS`), which is not among the general registers.
pub const THREAD_POINTER_REGSET: Option<Registers> = Some(Registers::Set(0x401));
/// Register set with the number of the system call that the thread is in (`NT_ARM_SYSTEM_CALL`). Each change
/// of registers sets it to -1, for none: behind a system call the kernel would otherwise take the value in
/// `x0` for that call's result, and might restart the call.
pub const SYSTEM_CALL_REGSET: Option<i32> = Some(0x404);
/// Request that sets the number of the system call that a thread is about to make, where that is neither in a register
/// set nor in [`SYSTEM_CALL_REGSET`]: there is none.
pub const SET_CALL: Option<u32> = None;
/// Whether a thread must be inspected before it is stopped.
pub const NEEDS_BLOCKED: bool = true;

/// System calls that return EINTR at a ptrace stop instead of being restarted by the kernel, and that can be
/// issued again without harm: where they return EINTR they have done nothing yet. Reads and writes are listed
/// for inotify and for sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`). A `connect` with a timeout
/// continues to wait for the handshake that it has begun, as the kernel's own restart of one without a
/// timeout does. `close` is not listed: it must not be done twice.
const NEVER_RESTARTED: [u64; 24] = [
    4,   // io_getevents
    22,  // epoll_pwait
    63,  // read (inotify)
    64,  // write
    65,  // readv
    66,  // writev
    137, // rt_sigtimedwait
    182, // mq_timedsend
    183, // mq_timedreceive
    192, // semtimedop
    193, // semop
    202, // accept
    203, // connect
    206, // sendto
    207, // recvfrom
    211, // sendmsg
    212, // recvmsg
    242, // accept4
    243, // recvmmsg
    269, // sendmmsg
    278, // getrandom
    292, // io_pgetevents
    426, // io_uring_enter
    441, // epoll_pwait2
];

/// Kind of the last indirect branch, by which BTI checks the branch's target.
const PSTATE_BTYPE: u64 = 3 << 10;

/// The registers of a stopped thread: the kernel's `struct user_pt_regs` (`NT_PRSTATUS`), and what else is
/// known of the thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct UserRegs {
    /// `x0` to `x30`.
    pub x: [u64; 31],
    /// Stack pointer.
    pub sp: u64,
    /// Program counter.
    pub pc: u64,
    /// Processor state.
    pub pstate: u64,
    /// Thread pointer (`TPIDR_EL0`).
    pub tp: u64,
    /// System call in which the thread was asleep just before it was stopped.
    pub blocked: Option<Blocked>,
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
        4 | 292 => Timeout::Wide(4),    // io_getevents, io_pgetevents
        137 => Timeout::Wide(2),        // rt_sigtimedwait
        192 | 441 => Timeout::Wide(3),  // semtimedop, epoll_pwait2
        22 => Timeout::Milliseconds(3), // epoll_pwait
        426 => Timeout::Ring(4),        // io_uring_enter
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
    /// Returns the call in which the thread was seen asleep, if its registers are the same but for the first
    /// argument.
    fn blocked_here(&self, behind: u64) -> Option<Blocked> {
        let same = |b: &Blocked| {
            (b.number, b.sp, b.pc) == (self.x[8], self.sp, behind) && b.args[1..] == self.x[1..6]
        };
        self.blocked.filter(same)
    }

    /// Returns the call that the stop has ended with EINTR, if it must be issued again.
    fn reissue(&self) -> Option<Blocked> {
        let ended = self.x[0] as i64 == -EINTR && NEVER_RESTARTED.contains(&self.x[8]);
        if ended { self.blocked_here(self.pc) } else { None }
    }

    /// Returns whether the thread is at the `svc` of a call that continues with the rest of its timeout when
    /// it is restarted as `restart_syscall`.
    fn is_timed(&self) -> bool {
        let behind = self.pc.wrapping_add(super::syscall::SYSCALL_INSN.len() as u64);
        let Some(call) = self.blocked_here(behind).filter(|b| b.args[0] == self.x[0]) else {
            return false;
        };
        match call.number {
            nr::NANOSLEEP => true,
            nr::CLOCK_NANOSLEEP => call.is_relative_sleep(),
            nr::FUTEX => call.is_timed_futex_wait(),
            _ => false,
        }
    }
}

impl StoppedRegs for UserRegs {
    const KERNEL_LEN: usize = 34 * 8;

    fn pc(&self) -> u64 {
        self.pc
    }

    fn sp(&self) -> u64 {
        self.sp
    }

    fn set_pc(&mut self, pc: u64) {
        self.pc = pc;
        self.pstate &= !PSTATE_BTYPE;
    }

    fn enter(&mut self, gadget: u64, sp: u64, restorer: u64) {
        self.set_pc(gadget);
        self.sp = sp;
        self.x[LR as usize] = restorer;
    }

    fn thread_pointer(&self) -> u64 {
        self.tp
    }

    fn set_thread_pointer(&mut self, tp: u64) {
        self.tp = tp;
    }

    fn set_blocked(&mut self, blocked: Option<Blocked>) {
        self.blocked = blocked;
    }

    fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        for (x, arg) in self.x.iter_mut().zip(args) {
            *x = arg;
        }
        self.x[8] = number;
    }

    fn argument(&self, index: usize) -> u64 {
        self.x.iter().take(6).nth(index).copied().unwrap_or(0)
    }

    fn set_argument(&mut self, index: usize, value: u64) {
        if let Some(to) = self.x.iter_mut().take(6).nth(index) {
            *to = value;
        }
    }

    fn syscall_result(&self) -> i64 {
        self.x[0] as i64
    }

    fn syscall_number(&self) -> Option<u64> {
        Some(self.x[8])
    }

    fn is_in_call(&self) -> bool {
        let behind = self.pc.wrapping_add(super::syscall::SYSCALL_INSN.len() as u64);
        self.blocked_here(self.pc).or(self.blocked_here(behind)).is_some()
    }

    fn ended_unseen(&self) -> Option<u64> {
        let ended = self.x[0] as i64 == -EINTR && is_never_restarted(self.x[8]);
        (ended && self.blocked_here(self.pc).is_none()).then_some(self.x[8])
    }

    fn is_behind_call(&self, before: &[u8]) -> bool {
        before.ends_with(&super::syscall::SYSCALL_INSN)
    }

    fn has_signal_frame(&self, below: &[u8]) -> bool {
        // struct sigcontext: x0 to x30, the stack pointer, the program counter.
        let words = below.as_chunks::<8>().0;
        words.windows(33).any(|w| {
            let is = |at: usize, value: u64| w.get(at) == Some(&value.to_le_bytes());
            is(0, self.x[0]) && is(8, self.x[8]) && is(31, self.sp) && is(32, self.pc)
        })
    }

    fn wants_reissue(&self) -> bool {
        self.reissue().is_some()
    }

    fn reissued(&self) -> Self {
        let mut regs = *self;
        if let Some(call) = self.reissue() {
            regs.pc = self.pc.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64);
            regs.x[0] = call.args[0];
        }
        regs
    }

    /// The stop that follows has no call to restart, so a call with a timeout continues as `restart_syscall`.
    fn restored_behind_call(&self) -> Self {
        let mut regs = *self;
        if self.is_timed() {
            regs.x[8] = nr::RESTART_SYSCALL;
        }
        regs
    }

    fn is_restarted(&self) -> bool {
        let behind = self.pc.wrapping_add(super::syscall::SYSCALL_INSN.len() as u64);
        self.x[8] == nr::RESTART_SYSCALL && self.blocked_here(behind).is_some()
    }

    fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        const RESTARTS: Restarts<'_> = Restarts {
            known: &[nr::NANOSLEEP, nr::CLOCK_NANOSLEEP, nr::FUTEX],
            futex: Some(nr::FUTEX),
            poll: None,
            sleeps: Some((nr::CLOCK_NANOSLEEP, nr::NANOSLEEP, &["invoke_syscall", "el0_svc"])),
        };
        // The argument of a sleep is a clock's number, or a pointer.
        let clock = self.x[0] < 4096 || (self.x[0] as i32) < 0 && self.x[0] >> 32 == 0;
        RESTARTS.find(super::syscall::number_before(code), clock, waits_in)
    }

    fn syscall_pc(&self) -> u64 {
        self.pc
    }

    fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
        let mut regs = self.restored_at_stop(signal_pending);
        if let Some(first) = restarted.filter(|_| self.is_restarted()) {
            regs.x[8] = first;
        }
        regs
    }

    fn stands_on(&self, gadget: u64) -> bool {
        self.pc == gadget
    }

    /// Ends the chain of frames, for unwinders that the function may call.
    fn calling(&self, at: u64, sp: u64, args: [u64; 2], back: u64) -> Self {
        let mut regs = *self;
        regs.enter(at, sp, back);
        regs.x[..2].copy_from_slice(&args);
        regs.x[FP as usize] = 0;
        regs
    }

    /// x7 (`report_syscall` in `arch/arm64/kernel/ptrace.c`).
    const CALLS_HIDE: bool = true;

    /// The kernel makes no call with the number -1, which each change of registers sets (`el0_svc_common` in
    /// `arch/arm64/kernel/syscall.c`).
    fn skipping(&self, pc: u64) -> Self {
        let mut regs = *self;
        // So that no value of the function's can be taken for the error of an interrupted call.
        regs.x[0] = 0;
        regs.set_pc(pc);
        regs
    }

    /// `rt_sigreturn` has no arguments, so the result is where it was.
    fn function_result(&self) -> Option<u64> {
        Some(self.x[0])
    }
}

impl From<&UserRegs> for super::FullRegs {
    fn from(r: &UserRegs) -> Self {
        let mut gpr = [0; 32];
        for (to, from) in gpr.iter_mut().zip(r.x) {
            *to = from;
        }
        gpr[SP as usize] = r.sp;
        super::FullRegs { pc: r.pc, gpr }
    }
}

impl From<&UserRegs> for super::Regs {
    fn from(r: &UserRegs) -> Self {
        super::Regs { pc: r.pc, sp: r.sp, fp: r.x[FP as usize] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the registers of a thread stopped at `pc` with these values of x0 and x8, after it was seen
    /// asleep in `number`, called with 7, 0, 2, 3, 4, 5 from before 0x1004.
    fn at(pc: u64, x0: i64, x8: u64, number: u64) -> UserRegs {
        let mut regs = UserRegs { pc, sp: 0x7000, ..UserRegs::default() };
        regs.x[..6].copy_from_slice(&[x0 as u64, 0, 2, 3, 4, 5]);
        regs.x[8] = x8;
        let args = [7, 0, 2, 3, 4, 5];
        regs.set_blocked(Some(Blocked { number, args, sp: 0x7000, pc: 0x1004 }));
        regs
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn the_struct_is_the_kernels() {
        assert_eq!(UserRegs::KERNEL_LEN, size_of::<libc::user_regs_struct>());
        assert_eq!(core::mem::offset_of!(UserRegs, tp), UserRegs::KERNEL_LEN);
    }

    #[test]
    fn calls_with_a_timeout_go_on() {
        for number in [nr::NANOSLEEP, nr::CLOCK_NANOSLEEP, nr::FUTEX] {
            let regs = at(0x1000, 7, number, number);
            let back = regs.restored_behind_call();
            assert_eq!((back.x[8], back.pc, back.x[0]), (nr::RESTART_SYSCALL, 0x1000, 7));
            assert_eq!(regs.restored_at_stop(false), regs);
            assert_eq!(regs.for_sigframe(false, None), regs);
        }
        // Other calls, or not the call in which it was seen.
        let mut absolute = at(0x1000, 7, nr::CLOCK_NANOSLEEP, nr::CLOCK_NANOSLEEP);
        absolute.x[1] = 1;
        if let Some(b) = &mut absolute.blocked {
            b.args[1] = 1;
        }
        let mut endless = at(0x1000, 7, nr::FUTEX, nr::FUTEX);
        endless.x[3] = 0;
        if let Some(b) = &mut endless.blocked {
            b.args[3] = 0;
        }
        let others = [
            absolute,
            endless,
            at(0x1000, 7, 73, 73),                             // ppoll
            at(0x1004, 7, nr::NANOSLEEP, nr::NANOSLEEP),       // behind it
            at(0x1000, 8, nr::NANOSLEEP, nr::NANOSLEEP),       // another argument
            at(0x1000, 7, nr::CLOCK_NANOSLEEP, nr::NANOSLEEP), // another call
            UserRegs { blocked: None, ..at(0x1000, 7, nr::NANOSLEEP, nr::NANOSLEEP) },
        ];
        for regs in others {
            assert_eq!(regs.restored_behind_call(), regs);
        }
    }

    #[test]
    fn calls_that_are_never_restarted() {
        let epoll = at(0x1004, -4, 22, 22);
        assert!(epoll.wants_reissue());
        for again in [epoll.restored_at_stop(false), epoll.for_sigframe(false, None)] {
            assert_eq!((again.pc, again.x[0], again.x[8], again.x[1]), (0x1000, 7, 22, 0));
        }
        assert_eq!(epoll.restored_at_stop(true), epoll);
        assert_eq!(epoll.for_sigframe(true, None), epoll);
        for other in [
            at(0x1004, -4, 57, 57), // close
            at(0x1004, -11, 22, 22),
            at(0x1008, -4, 22, 22),
            at(0x1004, -4, 22, 63),
            UserRegs { blocked: None, ..epoll },
        ] {
            assert!(!other.wants_reissue());
            assert_eq!(other.restored_at_stop(false), other);
        }
    }

    #[test]
    fn calls_that_were_interrupted_before() {
        let again = at(0x1000, 7, nr::RESTART_SYSCALL, nr::RESTART_SYSCALL);
        assert!(again.is_restarted() && !at(0x1000, 7, 101, 101).is_restarted());
        assert_eq!((again.syscall_pc(), again.restored_behind_call()), (0x1000, again));
        assert_eq!(again.for_sigframe(false, Some(101)).x[8], 101);
        assert_eq!(at(0x1000, 7, 98, 98).for_sigframe(false, Some(101)).x[8], 98);
        let sleep = 0xd280_0ca8_u32.to_le_bytes(); // mov x8, #101
        assert_eq!(again.restarted_call(&sleep, "futex_wait"), Some(nr::NANOSLEEP));
        let other = 0xd280_0828_u32.to_le_bytes(); // mov x8, #65
        assert_eq!(again.restarted_call(&other, "futex_wait_queue"), Some(nr::FUTEX));
        assert_eq!(again.restarted_call(&[], "invoke_syscall"), Some(nr::CLOCK_NANOSLEEP));
        let pointer = at(0x1000, 0xffff_e2c4_d5c0, nr::RESTART_SYSCALL, nr::RESTART_SYSCALL);
        assert_eq!(pointer.restarted_call(&[], "hrtimer_nanosleep_restart"), Some(nr::NANOSLEEP));
        assert_eq!(again.restarted_call(&[], "0"), None);
    }

    #[test]
    fn in_the_call_or_not() {
        assert!(at(0x1000, 7, 101, 101).is_in_call() && at(0x1004, -4, 22, 22).is_in_call());
        assert!(!at(0x1008, 7, 101, 101).is_in_call() && !at(0x1000, 7, 101, 22).is_in_call());
    }

    #[test]
    fn a_thread_is_sent_to_a_call() {
        let mut regs = UserRegs { pstate: 0x6000_0c00, ..at(0x1000, 7, 101, 101) };
        regs.set_syscall(222, [1, 2, 3, 4, 5, 6]);
        regs.enter(0x9000, 0x6ff0, 0xa000);
        assert_eq!(regs.x[..6], [1, 2, 3, 4, 5, 6]);
        assert_eq!((regs.x[8], regs.x[30], regs.pc, regs.sp), (222, 0xa000, 0x9000, 0x6ff0));
        assert_eq!(regs.pstate, 0x6000_0000);
        assert!(regs.stands_on(0x9000) && !regs.stands_on(0x9004));
    }

    #[test]
    fn a_function_is_called_and_left_by_the_restorer() {
        let mut regs = UserRegs { pstate: 0x6000_0c00, ..at(0x1000, 7, 101, 101) };
        (regs.x[19], regs.x[29]) = (9, 0x7100);
        let calling = regs.calling(0x5000, 0x6fc0, [1, 2], 0xa000);
        assert_eq!((calling.pc, calling.sp, calling.pstate), (0x5000, 0x6fc0, 0x6000_0000));
        assert_eq!([0, 1, 19].map(|n| calling.x[n]), [1, 2, 9]);
        assert_eq!((calling.x[29], calling.x[30]), (0, 0xa000));
        assert!(!calling.wants_reissue() && !calling.is_in_call());
        let mut end = UserRegs { pc: 0xa008, ..calling };
        (end.x[0], end.x[8]) = (-4_i64 as u64, nr::RT_SIGRETURN);
        assert_eq!(end.function_result(), Some(-4_i64 as u64));
        let skipping = end.skipping(0xa000);
        assert_eq!((skipping.pc, skipping.x[0], skipping.sp), (0xa000, 0, 0x6fc0));
    }
}
