//! Finds system calls that a stop has ended with EINTR, of threads that fell asleep after prof had looked at them.
//!
//! On AArch64 and ARM the registers of a stopped thread do not say whether it was in a system call. A thread that was
//! seen asleep right before the stop is put back into its call. A thread that fell asleep after that look shows EINTR
//! behind a system call instruction, but so does a thread whose call was ended by a signal. These rules tell the two
//! apart:
//!
//! * A signal handler leaves its frame right below the stack pointer. Where there is one, the call is left as it is.
//! * A handler may have run on another stack. The first argument that the kernel has noted is then that of the
//!   handler's return. So the note is believed only if it names a descriptor of a kind for which such calls wait.
//! * If the program has no handlers, or only for signals that a thread's own instructions cause, none has run.
//!
//! A thread that is stopped again before it has got back to sleep was not seen asleep, either. A kernel of 32-bit ARM leaves
//! the number of its call in place, so it looks like one that is going to make the call, and a sleep would begin anew. What
//! the kernel has noted of the call's first argument tells the two apart.

use crate::{RemoteAddr, RemoteMemory};
use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
use prof_arch::blocked::Blocked;
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::UserRegs;
use prof_os::Pid;
use prof_os::status::Status;

/// Length of each piece of memory that is read below the stack pointer. All pieces together exceed a signal frame.
const PIECE: u64 = 4096;
const PIECES: u64 = 4;
/// SIGCANCEL and SIGSETXID, whose handlers are libc's own and do not run on a stack of their own.
const OWN: u128 = 0b11 << 31;
/// Signals that a thread's own instructions cause. They can't have ended a call in which the thread slept. Some
/// runtimes have handlers for these alone (Rust's, for stack overflows).
const CAUSED: [i32; 5] = [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV];
/// Kinds of descriptors, as `/proc/PID/fd` names them, for which calls wait that the kernel never restarts.
const AWAITED: [&str; 4] =
    ["socket:", "anon_inode:[eventpoll]", "anon_inode:inotify", "anon_inode:[io_uring]"];

/// Returns the call that the stop has ended, with its original arguments, or `None` if that is not certain. `ask`
/// asks the kernel for the first argument of the call with a number, where the registers do not hold it any more.
pub(crate) fn ended(
    pid: Pid,
    tid: Pid,
    regs: &UserRegs,
    ask: impl FnOnce(u64) -> Option<u64>,
) -> Option<Blocked> {
    let number = regs.ended_unseen()?;
    let mem = RemoteMemory::open(pid).ok()?;
    let code = mem.read_some(RemoteAddr(regs.pc().checked_sub(4)?), 4);
    if !regs.is_behind_call(&code) || regs.has_signal_frame(&below(&mem, regs.sp())) {
        return None;
    }
    let first = regs.first_argument().or_else(|| ask(number))?;
    let caught = Status::of_thread(pid, tid).ok()?.signals("SigCgt") & !(OWN | caused());
    let awaited = || {
        let link = std::fs::read_link(format!("/proc/{pid}/fd/{first}")).unwrap_or_default();
        AWAITED.iter().any(|kind| link.to_string_lossy().starts_with(kind))
    };
    if caught != 0 && !awaited() {
        return None;
    }
    log::debug!("thread {tid} was about to fall asleep in call {number}");
    let mut args = [first, 0, 0, 0, 0, 0];
    (1..6).for_each(|n| args[n] = regs.argument(n));
    Some(Blocked { number, args, sp: regs.sp(), pc: regs.pc() })
}

/// Returns the call that the kernel is about to continue for a thread that was not seen asleep in it, or `None` if that is
/// not certain.
pub(crate) fn continued(pid: Pid, tid: Pid, regs: &UserRegs) -> Option<Blocked> {
    let call = regs.continues_unseen().filter(|_| !prof_os::is_wider_than_arm())?;
    let mem = RemoteMemory::open(pid).ok()?;
    let code = mem.read_some(RemoteAddr(call.pc.checked_sub(4)?), 4);
    regs.is_behind_call(&code).then(|| {
        log::debug!("thread {tid} was about to go on in call {}", call.number);
        call
    })
}

fn caused() -> u128 {
    CAUSED.iter().map(|signal| 1 << (signal - 1)).sum()
}

/// Reads the memory below the stack pointer, as far as it is mapped.
fn below(mem: &RemoteMemory, sp: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut end = sp & !7;
    for _ in 0..PIECES {
        let start = end.saturating_sub(1) & !(PIECE - 1);
        let piece = mem.read_some(RemoteAddr(start), (end - start) as usize);
        if piece.len() as u64 != end - start {
            break;
        }
        bytes.splice(0..0, piece);
        end = start;
    }
    bytes
}
