//! The folder of a family: a recording for each process, and the journal.

use super::journal::{self, Journal};
use crate::failure::usage;
use crate::new_file::{local_time, plain_name};
use anyhow::{Context, Result};
use prof_os::Pid;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Name of the file whose presence says that the recordings of the family are off.
const PAUSED: &str = "paused";

/// The folder of a family.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

/// The right to attach to the processes of a folder's family, which one prof has at a time: an advisory lock on the
/// journal. It passes on to a supervisor that is forked, and ends with the last process that has it.
#[derive(Debug)]
pub(crate) struct FolderLock(File);

impl FolderLock {
    /// Returns the descriptor that holds the lock.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Returns whether the folder's journal is another file by now, or gone.
    pub(crate) fn is_displaced(&self, folder: &Folder) -> bool {
        let id = |m: fs::Metadata| (m.dev(), m.ino());
        match (self.0.metadata().map(id), fs::metadata(folder.path.join(journal::NAME)).map(id)) {
            (Ok(own), Ok(now)) => own != now,
            (_, Err(e)) => e.kind() == ErrorKind::NotFound,
            _ => false,
        }
    }

    /// Says in the file's time that its holder is at work; that is how another prof knows since when it is not.
    pub(crate) fn beat(&self) {
        let _ = self.0.set_modified(SystemTime::now());
    }
}

impl Folder {
    /// Creates a folder: the requested one, or `./prof.NAME.TIME`.
    ///
    /// # Errors
    /// If it exists already, or can't be created.
    pub(crate) fn create(wanted: Option<&Path>, name: &str) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = local_time(now.as_secs() as i64);
        let mut builder = DirBuilder::new();
        // As with recordings, only the owner may read them.
        builder.mode(0o700);
        for n in 1..100 {
            let more = if n == 1 { String::new() } else { format!("-{n}") };
            let default = || format!("./prof.{}.{time}{more}", plain_name(name)).into();
            let path: PathBuf = wanted.map_or_else(default, Path::to_owned);
            match builder.create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(e) if e.kind() == ErrorKind::AlreadyExists && wanted.is_none() => {}
                Err(e) => {
                    let why = match e.kind() {
                        ErrorKind::AlreadyExists => exists(&path),
                        _ => e.to_string(),
                    };
                    let path = path.display();
                    return Err(usage(format!(
                        "cannot create the folder {path}: {why}; give another with -o"
                    )));
                }
            }
        }
        Err(usage("too many recordings of this second; give a folder with -o"))
    }

    /// Returns the folder of a family at this path; `None` if it is none.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        (path.is_dir() && path.join(journal::NAME).is_file()).then(|| Self { path: path.into() })
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its path from the root, as targets name their recordings.
    pub(crate) fn absolute(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    /// Opens its journal for writing.
    ///
    /// # Errors
    /// If it can't be written.
    pub(crate) fn journal(&self) -> Result<Journal> {
        Journal::open(&self.path.join(journal::NAME))
    }

    /// Locks the folder; `None` if another prof attaches to processes of its family. Where the file system has no locks,
    /// there is nothing that could be locked by another.
    ///
    /// # Errors
    /// If the journal can't be written.
    pub(crate) fn lock(&self) -> Result<Option<FolderLock>> {
        let path = self.path.join(journal::NAME);
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            _ => Ok(Some(FolderLock(file))),
        }
    }

    /// Returns whether the family is paused, so that recordings of new processes begin off.
    pub(crate) fn is_paused(&self) -> bool {
        fs::symlink_metadata(self.path.join(PAUSED)).is_ok()
    }

    /// Says that the family is paused, or is not any more.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub(crate) fn set_paused(&self, is_paused: bool) -> io::Result<()> {
        let path = self.path.join(PAUSED);
        // A link that somebody has put there is not followed.
        let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let (done, is_so) = match is_paused {
            true => (create().map(drop), ErrorKind::AlreadyExists),
            false => (fs::remove_file(&path), ErrorKind::NotFound),
        };
        done.or_else(|e| if e.kind() == is_so { Ok(()) } else { Err(e) })
    }

    /// Returns when a prof that had the folder's lock was last at work, or wrote to the journal.
    pub(crate) fn last_beat(&self) -> Option<SystemTime> {
        fs::metadata(self.path.join(journal::NAME)).and_then(|m| m.modified()).ok()
    }

    /// Returns the files of recordings in the folder, which may be those of earlier processes.
    pub(crate) fn recordings(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_hidden = |p: &Path| p.file_name().is_none_or(|n| n.as_encoded_bytes()[0] == b'.');
        let is_file = |p: &Path| fs::symlink_metadata(p).is_ok_and(|m| m.is_file());
        let is_ours = |p: &PathBuf| p.extension().is_some_and(|x| x == "prof");
        let all = entries.map(|e| e.path()).filter(is_ours);
        all.filter(|p| !is_hidden(p) && is_file(p)).collect()
    }

    /// Returns a path for the recording of a process, which does not exist yet.
    pub(crate) fn new_recording(&self, comm: &str, pid: Pid) -> PathBuf {
        let name = if comm.is_empty() { "unknown".into() } else { plain_name(comm) };
        let named = |n: u32| match n {
            1 => self.path.join(format!("{name}.{pid}.prof")),
            n => self.path.join(format!("{name}.{pid}.{n}.prof")),
        };
        let free = (1..10_000).map(named).find(|p| fs::symlink_metadata(p).is_err());
        free.unwrap_or_else(|| named(10_000))
    }

    /// Removes the folder, if nothing was recorded to it.
    pub(crate) fn remove(&self) {
        for name in [journal::NAME, PAUSED] {
            let _ = fs::remove_file(self.path.join(name));
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Says that a folder exists, and how the recordings of a family in it go on.
fn exists(path: &Path) -> String {
    match Folder::open(path) {
        Some(_) => format!(
            "it exists; where prof was killed, `prof attach` with the options of the family and -o {} goes on in it",
            path.display()
        ),
        None => "it exists".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_a_journal_and_a_name_for_each_recording() {
        let path = std::env::temp_dir().join(format!("prof-folder-{}", std::process::id()));
        let folder = Folder::create(Some(&path), "x").expect("new");
        assert!(Folder::open(&path).is_none(), "it has no journal yet");
        folder.journal().expect("a journal");
        assert!(Folder::open(&path).is_some());
        assert!(Folder::create(Some(&path), "x").is_err());
        let lock = folder.lock().expect("a journal");
        assert!(lock.is_some() && folder.lock().expect("a journal").is_none());
        std::fs::File::open(path.join(journal::NAME)).expect("open").set_modified(UNIX_EPOCH).ok();
        lock.iter().for_each(FolderLock::beat);
        assert!(folder.last_beat().is_some_and(|t| t.elapsed().is_ok_and(|d| d.as_secs() < 60)));
        let lock = lock.filter(|lock| !lock.is_displaced(&folder)).expect("its journal is there");
        let aside = path.join("aside");
        fs::rename(path.join(journal::NAME), &aside).expect("renamed");
        assert!(lock.is_displaced(&folder), "it is gone");
        fs::copy(&aside, path.join(journal::NAME)).expect("copied");
        assert!(lock.is_displaced(&folder), "it is another one");
        fs::rename(&aside, path.join(journal::NAME)).expect("renamed");
        assert!(!lock.is_displaced(&folder));
        drop(lock);
        assert!(folder.lock().expect("a journal").is_some());
        let pid = Pid::from_raw(7);
        let first = folder.new_recording("a b", pid);
        assert_eq!(first, path.join("a_b.7.prof"));
        fs::write(&first, "").expect("written");
        fs::write(path.join(".hidden.prof"), "").expect("written");
        assert_eq!(folder.recordings(), std::slice::from_ref(&first));
        fs::remove_file(path.join(".hidden.prof")).expect("removed");
        assert_eq!(folder.new_recording("a b", pid), path.join("a_b.7.2.prof"));
        for is_paused in [true, true, false, false, true] {
            folder.set_paused(is_paused).expect("it can be written");
            assert_eq!(folder.is_paused(), is_paused);
        }
        folder.remove();
        assert!(path.exists(), "a recording is in it");
        fs::remove_file(first).expect("removed");
        folder.journal().expect("a journal");
        folder.remove();
        assert!(!path.exists());
    }
}
