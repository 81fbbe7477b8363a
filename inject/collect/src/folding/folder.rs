//! The process that folds a recording, as the collector sees it, and the file that it writes.

use prof_os::files::open_regular;
use prof_os::process::effective_uid;
use prof_trace::chunk::FILE_MAGIC;
use prof_trace::records::FoldFailed;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// Returns the processor time that processes which fold have taken so far.
    fn spent(&self) -> Duration;
    /// Gives the new file, which is complete, the name of the recording.
    ///
    /// # Errors
    /// Why it can't be.
    fn replace(&mut self, new: &File) -> Result<(), String>;
    /// Ends the process, and removes the new file.
    fn give_up(&mut self);
    /// Tells the user that a fold has failed. The ticks of the record are not set.
    fn tell(&mut self, failed: &FoldFailed);
    /// Creates the new file, empty, for this process to write.
    ///
    /// # Errors
    /// Why it can't be.
    fn create(&mut self) -> Result<File, String>;
    /// Tells the user that the recording has figures by stack alone from now on.
    fn went_over(&mut self);
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
