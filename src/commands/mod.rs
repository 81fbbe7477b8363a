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
pub mod maps;
mod parts;
mod pause;
pub mod replay;
pub mod report;
pub mod rewrite;
mod run;
#[cfg(feature = "serve")]
pub mod serve;
mod status;

use crate::cleaner;
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
    if let Some(e) = process(command).and_then(thread) {
        return Err(refused(e));
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
        Command::Maps(a) => maps::run(a, &locate),
        Command::Fragmentation(a) => fragmentation::run(a, &locate),
        Command::Strip(a) => rewrite::run_strip(a, &locate),
        Command::Pack(a) => rewrite::run_pack(a, &locate),
        Command::Extract(a) => rewrite::run_extract(a, &locate),
        #[cfg(feature = "serve")]
        Command::Serve(a) => serve::run(a, &locate),
        #[cfg(feature = "serve")]
        Command::Server(a) => serve::run_server(a, &locate),
        Command::Demo(a) => demo::run(a),
        Command::Doctor(a) => doctor::run(a),
        Command::Completions(a) => manuals::completions(a),
        Command::Man(a) => manuals::man(a),
        Command::Collect(a) => recorder::run(a),
        Command::Clean(a) => Ok(cleaner::run(a)),
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

/// Returns the process that a command is to work on.
fn process(command: &Command) -> Option<i32> {
    match command {
        Command::Attach(a) => Some(a.pid),
        Command::Detach(a) => Some(a.pid),
        Command::Pause(a) | Command::Resume(a) => Some(a.pid),
        Command::Status(a) => a.pid,
        _ => None,
    }
}

/// Returns the message that an id is that of a thread, with the command line for its process; `None` if it is not.
pub fn thread(tid: i32) -> Option<String> {
    let pid = prof_inject::process::proc::process_of(tid).filter(|pid| *pid != tid)?;
    let args = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned());
    Some(format!("{tid} is a thread of process {pid}; type `{}`", retyped(args, tid, pid)))
}

/// Returns a command line with one number in place of another.
fn retyped(args: impl Iterator<Item = String>, old: i32, new: i32) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    let word = |arg: String| match arg {
        a if a == old.to_string() => new.to_string(),
        a if !a.is_empty() && a.chars().all(is_plain) => a,
        a => format!("'{}'", a.replace('\'', r"'\''")),
    };
    let words: Vec<String> = std::iter::once("prof".into()).chain(args.map(word)).collect();
    words.join(" ")
}

/// Returns the path of the recording of a process that is being recorded.
fn locate(pid: i32) -> Option<PathBuf> {
    let peek = prof_collect::Peek::of(u32::try_from(pid).ok()?).ok()??;
    Some(peek.path)
}

#[cfg(test)]
mod tests {
    use super::retyped;

    #[test]
    fn a_command_line_is_repeated_with_another_number() {
        let args = ["export", "html", "77", "-o", "it's here.html", "--top=77", ""];
        assert_eq!(
            retyped(args.map(String::from).into_iter(), 77, 5),
            r"prof export html 5 -o 'it'\''s here.html' --top=77 ''"
        );
    }
}
