//! The registers of a stopped thread, and how to make it run a system call and go on as if nothing
//! had happened.
//!
//! `struct user_regs_struct` is from `arch/x86/include/asm/user_64.h`; how the kernel restarts
//! interrupted calls from `arch_do_signal_or_restart` in `arch/x86/kernel/signal.c`; which calls
//! are never restarted from signal(7).

use super::syscall::nr;
use crate::blocked::{Blocked, Timeout};
use crate::registers::Registers;

/// The general registers (`NT_PRSTATUS`).
pub const REGSET: Registers = Registers::Set(1);
/// The thread pointer is among those.
pub const THREAD_POINTER_REGSET: Option<Registers> = None;
/// And so is the number of the system call that the thread is in.
pub const SYSTEM_CALL_REGSET: Option<i32> = None;
/// The registers say what a stop has interrupted.
pub const NEEDS_BLOCKED: bool = false;

/// Interrupted; restarted unless a handler without `SA_RESTART` ran. Kernel-internal, seen by
/// tracers only.
pub const ERESTARTSYS: i64 = 512;
/// Interrupted; always restarted.
pub const ERESTARTNOINTR: i64 = 513;
/// Interrupted; restarted if no handler ran.
pub const ERESTARTNOHAND: i64 = 514;
/// Interrupted; continued by `restart_syscall` with what is left of its timeout.
pub const ERESTART_RESTARTBLOCK: i64 = 516;
const EINTR: i64 = 4;

/// Calls that return EINTR at a ptrace stop instead of being restarted by the kernel, and that can
/// be issued again with no harm: where they return EINTR they have done nothing yet. Reads and
/// writes are here for inotify and for sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
/// A `connect` with a timeout goes on waiting for the handshake that it has begun, as the kernel's own
/// restart of one without a timeout does. `close` is not here: again is not the same as once.
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
        208 | 333 => Timeout::Wide(4),         // io_getevents, io_pgetevents
        128 => Timeout::Wide(2),               // rt_sigtimedwait
        220 | 441 => Timeout::Wide(3),         // semtimedop, epoll_pwait2
        232 | 281 => Timeout::Milliseconds(3), // epoll_wait, epoll_pwait
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
    /// Bytes at the start that are the kernel's structure: all.
    pub const KERNEL_LEN: usize = size_of::<UserRegs>();

    /// Program counter.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.rip
    }

    /// Whether the thread faults at each word that is not aligned (EFLAGS.AC): the hook writes such words.
    #[must_use]
    pub fn checks_alignment(&self) -> bool {
        const AC: u64 = 1 << 18;
        self.eflags & AC != 0
    }

    /// Stack pointer.
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

    /// Sends the thread to the system call gadget at `gadget`, from where it returns to the restorer
    /// that the signal frame at `sp` names.
    pub fn enter(&mut self, gadget: u64, sp: u64, _restorer: u64) {
        self.rip = gadget;
        self.rsp = sp;
    }

    /// The thread pointer, which keys the hook's table of threads.
    #[must_use]
    pub fn thread_pointer(&self) -> u64 {
        self.fs_base
    }

    /// Takes the thread pointer from another register set; there is none (see
    /// [`THREAD_POINTER_REGSET`]).
    pub fn set_thread_pointer(&mut self, _tp: u64) {}

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

    /// Prepares a system call: the thread is to go on at a `syscall` instruction. `orig_rax` says
    /// "not in a system call", so that the kernel does not take the number in `rax` for the result
    /// of an interrupted one.
    pub fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9] = args;
        self.rax = number;
        self.orig_rax = u64::MAX;
    }

    /// An argument of the system call that the thread is about to make, or is in, counted from 0.
    #[must_use]
    pub fn argument(&self, index: usize) -> u64 {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9].get(index).copied().unwrap_or(0)
    }

    /// Changes such an argument.
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

    /// The result of a system call that has returned; errors are negative.
    #[must_use]
    pub fn syscall_result(&self) -> i64 {
        self.rax as i64
    }

    /// The thread stopped inside a system call (of which it may already have the result).
    #[must_use]
    pub fn in_syscall(&self) -> bool {
        (self.orig_rax as i64) >= 0
    }

    /// The same; see [`SCALABLE_REGSETS`](super::sigframe::SCALABLE_REGSETS) for what it is asked.
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.in_syscall()
    }

    /// The number of that system call.
    #[must_use]
    pub fn syscall_number(&self) -> Option<u64> {
        self.in_syscall().then_some(self.orig_rax)
    }

    /// The system call was interrupted by the stop and the kernel is going to restart it: `rax`
    /// holds one of its internal codes.
    #[must_use]
    pub fn restart_pending(&self) -> bool {
        let codes = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
        self.in_syscall() && codes.contains(&(self.rax as i64).wrapping_neg())
    }

    /// The system call was interrupted by the stop, the kernel is *not* going to restart it, and it
    /// must be issued again. True only of a thread for which no signal is pending or about to be
    /// delivered: otherwise EINTR is its due.
    #[must_use]
    pub fn wants_reissue(&self) -> bool {
        self.in_syscall() && self.rax as i64 == -EINTR && NEVER_RESTARTED.contains(&self.orig_rax)
    }

    /// Back to before the `syscall` instruction, to issue the same call again.
    #[must_use]
    fn reissued(&self) -> Self {
        UserRegs {
            rip: self.rip.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64),
            rax: self.orig_rax,
            orig_rax: u64::MAX,
            ..*self
        }
    }

    /// The registers to write back at a signal-delivery or `PTRACE_INTERRUPT` stop, `self` being
    /// those from the first stop: there the kernel still decides about the restart by itself, so
    /// they are as they were; only a call that it would not restart is put back. `signal_pending`:
    /// see [`wants_reissue`](Self::wants_reissue).
    #[must_use]
    pub fn restored_at_stop(&self, signal_pending: bool) -> Self {
        if !signal_pending && self.wants_reissue() { self.reissued() } else { *self }
    }

    /// The registers to write back at the *enter* stop of a system call (that of the `rt_sigreturn`
    /// which ends a remote call), in place of that call. The kernel executes `orig_rax` next, so an
    /// interrupted call is continued right here: `restart_syscall` where it keeps the rest of a
    /// timeout, the call itself otherwise. With -1 there it skips the call.
    ///
    /// The remote calls made in between must not have been of the kind that sets the thread's
    /// restart state themselves (sleeps, futex waits, polls).
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

    /// The thread waits in `restart_syscall`: its call was interrupted once before.
    #[must_use]
    pub fn is_restarted(&self) -> bool {
        self.restart_pending() && self.orig_rax == nr::RESTART_SYSCALL
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
            if !is(&["hrtimer_nanosleep", "do_nanosleep", "do_syscall_64"]) {
                return None;
            }
            // A clock, or a pointer.
            let clock = self.rdi < 4096 || (self.rdi as i32) < 0 && self.rdi >> 32 == 0;
            Some(if clock { nr::CLOCK_NANOSLEEP } else { nr::NANOSLEEP })
        })
    }

    /// The program counter at the system call instruction that the thread is in.
    #[must_use]
    pub fn syscall_pc(&self) -> u64 {
        self.rip.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64)
    }

    /// The registers to write back behind a remote call, `self` being those from the first stop: the
    /// kernel makes its decision about a restart at the stop that follows.
    #[must_use]
    pub fn restored_behind_call(&self) -> Self {
        *self
    }

    /// Whether the kernel may take a thread that is sent to `gadget` for one whose call is to be
    /// restarted there. It never does: it has made its decision before.
    #[must_use]
    pub fn stands_on(&self, _gadget: u64) -> bool {
        false
    }

    /// The registers to put into a signal frame, from which nothing is restarted by the kernel: any
    /// interrupted call is issued again, from its start. A timeout then starts again too; that is
    /// what remains if the tracer dies. `rt_sigreturn` makes the kernel forget what is left of a
    /// call, so a thread in `restart_syscall` needs its first call, which is `restarted`.
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
