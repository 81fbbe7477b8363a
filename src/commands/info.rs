//! `prof info`: describes the contents of a recording.

use super::by_process::{ByProcess, each};
use super::input::{IndexArgs, Locate, resolve};
use super::report::{Format, print};
use crate::failure::usage;
use crate::term;
use anyhow::Result;
use clap::Args;
use prof_analyze::info::{Info, InfoError};
use prof_analyze::report::Style;
use std::process::ExitCode;

/// Show what is in a recording: bytes by kind, events, threads, modules, lifetimes, losses
#[derive(Args, Clone, Debug)]
pub(crate) struct InfoArgs {
    /// A recording, or the id of a process that is being recorded
    /// [default: the newest recording in the current folder]
    #[arg(value_name = "FILE|PID")]
    pub input: Option<String>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// Runs the command.
///
/// # Errors
/// If the recording can't be read, or standard output can't be written to.
pub(crate) fn run(args: &InfoArgs, locate: Locate<'_>) -> Result<ExitCode> {
    if args.by.by_process {
        let of = (args.input.as_deref(), &*args.index.pid);
        return each(of, args.format, locate, |path| {
            let mut one = InfoArgs { input: Some(path), by: ByProcess::default(), ..args.clone() };
            one.index.pid.clear();
            run(&one, locate)
        });
    }
    let path = resolve(args.input.as_deref(), locate)?;
    let index = args.index.open(&path)?;
    let info = Info::new(&index).map_err(|e| match e {
        InfoError::Recording(e) => usage(e.to_string()),
        InfoError::Scan(e) => e.into(),
    })?;
    print(&match args.format {
        Format::Text => {
            info.text(Style { color: term::color(), width: term::width(), ..Style::default() })
        }
        Format::Json => info.json() + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}
