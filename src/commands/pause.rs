//! `prof pause` and `prof resume`

use super::record::pid;
use crate::failure::refused;
use crate::session;
use anyhow::Result;
use clap::Args;
use prof_collect::Peek;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Arguments of commands that take only a process.
#[derive(Args, Debug)]
pub(crate) struct PidArgs {
    /// The process
    #[arg(value_parser = pid)]
    pub pid: i32,
}

/// Greatest age of the collector's heartbeat at which recording may be switched on: half the age at which the hook
/// switches it off.
const FRESH: Duration = Duration::from_millis(2500);
/// Longest wait for a collector that was stopped until now, or gets no processor.
const PATIENCE: Duration = Duration::from_secs(5);

/// Switches recording off.
pub(crate) fn pause(args: &PidArgs) -> Result<ExitCode> {
    if !off(args.pid)? {
        crate::term::say("recording was off already");
    }
    Ok(ExitCode::SUCCESS)
}

/// Switches the recording of a process off; returns whether it was on.
///
/// # Errors
/// If the process is not recorded, or can't be reached.
pub(crate) fn off(pid: i32) -> Result<bool> {
    session::attached(pid)?;
    prof_inject::pause(pid).map_err(|e| session::failed(pid, e))
}

/// Switches recording on.
pub(crate) fn resume(args: &PidArgs) -> Result<ExitCode> {
    if !on(args.pid)? {
        crate::term::say("recording was on already");
    }
    Ok(ExitCode::SUCCESS)
}

/// Switches the recording of a process on; returns whether it was off.
///
/// # Errors
/// If the process is not recorded, can't be reached, or its collector does not answer.
pub(crate) fn on(pid: i32) -> Result<bool> {
    wait_for_collector(session::attached(pid)?)?;
    prof_inject::resume(pid).map_err(|e| session::failed(pid, e))
}

/// Waits for the collector's heartbeat. Without one the hook would switch recording off again at the first event for
/// which the ring is too full.
fn wait_for_collector(mut peek: Peek) -> Result<()> {
    let (pid, deadline) = (peek.pid, Instant::now() + PATIENCE);
    loop {
        if !peek.collector_alive {
            return Err(refused(format!(
                "the collector of process {pid} has died; `prof attach {pid}` begins anew"
            )));
        }
        if peek.heartbeat_age <= FRESH {
            return Ok(());
        }
        let (collector, age) = (peek.collector.0, peek.heartbeat_age.as_secs());
        if Instant::now() > deadline {
            return Err(refused(format!(
                "process {pid}: its collector, process {collector}, has not answered for {age} s \
                 (stopped, or short of processor?); `kill -CONT {collector}` lets a stopped one go on"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
        peek = session::peek(pid as i32)?;
    }
}
