//! `prof script`: runs programs that ask questions about recordings.

use super::by_process::{ByProcess, each, of_one};
use super::input::{IndexArgs, Locate, resolve, say_losses};
use super::interrupt::{self, OnInterrupt, Otherwise};
use super::prompt;
use super::report::{Format, print};
use crate::failure::{FAILED, USAGE, usage};
use crate::term::say;
use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use prof_analyze::Index;
use prof_script::{
    CLOSED, ErrorKind, Native, Open, Ran, Recording, Script, ScriptError, ScriptOptions, help,
    on_stack, serve_stdin,
};
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Ask questions as programs: filters, groups, graphs, verdicts
///
/// Runs a script in bytehound's language, which is Rhai with functions for recordings, or more: `--help-names` lists
/// all names. Without a script it asks for lines and answers each. Exit codes: 0 done, or that of exit(n); 1 the script
/// failed, or an assert did; 2 the script is no valid code.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScriptArgs {
    /// The script; - reads it from standard input; with -e the first of its arguments
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The script's arguments, for argv()
    #[arg(value_name = "ARGS", allow_hyphen_values = true, trailing_var_arg = true)]
    pub args: Vec<String>,
    /// A recording, or the id of a process that is being recorded; the first is data(), all are recordings()
    /// (may be given again) [default: the newest recording in the current folder, when it is first asked for]
    #[arg(short, long, value_name = "FILE|PID")]
    pub data: Vec<String>,
    /// Run this code, and print its value unless it ends in a semicolon
    #[arg(short = 'e', long = "execute", value_name = "CODE", allow_hyphen_values = true)]
    pub code: Option<String>,
    /// List the names that scripts can use: all, those with a text in them, or those that begin with it (only_*)
    #[arg(long, value_name = "PATTERN", num_args = 0..=1, default_missing_value = "")]
    pub help_names: Option<String>,
    /// Run scripts from standard input, each ended by a NUL byte, and answer in lines of JSON
    #[arg(long, conflicts_with_all = ["file", "code"])]
    pub serve_stdin: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// Run scripts from standard input, with the options of `bytehound script-slave`
#[derive(Args, Clone, Debug)]
pub(crate) struct SlaveArgs {
    /// A recording
    #[arg(short, long, value_name = "FILE")]
    pub data: Option<String>,
}

/// Opens a recording by its path or its process.
fn open(index: &IndexArgs, name: &str, locate: Locate<'_>) -> Result<Arc<Recording>> {
    Ok(opened(index.open(&resolve(Some(name), locate)?)?))
}

/// Opens the recording for scripts, and prints which data are missing in it, as a script prints figures alone.
fn opened(index: Index) -> Arc<Recording> {
    say_losses(index.analysis());
    Recording::new(index)
}

/// Returns the function that opens the recordings of `load`.
fn opener(index: &IndexArgs) -> Open {
    let index = index.clone();
    Box::new(move |path: &Path| index.open(path).map(opened).map_err(|e| format!("{e:#}")))
}

/// Runs the command.
///
/// # Errors
/// If a recording or the script can't be read.
pub(crate) fn run(args: &ScriptArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if let Some(pattern) = &args.help_names {
        let text = help(&prof_script::names(), pattern);
        if text.is_empty() {
            return Err(usage(format!("no name has {pattern:?} in it")));
        }
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.by.by_process {
        return each_process(args, locate);
    }
    let data = args.data.iter().map(|name| open(&args.index, name, locate));
    let data: Vec<Arc<Recording>> = data.collect::<Result<_>>()?;
    on_stack(|| run_on(args, data)).context("cannot start the script's thread")?
}

/// Runs the script for each process of a family, with its recording alone as data.
fn each_process(args: &ScriptArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let [folder] = &args.data[..] else {
        return Err(usage("--by-process wants one folder of a family, as --data FOLDER"));
    };
    if args.serve_stdin
        || args.code.is_none() && args.file.as_deref().is_none_or(|f| f == Path::new("-"))
    {
        return Err(usage(
            "--by-process runs a script again and again: it wants a FILE, or -e CODE",
        ));
    }
    each((Some(folder), &args.index.pid), Format::Text, locate, |path| {
        let (by, index) = (ByProcess::default(), of_one(&args.index)?);
        run(&ScriptArgs { by, index, data: vec![path], ..args.clone() }, locate)
    })
}

/// Runs the command on recordings.
fn run_on(args: &ScriptArgs, data: Vec<Arc<Recording>>) -> Result<ExitCode> {
    if args.serve_stdin {
        return slave(data);
    }
    // A script in a file prints itself which files it writes.
    let tells_files = args.code.is_some() || args.file.is_none() && std::io::stdin().is_terminal();
    let mut options = ScriptOptions::new(Box::new(Native { tells_files }));
    options.data = data;
    options.open = opener(&args.index);
    let index = args.index.clone();
    options.fallback = Some(Box::new(move || {
        let path = resolve(None, &|_| None).map_err(|e| {
            format!("no recording is loaded: give one with --data FILE, or load one with load(path) ({e:#})")
        })?;
        say(&format!("no recording was given; {} is the newest in this folder", path.display()));
        index.open(&path).map(opened).map_err(|e| format!("{e:#}"))
    }));
    let (name, code) = match (&args.code, &args.file) {
        (Some(code), _) => ("-e".to_owned(), code.clone()),
        (None, Some(file)) if file != Path::new("-") => (file.display().to_string(), read(file)?),
        (None, None) if std::io::stdin().is_terminal() => return prompt::run(options),
        (None, _) => ("standard input".to_owned(), read_stdin()?),
    };
    let first = args.file.iter().filter(|_| args.code.is_some());
    options.argv =
        first.map(|f| f.to_string_lossy().into_owned()).chain(args.args.clone()).collect();
    let watch = OnInterrupt::new(options.job.clone(), Otherwise::End);
    let mut script = Script::new(options);
    // A script in a file prints only by its own calls. Of code on the command line, the value is printed.
    let ran = if args.code.is_some() { script.run_and_print(&code) } else { script.run(&code) };
    let code = ended(&name, ran);
    let pressed = watch.was_pressed();
    drop(watch);
    if pressed {
        interrupt::end();
    }
    Ok(code)
}

/// Runs the command of bytehound's name.
///
/// # Errors
/// If the recording can't be read.
pub(crate) fn run_slave(args: &SlaveArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let index = IndexArgs::plain();
    let data = args.data.iter().map(|name| open(&index, name, locate));
    let data = data.collect::<Result<_>>()?;
    on_stack(|| slave(data)).context("cannot start the script's thread")?
}

fn slave(data: Vec<Arc<Recording>>) -> Result<ExitCode> {
    match serve_stdin(data, std::io::stdin().lock(), std::io::stdout()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow!("cannot answer on standard output, or read standard input: {e}"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Longest script.
const LONGEST: u64 = 16 << 20;

fn read(file: &Path) -> Result<String> {
    let bytes = prof_os::files::read_at_most(file, LONGEST + 1)
        .map_err(|e| usage(format!("cannot read {}: {e}", file.display())))?;
    text(bytes, &file.display().to_string())
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(LONGEST + 1).read_to_end(&mut bytes);
    read.map_err(|e| usage(format!("cannot read standard input: {e}")))?;
    text(bytes, "standard input")
}

fn text(bytes: Vec<u8>, name: &str) -> Result<String> {
    if bytes.len() as u64 > LONGEST {
        return Err(usage(format!("{name} is longer than 16 MiB, and no script")));
    }
    String::from_utf8(bytes).map_err(|_| usage(format!("{name} is no text (UTF-8)")))
}

/// Returns an error in one line, with the place in the script.
fn told(name: &str, e: &ScriptError) -> String {
    match (e.line, e.column) {
        (Some(line), Some(column)) => format!("{name}:{line}:{column}: {}", e.message),
        (Some(line), None) => format!("{name}:{line}: {}", e.message),
        _ => format!("{name}: {}", e.message),
    }
}

/// Reports the end of a script, and returns its exit code.
fn ended(name: &str, ran: Result<Ran, ScriptError>) -> ExitCode {
    match ran {
        Ok(Ran::Whole) => ExitCode::SUCCESS,
        Ok(Ran::Exit(code)) => exit_code(code),
        // The reader of the pipe has closed it, which is no error.
        Err(e) if e.message.starts_with(CLOSED) => ExitCode::SUCCESS,
        Err(e) => {
            say(&told(name, &e));
            ExitCode::from(if e.kind == ErrorKind::Syntax { USAGE } else { FAILED })
        }
    }
}

/// Returns the exit code that a script asks for. A process has no others than 0 to 255: any other is 255, as a count of
/// failures must not become success.
pub(super) fn exit_code(code: i64) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
