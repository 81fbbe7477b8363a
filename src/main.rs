//! `prof`: a memory profiler for processes that are already running.
//!
//! This crate is the command line only: [`cli`] says what there is, [`commands`] has one file for
//! each, [`session`] puts injector and collector together, [`failure`] turns errors into one line
//! and an exit code.

mod cli;
mod commands;
mod failure;
mod hooks;
mod logger;
mod recorder;
mod session;
mod term;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::parse() {
        Ok(cli) => {
            logger::init(cli.verbose);
            commands::dispatch(&cli.command).unwrap_or_else(|e| failure::report(&e))
        }
        Err(code) => code,
    }
}
