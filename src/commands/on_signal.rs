//! Reports at a signal to the recorded process: the options that ask for them, and the command that writes one.

use super::dump::{NO_NUMBER, What};
use super::input::{FilterArgs, IndexArgs};
use crate::failure::usage;
use crate::reports::{DumpFormat, Reports, Template, is_there, template};
use crate::signals::{parse_signal, signal_name};
use anyhow::{Context, Result};
use clap::Args;
use clap::Parser;
use prof_analyze::export::Cost;
use prof_collect::{Limits, Room};
use prof_os::Pid;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options that ask for reports at a signal.
#[derive(Args, Clone, Debug)]
pub(crate) struct SignalReportArgs {
    /// A signal to the process at which a report of the recording is written, which goes on: USR1, USR2 or RTMIN+N, but
    /// not that of --signal [default: none]
    #[arg(long, help_heading = "Reports at a signal", value_name = "SIGNAL", value_parser = parse_signal)]
    pub dump_signal: Option<u32>,
    /// The file of the report; {pid} stands for the process, {comm} for its name, {time} for the date and the time, and the
    /// letter n in braces for the first number from 1 on for which there is no file. Without that, a new report replaces
    /// the file [default: ./prof.NAME.PID.NUMBER.txt, with the ending of the format]
    #[arg(
        long,
        help_heading = "Reports at a signal",
        value_name = "TEMPLATE",
        value_parser = template,
        requires = "dump_signal"
    )]
    pub report_file: Option<String>,
    /// The format of the report
    #[arg(
        long,
        help_heading = "Reports at a signal",
        value_name = "FORMAT",
        value_enum,
        default_value_t = DumpFormat::Text,
        requires = "dump_signal"
    )]
    pub report_format: DumpFormat,
}

impl SignalReportArgs {
    /// Returns the signal and the file of the reports, if they are asked for. `toggle` is the signal that switches
    /// recording off and on.
    ///
    /// # Errors
    /// If both signals are the same.
    pub(crate) fn reports(&self, toggle: u32) -> Result<Option<Reports>> {
        let Some(signal) = self.dump_signal.filter(|s| *s != 0) else { return Ok(None) };
        if signal == toggle {
            let name = signal_name(signal);
            return Err(usage(format!(
                "--dump-signal {name}: this signal switches recording off and on already; choose another here, or \
                 another with --signal (none for none)"
            )));
        }
        let format = self.report_format;
        let default = || format!("prof.{{comm}}.{{pid}}.{{n}}.{}", format.ending());
        let text = self.report_file.clone().unwrap_or_else(default);
        if Path::new(&text).file_name().is_none() || text.ends_with('/') {
            return Err(usage(format!("--report-file {text}: name a file, not a folder")));
        }
        // The process that writes the reports has another current folder.
        let folder =
            std::env::current_dir().context("cannot find the current folder; was it removed?")?;
        Ok(Some(Reports { signal, to: Template { folder, text }, format }))
    }
}

/// Arguments of the process that writes a report.
#[derive(Args, Debug)]
pub(crate) struct OnSignalArgs {
    /// The recorded process
    #[arg(long)]
    pub pid: Pid,
    /// Name of the process
    #[arg(long)]
    pub comm: String,
    /// The recording
    #[arg(long)]
    pub recording: PathBuf,
    /// Folder that relative paths begin in
    #[arg(long)]
    pub folder: PathBuf,
    /// Template of the file's path
    #[arg(long)]
    pub template: String,
    /// Format of the file
    #[arg(long, value_enum)]
    pub format: DumpFormat,
    /// Number of signals that it stands for
    #[arg(long)]
    pub signals: u64,
    /// Room to leave free on the file system of the report
    #[arg(long)]
    pub keep_free: Room,
}

/// Number of names that are tried until one is free.
const TRIES: u32 = 20;

/// Writes a report, and prints its path.
///
/// # Errors
/// If the recording can't be read, or the file can't be written.
pub(crate) fn run(args: &OnSignalArgs) -> Result<ExitCode> {
    #[derive(Parser)]
    struct Defaults {
        #[command(flatten)]
        index: IndexArgs,
        #[command(flatten)]
        filter: FilterArgs,
    }
    let Defaults { index, filter } = Defaults::try_parse_from(["report"]).context("options")?;
    let what = What {
        format: args.format,
        top: None,
        cost: Cost::Live,
        signals: Some(args.signals),
        index: &index,
        filter: &filter,
    };
    let template = Template { folder: args.folder.clone(), text: args.template.clone() };
    let replace = !template.is_numbered();
    let mut tries = 0;
    loop {
        let path = template.path(args.pid, &args.comm).ok_or_else(|| usage(NO_NUMBER))?;
        check_room(&path, args.keep_free)?;
        match what.write(&args.recording, &path, replace, &|_| None) {
            Ok(()) => {
                let line = format!("{}\n", path.display());
                let _ = std::io::stdout().write_all(line.as_bytes());
                return Ok(ExitCode::SUCCESS);
            }
            // Another process has made a file of that name meanwhile.
            Err(_) if !replace && is_there(&path) && tries < TRIES => tries += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Refuses to write to a file system that has less room than is to be left free.
fn check_room(path: &Path, keep_free: Room) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let open = File::open(folder).with_context(|| format!("cannot create {}", path.display()))?;
    match (Limits { max_disk: None, keep_free }).is_full(&open) {
        Some(why) => Err(usage(format!("there is no room for {}: {why}", path.display()))),
        None => Ok(()),
    }
}
