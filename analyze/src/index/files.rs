//! Creates, names and removes the files of indexes.

use super::path_of;
use crate::symbols::cache_folder;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An index in the cache folder that was not used for this long is removed when another is made there.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns the paths where the index of a recording may be: beside it and in the user's cache folder, or only in `dir`
/// if that is given.
pub(super) fn places(recording: &Path, dir: Option<&Path>) -> Vec<PathBuf> {
    let named = |dir: &Path| {
        let name = recording.file_name().unwrap_or_default().to_string_lossy();
        let full = fs::canonicalize(recording).unwrap_or_else(|_| recording.to_owned());
        let hash = prof_trace::chunk::checksum(2, full.as_os_str().as_bytes());
        // File names are limited to 255 bytes.
        let start: String = name.chars().take(40).collect();
        dir.join(format!("{start}.{hash:016x}.idx"))
    };
    match dir {
        Some(dir) => vec![named(dir)],
        None => {
            let cached = cache_folder("index").map(|dir| named(&dir));
            [path_of(recording)].into_iter().chain(cached).collect()
        }
    }
}

/// A file, such as an index, that stays unnamed until it is complete, so that a killed prof leaves nothing behind.
/// Where the file system does not support that, the file has a temporary name, and is removed on a signal or if it is
/// not kept.
pub(crate) struct NewFile {
    file: Option<File>,
    /// Another descriptor of the file, by which it gets its name.
    named: File,
    /// The temporary name, if it has one.
    name: Option<PathBuf>,
    at: PathBuf,
    kept: bool,
}

impl NewFile {
    /// Creates the file in the first of the possible folders where that succeeds.
    pub(super) fn of(recording: &Path, dir: Option<&Path>) -> io::Result<Self> {
        let mut first = None;
        for (i, at) in places(recording, dir).into_iter().enumerate() {
            if (i > 0 || dir.is_some())
                && let Some(folder) = at.parent()
            {
                let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
                if dir.is_none() {
                    forget_old(folder);
                }
            }
            match Self::at(at, Some(recording)) {
                Ok(place) => return Ok(place),
                Err(e) => first = first.or(Some(e)),
            }
        }
        Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    /// Creates the file in an existing folder, with the permissions of `like`.
    pub(crate) fn at(at: PathBuf, like: Option<&Path>) -> io::Result<Self> {
        sweep(&at);
        let folder = at.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // An index tells as much as its recording, so only the user may read it.
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let unnamed = options.clone().custom_flags(libc::O_TMPFILE).open(folder);
        let (file, name) = match unnamed {
            Ok(file) => (file, None),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EROFS)) => {
                return Err(e);
            }
            Err(_) => {
                let name = temporary(&at);
                let _ = fs::remove_file(&name);
                let file = options.create_new(true).open(&name)?;
                at_signals::remove(&name);
                (file, Some(name))
            }
        };
        if let Some(m) = like.and_then(|p| fs::metadata(p).ok()) {
            let _ = file.set_permissions(m.permissions());
        }
        let named = file.try_clone()?;
        Ok(Self { file: Some(file), named, name, at, kept: false })
    }

    /// Returns the file to write to; `None` if it was taken before.
    pub(crate) fn take(&mut self) -> Option<File> {
        self.file.take()
    }

    /// Gives the file its final name, and returns that; `None` if it fails.
    pub(crate) fn keep(mut self) -> Option<PathBuf> {
        let name = match self.name.take() {
            Some(name) => name,
            // `linkat` can't replace an older index, so the file gets a temporary name to be renamed from.
            None => {
                let name = temporary(&self.at);
                let _ = fs::remove_file(&name);
                link(&self.named, &name).ok()?;
                name
            }
        };
        self.name = Some(name);
        fs::rename(self.name.as_ref()?, &self.at).ok()?;
        self.kept = true;
        at_signals::forget();
        Some(self.at.clone())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let (false, Some(name)) = (self.kept, &self.name) {
            let _ = fs::remove_file(name);
            at_signals::forget();
        }
    }
}

fn temporary(at: &Path) -> PathBuf {
    let mut name = at.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    name.into()
}

/// Gives an unnamed file a name.
fn link(file: &File, name: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(name.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both pointers are to strings that end with NUL and live until the call has returned.
    let rc = unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes indexes that have not been used for [`KEPT`].
fn forget_old(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_index = entry.path().extension().is_some_and(|x| x == "idx");
        let used = entry.metadata().ok().and_then(|m| m.accessed().ok().max(m.modified().ok()));
        let old = used.is_some_and(|t| t.elapsed().is_ok_and(|t| t > KEPT));
        if is_index && old {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes a temporary file if a signal ends the program.
mod at_signals {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::Once;
    use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

    static NAME: AtomicPtr<libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

    extern "C" fn ended(signal: i32) {
        let name = NAME.swap(std::ptr::null_mut(), SeqCst);
        // SAFETY: a signal handler may make these calls, and the name is never freed once it has been published in
        // `NAME`.
        unsafe {
            if !name.is_null() {
                libc::unlink(name);
            }
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }

    /// Sets the file to remove, and installs the handlers.
    pub(super) fn remove(path: &Path) {
        static ONCE: Once = Once::new();
        let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return };
        NAME.store(name.into_raw(), SeqCst);
        ONCE.call_once(|| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                // Signals that are already handled or ignored keep their action.
                if prof_os::signals::is_default(signal) {
                    // SAFETY: the handler only makes calls that a signal handler may make.
                    let _ = unsafe { prof_os::signals::handle(signal, ended) };
                }
            }
        });
    }

    /// Stops a signal from removing the file: it is kept, or already gone.
    pub(super) fn forget() {
        NAME.store(std::ptr::null_mut(), SeqCst);
    }
}

/// Removes temporary files that a killed prof left behind.
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

/// Returns an unnamed file in the folder for temporary files if it is `wanted` and can be created.
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
