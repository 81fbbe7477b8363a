//! Opens files that somebody else may have put there: never a device, never a FIFO, and nothing outside of
//! the intended root directory.
//!
//! A recorded process controls the paths in its mappings and what lies at them. So each file is inspected
//! (`O_PATH`) before it is opened for reading: opening a FIFO or a device can block or have side effects.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Error, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links on one path, as in the kernel.
const LINKS: usize = 40;

/// Opens a regular file for reading; anything else is an error.
///
/// # Errors
/// If opening fails; [`ErrorKind::InvalidInput`] if it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    reopen(open_at(None, path, libc::O_PATH)?)
}

/// Opens a regular file below the directory `root`, as a process with that root directory sees it: symbolic
/// links are resolved within it, and `..` never leads out of it.
///
/// # Errors
/// As [`open_regular`].
pub fn open_below(root: &Path, path: &Path) -> io::Result<File> {
    reopen(find_below(root, path)?)
}

/// Finds a directory below the directory `root` as [`open_below`] does, and returns an `O_PATH` descriptor of it.
///
/// # Errors
/// If there is none, or something else; [`ErrorKind::NotADirectory`] then.
pub fn folder_below(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let fd = find_below(root, path)?;
    match kind(fd.as_fd())? {
        libc::S_IFDIR => Ok(fd),
        _ => Err(Error::from_raw_os_error(libc::ENOTDIR)),
    }
}

/// Returns an `O_PATH` descriptor of what lies at a path below the directory `root`.
fn find_below(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let folder = libc::O_PATH | libc::O_DIRECTORY;
    // Directories on the way, the root first; `..` removes the last.
    let mut way = vec![open_at(None, root, folder)?];
    let mut rest: Vec<OsString> = Vec::new();
    push(&mut rest, path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            if way.len() > 1 {
                way.pop();
            }
            continue;
        }
        let Some(here) = way.last() else { break };
        let fd = open_at(Some(here.as_fd()), Path::new(&name), libc::O_PATH | libc::O_NOFOLLOW)?;
        match kind(fd.as_fd())? {
            libc::S_IFLNK => {
                links += 1;
                if links > LINKS {
                    return Err(Error::from_raw_os_error(libc::ELOOP));
                }
                let to = read_link(fd.as_fd())?;
                if to.is_absolute() {
                    way.truncate(1);
                }
                push(&mut rest, &to);
            }
            libc::S_IFDIR => way.push(fd),
            _ if rest.is_empty() => return Ok(fd),
            _ => return Err(Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }
    way.pop().ok_or_else(not_regular)
}

/// Reads at most `limit` bytes of a file whose length somebody else controls, such as one in `/proc`.
///
/// # Errors
/// If opening or reading fails.
pub fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns a copy of the descriptor of this process that a path stands for: `/dev/stdout`, `/dev/stderr`, `/dev/fd/N`,
/// `/proc/self/fd/N`, or a link to one of these; `None`: the path is of something else.
///
/// Opened by such a path, a file is written to from its start; and whoever makes a new file of that name replaces the
/// link in `/dev`.
#[must_use]
pub fn own_descriptor(path: &Path) -> Option<io::Result<File>> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        if let Some(fd) = descriptor_number(&path) {
            // SAFETY: the descriptor is only copied; `fcntl` says so if it is not open.
            let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            if copy < 0 {
                return Some(Err(Error::last_os_error()));
            }
            // SAFETY: the descriptor is new, and nothing else owns it.
            return Some(Ok(unsafe { File::from_raw_fd(copy) }));
        }
        let to = std::fs::read_link(&path).ok()?;
        path = path.parent()?.join(to);
    }
    None
}

/// Returns the number of the descriptor that a path names.
fn descriptor_number(path: &Path) -> Option<i32> {
    match path.to_str()? {
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        text => {
            let number = text.strip_prefix("/dev/fd/").or(text.strip_prefix("/proc/self/fd/"))?;
            number.parse().ok().filter(|n| *n >= 0)
        }
    }
}

/// Pushes the components of a path onto the stack of those still to be resolved.
fn push(rest: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev().filter_map(|c| match c {
        Component::Normal(name) => Some(name.into()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    rest.extend(names);
}

fn not_regular() -> Error {
    Error::new(ErrorKind::InvalidInput, "not a regular file")
}

fn open_at(dir: Option<BorrowedFd<'_>>, path: &Path, flags: i32) -> io::Result<OwnedFd> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let dir = dir.map_or(libc::AT_FDCWD, |d| d.as_raw_fd());
    // SAFETY: `name` is a valid C string; the call returns a new descriptor or -1.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the file type bits of the mode.
fn kind(fd: BorrowedFd<'_>) -> io::Result<libc::mode_t> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the struct consists of integers, so zeroes are valid; the call writes no more than it.
    let stat = unsafe {
        if libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) != 0 {
            return Err(Error::last_os_error());
        }
        stat.assume_init()
    };
    Ok(stat.st_mode & libc::S_IFMT)
}

fn read_link(fd: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let mut to = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: an empty C string, and a buffer of the given length.
    let n =
        unsafe { libc::readlinkat(fd.as_raw_fd(), c"".as_ptr(), to.as_mut_ptr().cast(), to.len()) };
    if n < 0 {
        return Err(Error::last_os_error());
    }
    to.truncate(n as usize);
    Ok(PathBuf::from(OsString::from_vec(to)))
}

/// Reopens an `O_PATH` descriptor for reading.
fn reopen(fd: OwnedFd) -> io::Result<File> {
    if kind(fd.as_fd())? != libc::S_IFREG {
        return Err(not_regular());
    }
    File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn text(file: io::Result<File>) -> String {
        let mut s = String::new();
        file.expect("opens").read_to_string(&mut s).expect("reads");
        s
    }

    #[test]
    fn only_regular_files_below_the_root_are_opened() {
        let dir = std::env::temp_dir().join(format!("prof-files-{}", std::process::id()));
        let root = dir.join("root");
        fs::create_dir_all(root.join("usr/lib")).expect("folders");
        fs::write(dir.join("secret"), "outside").expect("file");
        fs::write(root.join("secret"), "inside").expect("file");
        fs::write(root.join("usr/lib/a"), "a").expect("file");
        let link = |to: &str, at: &str| symlink(to, root.join(at)).expect("link");
        link("usr/lib", "lib");
        link("/usr/lib/a", "usr/lib/b");
        link("../../../../secret", "usr/out");
        link("round", "round");
        link(dir.join("secret").to_str().expect("UTF-8"), "absolute");
        let below = |path: &str| open_below(&root, Path::new(path));
        assert_eq!(text(below("/usr/lib/a")), "a");
        assert_eq!(text(below("lib/b")), "a");
        assert_eq!(text(below("/usr/out")), "inside");
        assert_eq!(text(below("/../../secret")), "inside");
        assert_eq!(below("/round").expect_err("a loop").raw_os_error(), Some(libc::ELOOP));
        assert_eq!(below("/absolute").expect_err("outside").kind(), ErrorKind::NotFound);
        assert!(below("/secret/x").is_err() && below("/usr").is_err() && below("").is_err());
        let folder = |path: &str| folder_below(&root, Path::new(path)).map(|_| ());
        assert!(folder("/lib").is_ok() && folder("/usr/../..").is_ok());
        let not = folder("/secret").expect_err("a file").raw_os_error();
        assert_eq!(not, Some(libc::ENOTDIR));

        let fifo = root.join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: a valid C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        // Neither call blocks.
        assert_eq!(below("/fifo").expect_err("a FIFO").kind(), ErrorKind::InvalidInput);
        assert_eq!(open_regular(&fifo).expect_err("a FIFO").kind(), ErrorKind::InvalidInput);
        assert!(open_regular(Path::new("/dev/zero")).is_err());
        assert_eq!(text(open_regular(&root.join("lib/a"))), "a");
        fs::remove_dir_all(dir).expect("remove");
    }
}
