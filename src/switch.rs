//! Switches the recording of a process off and on.

use crate::failure::refused;
use crate::session;
use anyhow::Result;
use prof_collect::Peek;
use prof_os::Pid;
use prof_trace::values::text::time;
use std::time::{Duration, Instant};

/// Greatest age of the collector's heartbeat at which recording may be switched on: half the age at which the hook
/// switches it off.
const FRESH: Duration = Duration::from_millis(2500);
/// Longest wait for a collector that was stopped until now, or gets no processor.
const PATIENCE: Duration = Duration::from_secs(5);

/// Switches the recording of a process off; returns whether it was on.
///
/// # Errors
/// If the process is not recorded, or can't be reached.
pub(crate) fn off(pid: Pid) -> Result<bool> {
    session::attached(pid)?;
    prof_inject::pause(pid).map_err(|e| crate::failure::failed(pid, e))
}

/// Switches the recording of a process on; returns whether it was off.
///
/// # Errors
/// If the process is not recorded, can't be reached, or its collector does not answer.
pub(crate) fn on(pid: Pid) -> Result<bool> {
    let peek = session::attached(pid)?;
    // The collector of a child that was just forked is to come.
    if peek.heir_of.is_none() {
        wait_for_collector(peek)?;
    }
    prof_inject::resume(pid).map_err(|e| crate::failure::failed(pid, e))
}

/// Waits for the collector's heartbeat. Without one the hook would switch recording off again at the first event for
/// which the ring is too full.
pub(crate) fn wait_for_collector(mut peek: Peek) -> Result<()> {
    let (pid, deadline) = (peek.pid, Instant::now() + PATIENCE);
    loop {
        if !peek.collector_alive {
            return Err(refused(format!(
                "the collector of process {pid} has died; `prof attach {pid} -o {}` goes on, and without -o it begins anew",
                peek.path.display()
            )));
        }
        if peek.heartbeat_age <= FRESH {
            return Ok(());
        }
        let (collector, age) = (peek.collector.0, time(peek.heartbeat_age));
        if Instant::now() > deadline {
            return Err(refused(format!(
                "process {pid}: its collector, process {collector}, has not answered for {age} \
                 (stopped, or short of processor?); `kill -CONT {collector}` lets a stopped one go on"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
        peek = session::peek(pid)?;
    }
}
