//! Controls the processes that are being recorded.

use crate::Control;
use crate::reply::{Answer, Failure};
use crate::state::Shared;
use prof_os::Pid;
use serde_json::json;
use std::sync::Arc;

/// Returns who controls processes, if this server may, and the process is one of those that it serves.
fn hands(shared: &Shared, pid: Pid) -> Result<&Arc<dyn Control>, Failure> {
    let hands = shared.control().ok_or_else(|| {
        Failure::new(
            403,
            "this server only shows; prof serve --control also pauses, resumes and detaches",
        )
    })?;
    if shared.recordings().iter().any(|r| r.pid == Some(pid)) {
        return Ok(hands);
    }
    Err(Failure::missing("this server does not serve that process"))
}

fn done(shared: &Shared, pid: Pid, result: Result<(), String>) -> Result<Answer, Failure> {
    result.map_err(|why| Failure::new(409, why))?;
    let status = match (shared.options.is_recorded)(pid) {
        Some(true) => "recording",
        Some(false) => "paused",
        None => "detached",
    };
    Answer::json(&json!({ "status": status }))
}

/// Switches recording off.
pub(crate) fn pause(shared: &Arc<Shared>, pid: Pid) -> Result<Answer, Failure> {
    done(shared, pid, hands(shared, pid)?.pause(pid))
}

/// Switches recording on.
pub(crate) fn resume(shared: &Arc<Shared>, pid: Pid) -> Result<Answer, Failure> {
    done(shared, pid, hands(shared, pid)?.resume(pid))
}

/// Takes prof out of the process.
pub(crate) fn detach(shared: &Arc<Shared>, pid: Pid) -> Result<Answer, Failure> {
    done(shared, pid, hands(shared, pid)?.detach(pid))
}
