//! The registers of a stopped thread, and how to make the thread run a system call and continue as if nothing
//! had happened.
//!
//! Sources: `struct user_regs_struct`: `arch/x86/include/asm/user_64.h`; restart of interrupted calls:
//! `arch_do_signal_or_restart` in `arch/x86/kernel/signal.c`; calls that are never restarted: signal(7).

use super::syscall::nr;
use crate::blocked::{Blocked, Timeout};
use crate::registers::Registers;

/// Register set with the general registers (`NT_PRSTATUS`).
pub const REGSET: Registers = Registers::Set(1);
/// Register set with the thread pointer: it is among the general registers.
pub const THREAD_POINTER_REGSET: Option<Registers> = None;
/// Register set with the number of the system call that the thread is in: it is among the general registers.
pub const SYSTEM_CALL_REGSET: Option<i32> = None;
/// Whether a thread must be inspected before it is stopped: no, the registers say what a stop has
/// interrupted.
pub const NEEDS_BLOCKED: bool = false;

/// Result of an interrupted call that is restarted unless a handler without `SA_RESTART` ran. It is internal
/// to the kernel, and seen by tracers only.
pub const ERESTARTSYS: i64 = 512;
/// Result of an interrupted call that is always restarted.
pub const ERESTARTNOINTR: i64 = 513;
/// Result of an interrupted call that is restarted if no handler ran.
pub const ERESTARTNOHAND: i64 = 514;
/// Result of an interrupted call that `restart_syscall` continues with the rest of its timeout.
pub const ERESTART_RESTARTBLOCK: i64 = 516;
const EINTR: i64 = 4;

/// System calls that return EINTR at a ptrace stop instead of being restarted by the kernel, and that can be
/// issued again without harm: where they return EINTR they have done nothing yet. Reads and writes are listed
/// for inotify and for sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`). A `connect` with a timeout
/// continues to wait for the handshake that it has begun, as the kernel's own restart of one without a
/// timeout does. `close` is not listed: it must not be done twice.
const NEVER_RESTARTED: [u64; 25] = [
    0,   // read (inotify)
    1,   // write
    19,  // readv
    20,  // writev
    42,  // connect
    43,  // accept
    44,  // sendto
    45,  // recvfrom
    46,  // sendmsg
    47,  // recvmsg
    65,  // semop
    128, // rt_sigtimedwait
    208, // io_getevents
    220, // semtimedop
    232, // epoll_wait
    242, // mq_timedsend
    243, // mq_timedreceive
    281, // epoll_pwait
    288, // accept4
    299, // recvmmsg
    307, // sendmmsg
    318, // getrandom
    333, // io_pgetevents
    426, // io_uring_enter
    441, // epoll_pwait2
];

/// The registers of a stopped thread: the kernel's `struct user_regs_struct` (`PTRACE_GETREGS`,
/// `NT_PRSTATUS`).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct UserRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
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
        208 | 333 => Timeout::Wide(4),         // io_getevents, io_pgetevents
        128 => Timeout::Wide(2),               // rt_sigtimedwait
        220 | 441 => Timeout::Wide(3),         // semtimedop, epoll_pwait2
        232 | 281 => Timeout::Milliseconds(3), // epoll_wait, epoll_pwait
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
    /// Length of the kernel's structure at the start of this one, in bytes: all of it.
    pub const KERNEL_LEN: usize = size_of::<UserRegs>();

    /// Returns the program counter.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.rip
    }

    /// Returns whether the thread faults at each unaligned word (EFLAGS.AC); the hook writes such words.
    #[must_use]
    pub fn checks_alignment(&self) -> bool {
        const AC: u64 = 1 << 18;
        self.eflags & AC != 0
    }

    /// Returns the stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.rsp
    }

    /// Sets the program counter.
    pub fn set_pc(&mut self, pc: u64) {
        self.rip = pc;
    }

    /// Sets the stack pointer.
    pub fn set_sp(&mut self, sp: u64) {
        self.rsp = sp;
    }

    /// Sends the thread to the system call gadget at `gadget`, which returns to the restorer that the signal
    /// frame at `sp` names.
    pub fn enter(&mut self, gadget: u64, sp: u64, _restorer: u64) {
        self.rip = gadget;
        self.rsp = sp;
    }

    /// Returns the thread pointer, which keys the hook's table of threads.
    #[must_use]
    pub fn thread_pointer(&self) -> u64 {
        self.fs_base
    }

    /// Does nothing: no other register set has the thread pointer (see [`THREAD_POINTER_REGSET`]).
    pub fn set_thread_pointer(&mut self, _tp: u64) {}

    /// Does nothing: the registers say what the thread did before it was stopped (see [`NEEDS_BLOCKED`]).
    pub fn set_blocked(&mut self, _blocked: Option<Blocked>) {}

    /// Returns the number of a call that has ended with EINTR, if only having seen the thread asleep tells
    /// whether the stop has ended it: never, as the registers tell here.
    #[must_use]
    pub fn ended_unseen(&self) -> Option<u64> {
        None
    }

    /// Not needed here, see [`ended_unseen`](Self::ended_unseen).
    #[must_use]
    pub fn first_argument(&self) -> Option<u64> {
        None
    }

    /// Not needed here, see [`ended_unseen`](Self::ended_unseen).
    #[must_use]
    pub fn is_behind_call(&self, _before: &[u8]) -> bool {
        false
    }

    /// Not needed here, see [`ended_unseen`](Self::ended_unseen).
    #[must_use]
    pub fn has_signal_frame(&self, _below: &[u8]) -> bool {
        false
    }

    /// Prepares a system call; the thread has to continue at a `syscall` instruction. `orig_rax` is set to
    /// "not in a system call", so that the kernel does not take the number in `rax` for the result of an
    /// interrupted one.
    pub fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9] = args;
        self.rax = number;
        self.orig_rax = u64::MAX;
    }

    /// Returns an argument of the system call that the thread is about to make, or is in, counted from 0.
    #[must_use]
    pub fn argument(&self, index: usize) -> u64 {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9].get(index).copied().unwrap_or(0)
    }

    /// Sets such an argument.
    pub fn set_argument(&mut self, index: usize, value: u64) {
        let all = [
            &mut self.rdi,
            &mut self.rsi,
            &mut self.rdx,
            &mut self.r10,
            &mut self.r8,
            &mut self.r9,
        ];
        if let Some(to) = all.into_iter().nth(index) {
            *to = value;
        }
    }

    /// Returns the result of a system call that has returned; errors are negative.
    #[must_use]
    pub fn syscall_result(&self) -> i64 {
        self.rax as i64
    }

    /// Returns whether the thread stopped inside a system call (of which it may already have the result).
    #[must_use]
    pub fn in_syscall(&self) -> bool {
        (self.orig_rax as i64) >= 0
    }

    /// Returns what [`in_syscall`](Self::in_syscall) returns; used for
    /// [`SCALABLE_REGSETS`](super::sigframe::SCALABLE_REGSETS).
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.in_syscall()
    }

    /// Returns the number of that system call.
    #[must_use]
    pub fn syscall_number(&self) -> Option<u64> {
        self.in_syscall().then_some(self.orig_rax)
    }

    /// Returns whether the stop has interrupted a system call that the kernel is going to restart: `rax`
    /// holds one of its internal codes.
    #[must_use]
    pub fn restart_pending(&self) -> bool {
        let codes = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
        self.in_syscall() && codes.contains(&(self.rax as i64).wrapping_neg())
    }

    /// Returns whether the stop has interrupted a system call that the kernel is *not* going to restart, so
    /// that it must be issued again. This holds only if no signal is pending or about to be delivered:
    /// otherwise EINTR is due.
    #[must_use]
    pub fn wants_reissue(&self) -> bool {
        self.in_syscall() && self.rax as i64 == -EINTR && NEVER_RESTARTED.contains(&self.orig_rax)
    }

    /// Returns the registers with the program counter before the `syscall` instruction, to issue the same
    /// call again.
    #[must_use]
    fn reissued(&self) -> Self {
        UserRegs {
            rip: self.rip.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64),
            rax: self.orig_rax,
            orig_rax: u64::MAX,
            ..*self
        }
    }

    /// Returns the registers to write back at a signal-delivery or `PTRACE_INTERRUPT` stop. `self` are those
    /// from the first stop. There the kernel still decides on the restart by itself, so they are unchanged,
    /// except that a call that it would not restart is put back. `signal_pending`: see
    /// [`wants_reissue`](Self::wants_reissue).
    #[must_use]
    pub fn restored_at_stop(&self, signal_pending: bool) -> Self {
        if !signal_pending && self.wants_reissue() { self.reissued() } else { *self }
    }

    /// Returns the registers to write back at the *enter* stop of a system call (that of the `rt_sigreturn`
    /// which ends a remote call), in place of that call. The kernel executes `orig_rax` next, so an
    /// interrupted call is continued right here: as `restart_syscall` if the kernel keeps the rest of a
    /// timeout, as the call itself otherwise. If it is -1, the kernel skips the call.
    ///
    /// The remote calls in between must not have set the thread's restart state themselves (sleeps, futex
    /// waits, polls).
    #[must_use]
    pub fn restored_at_syscall_enter(&self, signal_pending: bool) -> Self {
        const ENOSYS: u64 = 38_u64.wrapping_neg();
        if !signal_pending && self.wants_reissue() {
            return self.reissued();
        }
        if !self.restart_pending() {
            return UserRegs { orig_rax: u64::MAX, ..*self };
        }
        let timed = self.rax as i64 == -ERESTART_RESTARTBLOCK;
        let number = if timed { nr::RESTART_SYSCALL } else { self.orig_rax };
        UserRegs { rax: ENOSYS, orig_rax: number, ..*self }
    }

    /// Returns whether the thread waits in `restart_syscall`: its call was interrupted once before.
    #[must_use]
    pub fn is_restarted(&self) -> bool {
        self.restart_pending() && self.orig_rax == nr::RESTART_SYSCALL
    }

    /// Returns the call that a thread in `restart_syscall` made first, if that is certain: the kernel keeps
    /// only the rest of it. `code` is the code up to the system call instruction, `waits_in` the kernel
    /// function in which the thread was asleep (`/proc/PID/wchan`).
    #[must_use]
    pub fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        // These calls end with ERESTART_RESTARTBLOCK.
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
            // `wchan` skips sleeping functions, and a restarted sleep has no other.
            if !is(&["hrtimer_nanosleep", "do_nanosleep", "do_syscall_64"]) {
                return None;
            }
            // The argument is a clock's number, or a pointer.
            let clock = self.rdi < 4096 || (self.rdi as i32) < 0 && self.rdi >> 32 == 0;
            Some(if clock { nr::CLOCK_NANOSLEEP } else { nr::NANOSLEEP })
        })
    }

    /// Returns the program counter at the system call instruction that the thread is in.
    #[must_use]
    pub fn syscall_pc(&self) -> u64 {
        self.rip.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64)
    }

    /// Returns the registers to write back behind a remote call: `self`, those from the first stop. The
    /// kernel decides on a restart at the stop that follows.
    #[must_use]
    pub fn restored_behind_call(&self) -> Self {
        *self
    }

    /// Returns whether the kernel may take a thread that is sent to `gadget` for one whose call is to be
    /// restarted there: never, as it has decided before.
    #[must_use]
    pub fn stands_on(&self, _gadget: u64) -> bool {
        false
    }

    /// Returns the registers to put into a signal frame, from which the kernel restarts nothing: any
    /// interrupted call is issued again, from its start. A timeout then starts again too; this is what
    /// remains if the tracer dies. `rt_sigreturn` makes the kernel forget the rest of a call, so a thread in
    /// `restart_syscall` needs the number of its first call, `restarted`.
    #[must_use]
    pub fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
        if self.restart_pending() || (!signal_pending && self.wants_reissue()) {
            let again = self.reissued();
            let first = restarted.filter(|_| self.is_restarted());
            return UserRegs { rax: first.unwrap_or(again.rax), ..again };
        }
        UserRegs { orig_rax: u64::MAX, ..*self }
    }
}

impl From<&UserRegs> for super::FullRegs {
    fn from(r: &UserRegs) -> Self {
        super::FullRegs {
            pc: r.rip,
            gpr: [
                r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
                r.r12, r.r13, r.r14, r.r15,
            ],
        }
    }
}

impl From<&UserRegs> for super::Regs {
    fn from(r: &UserRegs) -> Self {
        super::Regs { pc: r.rip, sp: r.rsp, fp: r.rbp }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(orig_rax: i64, rax: i64) -> UserRegs {
        UserRegs {
            rip: 0x1002,
            orig_rax: orig_rax as u64,
            rax: rax as u64,
            rdi: 7,
            ..UserRegs::default()
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_struct_is_the_kernels() {
        assert_eq!(size_of::<UserRegs>(), 27 * 8);
        assert_eq!(size_of::<UserRegs>(), size_of::<libc::user_regs_struct>());
        assert_eq!(
            core::mem::offset_of!(UserRegs, gs),
            core::mem::offset_of!(libc::user_regs_struct, gs)
        );
        assert_eq!(
            core::mem::offset_of!(UserRegs, rip),
            core::mem::offset_of!(libc::user_regs_struct, rip)
        );
    }

    #[test]
    fn not_in_a_system_call() {
        let regs = at(-1, -516);
        assert!(!regs.in_syscall() && !regs.restart_pending() && !regs.wants_reissue());
        assert_eq!(regs.restored_at_stop(false), regs);
        assert_eq!(regs.restored_at_syscall_enter(false), regs);
        assert_eq!(regs.for_sigframe(false, None), regs);
    }

    #[test]
    fn interrupted_calls() {
        let poll = at(7, -516);
        assert!(poll.restart_pending());
        assert_eq!(poll.restored_at_stop(false), poll);
        let enter = poll.restored_at_syscall_enter(false);
        assert_eq!((enter.orig_rax, enter.rip), (219, 0x1002));
        let frame = poll.for_sigframe(false, Some(1));
        assert_eq!((frame.rax, frame.rip, frame.orig_rax), (7, 0x1000, u64::MAX));
        for code in [512, 513, 514] {
            let enter = at(202, -code).restored_at_syscall_enter(true);
            assert_eq!((enter.orig_rax, enter.rip, enter.rax as i64), (202, 0x1002, -38));
        }
    }

    #[test]
    fn calls_that_were_interrupted_before() {
        let again = at(219, -516);
        assert!(again.is_restarted() && !at(7, -516).is_restarted());
        assert_eq!(again.for_sigframe(false, Some(7)).rax, 7);
        let poll = [0xb8, 7, 0, 0, 0];
        assert_eq!(again.restarted_call(&poll, "futex_wait"), Some(7));
        let other = [0xb8, 1, 0, 0, 0];
        assert_eq!(again.restarted_call(&other, "futex_do_wait"), Some(202));
        assert_eq!(again.restarted_call(&[], "poll_schedule_timeout.constprop.0"), Some(7));
        assert_eq!(again.restarted_call(&[], "do_syscall_64"), Some(230));
        let pointer = UserRegs { rdi: 0x7fff_0000_1000, ..again };
        assert_eq!(pointer.restarted_call(&[], "hrtimer_nanosleep_restart"), Some(35));
        assert_eq!(again.restarted_call(&[], "0"), None);
    }

    #[test]
    fn calls_that_are_never_restarted() {
        let epoll = at(232, -4);
        assert!(!epoll.restart_pending() && epoll.wants_reissue());
        for again in [
            epoll.restored_at_stop(false),
            epoll.restored_at_syscall_enter(false),
            epoll.for_sigframe(false, None),
        ] {
            assert_eq!(
                (again.rip, again.rax, again.orig_rax, again.rdi),
                (0x1000, 232, u64::MAX, 7)
            );
        }
        assert_eq!(epoll.restored_at_stop(true), epoll);
        assert_eq!(epoll.restored_at_syscall_enter(true).rax as i64, -4);
        assert!(!at(3, -4).wants_reissue() && at(42, -4).wants_reissue());
    }

    #[test]
    fn arguments() {
        let mut regs = at(7, -516);
        regs.set_syscall(9, [1, 2, 3, 4, 5, 6]);
        assert_eq!([regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9], [1, 2, 3, 4, 5, 6]);
        assert_eq!((regs.rax, regs.syscall_number()), (9, None));
    }
}
