//! Finds out which part of a thread's stack is in use.

use crate::stopped::tracee::Tracee;
use crate::{RemoteAddr, Result};
use prof_arch::generic::stopped::StoppedRegs;
use prof_os::{Pid, task};
use std::time::Instant;

/// Returns a thread's stack pointer: the kernel tells that of a sleeping thread, and any other is stopped for a moment. Returns
/// `None` if the thread has ended.
///
/// # Errors
/// If the thread does not stop before `end`.
pub(crate) fn stack_pointer(pid: Pid, tid: Pid, end: Instant) -> Result<Option<RemoteAddr>> {
    if let Some(asleep) = task::asleep(pid, tid) {
        return Ok(Some(asleep.sp));
    }
    let Some(mut t) = Tracee::seize(pid, tid)? else { return Ok(None) };
    t.interrupt();
    if !t.wait_stopped(end)? {
        return Ok(None);
    }
    let sp = t.regs()?.sp();
    t.detach();
    Ok(Some(RemoteAddr(sp)))
}
