//! Drops the oldest part of a recording when it meets its bound: another process folds it into a new file, the collector
//! appends what has come meanwhile, and the new file takes the recording's name. At each moment there is one whole
//! recording under the name.

use crate::limits::Limits;
use crate::output::Output;
use prof_os::files::open_regular;
use prof_os::process::effective_uid;
use prof_trace::chunk::FILE_MAGIC;
use prof_trace::values::text::bytes;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Part of the bound at which a fold begins: there has to be room for both files, and for what comes meanwhile.
const BEGIN: u64 = 3;
/// Part of a recording's length that stays as it is.
const KEEP: u64 = 4;
/// Part of the bound by which a recording grows, at least, before it is folded again.
const AGAIN: u64 = 8;
/// Room on the file system that has to be left besides that for the new file.
const ROOM: u64 = 8 << 20;
/// Interval between two looks at the file system.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes that are copied at a time, and the greatest number of such pieces between two passes.
const PIECE: usize = 1 << 20;
const PIECES: usize = 4;

/// Returns the path of the file that is to take the place of the recording at `path`.
pub fn new_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".fold");
    path.with_file_name(name)
}

/// Removes the new file that a killed collector has left beside the recording at `path`, whose status is given. A file of that
/// name stays if it is no recording, or belongs to somebody else: it is none of prof's.
pub fn remove_left(path: &Path, recording: &Metadata) {
    let new = new_path(path);
    let is_ours = fs::symlink_metadata(&new)
        .is_ok_and(|m| m.is_file() && (m.uid() == recording.uid() || m.uid() == effective_uid()));
    if is_ours && begins_as_recording(&new) {
        let _ = fs::remove_file(&new);
    }
}

/// Returns whether a file is empty, or begins as a recording does.
fn begins_as_recording(path: &Path) -> bool {
    let Ok(file) = open_regular(path) else { return false };
    let mut front = [0; FILE_MAGIC.len()];
    let is_empty = file.metadata().is_ok_and(|m| m.len() == 0);
    is_empty || file.read_exact_at(&mut front, 0).is_ok() && front == FILE_MAGIC
}

/// The new file, as the folding process has left it.
#[derive(Debug)]
pub struct Copied {
    /// The new file.
    pub file: File,
    /// Length of the new file in bytes.
    pub len: u64,
    /// Offset in the recording behind what was folded and copied.
    pub from: u64,
}

/// Has the oldest part of a recording folded by another process.
pub trait Folder: std::fmt::Debug + Send {
    /// Begins, so that about the last `keep` bytes stay as they are.
    ///
    /// # Errors
    /// Why there is no process for it, or no file.
    fn begin(&mut self, keep: u64) -> Result<(), String>;
    /// Returns the length of the new file so far.
    fn written(&self) -> u64;
    /// Returns what was written, or why it could not be, when the process has ended.
    fn poll(&mut self) -> Option<Result<Copied, String>>;
    /// Gives the new file, which is complete, the name of the recording.
    ///
    /// # Errors
    /// Why it can't be.
    fn replace(&mut self, new: &File) -> Result<(), String>;
    /// Ends the process, and removes the new file.
    fn give_up(&mut self);
}

/// Progress of a fold.
#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Another process folds.
    Folds,
    /// What has come meanwhile is appended.
    Copies(Copied),
}

/// Folds a recording again and again.
#[derive(Debug)]
pub(crate) struct Folding {
    folder: Box<dyn Folder>,
    state: State,
    /// Length at which the next fold begins, where the length is bounded.
    next: u64,
    /// Time of the last look at the file system.
    looked: Option<Instant>,
    /// Why it is not folded any more.
    pub failed: Option<String>,
}

impl Folding {
    pub(crate) fn new(folder: Box<dyn Folder>, limits: &Limits) -> Self {
        let next = limits.max_disk.map_or(u64::MAX, |most| most / BEGIN);
        Self { folder, state: State::Idle, next, looked: None, failed: None }
    }

    /// Does the next step. Returns whether there is more to do at once.
    pub(crate) fn step(&mut self, out: &mut Output, limits: &Limits) -> bool {
        if self.failed.is_some() {
            return false;
        }
        match self.try_step(out, limits) {
            Ok(busy) => busy,
            Err(why) => {
                log::warn!("the oldest part of the recording can't be dropped: {why}");
                self.failed = Some(why);
                self.end();
                false
            }
        }
    }

    /// Ends a fold that is in progress, for good. Returns why there could be no more, if that is so.
    pub(crate) fn ended(mut self) -> Option<String> {
        self.end();
        self.failed
    }

    fn end(&mut self) {
        self.state = State::Idle;
        self.folder.give_up();
    }

    fn try_step(&mut self, out: &mut Output, limits: &Limits) -> Result<bool, String> {
        if !matches!(self.state, State::Idle) {
            if let Some(e) = out.failure() {
                return Err(e.to_string());
            }
            let new = match &self.state {
                State::Copies(copied) => copied.len,
                _ => self.folder.written(),
            };
            let both = out.len().saturating_add(new);
            if limits.max_disk.is_some_and(|most| both > most) {
                return Err(format!(
                    "both files together would be longer than --max-disk; {} are new since it was begun",
                    bytes(out.len().saturating_sub(self.next))
                ));
            }
        }
        match &mut self.state {
            State::Idle => {
                if self.is_due(out, limits) {
                    self.next = self.next.max(out.len());
                    self.folder.begin(out.len() / KEEP)?;
                    self.state = State::Folds;
                }
                Ok(false)
            }
            State::Folds => {
                let Some(copied) = self.folder.poll() else { return Ok(false) };
                self.state = State::Copies(copied?);
                Ok(true)
            }
            State::Copies(copied) => {
                let failed = |e: io::Error| format!("cannot copy: {e}");
                if !copy(out, copied).map_err(failed)? {
                    return Ok(true);
                }
                self.folder.replace(&copied.file)?;
                out.replace(&copied.file, copied.len).map_err(failed)?;
                self.state = State::Idle;
                self.plan(out.len(), limits)?;
                Ok(false)
            }
        }
    }

    /// Returns whether it is time to fold.
    fn is_due(&mut self, out: &Output, limits: &Limits) -> bool {
        if out.len() >= self.next {
            return true;
        }
        if out.len() < Limits::LEAST || self.looked.is_some_and(|at| at.elapsed() < LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        limits.room(out.file()).is_ok_and(|room| room < out.len() / 2 + ROOM)
    }

    /// Decides when a recording is folded again that was just folded to this length.
    fn plan(&mut self, len: u64, limits: &Limits) -> Result<(), String> {
        let Some(most) = limits.max_disk else { return Ok(()) };
        self.next = (most / BEGIN).max(len + most / AGAIN);
        match self.next + len > most {
            true => Err(format!(
                "what is live, the figures and the newest events take {} of --max-disk",
                bytes(len)
            )),
            false => Ok(()),
        }
    }
}

/// Copies a few pieces of what has come meanwhile. Returns whether that was all.
fn copy(out: &Output, to: &mut Copied) -> io::Result<bool> {
    if to.from > out.len() {
        return Err(io::Error::other("the recording has become shorter"));
    }
    let mut piece = vec![0; PIECE.min((out.len() - to.from) as usize)];
    for _ in 0..PIECES {
        let want = (out.len() - to.from).min(PIECE as u64) as usize;
        if want == 0 {
            return Ok(true);
        }
        out.file().read_exact_at(&mut piece[..want], to.from)?;
        to.file.write_all_at(&piece[..want], to.len)?;
        to.from += want as u64;
        to.len += want as u64;
    }
    Ok(to.from == out.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_prof_has_left_is_removed() {
        let dir = std::env::temp_dir().join(format!("prof-folding-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("r.prof");
        fs::write(&path, FILE_MAGIC).expect("written");
        let recording = fs::metadata(&path).expect("a file");
        let new = new_path(&path);
        for (content, stays) in [(&b""[..], false), (b"PROFREC\n\x06", false), (b"a diary", true)] {
            fs::write(&new, content).expect("written");
            remove_left(&path, &recording);
            assert_eq!(new.exists(), stays, "{content:?}");
        }
        fs::remove_file(&new).expect("removed");
        std::os::unix::fs::symlink(&path, &new).expect("a link");
        remove_left(&path, &recording);
        assert!(new.symlink_metadata().is_ok() && path.exists(), "a link is not prof's");
        fs::remove_dir_all(&dir).expect("removed");
    }
}
