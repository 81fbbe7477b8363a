//! `prof dump`: writes a report of a running recording to a file.

use super::export::{self, ExportArgs};
use super::input::{FilterArgs, IndexArgs, InputArgs, Locate};
use super::record::pid;
use super::report::{self, Of, given};
use crate::failure::usage;
use crate::new_file::{local_time, plain_name};
use crate::session;
use crate::term;
use anyhow::{Context, Result};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use prof_analyze::export::{Cost, Format};
use prof_analyze::report::{Report, ReportOptions, Style};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Write a report of a running recording to a file
///
/// The recording goes on. The file has what was recorded up to now, and its path is printed.
#[derive(Args, Clone, Debug)]
pub(crate) struct DumpArgs {
    /// The process, which must be being recorded
    #[arg(value_parser = pid)]
    pub pid: i32,
    /// The file; {pid} stands for the process, {comm} for its name, {n} for the first number from 1 on for which there
    /// is no file, {time} for the date and the time [default: ./prof.{comm}.{pid}.{time}.txt, with the ending of the
    /// format]
    #[arg(short, long, value_name = "TEMPLATE")]
    pub report_file: Option<String>,
    /// The format of the file
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = DumpFormat::Report(report::Format::Text))]
    pub format: DumpFormat,
    /// With text and json: how many call stacks to show; 0 shows all [default: 10]
    #[arg(short = 'n', long, value_name = "N")]
    pub top: Option<usize>,
    /// With the other formats: the figure that each stack is shown by
    #[arg(long, value_name = "COST", value_enum, default_value_t = Cost::Live)]
    pub cost: Cost,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: FilterArgs,
}

/// Format of a dump: a report's, or one of an export that shows blocks of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpFormat {
    /// A report.
    Report(report::Format),
    /// An export.
    Export(Format),
}

impl ValueEnum for DumpFormat {
    fn value_variants<'a>() -> &'a [Self] {
        use Format::{Csv, Flamegraph, Folded, Html, Pprof, Speedscope};
        &[
            Self::Report(report::Format::Text),
            Self::Report(report::Format::Json),
            Self::Export(Folded),
            Self::Export(Flamegraph),
            Self::Export(Html),
            Self::Export(Pprof),
            Self::Export(Speedscope),
            Self::Export(Csv),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Report(format) => format.to_possible_value(),
            Self::Export(format) => format.to_possible_value(),
        }
    }
}

impl DumpFormat {
    /// Returns the ending of a file's name.
    fn ending(self) -> &'static str {
        match self {
            Self::Report(report::Format::Text) => "txt",
            Self::Report(report::Format::Json) => "json",
            Self::Export(format) => format.ending(),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// If the process is not recorded, its recording can't be read, or the file can't be written.
pub(crate) fn run(args: &DumpArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let recording = session::attached(args.pid)?.path;
    let comm = prof_os::process::comm(args.pid);
    let path = args.path(&comm)?;
    match args.format {
        DumpFormat::Export(format) => {
            let input = InputArgs {
                input: Some(recording.to_string_lossy().into_owned()),
                index: args.index.clone(),
                filter: args.filter.clone(),
            };
            let (output, cost) = (Some(path.clone()), args.cost);
            let what = Of::Heap;
            let args = ExportArgs {
                format,
                input,
                output,
                force: false,
                json_version: 2,
                cost,
                what,
                at: None,
            };
            export::run(&args, locate)?;
        }
        DumpFormat::Report(format) => {
            let text = args.report(format, &recording)?;
            write(&path, text.as_bytes())?;
        }
    }
    term::path(&path);
    Ok(ExitCode::SUCCESS)
}

impl DumpArgs {
    /// Returns the text of a report.
    fn report(&self, format: report::Format, recording: &Path) -> Result<String> {
        let index = self.index.open(recording)?;
        let query = prof_analyze::query::Query::new(&index, &self.filter.0)
            .map_err(|e| usage(e.to_string()))?;
        let analysis = query.analysis(None)?;
        let options = ReportOptions {
            top: self.top.unwrap_or(10),
            empty: self.top.is_some(),
            filter: given(&self.filter.0),
            ..ReportOptions::default()
        };
        let report = Report::new(&analysis, &options);
        Ok(match format {
            report::Format::Json => report.json() + "\n",
            report::Format::Text => report.text(Style { color: false, width: None }),
        })
    }

    /// Returns the path of the file, which does not exist yet.
    fn path(&self, comm: &str) -> Result<PathBuf> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = local_time(now.as_secs().cast_signed());
        let default = format!("./prof.{{comm}}.{{pid}}.{{time}}.{}", self.format.ending());
        let template = self.report_file.as_deref().unwrap_or(&default);
        let path = |n: u32| PathBuf::from(expand(template, self.pid, comm, n, &time));
        // Without a number in the name, all of them are one.
        let free = (1..=MOST).map(path).find(|p| fs::symlink_metadata(p).is_err());
        free.ok_or_else(|| {
            let path = path(1);
            usage(format!(
                "{} exists already; {{n}} in --report-file makes a new one each time",
                path.display()
            ))
        })
    }
}

/// Greatest number in the name of a file.
const MOST: u32 = 99_999;

/// Returns a template with its words in braces replaced. Other braces stay.
fn expand(template: &str, pid: i32, comm: &str, n: u32, time: &str) -> String {
    let (pid, n, comm) = (pid.to_string(), n.to_string(), plain_name(comm));
    let words = [("{pid}", &*pid), ("{comm}", &*comm), ("{n}", &*n), ("{time}", time)];
    let (mut out, mut rest) = (String::new(), template);
    while let Some(c) = rest.chars().next() {
        match words.iter().find(|(word, _)| rest.starts_with(word)) {
            Some((word, value)) => {
                out.push_str(value);
                rest = &rest[word.len()..];
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

/// Writes a file that does not exist yet. It is removed if it can't be written whole.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => usage(format!("{} exists already", path.display())),
        _ => {
            usage(format!("cannot create {}: {e}; name another with --report-file", path.display()))
        }
    })?;
    let written = file.write_all(bytes);
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn templates_have_words_in_braces() {
        let text =
            expand("/x/{comm}.{pid}.{n}.{time}.{other}{", 7, "a/b {n}", 3, "20261121-061500");
        assert_eq!(text, "/x/a_b__n_.7.3.20261121-061500.{other}{");
    }
}
