//! The registers of a stopped thread, and how to make it run a system call and go on as if nothing
//! had happened.
//!
//! `struct pt_regs` is from `arch/arm/include/uapi/asm/ptrace.h`; how the kernel restarts interrupted
//! calls from `do_signal` in `arch/arm/kernel/signal.c`, and for 32-bit processes of a 64-bit kernel
//! from that in `arch/arm64/kernel/signal.c`; which calls are never restarted from signal(7).
//!
//! At a signal-delivery or `PTRACE_INTERRUPT` stop the kernel has made its decision: of a call to be
//! restarted, `r0` holds the first argument again and `pc` is back on the `svc`; only whether that is
//! done as `restart_syscall` it keeps to itself. It cannot be seen there that the thread was in a call
//! at all. So the tracer looks at the thread before it stops it: [`Blocked`].

use super::regs::{LR, PC, SP, THUMB};
use super::syscall::nr;
use crate::blocked::{Blocked, Timeout};
use crate::registers::Registers;

const EINTR: i64 = 4;
/// Kernel-internal: continued by `restart_syscall` with what is left of its timeout.
const ERESTART_RESTARTBLOCK: u32 = 516;

/// The general registers (`NT_PRSTATUS`).
pub const REGSET: Registers = Registers::Set(1);
/// The thread pointer: `PTRACE_GET_THREAD_AREA`.
pub const THREAD_POINTER_REGSET: Option<Registers> = Some(Registers::Requests { get: 22, set: 0 });
/// There is no register set with the number of the system call that the thread is in.
pub const SYSTEM_CALL_REGSET: Option<i32> = None;
/// A thread must be looked at before it is stopped.
pub const NEEDS_BLOCKED: bool = true;

/// Calls that return EINTR at a ptrace stop instead of being restarted by the kernel, and that can
/// be issued again with no harm: where they return EINTR they have done nothing yet. Reads and
/// writes are here for inotify and for sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
/// A `connect` with a timeout goes on waiting for the handshake that it has begun, as the kernel's own
/// restart of one without a timeout does. `close` is not here: again is not the same as once.
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

/// Commands of futex(2) that wait with what the kernel calls a restart block if they have a timeout.
const FUTEX_WAIT: u64 = 0;
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_COMMAND: u64 = 0x7f;
const TIMER_ABSTIME: u64 = 1;

/// The processor's state: Thumb code, and how far it is in an if-then block.
pub(super) const CPSR_T: u32 = 1 << 5;
const CPSR_IT: u32 = 0x0600_fc00;

/// The registers of a stopped thread: the kernel's `struct pt_regs` (`NT_PRSTATUS`), and what else is
/// known of it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct UserRegs {
    /// `r0` to `r15`.
    pub r: [u32; 16],
    /// Processor state.
    pub cpsr: u32,
    /// What `r0` was when the thread entered the kernel for a system call.
    pub orig_r0: u32,
    /// `TPIDRURO`.
    pub tp: u64,
    /// The system call in which the thread was asleep just before it was stopped.
    pub blocked: Option<Blocked>,
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
    pub const KERNEL_LEN: usize = 18 * 4;

    fn get(&self, register: u16) -> u64 {
        self.r.get(usize::from(register)).copied().unwrap_or(0).into()
    }

    /// Program counter.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.get(PC)
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
        self.get(SP)
    }

    /// Sets the program counter, and the state that bit 0 of the address says; not in an if-then block,
    /// as `relocate` has taken those apart.
    pub fn set_pc(&mut self, pc: u64) {
        self.r[PC as usize] = (pc & !THUMB) as u32;
        self.cpsr &= !(CPSR_T | CPSR_IT);
        if pc & THUMB != 0 {
            self.cpsr |= CPSR_T;
        }
    }

    /// The thread runs Thumb code.
    fn is_thumb(&self) -> bool {
        self.cpsr & CPSR_T != 0
    }

    /// Bytes of the system call instruction in this state.
    fn svc_len(&self) -> u64 {
        if self.is_thumb() { 2 } else { 4 }
    }

    /// Sends the thread to the system call gadget at `gadget`, from where it returns to the restorer
    /// of the signal frame at `sp`.
    pub fn enter(&mut self, gadget: u64, sp: u64, restorer: u64) {
        self.set_pc(gadget);
        self.r[SP as usize] = sp as u32;
        self.r[LR as usize] = restorer as u32;
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

    /// Takes what the thread did just before it was stopped.
    pub fn set_blocked(&mut self, blocked: Option<Blocked>) {
        self.blocked = blocked;
    }

    /// Prepares a system call: the thread is to go on at a `svc` instruction.
    pub fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        for (r, arg) in self.r.iter_mut().zip(args) {
            *r = arg as u32;
        }
        self.r[7] = number as u32;
    }

    /// An argument of the system call that the thread is about to make, or is in, counted from 0.
    #[must_use]
    pub fn argument(&self, index: usize) -> u64 {
        self.r.iter().take(6).nth(index).copied().unwrap_or(0).into()
    }

    /// Changes such an argument.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        if let Some(to) = self.r.iter_mut().take(6).nth(index) {
            *to = value as u32;
        }
    }

    /// The result of a system call that has returned; errors are negative.
    #[must_use]
    pub fn syscall_result(&self) -> i64 {
        super::syscall::result(self.r[0])
    }

    /// The number of the system call that the thread is in, if its program counter is at or behind a
    /// system call instruction.
    #[must_use]
    pub fn syscall_number(&self) -> Option<u64> {
        Some(self.r[7].into())
    }

    /// The thread was asleep in a call with these registers, but for the first argument. A 32-bit
    /// kernel leaves the number of a call that it continues in `r7`; a 64-bit kernel puts that of
    /// `restart_syscall` there.
    fn blocked_here(&self, behind: u64) -> Option<Blocked> {
        let same = |b: &Blocked| {
            let number = u64::from(self.r[7]);
            (b.number == number || b.number == nr::RESTART_SYSCALL)
                && (b.sp, b.pc) == (self.sp(), behind)
                && b.args[1..].iter().zip(&self.r[1..]).all(|(a, r)| *a as u32 == *r)
        };
        self.blocked.filter(same)
    }

    /// Behind the `svc` that the thread is on.
    fn behind(&self) -> u64 {
        self.pc().wrapping_add(self.svc_len())
    }

    /// The thread is in the system call in which it was seen asleep.
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.blocked_here(self.pc()).or(self.blocked_here(self.behind())).is_some()
    }

    /// The number of the call that has ended with EINTR, if it is one that a stop may have ended, and the thread was
    /// not seen asleep in it: it may have fallen asleep, or have been about to, after it was looked at.
    #[must_use]
    pub fn ended_unseen(&self) -> Option<u64> {
        let number = u64::from(self.r[7]);
        let ended = self.syscall_result() == -EINTR && is_never_restarted(number);
        (ended && self.blocked_here(self.pc()).is_none()).then_some(number)
    }

    /// The first argument of that call, if the registers tell.
    #[must_use]
    pub fn first_argument(&self) -> Option<u64> {
        // -1 where it is not in a call.
        (self.orig_r0 != u32::MAX).then_some(self.orig_r0.into())
    }

    /// Whether the code before the program counter, of which this is the end, makes a system call.
    #[must_use]
    pub fn is_behind_call(&self, before: &[u8]) -> bool {
        if self.svc_len() == 4 {
            before.ends_with(&[0, 0, 0, 0xef])
        } else {
            before.ends_with(&[0, 0xdf])
        }
    }

    /// Whether the stack below the stack pointer has the frame of a signal that interrupted the thread right here, so
    /// that EINTR was its due.
    #[must_use]
    pub fn has_signal_frame(&self, below: &[u8]) -> bool {
        // struct sigcontext: r0 to r10, fp, ip, sp, lr, pc.
        let words = below.as_chunks::<4>().0;
        words.windows(16).any(|w| {
            let is = |at: usize| w.get(at) == self.r.get(at).map(|r| r.to_le_bytes()).as_ref();
            is(0) && is(7) && is(SP as usize) && is(PC as usize)
        })
    }

    /// The call that the stop has ended with EINTR, where it must be issued again.
    fn reissue(&self) -> Option<Blocked> {
        let ended = self.syscall_result() == -EINTR && is_never_restarted(self.r[7].into());
        if ended { self.blocked_here(self.pc()) } else { None }
    }

    /// The system call was interrupted by the stop, the kernel is *not* going to restart it, and it
    /// must be issued again. True only of a thread for which no signal is pending or about to be
    /// delivered: otherwise EINTR is its due.
    #[must_use]
    pub fn wants_reissue(&self) -> bool {
        self.reissue().is_some()
    }

    /// Back to before the `svc` instruction, to issue the same call again.
    #[must_use]
    fn reissued(&self) -> Self {
        let mut regs = *self;
        if let Some(call) = self.reissue() {
            regs.r[PC as usize] = self.pc().wrapping_sub(self.svc_len()) as u32;
            regs.r[0] = call.args[0] as u32;
        }
        regs
    }

    /// The registers to write back at a signal-delivery or `PTRACE_INTERRUPT` stop, `self` being
    /// those from the first stop: they are as they were; only a call that the kernel would not
    /// restart is put back. `signal_pending`: see [`wants_reissue`](Self::wants_reissue).
    #[must_use]
    pub fn restored_at_stop(&self, signal_pending: bool) -> Self {
        if signal_pending { *self } else { self.reissued() }
    }

    /// The thread stands on the `svc` of a call that goes on with the rest of its timeout when it is
    /// restarted as `restart_syscall`.
    fn is_timed(&self) -> bool {
        let Some(call) = self.blocked_here(self.behind()) else { return false };
        if call.args[0] as u32 != self.r[0] {
            return false;
        }
        match call.number {
            nr::RESTART_SYSCALL | nr::NANOSLEEP => true,
            nr::CLOCK_NANOSLEEP | nr::CLOCK_NANOSLEEP_TIME64 => call.args[1] & TIMER_ABSTIME == 0,
            nr::POLL => call.args[2] as i32 > 0,
            nr::FUTEX | nr::FUTEX_TIME64 => {
                let command = call.args[1] & FUTEX_COMMAND;
                (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) && call.args[3] != 0
            }
            _ => false,
        }
    }

    /// The registers to write back behind a remote call, `self` being those from the first stop. At
    /// the stop that follows the kernel takes `r0` for the result of a call, and so is told again what
    /// it was told before the first: that a call is to be continued, where it keeps the rest of a
    /// timeout. Any other call is simply made again, by the thread, which stands on its `svc`.
    ///
    /// The remote calls made in between must not have been of the kind that sets the thread's
    /// restart state themselves (sleeps, futex waits, polls).
    #[must_use]
    pub fn restored_behind_call(&self) -> Self {
        let mut regs = *self;
        if self.is_timed() {
            regs.orig_r0 = self.r[0];
            regs.r[0] = ERESTART_RESTARTBLOCK.wrapping_neg();
            regs.r[PC as usize] = self.behind() as u32;
        }
        regs
    }

    /// The thread waits in `restart_syscall`, and its own call's number is gone.
    #[must_use]
    pub fn is_restarted(&self) -> bool {
        u64::from(self.r[7]) == nr::RESTART_SYSCALL && self.blocked_here(self.behind()).is_some()
    }

    /// The call that a thread in `restart_syscall` has made first, if that can be told for certain:
    /// the kernel keeps only what is left of it. `code` is the code up to the system call
    /// instruction, `waits_in` the kernel function that the thread was asleep in
    /// (`/proc/PID/wchan`).
    #[must_use]
    pub fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        // The calls that end with ERESTART_RESTARTBLOCK.
        let known = [
            nr::NANOSLEEP,
            nr::CLOCK_NANOSLEEP,
            nr::CLOCK_NANOSLEEP_TIME64,
            nr::POLL,
            nr::FUTEX,
            nr::FUTEX_TIME64,
        ];
        let loaded = super::syscall::number_before(code, self.is_thumb());
        loaded.filter(|n| known.contains(n)).or_else(|| {
            let is = |names: &[&str]| names.iter().any(|n| waits_in.starts_with(n));
            is(&["poll_schedule_timeout", "do_sys_poll", "do_restart_poll"]).then_some(nr::POLL)
        })
    }

    /// The program counter at the system call instruction that the thread is in, of one that
    /// [`is_restarted`](Self::is_restarted).
    #[must_use]
    pub fn syscall_pc(&self) -> u64 {
        self.pc()
    }

    /// The registers to put into a signal frame. A call whose restart the kernel has prepared is
    /// issued again from its start, and so its timeout starts again too; that is what remains if the
    /// tracer dies. `rt_sigreturn` makes the kernel forget what is left of a call, so a thread in
    /// `restart_syscall` needs its first call, which is `restarted`.
    #[must_use]
    pub fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
        let mut regs = self.restored_at_stop(signal_pending);
        if let Some(first) = restarted.filter(|_| self.is_restarted()) {
            regs.r[7] = first as u32;
        }
        regs
    }

    /// Whether the kernel may still take a thread that is sent to `gadget` for one whose call is to
    /// be restarted there: its `pc` is on that very instruction.
    #[must_use]
    pub fn stands_on(&self, gadget: u64) -> bool {
        self.pc() == gadget & !THUMB
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
