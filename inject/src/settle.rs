//! Waiting for the calls that a killed prof has left a target in.
//!
//! A thread that was made to do a system call finishes it by itself, but when, on a busy machine, is
//! another question. Who takes over first waits for that: what such a call maps must not appear after
//! it was looked for.

use crate::remote::{Gadgets, Sigreturn};
use crate::tracee::Tracee;
use crate::{Error, RemoteAddr, Result, proc};
use prof_arch::native::call::is_remote;
use prof_arch::native::jump::code_at;
use prof_arch::native::syscall::SYSCALL_INSN;
use std::time::{Duration, Instant};

/// Longer than a restorer.
const RESTORER: u64 = 16;

/// Waits until no thread is in a remote call, or on its way back from one.
///
/// # Errors
/// If one still is after `timeout`, or can't be stopped.
pub(crate) fn settle(pid: i32, gadgets: Gadgets, timeout: Duration) -> Result<()> {
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
    for tid in proc::threads(pid)? {
        while is_on_the_way(pid, tid, deadline, &there)? {
            if Instant::now() >= deadline {
                return Err(Error::NotStopping { pid, tid, ms: began.elapsed().as_millis() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn is_on_the_way(pid: i32, tid: i32, end: Instant, there: &impl Fn(u64) -> bool) -> Result<bool> {
    if let Some(a) = proc::asleep(pid, tid) {
        return Ok(there(a.pc.0) && a.call.is_some_and(is_remote));
    }
    let Some(mut t) = Tracee::seize(pid, tid)? else { return Ok(false) };
    t.interrupt();
    if !t.wait_stopped(end)? {
        return Ok(false);
    }
    let regs = t.regs()?;
    t.detach();
    // One that has gone to sleep meanwhile, from where many calls are made.
    let other = regs.syscall_number().is_some_and(|n| !is_remote(n));
    Ok(there(regs.pc()) && !other)
}
