//! The commands, one file each.

mod attach;
pub mod check;
mod demo;
mod detach;
pub mod diff;
pub mod doctor;
pub mod export;
pub mod fragmentation;
pub mod info;
pub mod input;
pub mod leaks;
mod manuals;
mod parts;
mod pause;
pub mod replay;
pub mod report;
pub mod rewrite;
mod run;
mod status;

use crate::cli::Command;
use crate::failure::refused;
use crate::recorder;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs a command.
///
/// # Errors
/// The error to report in one line; see [`crate::failure`].
pub fn dispatch(command: &Command) -> Result<ExitCode> {
    if needs_processes(command) && !Path::new("/proc/self/stat").exists() {
        return Err(refused(NO_PROC));
    }
    match command {
        Command::Attach(a) => attach::run(a),
        Command::Detach(a) => detach::run(a),
        Command::Pause(a) => pause::pause(a),
        Command::Resume(a) => pause::resume(a),
        Command::Status(a) => status::run(a),
        Command::Run(a) => run::run(a),
        Command::Report(a) => report::run(a, &locate),
        Command::Leaks(a) => leaks::run(a, &locate),
        Command::Diff(a) => diff::run(a, &locate),
        Command::Check(a) => check::run(a, &locate),
        Command::Export(a) => export::run(a, &locate),
        Command::Info(a) => info::run(a, &locate),
        Command::Replay(a) => replay::run(a),
        Command::Fragmentation(a) => fragmentation::run(a, &locate),
        Command::Strip(a) => rewrite::run_strip(a, &locate),
        Command::Pack(a) => rewrite::run_pack(a, &locate),
        Command::Extract(a) => rewrite::run_extract(a, &locate),
        Command::Demo(a) => demo::run(a),
        Command::Doctor(a) => doctor::run(a),
        Command::Completions(a) => manuals::completions(a),
        Command::Man(a) => manuals::man(a),
        Command::Collect(a) => recorder::run(a),
        Command::DemoTarget => demo::target(),
    }
}

/// The error of commands that work on processes, if `/proc` is not mounted.
pub const NO_PROC: &str =
    "/proc is not mounted, and prof reads processes there: mount it (`mount -t proc proc /proc`)";

/// Returns whether a command works on live processes, and not on recordings or on prof itself.
fn needs_processes(command: &Command) -> bool {
    use Command::{Attach, Demo, Detach, Pause, Resume, Run, Status};
    matches!(command, Attach(_) | Detach(_) | Pause(_) | Resume(_) | Status(_) | Run(_) | Demo(_))
}

/// Returns the path of the recording of a process that is being recorded.
fn locate(pid: i32) -> Option<PathBuf> {
    let peek = prof_collect::Peek::of(u32::try_from(pid).ok()?).ok()??;
    Some(peek.path)
}
