//! Calls of ptrace(2).

use nix::errno::Errno;

/// Makes a request of a thread that this one traces, or is to trace.
///
/// # Errors
/// The error of the system call.
pub(crate) fn ptrace(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> nix::Result<()> {
    // SAFETY: the requests used here read or write at most what their callers pass by pointer.
    let r = unsafe { libc::ptrace(request, tid, addr, data) };
    if r == -1 { Err(Errno::last()) } else { Ok(()) }
}
