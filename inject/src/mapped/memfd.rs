//! Memfds that a thread of the target makes for prof while all of its threads stand still.
//!
//! As long as one of the target's threads runs, the number of such a descriptor is not prof's: the thread may close it, be
//! given it for a file of its own, or fork a child that keeps it. So the memfd is made, proved to be prof's, used and closed
//! while nobody runs, and the number is free again before anybody can see that it was taken. The same holds for what is left
//! of a prof that was killed in between.

use crate::process::rings::{is_named, left};
use crate::stopped::remote::Caller;
use crate::{Error, Result};
use nix::errno::Errno;
use prof_arch::native::syscall::nr;
use prof_os::Pid;
use prof_trace::shared::{MAGIC, STABLE_AT, Stable};
use std::fs::{File, Metadata};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `memfd_create`: the file has no permission to be executed (Linux 6.3). It may be mapped as code all the same.
const MFD_NOEXEC_SEAL: u64 = 8;

/// A memfd of which the target has a descriptor.
pub(crate) struct NewMemfd {
    /// Number of the target's descriptor.
    pub(crate) number: u64,
    /// The file of that descriptor, which prof has open for reading and writing.
    pub(crate) file: File,
    /// Path of the target's descriptor as prof sees it.
    path: PathBuf,
}

impl NewMemfd {
    /// Has the target make an empty memfd with this name, which may be sealed.
    ///
    /// # Errors
    /// If it can't be made or opened. The target has no descriptor of it then.
    pub(crate) fn make(pid: Pid, c: &mut Caller<'_>, name: &str) -> Result<Self> {
        let number = create(pid, c, name)?;
        let path = c.proc_dir().join(format!("fd/{number}"));
        match open_new(pid, &path) {
            Ok(file) => Ok(Self { number, file, path }),
            Err(e) => close(c, number, &path).and(Err(e)),
        }
    }

    /// Has the target close its descriptor. Returns the file, and whether that was possible.
    pub(crate) fn close(self, c: &mut Caller<'_>) -> (File, Result<()>) {
        let closed = close(c, self.number, &self.path);
        (self.file, closed)
    }

    /// Returns the error of an operation on the file.
    pub(crate) fn failed(&self, errno: std::io::Error) -> Error {
        Error::File { path: self.path.clone(), errno }
    }
}

fn create(pid: Pid, c: &mut Caller<'_>, name: &str) -> Result<u64> {
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    // vm.memfd_noexec = 2 demands that it is said that the file is never executed; kernels before 6.3 do not know how to.
    for flags in [flags | MFD_NOEXEC_SEAL, flags] {
        let name = c.put(format!("{name}\0").as_bytes())?;
        match c.call("memfd_create", nr::MEMFD_CREATE, [name.0, flags, 0, 0, 0, 0]) {
            Err(Error::Remote { errno: Errno::EINVAL, .. }) => {}
            other => return other,
        }
    }
    Err(Error::Remote { what: "memfd_create", pid, errno: Errno::EINVAL })
}

/// Opens the memfd that was just made. That it is the one, and nothing of the target's, is looked at before
/// its size is changed.
fn open_new(pid: Pid, path: &Path) -> Result<File> {
    let failed = |errno| Error::File { path: path.into(), errno };
    let opened = File::options().read(true).write(true).open(path);
    let file = opened.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => exchanged(pid, "nothing is"),
        _ => failed(e),
    })?;
    let meta = file.metadata().map_err(failed)?;
    // SAFETY: a descriptor of ours, plain integers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    let open = seals >= 0
        && seals
            & (libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE)
            == 0;
    if is_named(path) && is_memory(&meta) && meta.len() == 0 && open {
        return Ok(file);
    }
    let link = std::fs::read_link(path).unwrap_or_default();
    Err(exchanged(pid, &format!("{} is", link.display())))
}

/// Returns whether a file has no name in any folder.
fn is_memory(meta: &Metadata) -> bool {
    meta.is_file() && meta.nlink() == 0
}

/// Closes the target's descriptor, if it still leads to a memfd of prof's.
fn close(c: &mut Caller<'_>, number: u64, path: &Path) -> Result<()> {
    let is_ours = is_named(path) && std::fs::metadata(path).is_ok_and(|m| is_memory(&m));
    if !is_ours {
        log::warn!(
            "another process has put a file of its own in the place of the descriptor that was made for prof, {}; it stays as it is",
            path.display()
        );
        return Ok(());
    }
    match c.call("close", nr::CLOSE, [number, 0, 0, 0, 0, 0]) {
        // A process that shares descriptors and is not stopped has done it.
        Ok(_) | Err(Error::Remote { errno: Errno::EBADF, .. }) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Returns the error for a descriptor of prof's whose number leads elsewhere.
pub(crate) fn exchanged(pid: Pid, what: &str) -> Error {
    let what = format!(
        "{what} under the descriptor that it has made for prof (does another process share its descriptors?); nothing was changed, try again"
    );
    Error::Nonsense { pid, what }
}

/// Closes what a killed prof has left; all threads of the target stand still. Another's ring is not touched:
/// the collector of another process has one open.
pub(crate) fn close_left(pid: Pid, c: &mut Caller<'_>) -> Result<()> {
    for (number, path) in left(&c.proc_dir()) {
        if is_leftover(pid, &path) {
            close(c, number, &path)?;
        }
    }
    Ok(())
}

/// Returns whether no other process owns a memfd as its ring: it has no control page, or that of process `pid`.
fn is_leftover(pid: Pid, path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let word = |at: usize| {
        let mut b = [0; 8];
        file.read_exact_at(&mut b, at as u64).ok().map(|()| b)
    };
    let owner = word(STABLE_AT + offset_of!(Stable, pid))
        .map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    match word(0).map(u64::from_ne_bytes) {
        Some(MAGIC) => owner == Some(pid.as_u32()),
        _ => true,
    }
}
