//! Turns a process that prof starts for itself into a daemon.

use std::os::fd::RawFd;

/// Runs in the child: makes a new session, so that no terminal's signals reach it, and closes all descriptors but its
/// own, so that no process waits for the end of a pipe that it holds.
pub(crate) fn become_daemon(keep: &[RawFd], open: &[RawFd]) -> std::io::Result<()> {
    // SAFETY: these calls take no pointers.
    unsafe {
        libc::setsid();
        let all = libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        if all != 0 {
            // `close_range` fails before Linux 5.11, or where a filter forbids it.
            for fd in open {
                libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        for fd in keep {
            if libc::fcntl(*fd, libc::F_SETFD, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        let stops = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        let others = [libc::SIGINT, libc::SIGHUP, libc::SIGPIPE, libc::SIGXFSZ, libc::SIGQUIT];
        for signal in stops.into_iter().chain(others) {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    Ok(())
}

/// Returns the descriptors of this process except standard input, output and error.
pub(crate) fn open_descriptors() -> Vec<RawFd> {
    let dir = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let all = dir.filter_map(|e| e.file_name().to_str()?.parse().ok());
    all.filter(|fd| *fd > 2).collect()
}
