//! `--by-process`: what commands on recordings show of each process of a family.

pub(crate) mod changes;

use super::input::{IndexArgs, InputArgs, Locate, resolve};
use super::report::{Format, ReportArgs, given, moment, print};
use crate::failure::usage;
use crate::family::folder::Folder;
use crate::family::joined::{Member, members};
use crate::family::journal;
use crate::term::{one_line, say};
use anyhow::Result;
use clap::Args;
use prof_analyze::report::{Head, SortKey};
use prof_os::Pid;
use prof_trace::values::text::{bytes, count, number};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
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
        journal::losses(&path).sentences.iter().for_each(|line| say(line));
    }
    match all.iter().find(|m| m.path.to_str().is_none()) {
        Some(m) => Err(usage(format!("--by-process: {} is no UTF-8", m.path.display()))),
        None => Ok(all),
    }
}

/// Returns the options for one of the recordings, which has no folder.
///
/// # Errors
/// If they are about what a process has from its parents.
pub(crate) fn of_one(index: &IndexArgs) -> Result<IndexArgs> {
    match index.inherited {
        true => Err(usage("--inherited is about one process, so it does not go with --by-process")),
        false => Ok(IndexArgs { pid: Vec::new(), ..index.clone() }),
    }
}

/// Returns whether a family has lost recordings or processes, given its folder, and of which processes something is asked: of
/// these nothing is lost that is not an error.
pub(crate) fn has_losses(folder: &Path, pids: &[Pid]) -> bool {
    pids.is_empty() && journal::losses(folder).has_any()
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
    work: impl FnMut(String) -> Result<ExitCode>,
) -> Result<ExitCode> {
    each_of_these(&processes(name, pids, locate)?, format, work)
}

/// Does the same for these recordings of a family.
///
/// # Errors
/// The first error of any.
pub(crate) fn each_of_these(
    all: &[Member],
    format: Format,
    mut work: impl FnMut(String) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for (i, m) in all.iter().enumerate() {
        let line = if i == 0 { "" } else { "\n" };
        let comm = one_line(&m.target.comm);
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
        let index = of_one(&input.index)?;
        work(InputArgs { input: Some(path), index, ..input.clone() })
    })
}

/// Stands in the name of a file for the id of a process.
const PID: &str = "{pid}";

/// Has a file written for each process. Each call gets the recording's path, and that of the file: `output` with the
/// process's id. A process that has run several programs has several recordings: the names of the later ones end with a
/// number.
///
/// # Errors
/// If the name has no place for the id; else the first error of any.
pub(crate) fn each_file(
    (name, pids): (Option<&str>, &[Pid]),
    output: Option<&Path>,
    locate: Locate<'_>,
    mut work: impl FnMut(String, PathBuf) -> Result<()>,
) -> Result<ExitCode> {
    let all = processes(name, pids, locate)?;
    let Some(to) = output.and_then(Path::to_str).filter(|n| n.contains(PID)) else {
        return Err(usage(format!(
            "--by-process writes a file for each process, so -o wants a name with {PID}, such as heap.{PID}.json"
        )));
    };
    let mut seen: HashMap<u32, u32> = HashMap::new();
    for m in all {
        let times = seen.entry(m.target.pid).and_modify(|n| *n += 1).or_insert(1);
        let pid = match times {
            1 => m.target.pid.to_string(),
            n => format!("{}-{n}", m.target.pid),
        };
        work(m.path.to_string_lossy().into_owned(), to.replace(PID, &pid).into())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the figures of each process, a line each.
///
/// # Errors
/// If a recording can't be read, or processes have no such sort key.
pub(crate) fn report(args: &ReportArgs, locate: Locate<'_>) -> Result<ExitCode> {
    let mut heads = Vec::new();
    let (input, figure) = (&args.input, figure(args.sort())?);
    for m in processes(input.input.as_deref(), &input.index.pid, locate)? {
        let index = of_one(&input.index)?.open(&m.path)?;
        let query = args.input.query(&index)?;
        let at = match args.peak {
            true => Some(index.analysis().totals().peak_ticks),
            false => args.at.map(|t| moment(index.analysis(), "--at", t)).transpose()?,
        };
        heads.push(Head::new(&query.analysis(at)?, &given(&args.input.filter.0)));
    }
    if args.sort() == SortKey::Temporary && heads.iter().any(|h| h.totals.temporary.is_none()) {
        return Err(usage(
            "--sort temporary: not all blocks are recorded (--sample, --min-size and their like), so temporary ones are not known",
        ));
    }
    heads.sort_by_key(|h| Reverse(figure(h)));
    if args.reverse {
        heads.reverse();
    }
    let shown = match args.top {
        Some(top) if top > 0 => top.min(heads.len()),
        _ => heads.len(),
    };
    print(&match args.format {
        Format::Json => serde_json::to_string_pretty(&heads[..shown])? + "\n",
        Format::Text => {
            format!("{}{}", table(&heads[..shown]), below(&heads, heads.len() - shown))
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the figure of a process that it is sorted by.
///
/// # Errors
/// If processes have no such key.
fn figure(sort: SortKey) -> Result<fn(&Head) -> u64> {
    Ok(match sort {
        SortKey::Size => |h| h.totals.live_bytes,
        SortKey::Count => |h| h.totals.live_count,
        SortKey::PeakSize => |h| h.totals.peak_bytes,
        SortKey::PeakCount => |h| h.totals.peak_count,
        SortKey::Allocated => |h| h.totals.allocated_bytes,
        SortKey::Allocations => |h| h.totals.allocations.saturating_add(h.totals.reallocations),
        SortKey::Temporary => |h| h.totals.temporary.unwrap_or(0),
        _ => {
            return Err(usage(format!(
                "--sort {}: processes are sorted by size, count, peak-size, peak-count, allocated, allocations or \
                 temporary",
                sort.name()
            )));
        }
    })
}

/// Greatest number of notes, and of processes that are named with one.
const NOTES: usize = 20;
const NAMED: usize = 5;

/// Returns what a reader of the table should know: which blocks the figures are of, and the notes of each process.
fn below(heads: &[Head], left_out: usize) -> String {
    let mut text = String::new();
    if left_out > 0 {
        text += &format!("and {}\n", count(left_out as u64, "process more", "processes more"));
    }
    let filter = heads.first().map(|h| &h.filter[..]).unwrap_or_default();
    if !filter.is_empty() {
        let given: Vec<_> =
            filter.iter().map(|f| one_line(&format!("--{} {}", f.name, f.value))).collect();
        text += &format!("filter  {}: the figures are of these blocks only\n", given.join(" "));
    }
    let mut notes: Vec<(&str, Vec<String>)> = Vec::new();
    for h in heads {
        for note in &h.recording.notes {
            let pid = h.target.pid.to_string();
            match notes.iter_mut().find(|n| n.0 == note) {
                Some(known) if known.1.contains(&pid) => {}
                Some(known) => known.1.push(pid),
                None => notes.push((note, vec![pid])),
            }
        }
    }
    let unsaid = notes.len().saturating_sub(NOTES);
    for (note, pids) in notes.into_iter().take(NOTES) {
        let more = pids.len().saturating_sub(NAMED);
        let more =
            if more > 0 { format!(" and {} more", number(more as u64)) } else { String::new() };
        let pids = pids[..pids.len().min(NAMED)].join(", ");
        text += &format!("note    {pids}{more}: {}\n", one_line(note));
    }
    if unsaid > 0 {
        let n = count(unsaid as u64, "note more", "notes more");
        text += &format!("        and {n}\n");
    }
    text
}

/// Column of the processes' names in a table.
const NAME: usize = 1;

/// Returns a line for each process.
fn table(heads: &[Head]) -> String {
    let titles = ["pid", "name", "live", "blocks", "peak", "allocated", "allocations", "lost"];
    let mut rows: Vec<[String; 8]> = vec![titles.map(str::to_owned)];
    let mut ends = vec!["end"];
    for h in heads {
        let t = &h.totals;
        rows.push([
            h.target.pid.to_string(),
            one_line(&h.target.comm),
            bytes(t.live_bytes),
            number(t.live_count),
            bytes(t.peak_bytes),
            bytes(t.allocated_bytes),
            number(t.allocations + t.reallocations),
            number(h.recording.lost_events),
        ]);
        ends.push(h.recording.end_reason.as_deref().unwrap_or("goes on"));
    }
    columns(&rows, &ends)
}

/// Returns a table: names begin on the left, and numbers end on the right. What stands behind a row ends it.
fn columns<const N: usize>(rows: &[[String; N]], behind: &[&str]) -> String {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for (row, end) in rows.iter().zip(behind) {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match i {
                NAME => text += &format!("{cell:<width$}  "),
                _ => text += &format!("{cell:>width$}  "),
            }
        }
        text += end;
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}
