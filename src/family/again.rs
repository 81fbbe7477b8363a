//! Goes on with the recordings of a family after the supervisor, or collectors, were killed.

use super::control::in_folder;
use super::find::{Seen, Which};
use super::folder::{Folder, FolderLock};
use super::journal::{self, Journal};
use super::record::{Count, How, one};
use crate::commands::record::RecordArgs;
use crate::failure::{refused, usage};
use crate::going_on;
use crate::session::{self, Attached};
use crate::switch;
use crate::term::say;
use anyhow::Result;
use prof_collect::{Peek, finish_unattended};
use prof_os::{Pid, process};
use prof_trace::chunk::{self, Next};
use prof_trace::records::kind;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Time that an attach may take which a supervisor had begun before it was killed.
const WORK: Duration = Duration::from_secs(5);

/// Journal and last sign of life that earlier commands have left in a family's folder.
#[derive(Debug)]
pub(crate) struct Before {
    lines: Vec<Value>,
    /// When the last supervisor was at work for the last time; `None`: there was none, or it has ended as it was told.
    gone_since: Option<SystemTime>,
}

/// Opens the folder of a family, in order to go on in it.
///
/// # Errors
/// If it is another family's, if recording to it has ended, or if another prof attaches to its processes.
pub(crate) fn open(folder: &Folder, which: &Which) -> Result<(FolderLock, Before)> {
    let shown = folder.path().display();
    let by = journal::running(folder.path());
    let mut lock = folder.lock()?;
    // Attaches that a killed supervisor had begun come to their end without it.
    let deadline = Instant::now() + WORK;
    while lock.is_none() && by.is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        lock = folder.lock()?;
    }
    let lock = lock.filter(|_| by.is_none()).ok_or_else(|| {
        let by = by.map_or_else(|| "another prof".into(), |pid| format!("process {pid}"));
        refused(format!(
            "{by} attaches to processes that are recorded to {shown}; `prof detach {shown}` ends that"
        ))
    })?;
    let lines = journal::read(&folder.path().join(journal::NAME));
    check_family(&lines, which)
        .map_err(|why| usage(format!("{shown} exists, and {why}; give another folder with -o")))?;
    let has_ended = journal::has_ended(&lines);
    let is_over = has_ended.unwrap_or_else(|| lines.iter().any(|l| l["event"] == "attached"));
    if is_over && in_folder(folder.path()).is_empty() {
        return Err(usage(format!(
            "{shown} exists, and recording to it has ended; give another folder with -o"
        )));
    }
    let gone_since = folder.last_beat().filter(|_| has_ended == Some(false));
    Ok((lock, Before { lines, gone_since }))
}

/// Checks whether a folder is of this family.
fn check_family(lines: &[Value], which: &Which) -> Result<(), String> {
    if let (Which::Tree(pid), Some(root)) = (which, lines.iter().rev().find_map(root)) {
        return match root {
            (first, Some(start)) if first == *pid => match process::start_time(*pid) {
                Some(now) if now != start => {
                    Err(format!("process {pid} was another one when it began"))
                }
                _ => Ok(()),
            },
            (first, _) => Err(format!("is of process {first} and its descendants")),
        };
    }
    let began = lines.iter().rev().find(|l| l["event"] == "began");
    let family = began.and_then(|l| l["family"].as_str()).unwrap_or("another family");
    if family == which.words() { Ok(()) } else { Err(format!("is of {family}")) }
}

/// Returns the first process of a tree, and when it was started, if a line of the journal names it.
fn root(line: &Value) -> Option<(Pid, Option<u64>)> {
    let pid = line["root"][0].as_i64().and_then(|p| i32::try_from(p).ok())?;
    Some((Pid::from_raw(pid), line["root"][1].as_u64()))
}

/// Returns what the journal says of the first process of a tree: its ID and start time.
pub(crate) fn note_of_root(which: &Which) -> Value {
    match which {
        Which::Tree(pid) => json!([pid, process::start_time(*pid)]),
        _ => Value::Null,
    }
}

/// Goes on in the recordings whose processes live, finishes those of processes that do not, and says a line about each.
/// Adds the processes that are recorded now to `known`.
pub(crate) fn take_up(
    folder: &Folder,
    journal: &mut Journal,
    before: &Before,
    how: &How,
    known: &mut HashSet<(Pid, u64)>,
) -> Count {
    let gone_since = before.gone_since.map(journal::unix_ns);
    journal.note("goes_on", None, json!({ "gone_since_unix_ns": gone_since }));
    if let Some(time) = before.gone_since.and_then(|t| t.elapsed().ok()) {
        let time = prof_trace::values::text::duration(time.as_nanos() as u64);
        say(&format!(
            "nobody has attached to new processes for {time}: what those did that have ended meanwhile is not recorded"
        ));
    }
    let mut done = Count::default();
    for peek in in_folder(folder.path()) {
        let Some(seen) = Seen::of(peek.pid) else { continue };
        let shown = format!("{}, pid {}", seen.comm, seen.pid);
        if session::is_recorded(&peek) {
            done.attached += 1;
            known.insert((seen.pid, seen.start));
            say(&format!("{shown}: is recorded to {} as before", peek.path.display()));
            continue;
        }
        match orphan(folder, journal, &seen, &peek, how) {
            Ok(a) => {
                done.attached += 1;
                match a.path == peek.path {
                    true => a.messages.iter().for_each(|line| say(&format!("{shown}: {line}"))),
                    false => say(&format!("{shown}: recorded to {}", a.path.display())),
                }
            }
            Err(_) if !seen.is_there() => say(&format!("{shown}: it has ended meanwhile")),
            Err(e) => {
                done.failed += 1;
                say(&format!("{shown}: not recorded: {e:#}"));
            }
        }
        known.insert((seen.pid, seen.start));
    }
    if folder.is_paused() {
        known.iter().for_each(|(pid, _)| _ = switch::off(*pid));
    }
    finish(folder, journal, &before.lines);
    done
}

/// Goes on in the recording of a process whose collector has died, or finishes that with what the process's memory has,
/// and begins another one where it can't go on.
///
/// # Errors
/// If the process can't be recorded.
pub(crate) fn orphan(
    folder: &Folder,
    journal: &mut Journal,
    seen: &Seen,
    peek: &Peek,
    how: &How,
) -> Result<Attached> {
    let since = SystemTime::now().checked_sub(peek.heartbeat_age).map(journal::unix_ns);
    let recording = peek.path.file_name().map(|n| n.to_string_lossy().into_owned());
    let record = RecordArgs { output: Some(peek.path.clone()), ..how.record.clone() };
    match going_on::attach(seen.pid, &record, &how.settings) {
        Ok(Some(attached)) => {
            let lost = (peek.counters.lost > 0).then_some(peek.counters.lost);
            let note = json!({
                "recording": recording,
                "gone_since_unix_ns": since,
                "lost_events": lost,
                "turned_off": peek.orphaned,
            });
            journal.note("goes_on", Some(seen), note);
            Ok(attached)
        }
        Err(_) if !seen.is_there() => Err(session::ended(seen.pid)),
        gone_on => {
            let why = gone_on.err().map(|e| format!("{e:#}"));
            why.iter().for_each(|why| say(why));
            let more = json!({ "instead_of": recording, "why": why });
            one(folder, journal, seen, how, &more)
        }
    }
}

/// Finishes what killed collectors have left in a family's folder, of which the processes have ended, too.
pub(crate) fn finish_left(path: &Path) {
    let Some(folder) = Folder::open(path) else { return };
    if let Ok(mut journal) = folder.journal() {
        finish(&folder, &mut journal, &journal::read(&path.join(journal::NAME)));
    }
}

/// Finishes the recordings of processes that have ended while nobody collected, and notes the ends of all that have.
fn finish(folder: &Folder, journal: &mut Journal, lines: &[Value]) {
    let in_use = in_folder(folder.path());
    let of: HashMap<&str, Seen> = lines
        .iter()
        .filter_map(|l| Some((l["recording"].as_str()?, journal::process(l)?)))
        .collect();
    let exited: HashSet<(Pid, u64)> = lines
        .iter()
        .filter(|l| ["exited", "detached", journal::MISSED].iter().any(|e| l["event"] == *e))
        .filter_map(|l| journal::process(l).map(|s| (s.pid, s.start)))
        .collect();
    let is_new = |seen: &&Seen| !seen.runs() && !exited.contains(&(seen.pid, seen.start));
    for path in folder.recordings() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let seen = of.get(&*name);
        let is_same = |p: &Peek| p.path.file_name() == path.file_name();
        if in_use.iter().any(is_same) {
            continue;
        }
        if is_bare(&path) && !is_written(&path) {
            say(&match fs::remove_file(&path) {
                Ok(()) => format!(
                    "{name}: its attach was killed before anything was recorded; the file is removed"
                ),
                Err(e) => format!(
                    "{name}: its attach was killed before anything was recorded, and the file can't be removed: {e}"
                ),
            });
            continue;
        }
        // A collector that lives finishes the recording itself.
        match finish_unattended(&path, || is_written(&path)) {
            Ok(Some(until)) => {
                let until = journal::unix_ns(until);
                let note = json!({ "recording": name, "until_unix_ns": until });
                journal.note("cut_off", seen, note);
                say(&format!(
                    "{name}: its process has ended, as its collector had before: the recording is finished, and what came \
                     last is lost"
                ));
            }
            Ok(None) => {
                if let Some(seen) = seen.filter(is_new) {
                    journal.note("exited", Some(seen), json!({}));
                }
            }
            Err(e) => say(&format!("{name}: it can't be finished: {e}")),
        }
    }
}

/// Returns whether a file has at most what is written of a recording before its collector begins.
fn is_bare(path: &Path) -> bool {
    /// Greatest length of that.
    const MOST: u64 = 4 << 20;
    const BEGIN: [u16; 4] = [kind::TARGET, kind::HOOKS, kind::RUNTIMES, kind::FORKED];
    if fs::metadata(path).map_or(true, |m| m.len() > MOST) {
        return false;
    }
    let Ok(bytes) = fs::read(path) else { return false };
    let header = chunk::file_header();
    if !bytes.is_empty() && !bytes.starts_with(&header) {
        return false;
    }
    let mut rest = bytes.get(header.len()..).unwrap_or_default();
    while let Next::Chunk(kind, _, len) = chunk::next(rest) {
        if !BEGIN.contains(&kind) {
            return false;
        }
        rest = &rest[len..];
    }
    rest.is_empty()
}

/// Returns whether another process has a file open for writing.
pub(super) fn is_written(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let writes = |entry: fs::DirEntry| {
        // The permissions of the link are those with which the file was opened.
        let may_write = fs::symlink_metadata(entry.path()).is_ok_and(|m| m.mode() & 0o200 != 0);
        may_write
            && fs::metadata(entry.path())
                .is_ok_and(|m| (m.dev(), m.ino()) == (meta.dev(), meta.ino()))
    };
    let open = |pid: &Pid| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut others = process::all();
    others.retain(|pid| *pid != Pid::this());
    others.iter().any(|pid| open(pid).any(writes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_of_the_family_that_it_was_begun_for() {
        let (me, start) = (Pid::this(), process::start_time(Pid::this()));
        let line =
            |family: &str, root: Value| json!({ "event": "began", "family": family, "root": root });
        let (tree, named) = (Which::Tree(me), Which::Name("nginx".into()));
        let own = [line(&tree.words(), note_of_root(&tree)), json!({ "event": "follows" })];
        assert_eq!(check_family(&own, &tree), Ok(()));
        assert!(check_family(&own, &Which::Tree(Pid::from_raw(1))).is_err());
        assert!(check_family(&own, &named).is_err());
        let earlier = [line(&tree.words(), json!([me, start.map(|s| s + 1)]))];
        let why = check_family(&earlier, &tree).expect_err("another process");
        assert!(why.contains("was another one"), "{why}");
        assert_eq!(check_family(&[line("processes named nginx", Value::Null)], &named), Ok(()));
        assert!(check_family(&[], &named).is_err());
    }

    /// Waits for the answer. A child that another test starts has this process's descriptors until its `exec`.
    fn eventually(path: &Path, wanted: bool, what: &str) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while is_written(path) != wanted {
            assert!(std::time::Instant::now() < end, "{what}: not {wanted} after 20 s");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn files_that_others_write_are_told_from_those_that_are_read() {
        let path = std::env::temp_dir().join(format!("prof-written-{}", std::process::id()));
        let own = fs::File::create(&path).expect("new");
        eventually(&path, false, "by this process alone");
        drop(own);
        let start = |how: &str| {
            let script = format!("exec {how}; echo; exec sleep 60");
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &script, "sh"]).arg(&path).stdout(std::process::Stdio::piped());
            let mut child = command.spawn().expect("sh");
            let mut line = [0];
            std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line)
                .expect("open");
            child
        };
        for (how, wanted) in [("3<\"$1\"", false), ("3>>\"$1\"", true)] {
            let mut child = start(how);
            eventually(&path, wanted, how);
            child.kill().expect("killed");
            child.wait().expect("wait");
        }
        fs::remove_file(&path).expect("removed");
        assert!(!is_written(&path));
    }
}
