//! The hook's library as a file that the target can open, in a folder that only prof writes to.
//!
//! The file is there only while the target's dynamic linker loads it, unless it was asked for to stay. Its path is a new one each time: the linker would
//! take a library of the same path for the one that a killed prof has left.
//!
//! The file is a memfd where no folder will do, as in a container that is read-only. The linker opens it by a descriptor of the
//! target's, which the target's threads can see if the linker takes so long that they have to go on meanwhile. So folders
//! come first.

use crate::Result;
use crate::mapped::image::HOOK;
use crate::mapped::memfd::NewMemfd;
use crate::stopped::remote::Caller;
use nix::sys::statfs::{FUSE_SUPER_MAGIC, PROC_SUPER_MAGIC, fstatfs, statfs};
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

/// Returns whether a path is that of the library with this number, or that of a descriptor of it.
pub(crate) fn is_path(path: &[u8], number: u64) -> bool {
    let of_descriptor = |rest: &[u8]| rest.starts_with(dots(number).as_bytes());
    memchr::memmem::find(path, memfd_name(number).as_bytes()).is_some()
        || path.strip_prefix(DESCRIPTORS.as_bytes()).is_some_and(of_descriptor)
}

/// Folder in which the thread that loads the library finds its descriptors.
const DESCRIPTORS: &str = "/proc/thread-self/fd";

/// Returns the path by which the target opens its descriptor `fd` of the library. The library's number is in it, as the linker
/// takes libraries of one path for one library. No component but dots may be added to a path in `/proc`, so each bit of the
/// number is a slash, with a dot if it is set.
fn descriptor_path(fd: u64, number: u64) -> String {
    format!("{DESCRIPTORS}{}{fd}", dots(number))
}

/// Returns the part of a descriptor's path that has the library's number. It ends with a slash.
fn dots(number: u64) -> String {
    let bits = (0..u64::BITS).map(|bit| if number >> bit & 1 == 0 { "/" } else { "/." });
    bits.chain(["/"]).collect()
}

/// Returns the name of the memfd that has the library, which is like the path of a file of it.
fn memfd_name(number: u64) -> String {
    format!("/{}/{NAME}", folder_name(number))
}

/// The library as a memfd of which the target has a descriptor.
pub(crate) struct LibraryInMemory {
    memfd: NewMemfd,
    /// Path of the descriptor as the target sees it.
    pub(crate) path: String,
}

impl LibraryInMemory {
    /// Has the target make the memfd, and writes the library to it.
    ///
    /// # Errors
    /// If that is not possible. The target has no descriptor of it then.
    pub(crate) fn new(pid: Pid, c: &mut Caller<'_>, number: u64) -> Result<Self> {
        let memfd = NewMemfd::make(pid, c, &memfd_name(number))?;
        if let Err(e) = (&memfd.file).write_all(HOOK) {
            let e = memfd.failed(e);
            return memfd.close(c).1.and(Err(e));
        }
        let seals =
            libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
        // Nobody needs to write to it any more. It works without the seals, too.
        // SAFETY: the descriptor is prof's own, and the other arguments are integers.
        unsafe { libc::fcntl(memfd.file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        let path = descriptor_path(memfd.number, number);
        Ok(Self { memfd, path })
    }

    /// Has the target close its descriptor.
    ///
    /// # Errors
    /// If that is not possible.
    pub(crate) fn close(self, c: &mut Caller<'_>) -> Result<()> {
        self.memfd.close(c).1
    }
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

/// Returns by which file a process answers for the file systems of others, if it does: /dev/fuse (fuse(4)), or a group of
/// fanotify(7). A thread that opens a file there waits for an answer of the process, which can't give one if all of its
/// threads are stopped, or if that is its only thread.
pub(crate) fn serves_files(pid: Pid) -> Option<&'static str> {
    let folder = fs::read_dir(format!("{}/fd", process::folder(pid))).ok()?;
    folder.flatten().find_map(|entry| {
        match fs::read_link(entry.path()).ok()?.as_os_str().as_encoded_bytes() {
            b"/dev/fuse" => Some("/dev/fuse"),
            b"anon_inode:[fanotify]" => Some("a group of fanotify"),
            _ => None,
        }
    })
}

/// Returns whether a process sees procfs where it would open a descriptor of the library. What that shows is told by its type
/// alone, as it may be that of a pid namespace which prof is not in.
pub(crate) fn sees_proc(pid: Pid) -> bool {
    let folder = format!("{}/root/proc", process::folder(pid));
    statfs(folder.as_str()).is_ok_and(|s| s.filesystem_type() == PROC_SUPER_MAGIC)
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
        // Whoever serves it may depend on this process, which stands still while the file is opened.
        if fstatfs(&file.folder)?.filesystem_type() == FUSE_SUPER_MAGIC {
            return Err(io::Error::other("a process serves it (FUSE)"));
        }
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
                Err(e) if !is_not_there(&e) => {
                    log::warn!("prof could not remove {} of the target: {e}", self.path);
                }
                _ => {}
            }
        }
    }
}

/// Returns whether an attempt to remove a file has failed as there is none. A file system that is read-only may say so first.
fn is_not_there(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ReadOnlyFilesystem)
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

    #[test]
    fn procfs_is_seen_by_its_type() {
        assert!(sees_proc(Pid::this()));
    }

    #[test]
    fn the_path_of_a_descriptor_has_the_number_of_the_library() {
        let file = fs::File::open("/proc/self/maps").expect("a descriptor");
        for number in [1, 0x8000_0000_0000_0000, 0xffff_ffff_ffff_ffff, new_number()] {
            let path = descriptor_path(file.as_raw_fd() as u64, number);
            assert_eq!(
                fs::canonicalize(&path).expect("the kernel finds it").file_name(),
                Some("maps".as_ref())
            );
            assert!(is_path(path.as_bytes(), number), "{path}");
            // Neither another number nor a beginning of this one.
            for other in (0..64).map(|bit| number ^ 1 << bit) {
                assert!(!is_path(path.as_bytes(), other), "{path} {other:#x}");
            }
        }
        let mapped = format!("/memfd:{} (deleted)", memfd_name(0x1234));
        assert!(is_path(mapped.as_bytes(), 0x1234) && is_library(mapped.as_bytes()));
        assert!(!is_path(b"/proc/thread-self/fd/5", 0) && !is_path(b"", 0));
    }
}
