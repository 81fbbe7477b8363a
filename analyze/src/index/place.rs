//! Files for indexes that are being written.

use super::path_of;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file beside a recording, under a name of its own until it is whole. It goes away if it isn't
/// kept.
pub(super) struct Place {
    file: Option<File>,
    name: PathBuf,
    at: PathBuf,
    kept: bool,
}

impl Place {
    /// Makes the file.
    pub(super) fn beside(recording: &Path) -> io::Result<Self> {
        let at = path_of(recording);
        sweep(&at);
        let mut name = at.clone().into_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let name = PathBuf::from(name);
        let _ = fs::remove_file(&name);
        let mut options = OpenOptions::new();
        // What the recording says is not for everyone to read; its index is as private.
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&name)?;
        if let Ok(m) = fs::metadata(recording) {
            let _ = fs::set_permissions(&name, m.permissions());
        }
        Ok(Self { file: Some(file), name, at, kept: false })
    }

    /// The file, to write to.
    pub(super) fn take(&mut self) -> Option<File> {
        self.file.take()
    }

    /// Gives it the name of an index; says which.
    pub(super) fn keep(mut self) -> Option<PathBuf> {
        fs::rename(&self.name, &self.at).ok()?;
        self.kept = true;
        Some(self.at.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.name);
        }
    }
}

/// Removes what a prof that was killed left behind.
fn sweep(at: &Path) {
    let (Some(dir), Some(name)) = (at.parent(), at.file_name()) else { return };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let Some(start) = name.to_str().map(|n| format!("{n}.")) else { return };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.strip_prefix(&start))
            .and_then(|n| n.strip_suffix(".tmp"))
            .and_then(|n| n.parse::<u32>().ok());
        if pid.is_some_and(|p| !Path::new(&format!("/proc/{p}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A file without a name in the folder for temporary files, if it is `wanted` and can be had.
pub(super) fn unnamed(wanted: bool) -> Option<File> {
    if !wanted {
        return None;
    }
    let name = std::env::temp_dir().join(format!("prof-index-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&name).ok()?;
    fs::remove_file(&name).ok()?;
    Some(file)
}
