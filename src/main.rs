//! `prof`: a memory profiler for processes that are already running.
//!
//! This crate is the command line only: [`cli`] declares it, [`commands`] has one file for each command, [`session`]
//! connects injector and collector, [`failure`] turns errors into one line and an exit code.

// Both macros panic if the stream is full or closed.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod attach_messages;
mod audit;
mod census;
mod classes;
mod cleaner;
mod cli;
mod commands;
mod daemon;
mod ending;
mod failure;
mod family;
mod folder;
mod going_on;
mod interrupted;
mod kept;
mod logger;
mod look;
mod memory;
mod new_file;
mod notes;
mod orphans;
mod part;
mod progress;
mod recorder;
mod reporter;
mod reports;
mod session;
mod signals;
mod switch;
mod target_record;
mod term;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: memory::Frugal = memory::Frugal;

extern "C" fn pass_over(_: i32) {}

/// Makes a limit on file sizes (`ulimit -f`) an error that writes return, rather than a signal that ends prof during an
/// attach. It sets a handler, as the commands of `prof run` would inherit an ignored signal.
fn survive_file_limits() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    let action =
        SigAction::new(SigHandler::Handler(pass_over), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, so it is async-signal-safe.
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
