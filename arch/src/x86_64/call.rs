//! The registers of a stopped thread, and how to make the thread run a system call and continue as if nothing
//! had happened.
//!
//! Sources: `struct user_regs_struct`: `arch/x86/include/asm/user_64.h`; restart of interrupted calls:
//! `arch_do_signal_or_restart` in `arch/x86/kernel/signal.c`; calls that are never restarted: signal(7).

use super::syscall::nr;
use crate::blocked::Timeout;
use crate::generic::stopped::{Keeper, Restarts, StoppedRegs};
use crate::registers::Registers;

/// Register set with the general registers (`NT_PRSTATUS`).
pub const REGSET: Registers = Registers::Set(1);
/// Register set with the thread pointer: it is among the general registers.
pub const THREAD_POINTER_REGSET: Option<Registers> = None;
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
    /// Returns whether the thread stopped inside a system call (of which it may already have the result).
    #[must_use]
    pub fn in_syscall(&self) -> bool {
        (self.orig_rax as i64) >= 0
    }

    /// Returns whether the stop has interrupted a system call that the kernel is going to restart: `rax`
    /// holds one of its internal codes.
    #[must_use]
    pub fn restart_pending(&self) -> bool {
        let codes = [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK];
        self.in_syscall() && codes.contains(&(self.rax as i64).wrapping_neg())
    }
}

impl StoppedRegs for UserRegs {
    const KERNEL_LEN: usize = size_of::<UserRegs>();

    fn pc(&self) -> u64 {
        self.rip
    }

    fn checks_alignment(&self) -> bool {
        const AC: u64 = 1 << 18;
        self.eflags & AC != 0
    }

    fn sp(&self) -> u64 {
        self.rsp
    }

    fn set_pc(&mut self, pc: u64) {
        self.rip = pc;
    }

    fn enter(&mut self, gadget: u64, sp: u64, _restorer: u64) {
        self.rip = gadget;
        self.rsp = sp;
    }

    fn thread_pointer(&self) -> u64 {
        self.fs_base
    }

    /// Sets `orig_rax` to "not in a system call", so that the kernel does not take the number in `rax` for the result
    /// of an interrupted one.
    fn set_syscall(&mut self, number: u64, args: [u64; 6]) {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9] = args;
        self.rax = number;
        self.orig_rax = u64::MAX;
    }

    fn argument(&self, index: usize) -> u64 {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9].get(index).copied().unwrap_or(0)
    }

    fn set_argument(&mut self, index: usize, value: u64) {
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

    fn syscall_result(&self) -> i64 {
        self.rax as i64
    }

    fn is_in_call(&self) -> bool {
        self.in_syscall()
    }

    fn syscall_number(&self) -> Option<u64> {
        self.in_syscall().then_some(self.orig_rax)
    }

    fn wants_reissue(&self) -> bool {
        self.in_syscall() && self.rax as i64 == -EINTR && NEVER_RESTARTED.contains(&self.orig_rax)
    }

    fn reissued(&self) -> Self {
        UserRegs {
            rip: self.rip.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64),
            rax: self.orig_rax,
            orig_rax: u64::MAX,
            ..*self
        }
    }

    fn is_restarted(&self) -> bool {
        self.restart_pending() && self.orig_rax == nr::RESTART_SYSCALL
    }

    fn restarted_call(&self, code: &[u8], waits_in: &str) -> Option<u64> {
        const RESTARTS: Restarts<'_> = Restarts {
            known: &[nr::NANOSLEEP, nr::CLOCK_NANOSLEEP, nr::POLL, nr::FUTEX],
            futex: Some(nr::FUTEX),
            poll: Some(nr::POLL),
            sleeps: Some((nr::CLOCK_NANOSLEEP, nr::NANOSLEEP, &["do_syscall_64"])),
        };
        // The argument of a sleep is a clock's number, or a pointer.
        let clock = self.rdi < 4096 || (self.rdi as i32) < 0 && self.rdi >> 32 == 0;
        RESTARTS.find(super::syscall::number_before(code), clock, waits_in)
    }

    fn syscall_pc(&self) -> u64 {
        self.rip.wrapping_sub(super::syscall::SYSCALL_INSN.len() as u64)
    }

    /// `mcount`, which code that was compiled with `-pg` calls: `sub $56, %rsp; mov %rax, (%rsp)`, in some builds of libc
    /// behind an `endbr64`. It keeps all registers, for it is called before a function has looked at its arguments.
    const KEEPER: Option<Keeper> = Some(Keeper {
        name: "mcount",
        code: &[
            &[0x48, 0x83, 0xec, 0x38, 0x48, 0x89, 0x04, 0x24],
            &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x38, 0x48, 0x89, 0x04, 0x24],
        ],
        below: 48,
    });

    /// At a function's first instruction, the return address stands below a multiple of 16 (System V psABI, 3.2.2).
    const ENTRY_MISALIGNMENT: u64 = 8;

    const RETURN_WORDS: u64 = 1;

    /// The frame pointer leads to the word that the function returns by: `mcount` reads the word behind that one.
    fn calling(&self, at: u64, sp: u64, args: [u64; 2], _back: u64) -> Self {
        // Trap, direction and alignment check: a function must find the direction flag clear, and prof itself never
        // sets the others.
        const NOT: u64 = 1 << 8 | 1 << 10 | 1 << 18;
        UserRegs {
            rip: at,
            rsp: sp,
            rbp: sp,
            rdi: args[0],
            rsi: args[1],
            rax: 0,
            orig_rax: u64::MAX,
            eflags: self.eflags & !NOT,
            ..*self
        }
    }

    /// The kernel makes no call with the number -1 (`do_syscall_64` in `arch/x86/entry/syscall_64.c`).
    fn skipping(&self, pc: u64) -> Self {
        UserRegs { rip: pc, orig_rax: u64::MAX, ..*self }
    }

    fn for_sigframe(&self, signal_pending: bool, restarted: Option<u64>) -> Self {
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
        assert_eq!(regs.for_sigframe(false, None), regs);
    }

    #[test]
    fn interrupted_calls() {
        let poll = at(7, -516);
        assert!(poll.restart_pending());
        assert_eq!(poll.restored_at_stop(false), poll);
        assert_eq!(poll.restored_behind_call(), poll);
        let frame = poll.for_sigframe(false, Some(1));
        assert_eq!((frame.rax, frame.rip, frame.orig_rax), (7, 0x1000, u64::MAX));
        for code in [512, 513, 514] {
            assert!(at(202, -code).restart_pending() && !at(-1, -code).restart_pending());
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
        for again in [epoll.restored_at_stop(false), epoll.for_sigframe(false, None)] {
            assert_eq!(
                (again.rip, again.rax, again.orig_rax, again.rdi),
                (0x1000, 232, u64::MAX, 7)
            );
        }
        assert_eq!(epoll.restored_at_stop(true), epoll);
        assert!(!at(3, -4).wants_reissue() && at(42, -4).wants_reissue());
    }

    #[test]
    fn a_function_is_called_with_the_flags_that_it_may_count_on() {
        let regs = UserRegs { eflags: 0x246 | 1 << 10, rbx: 9, ..at(7, -516) };
        let calling = regs.calling(0x5000, 0x7008, [1, 2], 0);
        assert_eq!((calling.rip, calling.rsp, calling.rbp), (0x5000, 0x7008, 0x7008));
        assert_eq!((calling.rdi, calling.rsi, calling.eflags), (1, 2, 0x246));
        assert!(!calling.restart_pending() && !calling.in_syscall() && calling.rbx == 9);
    }

    #[test]
    fn arguments() {
        let mut regs = at(7, -516);
        regs.set_syscall(9, [1, 2, 3, 4, 5, 6]);
        assert_eq!([regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9], [1, 2, 3, 4, 5, 6]);
        assert_eq!((regs.rax, regs.syscall_number()), (9, None));
    }
}
