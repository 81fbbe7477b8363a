//! `prof dump`: writes a report of a running recording to a file.

use super::export::{self, ExportArgs};
use super::input::{FilterArgs, IndexArgs, InputArgs, Locate};
use super::record::pid;
use super::report::{Of, given};
use crate::failure::usage;
use crate::part::Part;
use crate::reports::{DumpFormat, Template, is_there, template};
use crate::session;
use crate::term;
use anyhow::{Context, Result};
use clap::Args;
use prof_analyze::export::Cost;
use prof_analyze::report::{Report, ReportOptions, Style};
use prof_os::Pid;
use prof_trace::values::text;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write a report of a running recording to a file
///
/// The recording goes on. The file has what was recorded up to now, and its path is printed.
#[derive(Args, Clone, Debug)]
pub(crate) struct DumpArgs {
    /// The process, which must be being recorded
    #[arg(value_name = "PID", value_parser = pid)]
    pub process: Pid,
    /// The file; {pid} stands for the process, {comm} for its name, {time} for the date and the time, and the letter n in
    /// braces for the first number from 1 on for which there is no file [default: ./prof.{comm}.{pid}.{time}.txt, with
    /// the ending of the format]
    #[arg(short, long, visible_alias = "output", visible_short_alias = 'o', value_name = "TEMPLATE", value_parser = template)]
    pub report_file: Option<String>,
    /// The format of the file
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = DumpFormat::Text)]
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

/// Runs the command.
///
/// # Errors
/// If the process is not recorded, its recording can't be read, or the file can't be written.
pub(crate) fn run(args: &DumpArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let recording = session::attached(args.process)?.path;
    let comm = prof_os::process::comm(args.process);
    let default = format!("./prof.{{comm}}.{{pid}}.{{time}}.{}", args.format.ending());
    let text = args.report_file.clone().unwrap_or(default);
    let template = Template { folder: PathBuf::new(), text };
    let path = template.path(args.process, &comm).ok_or_else(|| usage(NO_NUMBER))?;
    let what = What {
        format: args.format,
        top: args.top,
        cost: args.cost,
        signals: None,
        index: &args.index,
        filter: &args.filter,
    };
    what.write(&recording, &path, false, locate)?;
    term::path(&path);
    Ok(ExitCode::SUCCESS)
}

/// Why there is no name for a file.
pub(super) const NO_NUMBER: &str =
    "there is a file for each number that {n} may stand for; remove some, or name another file";

/// The contents of a report.
pub(super) struct What<'a> {
    /// Format of the report.
    pub format: DumpFormat,
    /// Number of call stacks that the report shows.
    pub top: Option<usize>,
    /// The figure that each stack is shown by.
    pub cost: Cost,
    /// Number of signals that have asked for it.
    pub signals: Option<u64>,
    /// Options for the index.
    pub index: &'a IndexArgs,
    /// The blocks.
    pub filter: &'a FilterArgs,
}

impl What<'_> {
    /// Writes a report on a recording to a file; `replace`: which may exist.
    ///
    /// # Errors
    /// If the recording can't be read, or the file can't be written.
    pub(super) fn write(
        &self,
        recording: &Path,
        path: &Path,
        replace: bool,
        locate: Locate<'_>,
    ) -> Result<()> {
        let DumpFormat::Export(format) = self.format else {
            let text = self.report(recording)?;
            return write(path, text.as_bytes(), replace);
        };
        if !replace && is_there(path) {
            return Err(usage(exists(path)));
        }
        let input = InputArgs {
            input: Some(recording.to_string_lossy().into_owned()),
            index: self.index.clone(),
            filter: self.filter.clone(),
        };
        let args = ExportArgs {
            by_process: false,
            format,
            input,
            output: Some(path.to_owned()),
            force: replace,
            json_version: 2,
            cost: self.cost,
            what: Of::Heap,
            at: None,
        };
        export::run(&args, locate).map(drop)
    }

    /// Returns the text of a report.
    fn report(&self, recording: &Path) -> Result<String> {
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
        let said = match self.format {
            DumpFormat::Json => report.json() + "\n",
            _ => report.text(Style { color: false, width: None, ..Style::default() }),
        };
        Ok(match (self.format, self.signals) {
            (DumpFormat::Json, Some(n)) => {
                said.replacen('{', &format!("{{\n  \"signals\": {n},"), 1)
            }
            (_, Some(n)) if n > 1 => format!(
                "{said}\nThis report stands for {} signals, which came while the one before was written.\n",
                text::number(n)
            ),
            _ => said,
        })
    }
}

fn exists(path: &Path) -> String {
    format!("{} exists already; {HINT}", path.display())
}

const HINT: &str = "{n} in --report-file makes a new one each time";

/// Writes a file. It is removed if it can't be written whole.
fn write(path: &Path, bytes: &[u8], replace: bool) -> Result<()> {
    let mut part = Part::create(path, replace, HINT)?;
    let written = part.file.write_all(bytes);
    written.and_then(|()| part.keep()).with_context(|| format!("cannot write {}", path.display()))
}
