//! Calls that a stop has ended with EINTR, of threads that fell asleep in them after they were looked at.
//!
//! On AArch64 and ARM the registers of a stopped thread do not say whether it was in a call. One that was seen asleep right
//! before the stop is put back into its call; one that was about to fall asleep shows EINTR behind a system call
//! instruction, as one does whose call a signal has ended. What tells them apart: a handler leaves its frame right
//! below the stack pointer. It may have run on another stack; then the kernel's note of the first argument is of
//! the handler's return, and is believed only if it is a descriptor that calls wait for. Where the program has no
//! handlers, or only of what a thread's own instructions cause, none has run.

use crate::proc::Status;
use crate::{RemoteAddr, RemoteMemory};
use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
use prof_arch::blocked::Blocked;
use prof_arch::native::UserRegs;

/// What is read below the stack pointer, a page at a time: more than a signal's frame takes.
const PIECE: u64 = 4096;
const PIECES: u64 = 4;
/// SIGCANCEL and SIGSETXID, whose handlers are libc's own and use no other stack.
const OWN: u128 = 0b11 << 31;
/// What a thread's own instructions cause, and so not while it sleeps in a call: handlers of these have not ended it.
/// Runtimes have them that have no others (Rust's, for stacks that overflow).
const CAUSED: [i32; 5] = [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV];
/// What descriptors are that calls wait for which no kernel restarts.
const AWAITED: [&str; 4] =
    ["socket:", "anon_inode:[eventpoll]", "anon_inode:inotify", "anon_inode:[io_uring]"];

/// The call that the stop has ended, if that is certain: with its arguments as they were. `ask` asks the kernel for the
/// first of them, where the registers do not tell.
pub(crate) fn ended(
    pid: i32,
    tid: i32,
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

fn caused() -> u128 {
    CAUSED.iter().map(|signal| 1 << (signal - 1)).sum()
}

/// The stack below the stack pointer, as far as it is there.
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
