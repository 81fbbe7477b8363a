//! `--by-process`: what commands on recordings show of each process of a family.

use super::input::{InputArgs, Locate, resolve};
use super::report::{Format, ReportArgs, given, moment, print};
use crate::failure::usage;
use crate::family::folder::Folder;
use crate::family::joined::{Member, members};
use crate::family::journal;
use crate::term::say;
use anyhow::Result;
use clap::Args;
use prof_analyze::report::Head;
use prof_os::Pid;
use prof_trace::values::text::{bytes, number};
use std::path::PathBuf;
use std::process::ExitCode;

/// The option of commands that can answer for each process of a family by itself.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ByProcess {
    /// Do this for each process of a family by itself
    #[arg(long, help_heading = "Families")]
    pub by_process: bool,
}

/// Returns the recordings of a family, given the name of its folder.
///
/// # Errors
/// If the recording is none of a family, or the folder has none.
pub(crate) fn processes(
    name: Option<&str>,
    pids: &[Pid],
    locate: Locate<'_>,
) -> Result<Vec<Member>> {
    let path: PathBuf = resolve(name, locate)?;
    let Some(folder) = Folder::open(&path) else {
        let path = path.display();
        return Err(usage(format!("--by-process: {path} is no folder of a family")));
    };
    let all = members(&folder, pids)?;
    if pids.is_empty() {
        journal::losses(&path).iter().for_each(|line| say(line));
    }
    match all.iter().find(|m| m.path.to_str().is_none()) {
        Some(m) => Err(usage(format!("--by-process: {} is no UTF-8", m.path.display()))),
        None => Ok(all),
    }
}

/// Does the same for the recording of each process: in text below a line with its name, in JSON one document after the
/// other. Each call gets the recording's path.
///
/// # Errors
/// The first error of any.
pub(crate) fn each(
    (name, pids): (Option<&str>, &[Pid]),
    format: Format,
    locate: Locate<'_>,
    mut work: impl FnMut(String) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for (i, m) in processes(name, pids, locate)?.iter().enumerate() {
        let line = if i == 0 { "" } else { "\n" };
        let comm = crate::term::one_line(&m.target.comm);
        if format == Format::Text {
            print(&format!("{line}##### {comm}, pid {} #####\n", m.target.pid))?;
        }
        let done = work(m.path.to_string_lossy().into_owned())?;
        if done != ExitCode::SUCCESS {
            code = done;
        }
    }
    Ok(code)
}

/// Does the same for a command with filters.
///
/// # Errors
/// The first error of any.
pub(crate) fn each_of(
    input: &InputArgs,
    format: Format,
    locate: Locate<'_>,
    mut work: impl FnMut(InputArgs) -> Result<ExitCode>,
) -> Result<ExitCode> {
    each((input.input.as_deref(), &input.index.pid), format, locate, |path| {
        let mut one = input.clone();
        one.input = Some(path);
        one.index.pid.clear();
        work(one)
    })
}

/// Shows the figures of each process, those with the most live bytes first.
///
/// # Errors
/// If a recording can't be read.
pub(crate) fn report(args: &ReportArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let mut heads = Vec::new();
    let input = &args.input;
    for m in processes(input.input.as_deref(), &input.index.pid, locate)? {
        let index = args.input.index.open(&m.path)?;
        let query = args.input.query(&index)?;
        let at = match args.peak {
            true => Some(index.analysis().totals().peak_ticks),
            false => args.at.map(|t| moment(index.analysis(), "--at", t)).transpose()?,
        };
        heads.push(Head::new(&query.analysis(at)?, &given(&args.input.filter.0)));
    }
    heads.sort_by_key(|h| std::cmp::Reverse(h.totals.live_bytes));
    print(&match args.format {
        Format::Json => serde_json::to_string_pretty(&heads)? + "\n",
        Format::Text => table(&heads),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each process.
fn table(heads: &[Head]) -> String {
    let titles = ["pid", "name", "live", "blocks", "peak", "allocated", "allocations", "lost"];
    let mut rows: Vec<[String; 8]> = vec![titles.map(str::to_owned)];
    let mut ends = vec!["end"];
    for h in heads {
        let t = &h.totals;
        rows.push([
            h.target.pid.to_string(),
            h.target.comm.clone(),
            bytes(t.live_bytes),
            number(t.live_count),
            bytes(t.peak_bytes),
            bytes(t.allocated_bytes),
            number(t.allocations + t.reallocations),
            number(h.recording.lost_events),
        ]);
        ends.push(h.recording.end_reason.as_deref().unwrap_or("goes on"));
    }
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    for (row, end) in rows.iter().zip(ends) {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Names begin on the left, and numbers end on the right.
            match i {
                1 => text += &format!("{cell:<width$}  "),
                _ => text += &format!("{cell:>width$}  "),
            }
        }
        text += end;
        text.push('\n');
    }
    text
}
