//! Turns a process that prof starts for itself into a daemon.

use prof_os::Pid;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs in the child: leaves the process group, so that no terminal's signals reach it, and closes all descriptors but
/// its own, so that no process waits for the end of a pipe that it holds.
///
/// It stays in the session at first. Where the kernel gives each session a share of the processors (autogroup), some
/// kernels (6.18) give a new session nothing for a minute and longer beside a program whose threads wake each other all
/// the time. A collector that falls behind takes a session, and so a share, of its own (`prof_collect::Collector`).
pub(crate) fn become_daemon(keep: &[RawFd], open: &[RawFd]) -> std::io::Result<()> {
    leave_group();
    // SAFETY: these calls take no pointers.
    unsafe {
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

/// Moves this process to a process group that has no leader: `setsid` fails for a leader (`setsid(2)`). Without a process
/// to spare for it, this makes a new session.
///
/// Runs between fork and exec.
pub(crate) fn leave_group() {
    // SAFETY: the calls take no pointers but a null one, and the child does nothing but wait for its end.
    unsafe {
        let own = libc::getpid();
        let leader = libc::fork();
        if leader == 0 {
            // It would wait for ever for a parent that was killed.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            while libc::getppid() == own {
                libc::pause();
            }
            libc::_exit(0);
        }
        // A group lives as long as one of its members.
        if leader < 0 || libc::setpgid(leader, leader) != 0 || libc::setpgid(0, leader) != 0 {
            libc::setsid();
        }
        if leader > 0 {
            libc::kill(leader, libc::SIGKILL);
            while libc::waitpid(leader, std::ptr::null_mut(), 0) < 0
                && nix::errno::Errno::last() == nix::errno::Errno::EINTR
            {}
        }
    }
}

/// Returns the descriptors of this process except standard input, output and error.
pub(crate) fn open_descriptors() -> Vec<RawFd> {
    let dir = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let all = dir.filter_map(|e| e.file_name().to_str()?.parse().ok());
    all.filter(|fd| *fd > 2).collect()
}

/// Has a command run for the collector: at a lower priority, with no signal blocked, and with a descriptor of this process if it
/// needs one. If it `ends_with_this`, it does not outlive this process.
pub(crate) fn prepare_helper(
    command: &mut Command,
    nice: i32,
    keeps: Option<RawFd>,
    ends_with_this: bool,
) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).current_dir("/");
    let me = Pid::this();
    // SAFETY: between fork and exec this makes only system calls, whose pointers are to values here.
    unsafe {
        command.pre_exec(move || {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::nice(nice);
            if let Some(fd) = keeps {
                libc::fcntl(fd, libc::F_SETFD, 0);
            }
            if ends_with_this {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // This process may have ended before that.
                if libc::getppid() != me.as_raw() {
                    libc::_exit(1);
                }
            }
            Ok(())
        });
    }
}
