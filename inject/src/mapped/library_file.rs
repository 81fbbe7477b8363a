//! The hook's library as a file that the target can open, in a folder that only prof writes to.
//!
//! The file is there only while the target's dynamic linker loads it, unless it was asked for to stay. Its path is a new one each time: the linker would
//! take a library of the same path for the one that a killed prof has left.

use crate::mapped::image::HOOK;
use nix::sys::statvfs::{FsFlags, fstatvfs};
use prof_os::files::folder_below;
use prof_os::maps::Map;
use prof_os::{Pid, process};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

/// Folders in which the file may be, as the target sees them.
pub(crate) const FOLDERS: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];
/// Name of the file.
const NAME: &str = "libprof_hook.so";
/// Beginning of the name of the file's own folder. The library's number follows, in [`DIGITS`] hexadecimal digits.
const FOLDER: &str = "prof-hook-";
const DIGITS: usize = 16;

/// Returns the name of the file's own folder, by the library's number.
fn folder_name(number: u64) -> String {
    format!("{FOLDER}{number:0DIGITS$x}")
}

/// Returns whether a mapping is of the library with this number.
pub(crate) fn is_of(m: &Map, number: u64) -> bool {
    is_path(&m.name, number)
}

/// Returns whether a path is that of the library with this number.
pub(crate) fn is_path(path: &[u8], number: u64) -> bool {
    let name = format!("/{}/{NAME}", folder_name(number));
    memchr::memmem::find(path, name.as_bytes()).is_some()
}

/// Returns whether a path is that of the library with any number.
pub(crate) fn is_library(path: &[u8]) -> bool {
    let number = memchr::memmem::find(path, FOLDER.as_bytes()).and_then(|at| {
        let digits = path.get(at + FOLDER.len()..)?.get(..DIGITS)?;
        u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    });
    number.is_some_and(|n| is_path(path, n))
}

/// Returns a number that no library had before.
pub(crate) fn new_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds its hash tables with random numbers.
    let number = std::collections::hash_map::RandomState::new().build_hasher().finish();
    number.max(1)
}

/// The file of the hook's library. Dropping it removes it.
#[derive(Debug)]
pub struct LibraryFile {
    /// A folder of the target's.
    folder: OwnedFd,
    number: u64,
    /// Path of the file as the target sees it.
    pub(crate) path: String,
    /// The file is not removed.
    pub(crate) stays: bool,
}

impl LibraryFile {
    /// Writes the library to a folder of the target's, one of [`FOLDERS`].
    ///
    /// # Errors
    /// If the folder can't be written to, or the kernel maps no code of files in it.
    pub(crate) fn new(pid: Pid, folder: &str, number: u64) -> io::Result<Self> {
        let file = Self::at(pid, folder, number)?;
        // glibc leaves a part of the library mapped where the kernel refuses the rest.
        if fstatvfs(&file.folder)?.flags().contains(FsFlags::ST_NOEXEC) {
            return Err(io::Error::other("it is mounted with noexec"));
        }
        let own = file.own_folder();
        fs::create_dir(&own)?;
        fs::set_permissions(&own, Permissions::from_mode(0o755))?;
        let at = own.join(NAME);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW);
        let mut made = options.open(&at)?;
        made.write_all(HOOK)?;
        made.set_permissions(Permissions::from_mode(0o755))?;
        Ok(file)
    }

    fn at(pid: Pid, folder: &str, number: u64) -> io::Result<Self> {
        let root = PathBuf::from(process::folder(pid)).join("root");
        let path = format!("{folder}/{}/{NAME}", folder_name(number));
        Ok(Self { folder: folder_below(&root, folder.as_ref())?, number, path, stays: false })
    }

    /// Returns the path of the file's own folder as prof sees it.
    fn own_folder(&self) -> PathBuf {
        let name = folder_name(self.number);
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd()))
    }

    /// Returns whether the file is there.
    fn is_there(&self) -> bool {
        fs::symlink_metadata(self.own_folder().join(NAME)).is_ok()
    }

    /// Removes the file, unless its folder was replaced by a link to another one.
    fn remove_file(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW);
        let own = options.open(self.own_folder())?;
        fs::remove_file(format!("/proc/self/fd/{}/{NAME}", own.as_raw_fd()))
    }
}

impl Drop for LibraryFile {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        let own = self.own_folder();
        for removed in [self.remove_file(), fs::remove_dir(&own)] {
            match removed {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    log::warn!("prof could not remove {} of the target: {e}", self.path);
                }
                _ => {}
            }
        }
    }
}

/// Returns the file of the library with this number (0: none) that process `pid` has loaded, if that file was asked for to stay.
/// Whoever drops it when the recording has ended removes it, though the process has ended, too.
#[must_use]
pub fn kept_library(pid: Pid, number: u64) -> Option<LibraryFile> {
    if number == 0 {
        return None;
    }
    let mut files = FOLDERS.iter().filter_map(|folder| LibraryFile::at(pid, folder, number).ok());
    files.find(LibraryFile::is_there)
}

/// Removes the file that a killed prof may have left.
pub(crate) fn remove_left(pid: Pid, number: u64) {
    for folder in FOLDERS {
        // The file can't be in a folder that does not exist, so this error means nothing.
        drop(LibraryFile::at(pid, folder, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_until_it_is_dropped() {
        let number = new_number();
        assert_ne!(number, new_number());
        let file = LibraryFile::new(Pid::this(), "/tmp", number).expect("a file");
        let path = file.path.clone();
        assert!(is_path(path.as_bytes(), number) && !is_path(path.as_bytes(), number ^ 1));
        assert_eq!(fs::read(&path).expect("readable"), HOOK);
        assert!(LibraryFile::new(Pid::this(), "/tmp", number).is_err(), "it is there already");
        drop(file);
        assert!(!PathBuf::from(path).parent().expect("a folder").exists());
        std::mem::forget(LibraryFile::new(Pid::this(), "/tmp", number).expect("a file"));
        remove_left(Pid::this(), number);
        drop(LibraryFile::new(Pid::this(), "/tmp", number).expect("it is gone"));
    }
}
