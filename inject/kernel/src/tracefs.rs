//! Reads the descriptions of tracepoints from tracefs.

use crate::Error;
use crate::sys::checked;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The usual mount points of tracefs.
const PLACES: [&CStr; 2] = [c"/sys/kernel/tracing", c"/sys/kernel/debug/tracing"];
/// Longest description that is read, in bytes.
const MOST: u64 = 1 << 20;

/// `fsconfig`'s command that makes the file system.
const FSCONFIG_CMD_CREATE: libc::c_long = 6;

/// The root of a tracefs.
#[derive(Debug)]
pub(crate) struct Tracefs(OwnedFd);

impl Tracefs {
    /// Opens the mounted tracefs. If there is none, it makes one that is mounted nowhere, and that ends with this
    /// process.
    ///
    /// # Errors
    /// If there is none, and the kernel refuses to make one.
    pub(crate) fn open() -> Result<Self, Error> {
        for place in PLACES {
            let root = open_at(libc::AT_FDCWD, place, libc::O_PATH | libc::O_DIRECTORY);
            // The folder exists also where nothing is mounted on it.
            if let Ok(root) = root.map(Tracefs)
                && open_at(root.0.as_raw_fd(), c"events/kmem", libc::O_PATH).is_ok()
            {
                return Ok(root);
            }
        }
        detached().map(Tracefs).map_err(Error::NoTracefs)
    }

    /// Reads the description of a tracepoint, such as `kmem/kmalloc`.
    ///
    /// # Errors
    /// If there is no such tracepoint, or reading it fails.
    pub(crate) fn format(&self, tracepoint: &str) -> io::Result<String> {
        let path = std::ffi::CString::new(format!("events/{tracepoint}/format"))?;
        let mut text = String::new();
        let file = File::from(open_at(self.0.as_raw_fd(), &path, libc::O_RDONLY)?);
        file.take(MOST).read_to_string(&mut text)?;
        Ok(text)
    }
}

fn open_at(folder: i32, path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the path is a string that ends with a zero byte.
    let fd = unsafe { libc::openat(folder, path.as_ptr(), flags | libc::O_CLOEXEC) };
    let fd = checked(fd.into())?;
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Makes a mount of tracefs that has no place in the tree of folders.
fn detached() -> io::Result<OwnedFd> {
    let own = |fd: libc::c_long| {
        // SAFETY: the descriptor is new, and nobody else has it.
        checked(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) })
    };
    // SAFETY: the name is a string that ends with a zero byte; flag 1 closes the descriptor at an exec.
    let context = own(unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), 1) })?;
    let none = std::ptr::null::<libc::c_char>();
    let fd = context.as_raw_fd();
    // SAFETY: this command takes neither key nor value.
    checked(unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0) })?;
    // SAFETY: the call takes numbers alone; flag 1 closes the descriptor at an exec.
    own(unsafe { libc::syscall(libc::SYS_fsmount, fd, 1, 0) })
}
