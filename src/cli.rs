//! Declares the command line: every command and option.

use crate::commands::check::CheckArgs;
use crate::commands::diff::DiffArgs;
use crate::commands::export::ExportArgs;
use crate::commands::fragmentation::FragmentationArgs;
use crate::commands::info::InfoArgs;
use crate::commands::leaks::LeaksArgs;
use crate::commands::maps::MapsArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::report::ReportArgs;
use crate::commands::rewrite::{ExtractArgs, PackArgs, StripArgs};
#[cfg(feature = "serve")]
use crate::commands::serve::{ServeArgs, ServerArgs};
use crate::units::{Sample, parse_duration, parse_sample, parse_signal};
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use prof_inject::{Named, Role};
use prof_trace::capture::{Capture, FIRST_DISTANCE};
use prof_trace::pack::Compress;
use prof_trace::values::parse::size as parse_size;
use prof_trace::values::text::bytes;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

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
pub struct Cli {
    /// Say more about what prof does; give it twice for much more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Attach(AttachArgs),
    Detach(DetachArgs),
    /// Stop recording for a while; the hooks stay in the process
    Pause(PidArgs),
    /// Go on recording, as a new part of the recording
    Resume(PidArgs),
    Status(StatusArgs),
    Run(RunArgs),
    Report(Box<ReportArgs>),
    Leaks(Box<LeaksArgs>),
    Diff(Box<DiffArgs>),
    Check(Box<CheckArgs>),
    Export(Box<ExportArgs>),
    Info(InfoArgs),
    Fragmentation(Box<FragmentationArgs>),
    Maps(Box<MapsArgs>),
    Strip(StripArgs),
    Pack(PackArgs),
    Extract(ExtractArgs),
    Replay(ReplayArgs),
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
    /// A process that leaks memory, for the demo
    #[command(hide = true)]
    DemoTarget,
}

/// Options that all recordings have in common.
#[derive(Args, Clone, Debug)]
pub struct RecordArgs {
    /// The file to record to; it must not exist
    /// [default: ./prof.NAME.PID.TIME.prof]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Size of the memory that holds events on their way to the file
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_size)]
    pub ring_size: u64,
    /// What a thread does when that memory is full: wait for a while, or drop its event at once
    /// (dropped events are counted)
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnFull::Wait)]
    pub on_full: OnFull,
    /// Write no line to the system's log (authpriv) at the attach and the detach
    #[arg(long)]
    pub no_log: bool,
    /// Record the stack of each free, too
    #[arg(long)]
    pub free_stacks: bool,
    /// Record a sample: on average one block per BYTES allocated, larger blocks more likely [without a value, or auto: as
    /// fine as the program's allocation rate allows at little cost]
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto",
        value_parser = parse_sample,
        conflicts_with = "sample_rate"
    )]
    pub sample: Option<Sample>,
    /// Record a sample: one of every N consecutive allocations of each thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub sample_rate: Option<u64>,
    /// Record no smaller blocks
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub min_size: Option<u64>,
    /// Record no larger blocks
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_size: Option<u64>,
    /// How the recording is compressed, when there is time for it
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Compression::Fast)]
    pub compress: Compression,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub functions: FunctionArgs,
    /// Compare each stack with a full unwind (slow; for testing prof)
    #[arg(long, hide = true)]
    pub verify_stacks: bool,
}

impl RecordArgs {
    /// Returns the default options, but without a line in the system's log, for recording a process of prof's own.
    pub fn unlogged(output: PathBuf, ring_size: u64) -> Self {
        Self {
            output: Some(output),
            ring_size,
            on_full: OnFull::Wait,
            no_log: true,
            free_stacks: false,
            sample: None,
            sample_rate: None,
            min_size: None,
            max_size: None,
            compress: Compression::Fast,
            functions: FunctionArgs::default(),
            verify_stacks: false,
        }
    }

    /// Checks for options that contradict each other, which the parser can't do.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let c = self.capture();
        if c.max_size == 0 {
            return Err("--max-size 0 leaves nothing to record".into());
        }
        if c.min_size > c.max_size {
            return Err(format!(
                "--min-size ({}) is larger than --max-size ({}): nothing would be recorded",
                bytes(c.min_size),
                bytes(c.max_size)
            ));
        }
        Ok(())
    }

    /// Returns which blocks are to be recorded.
    pub fn capture(&self) -> Capture {
        Capture {
            sample_bytes: match self.sample {
                None => 0,
                Some(Sample::Auto) => FIRST_DISTANCE,
                Some(Sample::Fixed(n)) => n,
            },
            adapts: self.sample == Some(Sample::Auto),
            sample_every: self.sample_rate.unwrap_or(0),
            min_size: self.min_size.unwrap_or(0),
            max_size: self.max_size.unwrap_or(u64::MAX),
        }
    }
}

/// Compression of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// Not at all
    None,
    /// To about a third, at little cost
    Fast,
    /// To about a quarter
    Best,
}

impl From<Compression> for Compress {
    fn from(c: Compression) -> Self {
        match c {
            Compression::None => Compress::None,
            Compression::Fast => Compress::Fast,
            Compression::Best => Compress::Best,
        }
    }
}

/// Options that choose the hooked functions.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Functions")]
pub struct FunctionArgs {
    /// Look for the allocator in this module only: a file name such as libjemalloc.so.2, with or without what follows
    /// .so, or a path (may be given again)
    #[arg(long, value_name = "MODULE")]
    pub obj: Vec<String>,
    /// Prefix that the allocator's functions have before their usual names, such as je_
    #[arg(long, value_name = "PREFIX")]
    pub symbols_prefix: Option<String>,
    /// Another function that allocates, such as 'libpool.so:pool_alloc(2)', with the number of the argument that is the
    /// size, counted from 1 (may be given again)
    #[arg(long, value_name = "MODULE:FUNCTION(SIZE)", value_parser = |s: &str| Named::parse(Role::Alloc, s))]
    pub alloc_fn: Vec<Named>,
    /// Another function that resizes a block, with the numbers of the arguments that are the block and the size
    #[arg(long, value_name = "MODULE:FUNCTION(BLOCK,SIZE)", value_parser = |s: &str| Named::parse(Role::Realloc, s))]
    pub realloc_fn: Vec<Named>,
    /// Another function that frees a block, with the number of the argument that is the block
    #[arg(long, value_name = "MODULE:FUNCTION(BLOCK)", value_parser = |s: &str| Named::parse(Role::Free, s))]
    pub free_fn: Vec<Named>,
}

/// Behaviour of a thread when the ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFull {
    /// Wait for up to a tenth of a second, then drop events until there is room
    Wait,
    /// Drop the event
    Drop,
}

/// Start recording a process
///
/// Returns as soon as recording is on, and leaves a collector behind that writes the recording. The
/// path of the recording is printed to standard output; what was hooked, and how long the process
/// was stopped for it, to standard error.
#[derive(Args, Debug)]
pub struct AttachArgs {
    /// The process
    #[arg(value_parser = pid)]
    pub pid: i32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub record: RecordArgs,
    /// Stay, and show what is recorded until Ctrl-C, which detaches, or the end of the process
    #[arg(short, long)]
    pub foreground: bool,
    /// Detach after this time, such as 30s or 5m
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Begin with recording off
    #[arg(long)]
    pub paused: bool,
    /// The signal that switches recording off and on: USR1, USR2, RTMIN+N or none
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = parse_signal)]
    pub signal: u32,
    /// How long to wait for threads that do not stop and for the collector to begin, before giving up with
    /// nothing changed
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Once recording is on, check for up to this long that it sees the memory the process takes, and whether worker
    /// processes do its work; shorter for an idle process. 0s: do not check
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub look: Duration,
    /// Take your word for it that the seccomp filter of the process lets prof's calls pass, where prof cannot
    /// find out, as in a container: memfd_create, mmap, mremap, munmap, munlock, mprotect, madvise,
    /// rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack and close. If one does not, that kills the
    /// process
    #[arg(long)]
    pub filter_allows: bool,
}

/// Take prof out of a process and finish its recording
///
/// Restores the process to what it was and verifies that. The path of the recording is printed.
#[derive(Args, Debug)]
pub struct DetachArgs {
    /// The process
    #[arg(value_parser = pid)]
    pub pid: i32,
    /// How long to wait for threads to leave the hook
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Take prof out of children, too, that were forked while the process was recorded and have run no other program
    /// since: without it they keep prof's patches and code, inactive, and are named
    #[arg(long)]
    pub children: bool,
    /// Take your word for it that the seccomp filter of the process lets prof's calls pass, where prof cannot
    /// find out, as in a container: memfd_create, mmap, mremap, munmap, munlock, mprotect, madvise,
    /// rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack and close. If one does not, that kills the
    /// process
    #[arg(long)]
    pub filter_allows: bool,
    /// Write no line to the system's log (authpriv)
    #[arg(long)]
    pub no_log: bool,
}

/// Parses the ID of a process.
fn pid(text: &str) -> Result<i32, String> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| {
        format!(
            "{text:?} is not the ID of a process; `pgrep NAME` prints the IDs of those with a name"
        )
    })
}

/// Arguments of commands that take only a process.
#[derive(Args, Debug)]
pub struct PidArgs {
    /// The process
    #[arg(value_parser = pid)]
    pub pid: i32,
}

/// Show what is being recorded
///
/// Without a process: every process that is being recorded on this machine.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The process
    #[arg(value_parser = pid)]
    pub pid: Option<i32>,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Format of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Run a command and record it from its first allocation on
///
/// Standard input, output and error, signals and the exit code are those of the command.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub record: RecordArgs,
    /// Print the report when the command has ended
    #[arg(long)]
    pub report: bool,
    /// The signal that switches recording off and on: USR1, USR2, RTMIN+N or none
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = parse_signal)]
    pub signal: u32,
    /// Do not follow the command when it runs another program in its place (exec), as shells, env and shims
    /// do: the recording ends there
    #[arg(long)]
    pub no_follow_exec: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Record a live demo process and show its report
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Keep the recording in this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show the recording in a browser afterwards: print the address of its page, and serve it until Ctrl-C
    #[cfg(feature = "serve")]
    #[arg(long)]
    pub serve: bool,
}

/// Show what the kernel allows prof here, and what to change
///
/// Looks at rights, Yama, seccomp and others, and records a process of its own. With a process: whether
/// that can be attached to. The exit code is 1 if recording would fail.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// A process that is to be recorded
    #[arg(value_parser = pid)]
    pub pid: Option<i32>,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Print completions for a shell, such as `prof completions bash > /etc/bash_completion.d/prof`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Write the manual pages into a folder
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The folder, such as /usr/local/share/man/man1; it is made if it is not there
    pub dir: PathBuf,
}

/// Arguments of the collector's process.
#[derive(Args, Debug)]
pub struct CollectArgs {
    /// The target
    #[arg(long)]
    pub pid: u32,
    /// Descriptor of the ring
    #[arg(long)]
    pub ring_fd: i32,
    /// Descriptor of the recording
    #[arg(long)]
    pub out_fd: i32,
    /// Absolute path of the recording
    #[arg(long)]
    pub path: PathBuf,
    /// Folder to save the recording in if its file is deleted
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Descriptor of a pipe that gets a byte when collecting has begun
    #[arg(long)]
    pub ready_fd: i32,
    /// Compression of the recording
    #[arg(long, value_enum, default_value_t = Compression::None)]
    pub compress: Compression,
    /// Detach after this time
    #[arg(long)]
    pub duration_ms: Option<u64>,
    /// File to note the end of the recording in
    #[arg(long)]
    pub note: Option<PathBuf>,
    /// Write no line to the system's log
    #[arg(long)]
    pub no_log: bool,
}

/// Arguments of the process that cleans the target of a killed attach.
#[derive(Args, Debug)]
pub struct CleanArgs {
    /// The target
    #[arg(long)]
    pub pid: i32,
}

/// Parses the command line. An error is reported in one line.
///
/// # Errors
/// The exit code, if nothing is left to do: after help, version, or an error.
pub fn parse() -> Result<Cli, ExitCode> {
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

    fn record(args: &[&str]) -> Result<(i32, RecordArgs), String> {
        let args = ["prof", "attach"].iter().chain(args);
        let cli = Cli::try_parse_from(args).map_err(|e| one_line(&e.to_string()))?;
        let Command::Attach(a) = cli.command else { panic!("attach") };
        a.record.check()?;
        Ok((a.pid, a.record))
    }

    #[test]
    fn samples_and_limits_are_understood() {
        let capture = |args: &[&str]| record(args).map(|(pid, r)| (pid, r.capture()));
        let all = Capture::default();
        assert_eq!(capture(&["7"]), Ok((7, all)));
        let auto = Capture { sample_bytes: FIRST_DISTANCE, adapts: true, ..all };
        assert_eq!(capture(&["--sample", "7"]), Ok((7, auto)));
        assert_eq!(capture(&["--sample=auto", "7"]), Ok((7, auto)));
        let sampled = Capture { sample_bytes: 1 << 20, ..all };
        assert_eq!(capture(&["--sample=1MiB", "7"]), Ok((7, sampled)));
        let every = Capture { sample_every: 100, min_size: 1024, max_size: 1 << 20, ..all };
        let args = ["7", "--sample-rate", "100", "--min-size=1K", "--max-size", "1M"];
        assert_eq!(capture(&args), Ok((7, every)));
        for (args, part) in [
            (&["--sample", "--sample-rate", "5", "7"][..], "--sample-rate"),
            (&["--sample=0", "7"], "leave the option out"),
            (&["--sample-rate", "0", "7"], "0"),
            (&["--min-size", "2K", "--max-size", "1K", "7"], "larger than --max-size"),
            (&["--max-size", "0", "7"], "leaves nothing to record"),
            (&["--compress", "more", "7"], "more"),
        ] {
            let e = capture(args).expect_err("wrong");
            assert!(e.contains(part) && !e.contains('\n'), "{args:?}: {e}");
        }
        assert_eq!(record(&["7"]).map(|r| r.1.compress), Ok(Compression::Fast));
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
