//! Files that get their name when they are complete, and that only their owner may read.

use crate::failure::usage;
use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that is removed when it is dropped, unless it was kept before.
pub(crate) struct Part<'a> {
    path: &'a Path,
    part: PathBuf,
    replace: bool,
    /// The file, to be written to.
    pub file: File,
}

impl<'a> Part<'a> {
    /// Creates a file that is to have the name `path`; `replace`: which may exist by then.
    ///
    /// # Errors
    /// If the file exists and may not, or can't be created. `hint` says what to do about an existing file.
    pub(crate) fn create(path: &'a Path, replace: bool, hint: &str) -> Result<Self> {
        let cannot = || format!("cannot create {}", path.display());
        if !replace && fs::symlink_metadata(path).is_ok() {
            return Err(usage(format!("{} exists already; {hint}", path.display())));
        }
        // Devices and pipes are written to directly.
        if replace && fs::metadata(path).is_ok_and(|m| !m.is_file()) {
            let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
            return Ok(Self { path, part: path.to_owned(), replace, file });
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&part);
        Ok(Self { path, part, replace, file: file.with_context(cannot)? })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If it can't be renamed; of the kind `AlreadyExists` if there is a file of the name by now, and it may not be
    /// replaced.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        let part = std::mem::take(&mut self.part);
        let kept = match () {
            () if part == self.path => return Ok(()),
            () if self.replace => fs::rename(&part, self.path),
            () => rename_new(&part, self.path),
        };
        if kept.is_err() {
            self.part = part;
        }
        kept
    }
}

/// Renames a file, unless there is one of the new name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => return Ok(()),
        // Not every kernel and file system has this.
        Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM) => {}
        Err(e) => return Err(e.into()),
    }
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(e),
        // The file system has no links either.
        Err(_) => File::create_new(to).and_then(|_| fs::rename(from, to)),
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.part).is_ok_and(|m| m.is_file()) {
            let _ = fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_its_owners_and_has_its_name_when_it_is_complete() {
        let dir = std::env::temp_dir().join(format!("prof-part-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("a");
        let write = |text: &str, replace: bool| {
            let mut part = Part::create(&path, replace, "")?;
            part.file.write_all(text.as_bytes())?;
            part.keep().map_err(anyhow::Error::from)
        };
        write("1", false).expect("new");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(write("2", false).is_err(), "it exists");
        write("3", true).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("read"), "3");
        // A file that was created meanwhile is not replaced, and no temporary file is left.
        let late = dir.join("b");
        let part = Part::create(&late, false, "").expect("new");
        fs::write(&late, "another").expect("written");
        assert_eq!(part.keep().map_err(|e| e.kind()), Err(ErrorKind::AlreadyExists));
        drop(Part::create(&dir.join("c"), false, "").expect("new"));
        assert_eq!(fs::read_dir(&dir).expect("a folder").count(), 2);
        assert!(rename_new(&late, &path).is_err() && rename_new(&late, &dir.join("d")).is_ok());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
