//! `prof`: a memory profiler for processes that are already running.
//!
//! This crate is the command line only: [`cli`] says what there is, [`commands`] has one file for
//! each, [`session`] puts injector and collector together, [`failure`] turns errors into one line
//! and an exit code.

// Both panic if what they write to is full or gone.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod audit;
mod cli;
mod commands;
mod ending;
mod failure;
mod hooks;
mod kept;
mod logger;
mod look;
mod memory;
mod notes;
mod orphans;
mod progress;
mod recorder;
mod session;
mod term;
mod units;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::Frugal = memory::Frugal;

extern "C" fn pass_over(_: i32) {}

/// A file that may not grow (`ulimit -f`) is an error, and no reason to die in the middle of an attach. A
/// handler, since what is ignored would be so in the commands of `prof run`, too.
fn survive_file_limits() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    let action =
        SigAction::new(SigHandler::Handler(pass_over), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    if let Err(e) = unsafe { sigaction(Signal::SIGXFSZ, &action) } {
        log::warn!("SIGXFSZ: {e}");
    }
}

fn main() -> ExitCode {
    memory::hold();
    survive_file_limits();
    match cli::parse() {
        Ok(cli) => {
            logger::init(cli.verbose);
            commands::dispatch(&cli.command).unwrap_or_else(|e| failure::report(&e))
        }
        Err(code) => code,
    }
}
