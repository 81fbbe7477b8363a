//! Files that get their name when they are complete, and that only their owner may read.

use crate::failure::usage;
use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use prof_os::files::own_descriptor;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that is removed when it is dropped, unless it was kept before.
pub(crate) struct Part {
    path: PathBuf,
    /// The file's name until it is complete; `None`: it has no other, or is kept.
    part: Option<PathBuf>,
    replace: bool,
    /// The file, to be written to.
    pub file: File,
}

impl Part {
    /// Creates a file that is to have the name `path`; `replace`: which may exist by then. A link stays, and the file that
    /// it leads to is replaced. Descriptors of this process (`/dev/stdout`), pipes and devices are written to as they
    /// are; block devices only if they may be replaced.
    ///
    /// # Errors
    /// If the file exists and may not, or can't be created. `hint` says what to do about an existing file.
    pub(crate) fn create(path: &Path, replace: bool, hint: &str) -> Result<Self> {
        let cannot = || format!("cannot create {}", path.display());
        let direct = |file| Self { path: path.to_owned(), part: None, replace, file };
        if let Some(file) = own_descriptor(path) {
            return file.map(direct).with_context(cannot);
        }
        let kind = fs::metadata(path).map(|m| m.file_type());
        let is_stream = kind.as_ref().is_ok_and(|k| k.is_char_device() || k.is_fifo());
        if is_stream || replace && kind.as_ref().is_ok_and(|k| !k.is_file()) {
            let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
            return Ok(direct(file));
        }
        if !replace && fs::symlink_metadata(path).is_ok() {
            return Err(usage(format!("{} exists already; {hint}", path.display())));
        }
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&part);
        let file = file.with_context(cannot)?;
        Ok(Self { path, part: Some(part), replace, file })
    }

    /// Returns whether it is written to as it is: a descriptor of this process, a pipe or a device.
    pub(crate) fn is_stream(&self) -> bool {
        self.part.is_none()
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// If it can't be renamed; of the kind `AlreadyExists` if there is a file of the name by now, and it may not be
    /// replaced.
    pub(crate) fn keep(mut self) -> io::Result<()> {
        let Some(part) = self.part.take() else { return Ok(()) };
        let kept = match self.replace {
            true => fs::rename(&part, &self.path),
            false => rename_new(&part, &self.path),
        };
        if kept.is_err() {
            self.part = Some(part);
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

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

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

    #[test]
    fn links_stay_and_streams_are_written_to() {
        let dir = std::env::temp_dir().join(format!("prof-part-links-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let write = |path: &Path, replace: bool| {
            let mut part = Part::create(path, replace, "")?;
            part.file.write_all(b"new")?;
            part.keep().map_err(anyhow::Error::from)
        };
        let (file, link) = (dir.join("file"), dir.join("link"));
        fs::write(&file, "old").expect("written");
        symlink("file", &link).expect("a link");
        assert!(write(&link, false).is_err(), "it exists");
        write(&link, true).expect("replaced");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read_to_string(&file).expect("read"), "new");
        // A device is written to without being asked to replace it.
        write(Path::new("/dev/null"), false).expect("a device");
        // A descriptor is the file at its place: neither the link that names it nor the file is replaced.
        let mut behind = File::options().append(true).open(&file).expect("open");
        let number = behind.as_raw_fd();
        for (path, replace) in [("/dev/fd/", true), ("/proc/self/fd/", false)] {
            write(Path::new(&format!("{path}{number}")), replace).expect("a descriptor");
        }
        let indirect = dir.join("indirect");
        symlink(format!("/dev/fd/{number}"), &indirect).expect("a link");
        write(&indirect, true).expect("a descriptor");
        behind.write_all(b"!").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "newnewnewnew!");
        assert!(write(Path::new("/dev/fd/987654"), true).is_err(), "it is not open");
        assert_eq!(fs::read_dir(&dir).expect("a folder").count(), 3);
        fs::remove_dir_all(&dir).expect("removed");
    }
}
