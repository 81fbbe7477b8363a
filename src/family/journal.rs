//! The journal of a family: what happened to which process, and when. One JSON object a line.

use super::find::Seen;
use anyhow::{Context, Result};
use prof_analyze::Analysis;
use prof_analyze::rewrite::target;
use prof_os::Pid;
use prof_trace::values::text::{count, duration};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the journal in a family's folder.
pub(crate) const NAME: &str = "family.jsonl";
/// Event: a process had ended before it could be recorded.
pub(super) const MISSED: &str = "missed";
/// How a supervisor learns of new processes that the kernel does not tell of.
pub(super) const LOOKS: &str = "looks";
/// Greatest length of a journal that is read: some millions of processes.
const LONGEST: u64 = 1 << 30;

/// Number of processes that a prof notes as missed one by one. Further ones are added up, as there may be thousands a
/// second, for ever.
const MOST_MISSED: u64 = 100_000;

/// A journal that is open for writing.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// Number of processes that were noted as missed.
    missed: u64,
    /// Number of further ones, which were not noted yet.
    more: u64,
    /// Number of lines that could not be written, as the disk was full.
    unwritten: u64,
}

impl Journal {
    /// Opens a journal; creates it if it is not there.
    ///
    /// # Errors
    /// If it can't be written.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, missed: 0, more: 0, unwritten: 0 })
    }

    /// Adds a line: the event's name, the process (`None`: the family), and what else is known. An error is no reason to
    /// stop, as recordings can be read without the journal.
    pub(crate) fn note(&mut self, event: &str, process: Option<&Seen>, more: Value) {
        if event == MISSED && process.is_some() {
            if self.missed >= MOST_MISSED {
                self.more += 1;
                return;
            }
            self.missed += 1;
        }
        let mut line = json!({ "unix_ns": unix_ns(SystemTime::now()), "event": event });
        if let Some(seen) = process {
            line["pid"] = json!(seen.pid);
            line["start"] = seen.start.into();
            line["ppid"] = json!(seen.parent);
            line["comm"] = seen.comm.as_str().into();
        }
        if let Value::Object(more) = more {
            for (name, value) in more {
                line[name] = value;
            }
        }
        // A line that was cut by a full disk is ended first.
        let before = if self.unwritten > 0 { "\n" } else { "" };
        // One write, so that lines of several processes do not mix.
        match self.file.write_all(format!("{before}{line}\n").as_bytes()) {
            Ok(()) if self.unwritten > 0 => {
                let lines = std::mem::take(&mut self.unwritten);
                self.note("overrun", None, json!({ "unwritten": lines }));
            }
            Ok(()) => {}
            Err(e) => {
                self.unwritten += 1;
                log::warn!("cannot write the journal of the family: {e}");
            }
        }
    }

    /// Adds a line with the number of processes that were missed and are in none yet, if there are such.
    pub(crate) fn add_up(&mut self) {
        let more = std::mem::take(&mut self.more);
        if more > 0 {
            self.note(MISSED, None, json!({ "count": more }));
        }
    }
}

/// Returns how a process has ended, given its status of waitpid(2), for the line about its end.
pub(super) fn how_it_ended(status: Option<i32>) -> Value {
    match status {
        Some(s) if libc::WIFEXITED(s) => json!({ "code": libc::WEXITSTATUS(s) }),
        Some(s) if libc::WIFSIGNALED(s) => json!({ "signal": libc::WTERMSIG(s) }),
        _ => json!({}),
    }
}

/// Losses of a family: what its recordings do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// All of them, a sentence each, and one of the processes that were recorded late: their recordings are whole.
    pub sentences: Vec<String>,
    /// Number of recordings that are gone or can't be read.
    pub recordings: u64,
    /// Number of processes that could not be recorded, most as they had ended before.
    pub processes: u64,
    /// Whether there may have been more of these.
    pub more: bool,
}

impl Losses {
    /// Returns whether anything is lost.
    pub(crate) fn has_any(&self) -> bool {
        self.more || self.recordings > 0 || self.processes > 0
    }

    /// Notes them in the only recording of a family. One that was joined from several has them already.
    pub(crate) fn note_in(&self, analysis: &mut Analysis) {
        if self.has_any() && analysis.joined().is_none() {
            analysis.set_losses(self.recordings, self.processes, self.more);
        }
    }
}

/// Returns what the recordings of a folder lack. A folder without a journal tells of nothing.
pub(crate) fn losses(folder: &Path) -> Losses {
    let bytes = match prof_os::files::read_at_most(&folder.join(NAME), LONGEST) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Losses::default(),
        Err(e) => {
            let text = format!(
                "{NAME} can't be read ({e}), so it is not known which processes are missing"
            );
            return Losses { sentences: vec![text], more: true, ..Losses::default() };
        }
    };
    let lines = lines(&bytes);
    let runs = supervisor(&folder.join(NAME), &lines).is_some();
    let mut all = losses_in(&lines, runs);
    let gone = unreadable(folder, &lines);
    if let Some(first) = gone.first() {
        all.recordings = gone.len() as u64;
        let n = count(all.recordings, "recording is", "recordings are");
        all.sentences
            .push(format!("{n} gone or can't be read, and no figure has what was in it: {first}"));
    }
    // The last line may be written at this moment.
    let whole = &bytes[..bytes.iter().rposition(|b| *b == b'\n').unwrap_or(0)];
    let all_lines = whole.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    let damaged = all_lines.filter(|l| object(l).is_none()).count() as u64;
    if damaged > 0 || bytes.len() as u64 == LONGEST {
        all.more = true;
        let what = match damaged {
            0 => format!("{NAME} is longer than prof reads: what its end says"),
            n => format!("{} of {NAME} can't be read: what they said", count(n, "line", "lines")),
        };
        all.sentences.push(format!("{what}, of missing processes perhaps, is not known"));
    }
    all
}

/// Returns the names of the recordings that the journal of a folder tells of.
pub(crate) fn named(folder: &Path) -> Vec<String> {
    recordings(&read(&folder.join(NAME))).into_iter().map(str::to_owned).collect()
}

fn recordings(lines: &[Value]) -> Vec<&str> {
    let attached = lines.iter().filter(|l| l["event"] == "attached");
    let names = attached.filter_map(|l| Path::new(l["recording"].as_str()?).file_name()?.to_str());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the names of the recordings that are gone or can't be read.
fn unreadable<'a>(folder: &Path, lines: &'a [Value]) -> Vec<&'a str> {
    let mut names = recordings(lines);
    names.retain(|name| target(&folder.join(name)).is_err());
    names
}

/// Returns the lines of the processes that could not be recorded, though they lived, or what they ran by exec: the last of each.
pub(crate) fn failed(lines: &[Value]) -> Vec<&Value> {
    let mut open: BTreeMap<(i64, u64), &Value> = BTreeMap::new();
    for line in lines {
        let (Some(pid), start) = (line["pid"].as_i64(), line["start"].as_u64().unwrap_or(0)) else {
            continue;
        };
        match line["event"].as_str() {
            Some("failed") => _ = open.insert((pid, start), line),
            // Missed processes have a count of their own.
            Some("attached" | "goes_on" | MISSED) => _ = open.remove(&(pid, start)),
            _ => {}
        }
    }
    open.into_values().collect()
}

fn losses_in(lines: &[Value], runs: bool) -> Losses {
    let (missed, failed) = (number(lines, MISSED), failed(lines));
    let processes = missed.saturating_add(failed.len() as u64);
    let (mut sentences, mut more) = (Vec::new(), false);
    if missed > 0 {
        let (n, its) =
            (count(missed, "process", "processes"), if missed == 1 { "it" } else { "they" });
        sentences.push(format!(
            "{n} of the family ended before {its} could be recorded: no figure has what {its} did"
        ));
    }
    if let Some(first) = failed.first() {
        let n = count(failed.len() as u64, "process", "processes");
        let reason = first["reason"].as_str().unwrap_or_default();
        sentences.push(format!(
            "{n} of the family, or what was run by exec, could not be recorded, and is in no figure; the first: {reason}"
        ));
    }
    let late = late(lines);
    if late > 0 {
        let (n, it) = (count(late, "process", "processes"), if late == 1 { "it" } else { "they" });
        sentences.push(format!(
            "{n} of the family had already run when prof attached: no figure has what {it} did before that"
        ));
    }
    if number(lines, "overrun") > 0 {
        more = true;
        sentences.push(
            "there may be processes that are not counted here: the kernel had more to tell than prof could take"
                .to_owned(),
        );
    }
    if lines.iter().any(|l| l["event"] == "follows" && l["by"] == LOOKS) {
        more = true;
        sentences.push(
            "processes that ended within milliseconds are not counted: prof may not hear of each new one from the kernel \
             (CAP_NET_ADMIN), and looked for them"
                .to_owned(),
        );
    }
    if was_left(lines, runs) {
        more = true;
        sentences.push(
            "nobody attached to new processes any more, as prof was killed: those that came later are not known"
                .to_owned(),
        );
    }
    let gone = |l: &Value| {
        let is_family = l["event"] == "goes_on" && l["pid"].is_null();
        let since = l["gone_since_unix_ns"].as_u64().filter(|_| is_family)?;
        Some(l["unix_ns"].as_u64()?.saturating_sub(since))
    };
    let gone = lines.iter().filter_map(gone).fold(0, u64::saturating_add);
    if gone > 0 {
        more = true;
        sentences.push(format!(
            "nobody attached to new processes for {}, as prof was killed: those that ended meanwhile are not known",
            duration(gone)
        ));
    }
    Losses { sentences, recordings: 0, processes, more }
}

/// Returns how often prof attached to a process some time after it had begun, or had begun another program.
fn late(lines: &[Value]) -> u64 {
    let is_late = |l: &&Value| {
        l["event"] == "attached" && l["age_ns"].is_u64() && l["from_fork"] != Value::Bool(true)
    };
    lines.iter().filter(is_late).count() as u64
}

/// Returns how often something happened, as the lines of a journal say.
pub(crate) fn number(lines: &[Value], event: &str) -> u64 {
    let of = lines.iter().filter(|l| l["event"] == event);
    of.map(|l| l["count"].as_u64().unwrap_or(1)).fold(0, u64::saturating_add)
}

/// Reads the lines of a journal. Lines that are no JSON objects are left out.
pub(crate) fn read(path: &Path) -> Vec<Value> {
    lines(&prof_os::files::read_at_most(path, LONGEST).unwrap_or_default())
}

fn lines(bytes: &[u8]) -> Vec<Value> {
    bytes.split(|b| *b == b'\n').filter_map(object).collect()
}

fn object(line: &[u8]) -> Option<Value> {
    serde_json::from_slice(line).ok().filter(Value::is_object)
}

/// Returns a time as the journal has it, in nanoseconds since 1970.
pub(crate) fn unix_ns(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// Returns a process that a line of a journal is about; `None` if the line is about the family.
pub(crate) fn process(line: &Value) -> Option<Seen> {
    let id = |name: &str| line[name].as_i64().and_then(|p| i32::try_from(p).ok());
    let (pid, start) = (Pid::from_raw(id("pid")?), line["start"].as_u64()?);
    let parent = id("ppid").map_or(Pid::NONE, Pid::from_raw);
    let comm = line["comm"].as_str().unwrap_or_default().to_owned();
    Some(Seen { pid, start, parent, comm })
}

/// Returns whether a journal has the end of what its last supervisor did; `None` if there was no supervisor.
pub(crate) fn has_ended(lines: &[Value]) -> Option<bool> {
    let last = lines.iter().rposition(|l| l["event"] == "follows")?;
    Some(lines[last..].iter().any(|l| l["event"] == "ended"))
}

/// Returns the supervisor that the last line about one names, if it runs: process id and start time. `path` is that of the
/// journal.
pub(crate) fn supervisor(path: &Path, lines: &[Value]) -> Option<(Pid, u64)> {
    let line = lines.iter().rev().find(|l| l["event"] == "follows")?;
    let pid = line["supervisor"][0].as_i64().and_then(|p| i32::try_from(p).ok())?;
    let (pid, start) = (Pid::from_raw(pid), line["supervisor"][1].as_u64()?);
    // The journal may have been written by others, and the supervisor may be of a build that was there before.
    let is_it = || super::find::is_ours(pid) || has_locked(pid, path);
    (prof_os::process::is_running(pid, start) && is_it()).then_some((pid, start))
}

/// Returns whether the supervisor of a folder was killed, and there is no other yet.
pub(crate) fn was_killed(folder: &Path) -> bool {
    let lines = read(&folder.join(NAME));
    has_ended(&lines) == Some(false) && running(folder).is_none()
}

/// Returns the supervisor of a folder, if it runs.
pub(crate) fn running(folder: &Path) -> Option<Pid> {
    let path = folder.join(NAME);
    supervisor(&path, &read(&path)).map(|(pid, _)| pid)
}

/// Returns whether a process has locked a file.
fn has_locked(pid: Pid, path: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let Some(file) = id(path) else { return false };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter(|entry| id(&entry.path()) == Some(file)).any(|entry| {
        let about = format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy());
        fs::read_to_string(about).is_ok_and(|text| text.contains("FLOCK"))
    })
}

/// Returns whether the supervisor was killed, and none has come after it. `runs`: there is one.
fn was_left(lines: &[Value], runs: bool) -> bool {
    let Some(last) = lines.iter().rposition(|l| l["event"] == "follows") else { return false };
    let by_detach = |l: &Value| l["event"] == "ended" && l["by"] == BY_DETACH;
    match has_ended(lines) {
        Some(true) => lines[last..].iter().any(by_detach),
        Some(false) => !runs,
        None => false,
    }
}

/// Says in the line of a family's end that it was ended in place of a supervisor that had been killed.
pub(crate) const BY_DETACH: &str = "detach";

/// The last that is known of a process of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    /// Process ID.
    pub pid: Pid,
    /// Name of the process.
    pub comm: String,
    /// Description of the event.
    pub what: String,
    /// Whether nothing is known of it since recording began.
    pub open: bool,
    /// Whether it had ended before it could be recorded.
    pub is_missed: bool,
}

/// Returns what happened last to each process, in the order in which they appeared.
pub(crate) fn last(lines: &[Value]) -> Vec<Last> {
    let mut all: Vec<((i64, u64), Last)> = Vec::new();
    let mut at = std::collections::HashMap::new();
    for line in lines {
        let Some(pid) = line["pid"].as_i64() else { continue };
        let key = (pid, line["start"].as_u64().unwrap_or(0));
        let comm = line["comm"].as_str().unwrap_or_default().to_owned();
        let text = |name: &str| line[name].as_str().unwrap_or_default();
        let open = line["event"] == "attached" || line["event"] == "goes_on";
        let is_missed = line["event"] == MISSED;
        let what = match line["event"].as_str().unwrap_or_default() {
            "failed" => format!("not recorded: {}", text("reason")),
            "missed" => "ended before it could be recorded".into(),
            "exited" => match (line["code"].as_i64(), line["signal"].as_i64()) {
                (Some(code), _) => format!("exited with {code}"),
                (_, Some(signal)) => format!("was killed by signal {signal}"),
                _ => "ended".into(),
            },
            "attached" | "goes_on" => "recorded".into(),
            "cut_off" => {
                "its collector was killed, and it has ended: the rest of it is lost".into()
            }
            "exec" => "runs another program".into(),
            "detached" => "detached".into(),
            _ => continue,
        };
        let next = all.len();
        let i = *at.entry(key).or_insert(next);
        let pid = Pid::from_raw(i32::try_from(pid).unwrap_or(0));
        match all.get_mut(i) {
            Some((_, last)) => {
                last.what = what;
                (last.open, last.is_missed) = (open, is_missed);
                if !comm.is_empty() {
                    last.comm = comm;
                }
            }
            None => all.push((key, Last { pid, comm, what, open, is_missed })),
        }
    }
    all.into_iter().map(|(_, last)| last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_passed_over() {
        let path = std::env::temp_dir().join(format!("prof-journal-{}", std::process::id()));
        let mut journal = Journal::open(&path).expect("new");
        let seen =
            Seen { pid: Pid::from_raw(7), start: 9, parent: Pid::from_raw(1), comm: "a\nb".into() };
        journal.note("attached", Some(&seen), json!({ "recording": "a.7.prof" }));
        journal.file.write_all(b"not json\n[1]\n").expect("written");
        let mut again = Journal::open(&path).expect("open");
        again.note("exited", Some(&seen), json!({ "code": 3 }));
        again.note(
            "failed",
            Some(&Seen { pid: Pid::from_raw(8), ..seen.clone() }),
            json!({ "reason": "no" }),
        );
        let lines = read(&path);
        assert_eq!(lines.len(), 3);
        assert_eq!((process(&lines[0]), process(&json!({ "pid": 7 }))), (Some(seen.clone()), None));
        assert_eq!(lines[0]["recording"], "a.7.prof");
        let last = last(&lines);
        let words: Vec<_> = last.iter().map(|l| (l.pid, l.what.as_str())).collect();
        assert_eq!(
            words,
            [(Pid::from_raw(7), "exited with 3"), (Pid::from_raw(8), "not recorded: no")]
        );
        assert_eq!(has_ended(&lines), None);
        let follows = json!({ "event": "follows" });
        let ended = json!({ "event": "ended" });
        assert_eq!(has_ended(&[ended.clone(), follows.clone()]), Some(false));
        assert_eq!(has_ended(&[follows, ended]), Some(true));
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_process_that_has_locked_a_journal_is_found() {
        let path = std::env::temp_dir().join(format!("prof-locked-{}", std::process::id()));
        let file = File::create(&path).expect("new");
        let me = Pid::this();
        assert!(!has_locked(me, &path), "it is open");
        file.lock().expect("locked");
        assert!(has_locked(me, &path) && !has_locked(me, Path::new("/proc/self/exe")));
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn lines_that_a_full_disk_has_no_room_for_are_counted() {
        let path = std::env::temp_dir().join(format!("prof-unwritten-{}", std::process::id()));
        let mut journal = Journal::open(&path).expect("new");
        let file = std::mem::replace(&mut journal.file, File::create("/dev/full").expect("full"));
        (0..3).for_each(|_| journal.note("exited", None, json!({})));
        journal.file = file;
        journal.file.write_all(b"{\"event\":\"exi").expect("a part of a line");
        journal.note("ended", None, json!({}));
        let lines = read(&path);
        let events: Vec<_> = lines.iter().map(|l| l["event"].as_str()).collect();
        assert_eq!(events, [Some("ended"), Some("overrun")]);
        assert_eq!(lines[1]["unwritten"], 3);
        assert!(losses_in(&lines, false).more);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn of_very_many_missed_processes_the_last_are_added_up() {
        let path = std::env::temp_dir().join(format!("prof-missed-{}", std::process::id()));
        let mut journal = Journal::open(&path).expect("new");
        let (parent, comm) = (Pid::from_raw(1), "x".to_owned());
        let seen = Seen { pid: Pid::from_raw(7), start: 9, parent, comm };
        (0..MOST_MISSED + 5).for_each(|_| journal.note(MISSED, Some(&seen), json!({})));
        journal.add_up();
        journal.add_up();
        let lines = read(&path);
        assert_eq!(lines.len() as u64, MOST_MISSED + 1);
        assert_eq!((number(&lines, MISSED), number(&lines, "exited")), (MOST_MISSED + 5, 0));
        let losses = losses_in(&lines, false);
        assert_eq!((losses.processes, losses.sentences.len()), (100_005, 1));
        assert!(losses.sentences[0].starts_with("100,005 processes"), "{losses:?}");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn what_nobody_saw_is_said() {
        let gone = json!({ "event": "goes_on", "unix_ns": 9_000_000_000u64, "gone_since_unix_ns": 4_000_000_000u64 });
        let own = json!({ "event": "goes_on", "pid": 7, "unix_ns": 9, "gone_since_unix_ns": 1 });
        let told = json!({ "event": "goes_on", "unix_ns": 9, "gone_since_unix_ns": null });
        let losses = losses_in(&[gone, own.clone(), told, json!({ "event": "overrun" })], false);
        assert!(losses.more && losses.processes == 0, "{losses:?}");
        let losses = losses.sentences;
        assert!(losses.len() == 2 && losses[1].contains("for 5.0 s"), "{losses:?}");
        assert!(!losses_in(&[own], false).has_any());
        // Of two that could not be recorded, one was later.
        let failed = |pid| json!({ "event": "failed", "pid": pid, "start": 9, "reason": "no" });
        let later = json!({ "event": "attached", "pid": 7, "start": 9, "recording": "a.7.prof" });
        let missed = json!({ "event": MISSED, "pid": 9, "start": 9 });
        let losses = losses_in(&[failed(7), failed(9), failed(8), later, missed], false);
        assert_eq!((losses.processes, losses.more), (2, false));
        assert!(losses.sentences[1].ends_with("the first: no"), "{losses:?}");
        // Children that run another program are attached to; others are recorded from their fork on.
        let first = json!({ "event": "attached", "pid": 5, "start": 9 });
        let child = |pid: i32, from_fork: bool| json!({ "event": "attached", "pid": pid, "start": 9, "age_ns": 7, "from_fork": from_fork });
        assert!(late(&[first.clone(), child(6, true)]) == 0);
        let losses = losses_in(&[first, child(6, true), child(6, false), child(7, false)], false);
        assert!(losses.sentences[0].starts_with("2 processes of the family had already run"));
        assert!(!losses.has_any(), "the recordings are whole: {losses:?}");
        // A supervisor that does not run any more, and was not ended.
        let follows = json!({ "event": "follows", "supervisor": [0, 9] });
        let ended = |by: &str| json!({ "event": "ended", "by": by });
        assert!(losses_in(std::slice::from_ref(&follows), false).more);
        assert!(losses_in(&[follows.clone(), ended(BY_DETACH)], false).more);
        assert!(!losses_in(std::slice::from_ref(&follows), true).has_any(), "it runs");
        assert!(!losses_in(&[follows, ended("")], false).has_any());
        let looks = json!({ "event": "follows", "by": LOOKS });
        let losses = losses_in(&[looks], true);
        assert!(losses.more && losses.sentences[0].contains("CAP_NET_ADMIN"), "{losses:?}");
    }

    #[test]
    fn lines_that_can_not_be_read_are_counted() {
        let folder = std::env::temp_dir().join(format!("prof-lines-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        // The last line is not whole: it may be written at this moment.
        let text = "{\"event\":\"began\"}\n\nnonsense\n[1]\n{\"event\":\"mis";
        std::fs::write(folder.join(NAME), text).expect("written");
        let losses = losses(&folder);
        assert!(losses.more && losses.sentences[0].starts_with("2 lines of"), "{losses:?}");
        std::fs::write(folder.join(NAME), "{\"event\":\"began\"}\n").expect("written");
        assert!(!super::losses(&folder).has_any());
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
