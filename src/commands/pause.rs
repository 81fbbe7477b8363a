//! `prof pause` and `prof resume`

use super::family::WhoArgs;
use crate::family::control::{Who, each, mark_paused, wait_for_attach};
use crate::family::journal;
use crate::switch::{off, on};
use anyhow::Result;
use clap::Args;
use prof_os::Pid;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest wait until a process of a followed family, whose recording has just begun, can be switched.
const BEGINS: Duration = Duration::from_secs(3);

/// Arguments of commands that take only processes.
#[derive(Args, Debug)]
pub(crate) struct PidArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub who: WhoArgs,
}

/// Switches recording off.
pub(crate) fn pause(args: &PidArgs) -> Result<ExitCode> {
    switch(args, off, true)
}

/// Switches the recording of one process, or of each process of a family: also of those to come, if the family is named by its
/// folder.
fn switch(args: &PidArgs, work: fn(Pid) -> Result<bool>, is_paused: bool) -> Result<ExitCode> {
    let who = args.who.who()?;
    if let Who::One(pid) = who {
        if !work(pid)? {
            let state = if is_paused { "off" } else { "on" };
            crate::term::say(&format!("recording was {state} already"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut is_followed = false;
    if let Who::Folder(path) = &who {
        (is_followed, _) = wait_for_attach(path, || journal::running(path).is_some())?;
        // A recording that has ended is not paused; one that was goes on when the family does.
        if is_paused && !is_followed {
            who.recorded()?;
        }
        mark_paused(path, is_paused)?;
        // The processes to come are switched, so that it does not matter whether there is one now.
        if is_followed && who.recorded().is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    Ok(each(&who.recorded()?, |pid| {
        // The supervisor may be attaching to it, or be about to give it a collector.
        let began = Instant::now();
        loop {
            match work(pid) {
                Err(_)
                    if is_followed
                        && began.elapsed() < BEGINS
                        && !prof_os::process::is_gone(pid) =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                done => return done.map(|_| true),
            }
        }
    }))
}

/// Switches recording on.
pub(crate) fn resume(args: &PidArgs) -> Result<ExitCode> {
    switch(args, on, false)
}
