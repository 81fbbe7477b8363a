//! Declares the command line: every command and option.

use crate::commands::allocator::AllocatorArgs;
use crate::commands::attach::AttachArgs;
use crate::commands::check::CheckArgs;
use crate::commands::collect::{CleanArgs, CollectArgs};
use crate::commands::demo::DemoArgs;
use crate::commands::detach::DetachArgs;
use crate::commands::diff::DiffArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::dump::DumpArgs;
use crate::commands::export::ExportArgs;
use crate::commands::fragmentation::FragmentationArgs;
use crate::commands::heap::HeapArgs;
use crate::commands::holds::HoldsArgs;
use crate::commands::info::InfoArgs;
use crate::commands::kernel::KernelArgs;
use crate::commands::leaks::LeaksArgs;
use crate::commands::manuals::{CompletionsArgs, ManArgs};
use crate::commands::maps::MapsArgs;
use crate::commands::mark::MarkArgs;
use crate::commands::on_signal::OnSignalArgs;
use crate::commands::pause::PidArgs;
use crate::commands::reach::ReachArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::report::ReportArgs;
use crate::commands::rewrite::{ExtractArgs, PackArgs, StripArgs};
use crate::commands::run::RunArgs;
#[cfg(feature = "script")]
use crate::commands::script::{ScriptArgs, SlaveArgs};
#[cfg(feature = "serve")]
use crate::commands::serve::{ServeArgs, ServerArgs};
use crate::commands::status::StatusArgs;
#[cfg(feature = "top")]
use crate::commands::top::TopArgs;
use crate::commands::trace::TraceArgs;
use crate::folder::FoldArgs;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Record every heap allocation of a process that is already running, and see who holds its memory
///
/// prof attaches to a live process, records each allocation and free with its full stack, and lets go
/// again, leaving the process as it found it: no restart, no debugger, no recompilation.
#[derive(Debug, Parser)]
#[command(name = "prof", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  prof attach 1234              start recording process 1234; prints the recording's path
  prof pause 1234               recording off; prof resume 1234: on again
  prof detach 1234              take prof out of the process, finish the recording
  prof report                   who holds the memory, by the newest recording in this folder
  prof run --report -- ls -l    record a command from its first allocation on

Exit codes: 0 done, 1 failed, 2 wrong usage or a bad file, 3 the process is gone or can't be recorded.")]
pub(crate) struct Cli {
    /// Say more about what prof does; give it twice for much more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Attach(AttachArgs),
    Detach(DetachArgs),
    /// Stop recording for a while; the hooks stay in the process
    Pause(PidArgs),
    /// Go on recording, as a new part of the recording
    Resume(PidArgs),
    Status(StatusArgs),
    Run(RunArgs),
    Trace(Box<TraceArgs>),
    Mark(MarkArgs),
    Dump(Box<DumpArgs>),
    #[cfg(feature = "top")]
    Top(Box<TopArgs>),
    Kernel(Box<KernelArgs>),
    Report(Box<ReportArgs>),
    Leaks(Box<LeaksArgs>),
    Reach(Box<ReachArgs>),
    Holds(Box<HoldsArgs>),
    Heap(HeapArgs),
    Diff(Box<DiffArgs>),
    Check(Box<CheckArgs>),
    Export(Box<ExportArgs>),
    Info(InfoArgs),
    Fragmentation(Box<FragmentationArgs>),
    Maps(Box<MapsArgs>),
    Allocator(Box<AllocatorArgs>),
    Strip(StripArgs),
    Pack(PackArgs),
    Extract(ExtractArgs),
    Replay(ReplayArgs),
    #[cfg(feature = "script")]
    Script(Box<ScriptArgs>),
    #[cfg(feature = "script")]
    #[command(hide = true)]
    ScriptSlave(SlaveArgs),
    #[cfg(feature = "serve")]
    Serve(Box<ServeArgs>),
    #[cfg(feature = "serve")]
    #[command(hide = true)]
    Server(ServerArgs),
    Demo(DemoArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Drains the ring of a target; started by `prof attach`
    #[command(hide = true)]
    Collect(CollectArgs),
    /// Waits for the end of an attach, and cleans the target if it is killed; started by `prof attach`
    #[command(hide = true)]
    Clean(CleanArgs),
    /// Writes a report of a running recording; started by its collector at a signal
    #[command(hide = true)]
    WriteReport(OnSignalArgs),
    /// Folds the oldest part of a recording; started by its collector at a bound
    #[command(hide = true)]
    Fold(FoldArgs),
    /// A process that leaks memory, for the demo
    #[command(hide = true)]
    DemoTarget,
}

/// Parses the command line. An error is reported in one line.
///
/// # Errors
/// The exit code, if nothing is left to do: after help, version, or an error.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|e| match e.kind() {
        ErrorKind::DisplayVersion if std::env::args_os().any(|a| is_verbose(&a)) => {
            let printed = crate::commands::report::print(&crate::commands::doctor::version());
            printed.map_or_else(|e| crate::failure::report(&e), |()| ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = e.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            ExitCode::from(crate::failure::USAGE)
        }
        _ => {
            crate::term::say(&one_line(&e.to_string()));
            ExitCode::from(crate::failure::USAGE)
        }
    })
}

/// Returns whether the argument is `-v` or `--verbose`, which clap ignores once it has seen `--version`.
fn is_verbose(argument: &std::ffi::OsStr) -> bool {
    argument == "-v" || argument == "-vv" || argument == "--verbose"
}

/// Returns clap's message in one line: what is wrong, its hints, and where to read on.
fn one_line(message: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for line in message.lines().map(str::trim) {
        if line.starts_with("Usage:") {
            break;
        }
        if !line.is_empty() && !line.starts_with("For more information") {
            parts.push(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    let text = parts.join("; ").replace(":; ", ": ");
    match message.lines().find_map(|l| l.trim().strip_prefix("Usage: ")) {
        Some(usage) => format!("{text} (usage: {usage})"),
        None => format!("{text} (see prof --help)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// clap makes a line break of it.
    #[test]
    fn no_help_has_the_letter_n_in_braces() {
        let all = Cli::command();
        for command in all.get_subcommands() {
            for arg in command.get_arguments() {
                let help = [arg.get_help(), arg.get_long_help()];
                let has = help.iter().flatten().any(|h| h.to_string().contains("{n}"));
                assert!(!has, "{} {}", command.get_name(), arg.get_id());
            }
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        for wrong in [&["prof", "attach"][..], &["prof", "attach", "x"], &["prof", "nonsense"]] {
            let e = Cli::try_parse_from(wrong).expect_err("wrong");
            let line = one_line(&e.to_string());
            assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
        }
        for wrong in ["x", "0", "-4", "99999999999"] {
            let e = Cli::try_parse_from(["prof", "attach", "--", wrong]).expect_err("wrong");
            assert!(one_line(&e.to_string()).contains("pgrep"), "{e}");
        }
        let e = Cli::try_parse_from(["prof", "attach"]).expect_err("wrong");
        assert!(one_line(&e.to_string()).contains("<PID>"), "{}", one_line(&e.to_string()));
    }
}
