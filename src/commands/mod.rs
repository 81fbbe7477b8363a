//! The commands, one file each.

pub(crate) mod allocator;
pub(crate) mod attach;
pub(crate) mod bounds;
mod by_process;
pub(crate) mod check;
pub(crate) mod collect;
pub(crate) mod demo;
pub(crate) mod detach;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod export;
pub(crate) mod family;
pub(crate) mod fragmentation;
pub(crate) mod heap;
pub(crate) mod holds;
pub(crate) mod info;
pub(crate) mod input;
#[cfg(feature = "script")]
mod interrupt;
pub(crate) mod kernel;
pub(crate) mod leaks;
pub(crate) mod manuals;
pub(crate) mod maps;
pub(crate) mod mark;
pub(crate) mod on_signal;
mod outstanding;
mod parts;
pub(crate) mod pause;
pub(crate) mod process;
#[cfg(feature = "script")]
mod prompt;
pub(crate) mod reach;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod rewrite;
pub(crate) mod run;
mod run_family;
#[cfg(feature = "script")]
pub(crate) mod script;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod status;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod trace;
mod watched;
pub(crate) mod way;

use crate::cleaner;
use crate::cli::Command;
use crate::failure::refused;
use crate::recorder;
use anyhow::Result;
use process::{NO_PROC, thread};
use prof_os::Pid;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs a command.
///
/// # Errors
/// The error to report in one line; see [`crate::failure`].
pub(crate) fn dispatch(command: &Command) -> Result<ExitCode> {
    if needs_processes(command) && !Path::new("/proc/self/stat").exists() {
        return Err(refused(NO_PROC));
    }
    if let Some(e) = target(command).and_then(thread) {
        return Err(refused(e));
    }
    match command {
        Command::Attach(a) => attach::run(a),
        Command::Detach(a) => detach::run(a),
        Command::Pause(a) => pause::pause(a),
        Command::Resume(a) => pause::resume(a),
        Command::Status(a) => status::run(a),
        Command::Run(a) => run::run(a),
        Command::Trace(a) => trace::run(a),
        Command::Mark(a) => mark::run(a),
        Command::Dump(a) => dump::run(a, &locate),
        Command::Kernel(a) => kernel::run(a),
        Command::Report(a) => report::run(a, &locate),
        Command::Leaks(a) => leaks::run(a, &locate),
        Command::Reach(a) => reach::run(a),
        Command::Holds(a) => holds::run(a, &locate),
        Command::Heap(a) => heap::run(a),
        Command::Diff(a) if a.by_process => by_process::changes::diff(a, &locate),
        Command::Diff(a) => diff::run(a, &locate),
        Command::Check(a) => check::run(a, &locate),
        Command::Export(a) => export::run(a, &locate),
        Command::Info(a) => info::run(a, &locate),
        Command::Replay(a) => replay::run(a),
        Command::Maps(a) => maps::run(a, &locate),
        Command::Allocator(a) => allocator::run(a, &locate),
        Command::Fragmentation(a) => fragmentation::run(a, &locate),
        Command::Strip(a) => rewrite::run_strip(a, &locate),
        Command::Pack(a) => rewrite::run_pack(a, &locate),
        Command::Extract(a) => rewrite::run_extract(a, &locate),
        #[cfg(feature = "script")]
        Command::Script(a) => script::run(a, &locate),
        #[cfg(feature = "script")]
        Command::ScriptSlave(a) => script::run_slave(a, &locate),
        #[cfg(feature = "serve")]
        Command::Serve(a) => serve::run(a, &locate),
        #[cfg(feature = "serve")]
        Command::Server(a) => serve::run_server(a, &locate),
        #[cfg(feature = "top")]
        Command::Top(a) => top::run(a),
        Command::Demo(a) => demo::run(a),
        Command::Doctor(a) => doctor::run(a),
        Command::Completions(a) => manuals::completions(a),
        Command::Man(a) => manuals::man(a),
        Command::Collect(a) => recorder::run(a),
        Command::Clean(a) => Ok(cleaner::run(a)),
        Command::WriteReport(a) => on_signal::run(a),
        Command::Fold(a) => crate::folder::run(a),
        Command::DemoTarget => demo::target(),
    }
}

/// Returns whether a command works on live processes, and not on recordings or on prof itself.
fn needs_processes(command: &Command) -> bool {
    use Command::{
        Attach, Demo, Detach, Dump, Heap, Holds, Kernel, Mark, Pause, Reach, Resume, Run, Status,
        Trace,
    };
    matches!(
        command,
        Attach(_)
            | Detach(_)
            | Kernel(_)
            | Pause(_)
            | Reach(_)
            | Holds(_)
            | Heap(_)
            | Resume(_)
            | Status(_)
            | Run(_)
            | Demo(_)
            | Trace(_)
            | Dump(_)
            | Mark(_)
    )
}

/// Returns the process that a command is to work on.
fn target(command: &Command) -> Option<Pid> {
    match command {
        Command::Attach(a) => a.pid,
        Command::Detach(a) => a.who.one(),
        Command::Pause(a) | Command::Resume(a) => a.who.one(),
        Command::Status(a) => a.one(),
        Command::Trace(a) => a.pid,
        Command::Dump(a) => Some(a.process),
        Command::Mark(a) => a.who.one(),
        Command::Reach(a) => Some(a.pid),
        Command::Holds(a) => a.pid(),
        Command::Heap(a) => Some(a.pid),
        Command::Kernel(a) => a.pid,
        _ => None,
    }
}

/// Returns the path of the recording of a process that is being recorded.
fn locate(pid: Pid) -> Option<PathBuf> {
    let peek = prof_collect::Peek::of(pid).ok()??;
    Some(peek.path)
}
