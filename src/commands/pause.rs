//! `prof pause` and `prof resume`

use super::family::WhoArgs;
use crate::failure::refused;
use crate::family::control::{Who, each, wait_for_attach};
use crate::family::supervise;
use crate::session;
use anyhow::Result;
use clap::Args;
use prof_collect::Peek;
use prof_os::Pid;
use prof_trace::values::text::time;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Arguments of commands that take only processes.
#[derive(Args, Debug)]
pub(crate) struct PidArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub who: WhoArgs,
}

/// Greatest age of the collector's heartbeat at which recording may be switched on: half the age at which the hook
/// switches it off.
const FRESH: Duration = Duration::from_millis(2500);
/// Longest wait for a collector that was stopped until now, or gets no processor.
const PATIENCE: Duration = Duration::from_secs(5);

/// Switches recording off.
pub(crate) fn pause(args: &PidArgs) -> Result<ExitCode> {
    switch(args, off, "off")
}

/// Switches the recording of one process, or of each process of a family.
fn switch(args: &PidArgs, work: fn(Pid) -> Result<bool>, to: &str) -> Result<ExitCode> {
    let who = args.who.who()?;
    if let Who::One(pid) = who {
        if !work(pid)? {
            crate::term::say(&format!("recording was {to} already"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Who::Folder(path) = &who {
        wait_for_attach(path, || supervise::running(path).is_some())?;
    }
    Ok(each(&who.recorded()?, |pid| work(pid).map(|_| true)))
}

/// Switches the recording of a process off; returns whether it was on.
///
/// # Errors
/// If the process is not recorded, or can't be reached.
pub(crate) fn off(pid: Pid) -> Result<bool> {
    session::attached(pid)?;
    prof_inject::pause(pid).map_err(|e| crate::failure::failed(pid, e))
}

/// Switches recording on.
pub(crate) fn resume(args: &PidArgs) -> Result<ExitCode> {
    switch(args, on, "on")
}

/// Switches the recording of a process on; returns whether it was off.
///
/// # Errors
/// If the process is not recorded, can't be reached, or its collector does not answer.
pub(crate) fn on(pid: Pid) -> Result<bool> {
    wait_for_collector(session::attached(pid)?)?;
    prof_inject::resume(pid).map_err(|e| crate::failure::failed(pid, e))
}

/// Waits for the collector's heartbeat. Without one the hook would switch recording off again at the first event for
/// which the ring is too full.
pub(super) fn wait_for_collector(mut peek: Peek) -> Result<()> {
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
