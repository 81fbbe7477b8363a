//! `prof pause` and `prof resume`

use crate::cli::PidArgs;
use crate::failure::refused;
use crate::session;
use anyhow::Result;
use std::process::ExitCode;

/// Switches recording off.
pub fn pause(args: &PidArgs) -> Result<ExitCode> {
    session::peek(args.pid)?;
    if !prof_inject::pause(args.pid).map_err(|e| session::failed(args.pid, e))? {
        eprintln!("prof: recording was off already");
    }
    Ok(ExitCode::SUCCESS)
}

/// Switches recording on.
pub fn resume(args: &PidArgs) -> Result<ExitCode> {
    let peek = session::peek(args.pid)?;
    if !peek.collector_alive {
        return Err(refused(format!(
            "the collector of process {0} has died; `prof attach {0}` begins anew",
            args.pid
        )));
    }
    if !prof_inject::resume(args.pid).map_err(|e| session::failed(args.pid, e))? {
        eprintln!("prof: recording was on already");
    }
    Ok(ExitCode::SUCCESS)
}
