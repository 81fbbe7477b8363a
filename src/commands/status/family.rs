//! `prof status` of a family's folder.

use super::super::report::Format;
use super::Status;
use crate::family::control::{history, in_folder};
use crate::family::folder::Folder;
use crate::family::journal::{self, Last};
use crate::notes;
use crate::term::one_line;
use anyhow::Result;
use prof_os::Pid;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Greatest number of processes that are listed though nothing of them is recorded.
const LISTED: usize = 20;

/// Shows the processes of a family: those that are recorded, and what became of the others.
pub(super) fn show(format: Format, path: &Path) -> Result<ExitCode> {
    let all: Vec<Status> = in_folder(path).into_iter().filter_map(Status::of).collect();
    let supervisor = journal::running(path);
    let was_killed = supervisor.is_none() && journal::was_killed(path);
    let is_recorded = |pid: Pid| all.iter().any(|s| s.peek.pid == pid);
    let mut others = history(path);
    others.retain(|last| !is_recorded(last.pid));
    for other in others.iter_mut().filter(|o| o.open) {
        let note = notes::last(other.pid).map(|n| n.text());
        other.what = note.unwrap_or_else(|| "not recorded any more".into());
    }
    let is_paused = Folder::open(path).is_some_and(|folder| folder.is_paused());
    let losses = journal::losses(path).sentences;
    let text = match format {
        Format::Json => {
            let other = |o: &Last| json!({ "pid": o.pid, "name": o.comm, "what": o.what });
            let recorded: Vec<Value> = all.iter().map(Status::json).collect();
            let others: Vec<Value> = others.iter().map(other).collect();
            format!(
                "{:#}\n",
                json!({
                    "supervisor": supervisor,
                    "supervisor_killed": was_killed,
                    "paused": is_paused,
                    "recorded": recorded,
                    "others": others,
                    "losses": losses,
                })
            )
        }
        Format::Text => {
            let mut text: Vec<String> = all.iter().map(Status::text).collect();
            let shown = one_line(&path.to_string_lossy());
            if is_paused {
                text.push(format!(
                    "the family is paused, and recordings of new processes begin off; `prof resume {shown}` ends that\n"
                ));
            }
            if let Some(pid) = supervisor {
                text.push(format!(
                    "new processes are recorded, too, by process {pid}; `prof detach {shown}` ends that\n"
                ));
            }
            if was_killed {
                text.push(format!(
                    "nobody attaches to new processes, as the supervisor was killed: the same `prof attach` as before, \
                     with -o {shown}, goes on\n"
                ));
            }
            if !others.is_empty() {
                text.push(lines(&others));
            }
            text.extend(losses.iter().map(|line| format!("{line}\n")));
            text.join("\n")
        }
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each process that is not recorded any more. Of those that never were only the last are listed: there
/// may be thousands.
fn lines(others: &[Last]) -> String {
    let missed = others.iter().filter(|o| o.is_missed).count();
    let mut left_out = missed.saturating_sub(LISTED);
    let mut text = String::new();
    for other in others {
        if other.is_missed && left_out > 0 {
            left_out -= 1;
            continue;
        }
        let (name, what) = (one_line(&other.comm), one_line(&other.what));
        text += &format!("process {} ({name}): {what}\n", other.pid);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_missed_processes_the_last_are_listed() {
        let one = |pid: i32, is_missed: bool| Last {
            pid: Pid::from_raw(pid),
            comm: "x".into(),
            what: "is gone".into(),
            open: false,
            is_missed,
        };
        let all: Vec<Last> = (1..=30).map(|pid| one(pid, pid != 3)).collect();
        let text = lines(&all);
        assert_eq!(text.lines().count(), LISTED + 1, "{text}");
        assert!(text.starts_with("process 3 (x): is gone\nprocess 11 "), "{text}");
    }
}
