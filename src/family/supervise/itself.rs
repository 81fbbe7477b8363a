//! The supervisor as a process: how it is started, found and ended.

use super::{ENDS, Follow, Supervisor};
use crate::family::folder::{Folder, FolderLock};
use crate::family::journal::{self, Journal};
use crate::orphans;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, fork};
use prof_os::stat::Stat;
use prof_os::{Pid, process};
use serde_json::json;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: i32) {
    STOP.store(true, Relaxed);
}

/// Returns whether a supervisor, this process, was told to end.
pub(super) fn is_to_end() -> bool {
    STOP.load(Relaxed)
}

/// Starts a supervisor, to which the lock on the folder passes, and waits until it follows. Returns its process ID.
///
/// # Errors
/// If it can't be started.
pub(crate) fn start(folder: &Folder, follow: &Follow, lock: FolderLock) -> Result<Pid> {
    let path = folder.absolute();
    let folder = Folder::open(&path)
        .with_context(|| format!("cannot open {}; was it removed?", path.display()))?;
    let (mut ready, mut write) =
        std::io::pipe().context("cannot make a pipe to the supervisor (`ulimit -n`?)")?;
    // SAFETY: this process has one thread now: those that trace end with the attach.
    match unsafe { fork() }.context("cannot start the supervisor")? {
        ForkResult::Parent { child } => {
            drop(write);
            let mut byte = [0];
            ready.read_exact(&mut byte).context("the supervisor ended before it was ready")?;
            Ok(child.into())
        }
        ForkResult::Child => {
            become_supervisor(&[write.as_raw_fd(), lock.descriptor()]);
            let done = Supervisor::new(&folder, follow, lock).map(|mut supervisor| {
                let _ = write.write_all(&[1]);
                drop(write);
                supervisor.run();
                // A process of the family may have adopted this one.
                let parent = Pid::from_u32(std::os::unix::process::parent_id());
                if supervisor.has_recorded(parent) {
                    orphans::wait_for_the_end(parent);
                }
            });
            // SAFETY: ends this process without the destructors of what its parent holds.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
    }
}

/// Makes a forked process independent of the terminal and of its parent's files, but for some descriptors.
fn become_supervisor(keep: &[i32]) {
    crate::daemon::leave_group();
    // SAFETY: the calls take integers, a path that is a valid string, a limit to fill in, and handlers that live for ever.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for fd in 0..3 {
            libc::dup2(null, fd);
        }
        for fd in crate::daemon::open_descriptors().into_iter().filter(|fd| !keep.contains(fd)) {
            libc::close(fd);
        }
        let stops = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGINT, libc::SIGHUP];
        let others = [libc::SIGPIPE, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH];
        for signal in stops.into_iter().chain(others) {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        // Collectors are children of workers that have ended. The process that adopts orphans may be a recorded one.
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        // Each process takes a descriptor, and up to four while its memory is held open.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        let handler: extern "C" fn(i32) = stop;
        libc::signal(libc::SIGTERM, handler as *const () as libc::sighandler_t);
    }
    let _ = std::env::set_current_dir("/");
}

/// Ends the supervisor of a folder; returns whether there was one. Of one that was killed it notes that it is not to be
/// replaced any more.
pub(crate) fn end(folder: &Path) -> bool {
    let Some(pid) = journal::running(folder) else {
        let lines = journal::read(&folder.join(journal::NAME));
        if journal::has_ended(&lines) == Some(false)
            && let Ok(mut journal) = Journal::open(&folder.join(journal::NAME))
        {
            journal.note("ended", None, json!({ "by": journal::BY_DETACH }));
        }
        return false;
    };
    let start = process::start_time(pid).unwrap_or(0);
    let parent = Stat::of(pid).and_then(|s| s.parent());
    let _ = kill(pid.into(), Signal::SIGTERM);
    let deadline = Instant::now() + ENDS;
    while process::is_running(pid, start) && !orphans::is_done(pid) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It waits for its end if its parent is a process of the family.
    if let Some(parent) = parent.filter(|_| orphans::is_done(pid)) {
        let noticed = orphans::end(parent, (pid, start));
        noticed.iter().for_each(|message| crate::term::say(message));
    }
    true
}
