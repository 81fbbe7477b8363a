//! `prof strip`, `prof pack` and `prof extract`: make recordings from recordings, and extract files.

use super::by_process::{ByProcess, each_file, of_one};
use super::input::{IndexArgs, Locate, resolve, say_losses};
use super::report::print;
use crate::failure::usage;
use crate::family::folder::Folder;
use crate::part::Part;
use crate::term::say;
use anyhow::{Context, Result};
use clap::Args;
use prof_analyze::rewrite::{
    Anonymize, ExtractOptions, PackOptions, RewriteError, extract, pack, strip,
};
use prof_analyze::symbols::SymbolOptions;
use prof_analyze::{Analysis, LoadOptions};
use prof_os::Pid;
use prof_trace::values::parse::{duration, size};
use prof_trace::values::text::{bytes, count, number};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Remove short-lived blocks from a recording
///
/// The result is a recording that every other command reads. The figures of all blocks together and of each stack are
/// kept as they are; filters, moments and lists of blocks have only the remaining blocks: those that are live at the
/// end, and those that lived for the threshold or longer. Blocks that were reallocated stay or go with their whole
/// chain.
#[derive(Args, Clone, Debug)]
#[command(visible_alias = "squeeze")]
pub(crate) struct StripArgs {
    /// A recording [default: the newest in the current folder]
    #[arg(value_name = "FILE")]
    pub input: Option<String>,
    /// Remove blocks that lived shorter than this (30 or 30s, 4h3m2s)
    #[arg(short, long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub threshold: u64,
    /// The file to write to, which must not exist; or a stream, like /dev/stdout. With --by-process its name has {pid},
    /// in whose place the process's id stands
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// Make a recording that can be read on any machine
///
/// Every code address is symbolised, with inlined functions, files and lines; the symbols of the modules are kept;
/// everything is compressed as well as possible.
#[derive(Args, Clone, Debug)]
#[command(visible_alias = "postprocess")]
pub(crate) struct PackArgs {
    /// A recording [default: the newest in the current folder]
    #[arg(value_name = "FILE")]
    pub input: Option<String>,
    /// The file to write to, which must not exist; or a stream, like /dev/stdout. With --by-process its name has {pid},
    /// in whose place the process's id stands
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Which names to remove
    #[arg(short, long, value_name = "HOW", value_enum, default_value_t = Anonymize::None)]
    pub anonymize: Anonymize,
    /// Add the files of the modules, too, and those with their debug information
    #[arg(long)]
    pub files: bool,
    /// Of the folder of a family, take this process (may be given again)
    #[arg(long, help_heading = "Families", value_name = "PID")]
    pub pid: Vec<Pid>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// Extract the files that are kept in a recording
///
/// The folder then has: files/ (the files that `prof pack --files` added, by their paths), symbols/ (a table for each
/// module whose symbols are in the recording) and modules.txt.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExtractArgs {
    /// A recording [default: the newest in the current folder]
    #[arg(value_name = "FILE")]
    pub input: Option<String>,
    /// The folder to write to; it must not exist
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// The most bytes that may be written
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    pub max_size: u64,
}

/// Converts the error: a recording that can't be read is wrong usage, an output that can't be written is not.
fn wrong(e: RewriteError) -> anyhow::Error {
    match e {
        RewriteError::Recording(e) => usage(e.to_string()),
        e => e.into(),
    }
}

/// Writes a new file, or to a stream, by `work`, and prints what `told` says of it: to standard error if a stream is written
/// to, which may be standard output. If that fails, there is no file.
fn write<T>(
    path: &Path,
    work: impl FnOnce(&mut dyn Write) -> Result<T, RewriteError>,
    told: impl FnOnce(T) -> String,
) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    // As with all recordings, only the owner may read it.
    let part = Part::create(path, false, "name another file, or remove it")?;
    let mut out = BufWriter::with_capacity(1 << 20, &part.file);
    let done = work(&mut out).map_err(wrong)?;
    out.flush().with_context(failed)?;
    drop(out);
    let is_stream = part.is_stream();
    part.keep().with_context(failed)?;
    let text = told(done);
    if is_stream {
        text.lines().for_each(say);
        return Ok(());
    }
    print(&text)
}

/// Runs `prof strip`.
///
/// # Errors
/// If the recording can't be read, or the output can't be written.
pub(crate) fn run_strip(args: &StripArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.by.by_process {
        let input = (args.input.as_deref(), &args.index.pid[..]);
        return each_file(input, Some(&args.output), locate, |path, output| {
            let (by, index) = (ByProcess::default(), of_one(&args.index)?);
            let one = StripArgs { input: Some(path), output, index, by, ..args.clone() };
            run_strip(&one, locate).map(|_| ())
        });
    }
    let index = args.index.open(&resolve(args.input.as_deref(), locate)?)?;
    say_losses(index.analysis());
    write(
        &args.output,
        |out| strip(&index, args.threshold, out),
        |done| {
            format!(
                "{}: {} left out, {} left; {}, before {}\n",
                args.output.display(),
                count(done.blocks, "block", "blocks"),
                count(done.kept, "block", "blocks"),
                bytes(done.bytes),
                bytes(done.bytes_before),
            )
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `prof pack`.
///
/// # Errors
/// If the recording can't be read, or the output can't be written.
pub(crate) fn run_pack(args: &PackArgs, locate: Locate<'_>) -> Result<ExitCode> {
    crate::progress::install();
    let anonymize = args.anonymize;
    if args.files && anonymize != Anonymize::None {
        return Err(usage("--files would give away what --anonymize leaves out; give one of them"));
    }
    if args.by.by_process {
        let input = (args.input.as_deref(), &args.pid[..]);
        return each_file(input, Some(&args.output), locate, |path, output| {
            let (by, pid) = (ByProcess::default(), Vec::new());
            let one = PackArgs { input: Some(path), output, by, pid, ..args.clone() };
            run_pack(&one, locate).map(|_| ())
        });
    }
    let path = resolve(args.input.as_deref(), locate)?;
    let index = IndexArgs { pid: args.pid.clone(), ..IndexArgs::plain() };
    let (path, losses) = index.of_family(&path, &SymbolOptions::default())?;
    let options = PackOptions { anonymize, files: args.files };
    let mut analysis =
        Analysis::from_file(&path, &LoadOptions::default()).map_err(|e| wrong(e.into()))?;
    losses.note_in(&mut analysis);
    say_losses(&analysis);
    write(
        &args.output,
        |out| pack(&analysis, &options, out),
        |done| {
            let mut text = format!(
                "{}: {} looked up, {} without a name; {}, before {}\n",
                args.output.display(),
                count(done.addresses, "code address", "code addresses"),
                number(done.unknown),
                bytes(done.bytes),
                bytes(done.bytes_before),
            );
            if args.files {
                let files = count(done.files, "file", "files");
                text += &format!("{files} of {} put in\n", bytes(done.file_bytes));
            }
            text
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `prof extract`.
///
/// # Errors
/// If the recording can't be read, or the files can't be written.
pub(crate) fn run_extract(args: &ExtractArgs, locate: Locate<'_>) -> Result<ExitCode> {
    crate::progress::install();
    let path = resolve(args.input.as_deref(), locate)?;
    if Folder::open(&path).is_some() {
        let path = path.display();
        return Err(usage(format!("{path} is the folder of a family; name a recording in it")));
    }
    let options = ExtractOptions { most: args.max_size };
    let done = extract(&path, &args.output, &options).map_err(wrong)?;
    let mut text = String::new();
    for (path, n) in &done.files {
        text += &format!("{} ({})\n", path.display(), bytes(*n));
    }
    for path in &done.tables {
        text += &format!("{}\n", path.display());
    }
    done.notes.iter().for_each(|n| text += &format!("note: {n}\n"));
    if done.files.is_empty() {
        text += "no files are kept in it; `prof pack --files` puts them in\n";
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
