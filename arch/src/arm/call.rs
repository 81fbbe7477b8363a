//! The registers of a stopped thread, and how to make the thread run a system call and continue as if nothing
//! had happened.
//!
//! Sources: `struct pt_regs`: `arch/arm/include/uapi/asm/ptrace.h`; restart of interrupted calls: `do_signal`
//! in `arch/arm/kernel/signal.c`, and for 32-bit processes of a 64-bit kernel in
//! `arch/arm64/kernel/signal.c`; calls that are never restarted: signal(7).
//!
//! At a signal-delivery or `PTRACE_INTERRUPT` stop the kernel has already decided on a restart. For a call to
//! be restarted, `r0` holds the first argument again and `pc` is back on the `svc`; only whether the restart
//! is done as `restart_syscall` is hidden. The registers do not show whether the thread was in a call at all.
//! So the tracer inspects the thread before it stops it: [`Blocked`].

use super::regs::{LR, PC, R7, R11, SP, THUMB};
use super::syscall::nr;
use crate::blocked::{Blocked, Timeout};
use crate::generic::stopped::{Restarts, StoppedRegs};
use crate::registers::Registers;

const EINTR: i64 = 4;
/// Internal error number of the kernel: `restart_syscall` continues the call with the rest of its timeout.
const ERESTART_RESTARTBLOCK: u32 = 516;

/// Register set with the general registers (`NT_PRSTATUS`).
pub const REGSET: Registers = Registers::Set(1);
/// Request for the thread pointer: `PTRACE_GET_THREAD_AREA`.
pub const THREAD_POINTER_REGSET: Option<Registers> = Some(Registers::Requests { get: 22, set: 0 });
/// Register set with the number of the system call that the thread is in: there is none.
pub const SYSTEM_CALL_REGSET: Option<i32> = None;
/// Request that sets the number of the system call that a thread is about to make (`PTRACE_SET_SYSCALL`): behind the
/// entry, the kernel does not look at `r7` any more.
pub const SET_CALL: Option<u32> = Some(23);
/// Whether a thread must be inspected before it is stopped.
pub const NEEDS_BLOCKED: bool = true;

/// System calls that return EINTR at a ptrace stop instead of being restarted by the kernel, and that can be
/// issued again without harm: where they return EINTR they have done nothing yet. Reads and writes are listed
/// for inotify and for sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`). A `connect` with a timeout
/// continues to wait for the handshake that it has begun, as the kernel's own restart of one without a
/// timeout does. `close` is not listed: it must not be done twice.
const NEVER_RESTARTED: [u64; 33] = [
    3,   // read (inotify)
    4,   // write
    145, // readv
    146, // writev
    177, // rt_sigtimedwait
    245, // io_getevents
    252, // epoll_wait
    276, // mq_timedsend
    277, // mq_timedreceive
    283, // connect
    285, // accept
    289, // send
    290, // sendto
    291, // recv
    292, // recvfrom
    296, // sendmsg
    297, // recvmsg
    298, // semop
    312, // semtimedop
    346, // epoll_pwait
    365, // recvmmsg
    366, // accept4
    374, // sendmmsg
    384, // getrandom
    399, // io_pgetevents
    416, // io_pgetevents_time64
    417, // recvmmsg_time64
    418, // mq_timedsend_time64
    419, // mq_timedreceive_time64
    420, // semtimedop_time64
    421, // rt_sigtimedwait_time64
    426, // io_uring_enter
    441, // epoll_pwait2
];

/// Bits of the processor state: Thumb code, and the position in an if-then block.
pub(super) const CPSR_T: u32 = 1 << 5;
const CPSR_IT: u32 = 0x0600_fc00;

/// The registers of a stopped thread: the kernel's `struct pt_regs` (`NT_PRSTATUS`), and what else is known
/// of the thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct UserRegs {
    /// `r0` to `r15`.
    pub r: [u32; 16],
    /// Processor state.
    pub cpsr: u32,
    /// Value of `r0` when the thread entered the kernel for a system call.
    pub orig_r0: u32,
    /// Thread pointer (`TPIDRURO`).
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
        245 | 399 => Timeout::Narrow(4),       // io_getevents, io_pgetevents
        416 => Timeout::Wide(4),               // io_pgetevents_time64
        177 => Timeout::Narrow(2),             // rt_sigtimedwait
        421 => Timeout::Wide(2),               // rt_sigtimedwait_time64
        312 => Timeout::Narrow(3),             // semtimedop
        420 | 441 => Timeout::Wide(3),         // semtimedop_time64, epoll_pwait2
        252 | 346 => Timeout::Milliseconds(3), // epoll_wait, epoll_pwait
        426 => Timeout::Ring(4),               // io_uring_enter
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
    fn get(&self, register: u16) -> u64 {
        self.r.get(usize::from(register)).copied().unwrap_or(0).into()
    }

    /// Returns whether the thread runs Thumb code.
    fn is_thumb(&self) -> bool {
        self.cpsr & CPSR_T != 0
    }

    /// Returns the length of the system call instruction in this state, in bytes.
    fn svc_len(&self) -> u64 {
        if self.is_thumb() { 2 } else { 4 }
    }

    /// Returns the call in which the thread was seen asleep, if its registers are the same but for the first
    /// argument. A 32-bit kernel leaves the number of a call that it continues in `r7`; a 64-bit kernel puts
    /// that of `restart_syscall` there.
    fn blocked_here(&self, behind: u64) -> Option<Blocked> {
        let same = |b: &Blocked| {
            let number = u64::from(self.r[7]);
            (b.number == number || b.number == nr::RESTART_SYSCALL)
                && (b.sp, b.pc) == (self.sp(), behind)
                && b.args[1..].iter().zip(&self.r[1..]).all(|(a, r)| *a as u32 == *r)
        };
        self.blocked.filter(same)
    }

    /// Returns the address behind the `svc` that the thread is on.
    fn behind(&self) -> u64 {
        self.pc().wrapping_add(self.svc_len())
    }

    /// Returns the call that the stop has ended with EINTR, if it must be issued again.
    fn reissue(&self) -> Option<Blocked> {
        let ended = self.syscall_result() == -EINTR && is_never_restarted(self.r[7].into());
        if ended { self.blocked_here(self.pc()) } else { None }
    }

    /// Returns whether the thread is at the `svc` of a call that continues with the rest of its timeout when
    /// it is restarted as `restart_syscall`.
    fn is_timed(&self) -> bool {
        let Some(call) = self.blocked_here(self.behind()) else { return false };
        if call.args[0] as u32 != self.r[0] {
            return false;
        }
        match call.number {
            nr::RESTART_SYSCALL | nr::NANOSLEEP => true,
            nr::CLOCK_NANOSLEEP | nr::CLOCK_NANOSLEEP_TIME64 => call.is_relative_sleep(),
            nr::POLL => call.args[2] as i32 > 0,
            nr::FUTEX | nr::FUTEX_TIME64 => call.is_timed_futex_wait(),
            _ => false,
        }
    }
}

impl StoppedRegs for UserRegs {
    const KERNEL_LEN: usize = 18 * 4;

    fn pc(&self) -> u64 {
        self.get(PC)
    }

    fn sp(&self) -> u64 {
        self.get(SP)
    }

    /// Sets the state that bit 0 of the address says. It is never that of an if-then block, as `relocate` takes those
    /// apart.
    fn set_pc(&mut self, pc: u64) {
        self.r[PC as usize] = (pc & !THUMB) as u32;
        self.cpsr &= !(CPSR_T | CPSR_IT);
        if pc & THUMB != 0 {
            self.cpsr |= CPSR_T;
        }
    }

    fn enter(&mut self, gadget: u64, sp: u64, restorer: u64) {
        self.set_pc(gadget);
        self.r[SP as usize] = sp as u32;
        self.r[LR as usize] = restorer as u32;
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
        for (r, arg) in self.r.iter_mut().zip(args) {
            *r = arg as u32;
        }
        self.r[7] = number as u32;
    }

    fn argument(&self, index: usize) -> u64 {
        self.r.iter().take(6).nth(index).copied().unwrap_or(0).into()
    }

    fn set_argument(&mut self, index: usize, value: u64) {
        if let Some(to) = self.r.iter_mut().take(6).nth(index) {
            *to = value as u32;
        }
    }

    fn syscall_result(&self) -> i64 {
        super::syscall::result(self.r[0])
    }

    fn syscall_number(&self) -> Option<u64> {
        Some(self.r[7].into())
    }

    fn is_in_call(&self) -> bool {
        self.blocked_here(self.pc()).or(self.blocked_here(self.behind())).is_some()
    }

    fn ended_unseen(&self) -> Option<u64> {
        let number = u64::from(self.r[7]);
        let ended = self.syscall_result() == -EINTR && is_never_restarted(number);
        (ended && self.blocked_here(self.pc()).is_none()).then_some(number)
    }

    fn first_argument(&self) -> Option<u64> {
        // It is -1 outside of a call.
        (self.orig_r0 != u32::MAX).then_some(self.orig_r0.into())
    }

    /// The kernel puts a thread whose call it is going to continue or to make again back to the instruction, and the first
    /// argument back into `r0`. Where no call was interrupted, `orig_r0` is -1; behind a call, `r0` is its result. A kernel
    /// of AArch64 keeps an old `orig_r0`.
    fn continues_unseen(&self) -> Option<Blocked> {
        let unseen = !self.is_in_call() && self.orig_r0 == self.r[0] && self.orig_r0 != u32::MAX;
        let args = [0, 1, 2, 3, 4, 5].map(|n| self.get(n));
        let (sp, pc) = (self.sp(), self.behind());
        unseen.then(|| Blocked { number: self.r[7].into(), args, sp, pc })
    }

    fn is_behind_call(&self, before: &[u8]) -> bool {
        if self.svc_len() == 4 {
            before.ends_with(&[0, 0, 0, 0xef])
        } else {
            before.ends_with(&[0, 0xdf])
        }
    }

    fn has_signal_frame(&self, below: &[u8]) -> bool {
        // struct sigcontext: r0 to r10, fp, ip, sp, lr, pc.
        let words = below.as_chunks::<4>().0;
        words.windows(16).any(|w| {
            let is = |at: usize| w.get(at) == self.r.get(at).map(|r| r.to_le_bytes()).as_ref();
            is(0) && is(7) && is(SP as usize) && is(PC as usize)
        })
    }

    fn wants_reissue(&self) -> bool {
        self.reissue().is_some()
    }

    fn reissued(&self) -> Self {
        let mut regs = *self;
        if let Some(call) = self.reissue() {
            regs.r[PC as usize] = self.pc().wrapping_sub(self.svc_len()) as u32;
            regs.r[0] = call.args[0] as u32;
        }
        regs
    }

    /// At the stop that follows the kernel takes `r0` for the result of a call. So if the kernel keeps the rest of a
    /// timeout, `r0` says again, as it did before the first stop, that the call is to be continued. The thread makes
    /// any other call again by itself, as it is on the `svc`.
    fn restored_behind_call(&self) -> Self {
        let mut regs = *self;
        if self.is_timed() {
            regs.orig_r0 = self.r[0];
            regs.r[0] = ERESTART_RESTARTBLOCK.wrapping_neg();
            regs.r[PC as usize] = self.behind() as u32;
        }
        regs
    }

    /// No call is left to restart there, so one with a timeout continues as `restart_syscall`. A 64-bit kernel restarts
    /// it so by itself.
    fn restored_behind_function(&self) -> Self {
        let mut regs = *self;
        if self.is_timed() {
            regs.r[7] = nr::RESTART_SYSCALL as u32;
        }
        regs
    }

    fn is_restarted(&self) -> bool {
        u64::from(self.r[7]) == nr::RESTART_SYSCALL && self.blocked_here(self.behind()).is_some()
    }

    fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        // Of the two calls that sleep, and of the two for futexes, the kernel's functions do not tell which it was.
        const RESTARTS: Restarts<'_> = Restarts {
            known: &[
                nr::NANOSLEEP,
                nr::CLOCK_NANOSLEEP,
                nr::CLOCK_NANOSLEEP_TIME64,
                nr::POLL,
                nr::FUTEX,
                nr::FUTEX_TIME64,
            ],
            futex: None,
            poll: Some(nr::POLL),
            sleeps: None,
        };
        RESTARTS.find(super::syscall::number_before(code, self.is_thumb()), false, waits_in)
    }

    fn syscall_pc(&self) -> u64 {
        self.pc()
    }

    fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
        let mut regs = self.restored_at_stop(signal_pending);
        if let Some(first) = restarted.filter(|_| self.is_restarted()) {
            regs.r[7] = first as u32;
        }
        regs
    }

    fn stands_on(&self, gadget: u64) -> bool {
        self.pc() == gadget & !THUMB
    }

    /// `.ARM.exidx` has one row per function, and compilers mark those that can't throw like those without a caller.
    const COARSE_TABLES: bool = true;

    /// Ends the chain of frames, for unwinders that the function may call.
    fn calling(&self, at: u64, sp: u64, args: [u64; 2], back: u64) -> Self {
        let mut regs = *self;
        regs.enter(at, sp, back);
        for (r, arg) in regs.r.iter_mut().zip(args) {
            *r = arg as u32;
        }
        (regs.r[R7 as usize], regs.r[R11 as usize]) = (0, 0);
        regs
    }

    /// `ip` (`report_syscall` in `arch/arm/kernel/ptrace.c`).
    const CALLS_HIDE: bool = true;

    fn skipping(&self, pc: u64) -> Self {
        let mut regs = *self;
        // So that no value of the function's can be taken for the error of an interrupted call.
        regs.r[0] = 0;
        regs.set_pc(pc);
        regs
    }

    /// `rt_sigreturn` has no arguments, so the result is where it was.
    fn function_result(&self) -> Option<u64> {
        Some(self.r[0].into())
    }
}

impl From<&UserRegs> for super::FullRegs {
    fn from(r: &UserRegs) -> Self {
        let mut gpr = [0; 15];
        for (to, from) in gpr.iter_mut().zip(r.r) {
            *to = from.into();
        }
        super::FullRegs { pc: r.pc(), gpr }
    }
}

impl From<&UserRegs> for super::Regs {
    fn from(r: &UserRegs) -> Self {
        super::Regs { pc: r.pc(), sp: r.sp(), fp: r.get(super::regs::R7) }
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
