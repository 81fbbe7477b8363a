//! Processes that share the target's memory without being its threads. They are made by `clone` with CLONE_VM and
//! without CLONE_THREAD; `vfork` and `posix_spawn` do so for a moment, some runtimes and tests for long. They run the
//! patched code, and are stopped together with the target's own threads.

use crate::permission::{may_trace, untraced};
use crate::sandbox::is_strict;
use crate::{Error, Refusal, Result};
use prof_os::sharers::Sharers;
use prof_os::status::{Status, any_thread};
use prof_os::{Pid, process};
use prof_trace::shared::MEMFD_NAME;

/// Checks that all processes that share the memory of a process can be stopped with it.
///
/// # Errors
/// If one can't, with the reason.
pub(crate) fn can_be_stopped(pid: Pid, comm: &str) -> Result<()> {
    let sharers = Sharers::of(pid, MEMFD_NAME);
    for other in sharers.others().iter().copied() {
        if let Err(e) = stoppable(other)
            && sharers.still_shares(other)
        {
            let why = e.to_string();
            return Err(Refusal::Shared { pid, comm: comm.into(), other, why }.into());
        }
    }
    Ok(())
}

fn stoppable(pid: Pid) -> Result<()> {
    let status = Status::of(pid)?;
    let comm = process::comm(pid);
    untraced(&status, &comm)?;
    may_trace(pid)?;
    if any_thread(pid, [is_strict]) == [true] {
        return Err(Refusal::StrictSeccomp(pid, comm).into());
    }
    Ok(())
}

/// Turns an error that concerns a process other than the target into one about the target.
pub(crate) fn about(target: Pid, other: Pid, e: Error) -> Error {
    match e {
        Error::Refused(_) | Error::Sys { .. } if target != other => {
            let why = e.to_string();
            Refusal::Shared { pid: target, comm: process::comm(target), other, why }.into()
        }
        e => e,
    }
}
