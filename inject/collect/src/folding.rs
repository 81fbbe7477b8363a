//! Drops the oldest part of a recording when it meets its bound: another process folds it into a new file, the collector
//! appends what has come meanwhile, and the new file takes the recording's name. At each moment there is one whole
//! recording under the name.

use crate::limits::Limits;
use crate::output::Output;
use prof_trace::values::text::bytes;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
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

/// What the process that folds has written.
#[derive(Debug)]
pub struct Copied {
    /// The new file.
    pub file: File,
    /// Its length.
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

/// How far a fold is.
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
