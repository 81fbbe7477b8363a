//! The file of the ring: its size, its pages, and its mapping in this process.

use crate::{Error, Result};
use nix::errno::Errno;
use prof_os::Pid;
use prof_trace::shared::{Geometry, Shared};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

fn checked(pid: Pid, geometry: Geometry, what: &'static str, r: i32) -> Result<()> {
    match Errno::last() {
        _ if r == 0 => Ok(()),
        Errno::EFBIG => Err(Error::FileLimit(geometry.size())),
        errno => Err(Error::Sys { what, pid, errno }),
    }
}

/// Gives the memfd its size and seals it against shrinking, so that nobody who maps it can get SIGBUS. This is quick,
/// since all threads of the target are stopped.
pub(crate) fn size_ring(pid: Pid, f: &File, geometry: Geometry) -> Result<()> {
    let fd = f.as_raw_fd();
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: the descriptor is ours, and all other arguments are integers.
    unsafe {
        let sized = libc::ftruncate64(fd, geometry.size() as i64);
        checked(pid, geometry, "set the size of the ring for", sized)?;
        checked(
            pid,
            geometry,
            "seal the size of the ring for",
            libc::fcntl(fd, libc::F_ADD_SEALS, seals),
        )
    }
}

/// Allocates the pages that are used from the first event on, so that the kernel charges them to prof.
pub(crate) fn allocate_ring(pid: Pid, fd: &OwnedFd, geometry: Geometry) -> Result<()> {
    for (at, len) in geometry.hot_ranges() {
        // SAFETY: the descriptor is ours, and all other arguments are integers.
        let made = unsafe { libc::fallocate64(fd.as_raw_fd(), 0, at as i64, len as i64) };
        checked(pid, geometry, "allocate the ring of", made)?;
    }
    Ok(())
}

/// Maps the ring into this process, until [`unmap_ring`] or for good.
pub(crate) fn map_ring(fd: &File, geometry: Geometry) -> Result<Shared<'static>> {
    // SAFETY: the mapping is new, and the file has this size and can't shrink.
    unsafe {
        let p = libc::mmap(
            std::ptr::null_mut(),
            geometry.size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        );
        if p == libc::MAP_FAILED {
            return Err(Error::Own { what: "map the ring", errno: Errno::last() });
        }
        Ok(Shared::new(p.cast(), geometry))
    }
}

/// Unmaps what [`map_ring`] has mapped.
///
/// # Safety
/// After the call, neither references obtained from `shared` nor other copies of it may be used.
pub(crate) unsafe fn unmap_ring(shared: Shared<'static>) {
    // SAFETY: it was mapped with that size, and the caller promises that nothing uses it any more.
    unsafe { libc::munmap(shared.base().cast(), shared.geometry().size()) };
}
