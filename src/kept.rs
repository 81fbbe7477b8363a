//! Tracks the file of a recording while it is being written. If it is deleted or moved, or its file system is
//! unmounted, the collector still has it open, so it can be saved.

use prof_collect::{Peek, create_recording};
use prof_os::Pid;
use prof_os::process::is_running;
use prof_trace::chunk::{self, FILE_HEADER, Next};
use prof_trace::records::kind;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

/// Number of bytes at a recording's front that surely contain its target.
const FRONT: usize = 1 << 22;

/// Location of a recording's file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// At its original path.
    There,
    /// The file was renamed.
    Moved(PathBuf),
    /// The file was deleted and has no name.
    Deleted,
    /// The file has a name, but in no folder that is visible from here: its file system was unmounted.
    Unmounted,
}

/// The file of a recording, held open.
pub(crate) struct Kept {
    file: File,
    path: PathBuf,
}

/// A recording that was not at its original path.
pub(crate) struct Displaced {
    /// Present path of the recording; `None` if it is lost.
    pub path: Option<PathBuf>,
    /// Message for the user.
    pub message: String,
    /// Whether the file was renamed, so that nothing had to be saved.
    pub moved: bool,
}

impl Kept {
    /// Creates it for a recording made at an absolute path.
    pub(crate) fn new(file: File, path: PathBuf) -> Self {
        Self { file, path }
    }

    /// Opens the recording that a collector is writing. This needs a collector of the same program and user, in the
    /// same mount namespace and root. The path that the target names is not trusted.
    pub(crate) fn of(peek: &Peek) -> Option<Self> {
        let (pid, start) = peek.collector;
        if !peek.collector_alive || pid == Pid::this() || !is_running(pid, start) {
            return None;
        }
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let (theirs, ours) = (&dir, Path::new("/proc/self"));
        let is_one = |name: &str| same(&theirs.join(name), &ours.join(name));
        let user = nix::unistd::geteuid().as_raw();
        if fs::metadata(&dir).ok()?.uid() != user
            || !["exe", "root", "ns/mnt"].into_iter().all(is_one)
        {
            return None;
        }
        let arguments = fs::read(dir.join("cmdline")).ok()?;
        let mut words = arguments.split(|b| *b == 0);
        let mut after = |name: &str| {
            words.find(|w| *w == name.as_bytes())?;
            Some(OsStr::from_bytes(words.next()?).to_owned())
        };
        // In the order in which the recorder passes them.
        let fd = after("--out-fd")?;
        let path: PathBuf = after("--path")?.into();
        let file = File::open(dir.join("fd").join(fd)).ok()?;
        is_running(pid, start).then_some(Self { file, path })
    }

    /// Takes responsibility for saving the recording, until this is dropped; returns false if another process has it.
    pub(crate) fn lock(&self) -> bool {
        self.file.try_lock().is_ok()
    }

    /// Finds out where the file is.
    pub(crate) fn place(&self) -> Location {
        let Ok(held) = self.file.metadata() else { return Location::There };
        let is_at = |p: &Path| {
            fs::symlink_metadata(p).is_ok_and(|m| (m.dev(), m.ino()) == (held.dev(), held.ino()))
        };
        if is_at(&self.path) || self.is_folded() {
            return Location::There;
        }
        if held.nlink() == 0 {
            return Location::Deleted;
        }
        match fs::read_link(self.link()) {
            Ok(now) if is_at(&now) => Location::Moved(now),
            _ => Location::Unmounted,
        }
    }

    /// Returns whether the path leads to the same recording, which the collector has folded into another file
    /// (`--on-limit drop-oldest`).
    fn is_folded(&self) -> bool {
        let front = |file: &File| {
            let mut front = vec![0; FRONT];
            let n = file.read_at(&mut front, 0).ok()?;
            front.truncate(n);
            Some(front)
        };
        let there = prof_os::files::open_regular(&self.path).ok().and_then(|file| front(&file));
        let (Some(here), Some(there)) = (front(&self.file), there) else { return false };
        let target = |bytes: &[u8]| match chunk::next(bytes.get(FILE_HEADER..).unwrap_or(&[])) {
            Next::Chunk(kind::TARGET, payload, _) => Some(payload.to_vec()),
            _ => None,
        };
        let is_one = target(&here).is_some_and(|t| Some(t) == target(&there));
        is_one && there.starts_with(&chunk::folded_header())
    }

    /// Returns the file's descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Returns a path that leads to the open file wherever it is, as long as this lives.
    pub(crate) fn link(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Describes why it is not at its original path.
    pub(crate) fn describe(&self) -> Option<String> {
        match self.place() {
            Location::There => None,
            Location::Moved(to) => Some(format!("moved to {}", to.display())),
            Location::Deleted => Some("deleted".into()),
            Location::Unmounted => Some("its file system was unmounted".into()),
        }
    }

    /// Saves a file that has no visible name any more: at its original path, in one of these folders, or among
    /// temporary files. Returns `None` if it is at its original path.
    pub(crate) fn save_displaced(&self, folders: &[PathBuf]) -> Option<Displaced> {
        let why = match self.place() {
            Location::There => return None,
            Location::Moved(to) => {
                let message =
                    format!("the recording {} was moved to {}", self.path.display(), to.display());
                return Some(Displaced { path: Some(to), message, moved: true });
            }
            Location::Deleted => "was deleted while it was being written",
            Location::Unmounted => "went with its file system, which was unmounted",
        };
        let was = format!("the recording {} {why}", self.path.display());
        Some(match self.save(folders) {
            Ok(path) => {
                let message = format!("{was}; saved it as {}", path.display());
                Displaced { path: Some(path), message, moved: false }
            }
            Err(e) => {
                let message = format!("{was}, and can't be saved: {e}");
                Displaced { path: None, message, moved: false }
            }
        })
    }

    fn save(&self, folders: &[PathBuf]) -> io::Result<PathBuf> {
        let name = self.path.file_name().unwrap_or(OsStr::new("recording.prof"));
        let own = self.path.parent().map(Path::to_owned);
        let temporary = std::env::temp_dir();
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for folder in own.into_iter().chain(folders.iter().cloned()).chain([temporary]) {
            match self.save_in(&folder, name) {
                Ok(path) => return Ok(path),
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    /// Copies it into a folder, under its name or a similar one.
    fn save_in(&self, folder: &Path, name: &OsStr) -> io::Result<PathBuf> {
        let opened = open_folder(folder)?;
        let at = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        for n in 1..100 {
            let mut name = name.to_owned();
            if n > 1 {
                name.push(format!(".{n}"));
            }
            match create_recording(&at.join(&name)) {
                Ok(to) => {
                    return copy(&self.file, &to).map(|()| folder.join(&name)).inspect_err(|_| {
                        let _ = fs::remove_file(at.join(&name));
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Displaced {
    /// Encodes it for a pipe.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let path = self.path.as_ref().map_or(OsStr::new(""), |p| p.as_os_str());
        [&[self.moved.into()], path.as_bytes(), &[0], self.message.as_bytes()].concat()
    }

    /// Decodes it; `None` if there is nothing.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (moved, bytes) = bytes.split_first()?;
        let end = bytes.iter().position(|b| *b == 0)?;
        let path = (end > 0).then(|| OsString::from_vec(bytes[..end].to_vec()).into());
        let message = String::from_utf8_lossy(&bytes[end + 1..]).into_owned();
        Some(Self { path, message, moved: *moved != 0 })
    }
}

/// Returns whether two paths lead to the same file.
fn same(a: &Path, b: &Path) -> bool {
    let id = |p: &Path| fs::metadata(p).map(|m| (m.dev(), m.ino()));
    matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
}

/// Opens a folder without following symbolic links: the owner of a folder on the path could have put one there since.
fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    for part in path.components() {
        let name = match part {
            Component::RootDir => "/".into(),
            Component::Normal(name) => name.to_owned(),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let name = std::ffi::CString::new(name.into_vec())?;
        let dir = at.as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `name` is a valid C string; the result is a new descriptor, or -1.
        let fd = unsafe { libc::openat(dir, name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        at = Some(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    at.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn copy(from: &File, to: &File) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let n = from.read_at(&mut bytes, at)?;
        if n == 0 {
            return Ok(());
        }
        to.write_all_at(&bytes[..n], at)?;
        at += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_moved_and_replaced_is_found_or_saved() {
        let all = std::env::temp_dir().canonicalize().expect("temporary files");
        let dir = all.join(format!("prof-kept-{}", std::process::id()));
        let inner = dir.join("inner");
        fs::create_dir_all(&inner).expect("folder");
        let path = inner.join("a.prof");
        let file = create_recording(&path).expect("a file");
        file.write_all_at(b"events", 0).expect("write");
        let kept = Kept::new(file, path.clone());
        assert!(kept.save_displaced(&[]).is_none());
        let moved = inner.join("b.prof");
        fs::rename(&path, &moved).expect("rename");
        fs::write(&path, "somebody else's").expect("write");
        assert_eq!(kept.place(), Location::Moved(moved.clone()));
        assert_eq!(kept.save_displaced(&[]).and_then(|d| d.path), Some(moved.clone()));
        fs::remove_file(&moved).expect("remove");
        assert_eq!(kept.place(), Location::Deleted);
        let saved = kept.save_displaced(&[]).expect("displaced");
        assert_eq!(saved.path, Some(inner.join("a.prof.2")));
        assert_eq!(fs::read(inner.join("a.prof.2")).expect("read"), b"events");
        assert_eq!(fs::read(&path).expect("read"), b"somebody else's");
        fs::remove_dir_all(&inner).expect("remove");
        // A symbolic link in the place of a folder is not followed.
        std::os::unix::fs::symlink(&dir, &inner).expect("link");
        let saved = kept.save_displaced(std::slice::from_ref(&dir)).expect("displaced");
        assert_eq!(saved.path, Some(dir.join("a.prof")));
        let read = Displaced::decode(&saved.encode()).expect("something");
        assert_eq!((read.path, read.message), (saved.path, saved.message));
        assert!(Displaced::decode(b"").is_none());
        fs::remove_dir_all(&dir).expect("remove");
    }
}
