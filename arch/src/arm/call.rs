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

use super::regs::{LR, PC, SP, THUMB};
use super::syscall::nr;
use crate::blocked::{Blocked, Timeout};
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

/// Commands of futex(2) that, with a timeout, wait with a restart block of the kernel.
const FUTEX_WAIT: u64 = 0;
const FUTEX_WAIT_BITSET: u64 = 9;
const FUTEX_COMMAND: u64 = 0x7f;
const TIMER_ABSTIME: u64 = 1;

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
    /// Length of the kernel's structure at the start of this one, in bytes.
    pub const KERNEL_LEN: usize = 18 * 4;

    fn get(&self, register: u16) -> u64 {
        self.r.get(usize::from(register)).copied().unwrap_or(0).into()
    }

    /// Returns the program counter.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.get(PC)
    }

    /// Returns whether the thread faults at unaligned words although others do not. A program can't choose
    /// that on this architecture.
    #[must_use]
    pub fn checks_alignment(&self) -> bool {
        false
    }

    /// Returns the stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.get(SP)
    }

    /// Sets the program counter, and the state that bit 0 of the address says. The state is never that of an
    /// if-then block, as `relocate` takes those apart.
    pub fn set_pc(&mut self, pc: u64) {
        self.r[PC as usize] = (pc & !THUMB) as u32;
        self.cpsr &= !(CPSR_T | CPSR_IT);
        if pc & THUMB != 0 {
            self.cpsr |= CPSR_T;
        }
    }

    /// Returns whether the thread runs Thumb code.
    fn is_thumb(&self) -> bool {
        self.cpsr & CPSR_T != 0
    }

    /// Returns the length of the system call instruction in this state, in bytes.
    fn svc_len(&self) -> u64 {
        if self.is_thumb() { 2 } else { 4 }
    }

    /// Sends the thread to the system call gadget at `gadget`, which returns to the restorer of the signal
    /// frame at `sp`.
    pub fn enter(&mut self, gadget: u64, sp: u64, restorer: u64) {
        self.set_pc(gadget);
        self.r[SP as usize] = sp as u32;
        self.r[LR as usize] = restorer as u32;
    }

    /// Returns the thread pointer, which keys the hook's table of threads.
    #[must_use]
    pub fn thread_pointer(&self) -> u64 {
        self.tp
    }

    /// Sets the thread pointer, as [`THREAD_POINTER_REGSET`] has it.
    pub fn set_thread_pointer(&mut self, tp: u64) {
        self.tp = tp;
    }

    /// Sets the system call in which the thread was asleep before the stop.
    pub fn set_blocked(&mut self, blocked: Option<Blocked>) {
        self.blocked = blocked;
    }

    /// Prepares a system call; the thread has to continue at a `svc` instruction.
    pub fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        for (r, arg) in self.r.iter_mut().zip(args) {
            *r = arg as u32;
        }
        self.r[7] = number as u32;
    }

    /// Returns an argument of the system call that the thread is about to make, or is in, counted from 0.
    #[must_use]
    pub fn argument(&self, index: usize) -> u64 {
        self.r.iter().take(6).nth(index).copied().unwrap_or(0).into()
    }

    /// Sets such an argument.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        if let Some(to) = self.r.iter_mut().take(6).nth(index) {
            *to = value as u32;
        }
    }

    /// Returns the result of a system call that has returned; errors are negative.
    #[must_use]
    pub fn syscall_result(&self) -> i64 {
        super::syscall::result(self.r[0])
    }

    /// Returns the number of the system call that the thread is in, if its program counter is at or behind a
    /// system call instruction.
    #[must_use]
    pub fn syscall_number(&self) -> Option<u64> {
        Some(self.r[7].into())
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

    /// Returns whether the thread is in the system call in which it was seen asleep.
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.blocked_here(self.pc()).or(self.blocked_here(self.behind())).is_some()
    }

    /// Returns the number of the call that has ended with EINTR, if a stop may have ended it and the thread
    /// was not seen asleep in it: it may have fallen asleep, or have been about to, after it was inspected.
    #[must_use]
    pub fn ended_unseen(&self) -> Option<u64> {
        let number = u64::from(self.r[7]);
        let ended = self.syscall_result() == -EINTR && is_never_restarted(number);
        (ended && self.blocked_here(self.pc()).is_none()).then_some(number)
    }

    /// Returns the first argument of that call, if the registers tell.
    #[must_use]
    pub fn first_argument(&self) -> Option<u64> {
        // It is -1 outside of a call.
        (self.orig_r0 != u32::MAX).then_some(self.orig_r0.into())
    }

    /// Returns whether `before`, the code in front of the program counter, ends with a system call
    /// instruction.
    #[must_use]
    pub fn is_behind_call(&self, before: &[u8]) -> bool {
        if self.svc_len() == 4 {
            before.ends_with(&[0, 0, 0, 0xef])
        } else {
            before.ends_with(&[0, 0xdf])
        }
    }

    /// Returns whether the stack below the stack pointer has the frame of a signal that interrupted the
    /// thread right here, so that EINTR was due.
    #[must_use]
    pub fn has_signal_frame(&self, below: &[u8]) -> bool {
        // struct sigcontext: r0 to r10, fp, ip, sp, lr, pc.
        let words = below.as_chunks::<4>().0;
        words.windows(16).any(|w| {
            let is = |at: usize| w.get(at) == self.r.get(at).map(|r| r.to_le_bytes()).as_ref();
            is(0) && is(7) && is(SP as usize) && is(PC as usize)
        })
    }

    /// Returns the call that the stop has ended with EINTR, if it must be issued again.
    fn reissue(&self) -> Option<Blocked> {
        let ended = self.syscall_result() == -EINTR && is_never_restarted(self.r[7].into());
        if ended { self.blocked_here(self.pc()) } else { None }
    }

    /// Returns whether the stop has interrupted a system call that the kernel is *not* going to restart, so
    /// that it must be issued again. This holds only if no signal is pending or about to be delivered:
    /// otherwise EINTR is due.
    #[must_use]
    pub fn wants_reissue(&self) -> bool {
        self.reissue().is_some()
    }

    /// Returns the registers with the program counter before the `svc` instruction, to issue the same call
    /// again.
    #[must_use]
    fn reissued(&self) -> Self {
        let mut regs = *self;
        if let Some(call) = self.reissue() {
            regs.r[PC as usize] = self.pc().wrapping_sub(self.svc_len()) as u32;
            regs.r[0] = call.args[0] as u32;
        }
        regs
    }

    /// Returns the registers to write back at a signal-delivery or `PTRACE_INTERRUPT` stop. `self` are those
    /// from the first stop; they are unchanged, except that a call that the kernel would not restart is put
    /// back. `signal_pending`: see [`wants_reissue`](Self::wants_reissue).
    #[must_use]
    pub fn restored_at_stop(&self, signal_pending: bool) -> Self {
        if signal_pending { *self } else { self.reissued() }
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
            nr::CLOCK_NANOSLEEP | nr::CLOCK_NANOSLEEP_TIME64 => call.args[1] & TIMER_ABSTIME == 0,
            nr::POLL => call.args[2] as i32 > 0,
            nr::FUTEX | nr::FUTEX_TIME64 => {
                let command = call.args[1] & FUTEX_COMMAND;
                (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) && call.args[3] != 0
            }
            _ => false,
        }
    }

    /// Returns the registers to write back behind a remote call; `self` are those from the first stop. At the
    /// stop that follows the kernel takes `r0` for the result of a call. So if the kernel keeps the rest of a
    /// timeout, `r0` says again, as it did before the first stop, that the call is to be continued. The
    /// thread makes any other call again by itself, as it is on the `svc`.
    ///
    /// The remote calls in between must not have set the thread's restart state themselves (sleeps, futex
    /// waits, polls).
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

    /// Returns whether the thread waits in `restart_syscall`, so that the number of its own call is gone.
    #[must_use]
    pub fn is_restarted(&self) -> bool {
        u64::from(self.r[7]) == nr::RESTART_SYSCALL && self.blocked_here(self.behind()).is_some()
    }

    /// Returns the call that a thread in `restart_syscall` made first, if that is certain: the kernel keeps
    /// only the rest of it. `code` is the code up to the system call instruction, `waits_in` the kernel
    /// function in which the thread was asleep (`/proc/PID/wchan`).
    #[must_use]
    pub fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        // These calls end with ERESTART_RESTARTBLOCK.
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

    /// Returns the program counter at the system call instruction of a thread that
    /// [`is_restarted`](Self::is_restarted).
    #[must_use]
    pub fn syscall_pc(&self) -> u64 {
        self.pc()
    }

    /// Returns the registers to put into a signal frame. A call whose restart the kernel has prepared is
    /// issued again from its start, and so its timeout starts again too; this is what remains if the tracer
    /// dies. `rt_sigreturn` makes the kernel forget the rest of a call, so a thread in `restart_syscall`
    /// needs the number of its first call, `restarted`.
    #[must_use]
    pub fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
        let mut regs = self.restored_at_stop(signal_pending);
        if let Some(first) = restarted.filter(|_| self.is_restarted()) {
            regs.r[7] = first as u32;
        }
        regs
    }

    /// Returns whether the kernel may still take a thread that is sent to `gadget` for one whose call is to
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
