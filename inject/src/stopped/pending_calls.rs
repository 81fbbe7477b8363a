//! Waits for the system calls that a killed prof has left a target in.
//!
//! A thread that prof has made do a system call completes it by itself, but on a busy machine that may take long. A
//! later prof waits for it before anything else: a mapping that such a call makes must not appear after the search
//! for prof's mappings.

use crate::stopped::gadgets::{Gadgets, Sigreturn};
use crate::stopped::tracee::Tracee;
use crate::{Error, RemoteAddr, Result};
use prof_arch::generic::stopped::StoppedRegs;
use prof_arch::native::call::is_remote;
use prof_arch::native::jump::code_at;
use prof_arch::native::syscall::SYSCALL_INSN;
use prof_os::{Pid, process, task};
use std::time::{Duration, Instant};

/// Upper bound on the length of a restorer.
const RESTORER: u64 = 16;

/// Waits until no thread is in a remote call or on its way back from one.
///
/// # Errors
/// If a thread still is after `timeout`, or can't be stopped.
pub(crate) fn await_pending_calls(pid: Pid, gadgets: Gadgets, timeout: Duration) -> Result<()> {
    let began = Instant::now();
    let deadline = began + timeout;
    let (Sigreturn::Restorer(back) | Sigreturn::PopNumber(back)) = gadgets.sigreturn;
    let back = code_at(back.0);
    let there = |pc: u64| {
        let in_call = |a: RemoteAddr| {
            let at = code_at(a.0);
            (at..=at + SYSCALL_INSN.len() as u64).contains(&pc)
        };
        gadgets.calls().any(in_call) || (back..back.saturating_add(RESTORER)).contains(&pc)
    };
    for tid in process::threads(pid)? {
        while is_on_the_way(pid, tid, deadline, &there)? {
            if Instant::now() >= deadline {
                return Err(Error::NotStopping { pid, tid, waited: began.elapsed() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn is_on_the_way(pid: Pid, tid: Pid, end: Instant, there: &impl Fn(u64) -> bool) -> Result<bool> {
    if let Some(a) = task::asleep(pid, tid) {
        return Ok(there(a.pc.0) && a.call.is_some_and(is_remote));
    }
    let Some(mut t) = Tracee::seize(pid, tid)? else { return Ok(false) };
    t.interrupt();
    if !t.wait_stopped(end)? {
        return Ok(false);
    }
    let regs = t.regs()?;
    t.detach();
    // The thread may have made a call of its own meanwhile: the gadget may be part of a libc function that makes many
    // calls.
    let other = regs.syscall_number().is_some_and(|n| !is_remote(n));
    Ok(there(regs.pc()) && !other)
}
