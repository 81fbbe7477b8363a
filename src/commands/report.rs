//! `prof report`: who holds the memory.

use crate::term;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use prof_analyze::report::{Report, ReportOptions, SortKey, Style};
use prof_analyze::{Analysis, LoadOptions};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

/// Exit code for wrong usage and for files that are no recordings.
const USAGE: u8 = 2;

/// Show which call stacks hold the memory
///
/// Reads a recording, also one that is still growing, and shows the call stacks that hold the most
/// memory. The figures count what was allocated while recording was on.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// A recording, or the id of a process that is being recorded
    /// [default: the newest recording in the current folder]
    #[arg(value_name = "FILE|PID")]
    pub input: Option<String>,

    /// How many call stacks to show; 0 shows all [default: 10, of those that have anything of
    /// what is sorted by]
    #[arg(short = 'n', long, value_name = "N")]
    pub top: Option<usize>,

    /// What to sort by, largest first
    #[arg(short, long, value_name = "KEY", value_enum, default_value_t = Sort::Size)]
    pub sort: Sort,

    /// How to write it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// What to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Live bytes
    Size,
    /// Live allocations
    Count,
    /// The most bytes that were live at a time
    PeakSize,
    /// The most allocations that were live at a time
    PeakCount,
    /// Bytes ever allocated
    Allocated,
    /// Number of allocations ever
    Allocations,
    /// Age of the oldest live allocation
    Age,
    /// Allocations that were freed by the next allocation event of their thread
    Temporary,
}

impl From<Sort> for SortKey {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Size => SortKey::Size,
            Sort::Count => SortKey::Count,
            Sort::PeakSize => SortKey::PeakSize,
            Sort::PeakCount => SortKey::PeakCount,
            Sort::Allocated => SortKey::Allocated,
            Sort::Allocations => SortKey::Allocations,
            Sort::Age => SortKey::Age,
            Sort::Temporary => SortKey::Temporary,
        }
    }
}

/// How to write a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs; the numbers are those of the text
    Json,
}

/// Finds the recording of a process that is being recorded; `None` if it is not.
pub type Locate<'a> = &'a dyn Fn(i32) -> Option<PathBuf>;

/// Runs the command, for recordings in files; a process id stands for the newest recording of that
/// process in the current folder.
///
/// # Errors
/// If standard output can't be written.
pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    run_with(args, &|_| None)
}

/// Runs the command. `locate` is asked first for where the recording of a process is.
///
/// # Errors
/// If standard output can't be written.
pub fn run_with(args: &ReportArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let path = resolve_input(args.input.as_deref(), locate);
    let analysis = path.and_then(|p| Ok(Analysis::from_file(&p, &LoadOptions::default())?));
    let analysis = match analysis {
        Ok(a) => a,
        Err(e) => {
            eprintln!("prof report: {e:#}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    print(&analysis, args)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the report on a recording to standard output.
///
/// # Errors
/// If it can't be written; a reader who has gone away is none.
pub fn print(analysis: &Analysis, args: &ReportArgs) -> Result<()> {
    let options = ReportOptions {
        top: args.top.unwrap_or(10),
        sort: args.sort.into(),
        empty: args.top.is_some(),
    };
    let report = Report::new(analysis, &options);
    let text = match args.format {
        Format::Text => report.text(Style { color: term::color(), width: term::width() }),
        Format::Json => report.json() + "\n",
    };
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("cannot write the report"),
        _ => Ok(()),
    }
}

/// The recording that is meant: the file of that name; else, if it is a number, that of the
/// process; without a name the newest in the current folder.
///
/// # Errors
/// If there is none.
pub fn resolve_input(input: Option<&str>, locate: Locate<'_>) -> Result<PathBuf> {
    let Some(name) = input else {
        return newest(Path::new("."), |_| true).context(
            "no recording in the current folder; name one, or make one with `prof attach PID`",
        );
    };
    let path = PathBuf::from(name);
    let pid = name.parse::<i32>().ok().filter(|p| *p > 0);
    let (false, Some(pid)) = (path.exists(), pid) else { return Ok(path) };
    let named = |p: &Path| p.file_name().is_some_and(|n| has_part(&n.to_string_lossy(), name));
    if let Some(found) = locate(pid).or_else(|| newest(Path::new("."), named)) {
        return Ok(found);
    }
    bail!(
        "process {pid} is not being recorded, and no recording of it is in the current folder; \
         start one with `prof attach {pid}`, or name a file"
    )
}

/// Whether one of the parts of a file's name between dots is `part`.
fn has_part(name: &str, part: &str) -> bool {
    name.split('.').any(|p| p == part)
}

/// The newest recording of a folder among those wanted.
fn newest(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|x| x == "prof") && wanted(p))
        .filter(|p| prof_analyze::load::is_recording(p))
        .filter_map(|p| {
            let time: SystemTime = p.metadata().and_then(|m| m.modified()).ok()?;
            Some((time, p))
        })
        .max()
        .map(|(_, p)| p.strip_prefix(".").map(Path::to_owned).unwrap_or(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_the_name_that_the_analysis_gives_it() {
        for sort in Sort::value_variants() {
            let name = sort.to_possible_value().map(|v| v.get_name().to_owned());
            assert_eq!(name.as_deref(), Some(SortKey::from(*sort).name()));
        }
    }

    #[test]
    fn inputs_are_files_or_processes() {
        let dir = std::env::temp_dir().join(format!("prof-report-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let header = prof_trace::chunk::file_header();
        let old = dir.join("prof.a.77.1.prof");
        let new = dir.join("prof.b.78.2.prof");
        fs::write(&old, header).expect("written");
        fs::write(&new, header).expect("written");
        fs::write(dir.join("newer.prof"), "something else").expect("written");
        let past = SystemTime::now() - std::time::Duration::from_secs(100);
        fs::File::options()
            .append(true)
            .open(&old)
            .and_then(|f| f.set_modified(past))
            .expect("a time");
        assert_eq!(newest(&dir, |_| true), Some(new));
        assert_eq!(newest(&dir, |p| has_part(&p.to_string_lossy(), "77")), Some(old.clone()));
        assert_eq!(newest(&dir, |_| false), None);

        let none: Locate<'_> = &|_| None;
        let name = old.to_str().expect("a name");
        assert_eq!(resolve_input(Some(name), none).expect("a file"), old);
        let live: Locate<'_> = &|pid| (pid == 123_456).then(|| "/tmp/there".into());
        assert_eq!(resolve_input(Some("123456"), live).expect("live"), Path::new("/tmp/there"));
        assert!(resolve_input(Some("123457"), live).is_err());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
