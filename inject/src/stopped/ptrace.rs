//! Requests of ptrace(2) that nix does not have, or not in the form that prof needs. The others (seizing, interrupting,
//! options, letting go) are made by `nix::sys::ptrace`.

use nix::errno::Errno;
use prof_os::Pid;

/// Makes a request of a thread that this one traces.
///
/// nix lacks PTRACE_LISTEN, the signal masks, the seccomp filters, and the register sets of MIPS64 and of vectors; and
/// its `cont` and `syscall` take no realtime signals, which prof has to deliver like any other.
///
/// # Errors
/// The error of the system call.
pub(crate) fn ptrace(request: libc::c_uint, tid: Pid, addr: usize, data: usize) -> nix::Result<()> {
    // SAFETY: the requests used here read or write at most what their callers pass by pointer.
    let r = unsafe { libc::ptrace(request, tid.as_raw(), addr, data) };
    if r == -1 { Err(Errno::last()) } else { Ok(()) }
}
