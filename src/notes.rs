//! Keeps notes about recordings: where each is, and how it has ended. They are needed when a process is gone, runs
//! another program, or was detached from because the disk was full, as nothing in it leads to its recording then.
//!
//! A note is a file of fixed size, so that the collector can write the end into it when the disk is full.

use prof_analyze::{Now, live_summary};
use prof_os::Pid;
use prof_os::process::{is_running, start_time};
use prof_os::stat::Stat;
use prof_trace::records::{End, FoldFailed};
use prof_trace::values::text;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of a note in bytes: a path may be 4 KiB long, and twice that in JSON. There may be two, and a message.
const SIZE: usize = 24 << 10;
/// Greatest number and age of notes that are kept.
const MOST: usize = 256;
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Greatest length of a message in characters.
const MESSAGE: usize = 1000;
/// Larger recordings are not read to find out how they ended.
const READ: u64 = 64 << 20;

/// The note of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Note(Value);

/// Returns the folders that notes may be in: of this login, of the system, of the user.
fn folders() -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let system = nix::unistd::geteuid().is_root().then(|| PathBuf::from("/run"));
    let all = [set("XDG_RUNTIME_DIR"), system, cache];
    all.into_iter().flatten().map(|dir| dir.join("prof").join("recordings")).collect()
}

/// Makes a note that a process is recorded to a file; returns its path, if it could be written.
pub(crate) fn begin(pid: Pid, name: &str, recording: &Path) -> Option<PathBuf> {
    let start = Stat::living(pid)?.start()?;
    let note = Note(json!({
        "pid": pid,
        "start": start,
        "name": name,
        "path": recording.to_string_lossy(),
        "began": seconds(),
    }));
    folders().into_iter().find_map(|dir| {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).ok()?;
        if !is_ours(&dir) {
            return None;
        }
        forget_old(&dir);
        let path = dir.join(format!("{pid}-{start}"));
        // Create a new file, as the collector of an earlier recording may still have the old one open.
        let _ = fs::remove_file(&path);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path).ok()?;
        file.write_all(&note.bytes()?).ok()?;
        Some(path)
    })
}

/// Removes the note of a recording that could not begin.
pub(crate) fn forget(note: Option<&Path>) {
    if let Some(path) = note {
        let _ = fs::remove_file(path);
    }
}

/// Returns whether a folder belongs to this user, and no other user can write to it.
fn is_ours(dir: &Path) -> bool {
    let me = nix::unistd::geteuid().as_raw();
    fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == me && m.mode() & 0o022 == 0)
}

fn forget_old(dir: &Path) {
    let mut all: Vec<(SystemTime, PathBuf)> = files(dir);
    all.sort();
    let too_many = all.len().saturating_sub(MOST - 1);
    for (i, (time, path)) in all.iter().enumerate() {
        if i < too_many || time.elapsed().is_ok_and(|age| age > LONGEST) {
            let _ = fs::remove_file(path);
        }
    }
}

fn files(dir: &Path) -> Vec<(SystemTime, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect()
}

/// An open note, to be completed at the end of the recording.
pub(crate) struct Open(File);

impl Open {
    /// Opens a note, and enters this process as the collector.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let open = OpenOptions::new().read(true).write(true).open(path).ok().map(Self)?;
        let me = Pid::this();
        open.change(|note| {
            note["collector"] = json!([me, start_time(me)]);
        });
        Some(open)
    }

    /// Opens a note once more.
    pub(crate) fn again(path: &Path) -> Option<Self> {
        OpenOptions::new().read(true).write(true).open(path).ok().map(Self)
    }

    /// Enters what became of the reports that signals to the process have asked for.
    pub(crate) fn reports(&self, done: &Value) {
        self.change(|note| note["reports"] = done.clone());
    }

    /// Enters that the oldest part could not be dropped, or no figures be made of the events.
    pub(crate) fn folds(&self, failed: &FoldFailed) {
        let why: String = failed.reason.chars().take(MESSAGE).collect();
        let (failures, over) = (failed.failures, failed.over != 0);
        self.change(|note| {
            note["folds"] = json!({ "failed": failures, "error": why, "over": over })
        });
    }

    /// Enters that the recording has figures by stack alone from now on.
    pub(crate) fn went_over(&self) {
        self.change(|note| {
            note["figures_since"] = seconds().into();
            // What had failed before does not matter any more.
            if let Some(all) = note.as_object_mut() {
                all.remove("folds");
            }
        });
    }

    fn change(&self, f: impl FnOnce(&mut Value)) {
        let mut bytes = vec![0; SIZE];
        let n = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        let Ok(mut note) = serde_json::from_slice::<Value>(&bytes[..n]) else { return };
        f(&mut note);
        if let Some(bytes) = Note(note).bytes() {
            let _ = self.0.write_all_at(&bytes, 0);
        }
    }

    /// Enters a new path of the recording.
    pub(crate) fn moved(&self, path: &Path) {
        self.change(|note| note["path"] = path.to_string_lossy().into());
    }

    /// Enters the end of the recording.
    pub(crate) fn finish(&self, ended: &prof_collect::Ended) {
        self.change(|note| {
            note["reason"] = ended.reason.clone().into();
            note["events"] = ended.events.into();
            note["bytes"] = ended.bytes.into();
            note["ended"] = seconds().into();
        });
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the note of a process's last recording; `None` if it is being recorded now, or there is no note.
pub(crate) fn last(pid: Pid) -> Option<Note> {
    if prof_collect::Peek::of(pid).ok().flatten().is_some() {
        return None;
    }
    // Notes of an earlier process with the same PID do not count.
    let start = Stat::living(pid).and_then(|s| s.start());
    let is_its = |n: &Note| start.is_none_or(|s| n.0["start"] == s);
    let mut all = read_all(|name| name.split('-').next() == Some(&pid.to_string()));
    all.retain(is_its);
    all.into_iter().max_by_key(|n| n.0["began"].as_u64())
}

/// Returns what is noted under a name about a process that is being recorded, see [`Open::reports`],
/// [`Open::folds`] and [`Open::went_over`].
pub(crate) fn about(pid: Pid, name: &str) -> Option<Value> {
    let start = Stat::living(pid)?.start()?;
    let note = read_all(|file| file == format!("{pid}-{start}")).pop()?;
    note.0.get(name).cloned()
}

/// Returns the notes of recordings that have ended within some time, other than by a detach, the latest first.
pub(crate) fn ended_within(time: Duration) -> Vec<Note> {
    let since = seconds().saturating_sub(time.as_secs());
    let mut all = read_all(|_| true);
    let is_meant = |n: &Note| {
        let reason = n.0["reason"].as_str().unwrap_or("detached");
        reason != "detached" && n.0["ended"].as_u64() >= Some(since) && n.path().exists()
    };
    all.retain(is_meant);
    all.sort_by_key(|n| std::cmp::Reverse(n.0["ended"].as_u64()));
    all
}

fn read_all(wanted: impl Fn(&str) -> bool) -> Vec<Note> {
    let mut all = Vec::new();
    for dir in folders().iter().filter(|dir| is_ours(dir)) {
        let named = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).is_some_and(&wanted);
        for path in files(dir).into_iter().map(|f| f.1).filter(named) {
            let bytes = prof_os::files::read_at_most(&path, SIZE as u64);
            let value = bytes.ok().and_then(|b| serde_json::from_slice(&b).ok());
            all.extend(value.map(Note));
        }
    }
    all
}

impl Note {
    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = self.0.to_string().into_bytes();
        (bytes.len() <= SIZE).then(|| bytes.resize(SIZE, b' '))?;
        Some(bytes)
    }

    /// Returns the path of the recording.
    pub(crate) fn path(&self) -> PathBuf {
        self.0["path"].as_str().unwrap_or_default().into()
    }

    /// Returns the note as JSON.
    pub(crate) fn json(&self) -> Value {
        let mut v = self.0.clone();
        v["state"] = "ended".into();
        v["why"] = self.why().into();
        v
    }

    /// Returns why the recording has ended.
    fn why(&self) -> String {
        let noted = self.0["reason"].as_str().map(ToOwned::to_owned);
        let path = self.path();
        let read = || {
            fs::metadata(&path).ok().filter(|m| m.len() <= READ)?;
            live_summary(&path, &Now::default()).ok()?.end_reason
        };
        match noted.or_else(read) {
            Some(reason) => words(&reason),
            None if self.is_being_finished() => "its collector is still writing it".into(),
            // The collector may have finished the recording since the note was read.
            None => read().map_or_else(
                || "its collector was killed before it could finish it".into(),
                |reason| words(&reason),
            ),
        }
    }

    fn is_being_finished(&self) -> bool {
        let part = |i: usize| self.0["collector"][i].as_u64().unwrap_or(0);
        is_running(Pid::from_u32(part(0) as u32), part(1))
    }

    /// Describes the end and the place of the recording.
    pub(crate) fn text(&self) -> String {
        let path = self.path();
        let ago = self.0["ended"].as_u64().map(|t| {
            let age = Duration::from_secs(seconds().saturating_sub(t));
            format!(" {}", text::ago(age))
        });
        let events = self.0["events"].as_u64().map(|n| format!(", {} events", text::number(n)));
        let there = match fs::metadata(&path) {
            Ok(m) => format!("{}{}", text::bytes(m.len()), events.unwrap_or_default()),
            Err(_) => "not there any more".into(),
        };
        format!(
            "its last recording, {} ({there}), ended{}: {}",
            path.display(),
            ago.unwrap_or_default(),
            self.why()
        )
    }

    /// Returns PID and name of the process.
    pub(crate) fn process(&self) -> String {
        let name = self.0["name"].as_str().unwrap_or_default();
        format!("process {} ({name})", self.0["pid"])
    }
}

/// Returns the reason for the end of a recording in words.
fn words(reason: &str) -> String {
    match reason {
        "detached" => "prof was detached".into(),
        "exited" => "the process has exited".into(),
        "ended" => "the process has ended".into(),
        "exec" => "the process has run another program in its place (exec)".into(),
        "stopped" => "the collector was told to stop".into(),
        r if r.starts_with(End::LIMIT) => {
            format!(
                "it had reached a bound: {}; what was recorded up to there is in it",
                &r[End::LIMIT.len()..]
            )
        }
        End::DIED => "its collector had died, and the rest was saved".into(),
        r => match r.strip_prefix("stopped: ") {
            Some(e) => {
                format!("it could not be written any further: {e}; what was written is readable")
            }
            None => format!("the process was {r}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_said_in_words() {
        assert_eq!(words("killed by signal 9"), "the process was killed by signal 9");
        assert!(words("stopped: No space left on device (os error 28)").contains("No space"));
        assert!(words("exec").contains("another program"));
    }

    #[test]
    fn a_note_has_room_for_its_end() {
        let note = Note(json!({ "pid": 7, "path": "/x".repeat(2000) }));
        assert_eq!(note.bytes().map(|b| b.len()), Some(SIZE));
        assert!(Note(json!({ "path": "x".repeat(SIZE) })).bytes().is_none());
    }
}
