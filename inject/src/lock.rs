//! Locks a target, so that only one prof at a time attaches to it or detaches from it.

use crate::{Error, Refusal, Result};
use prof_os::Pid;
use prof_os::sharers::Sharers;
use prof_trace::shared::MEMFD_NAME;
use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Time to wait for another prof, which may be cleaning up after a killed one.
const OTHERS: Duration = Duration::from_secs(2);

/// Lock on a process, and on those that share its memory. Dropping it unlocks them.
#[derive(Debug)]
pub struct Lock {
    own: File,
    _sharers: Vec<File>,
}

impl Lock {
    /// Returns the descriptor that has the lock on the process. As `flock(2)` says, a process that inherits it holds the lock,
    /// too, until it closes the descriptor or ends.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// Checks that nobody is attaching to a process or detaching from it at this moment.
pub fn idle(pid: Pid) -> Result<()> {
    lock(pid).map(drop)
}

/// Waits for a short time until nobody is attaching to a process or detaching from it.
///
/// The caller must discard all earlier knowledge of the process: the other prof may have attached to it.
pub fn wait_until_idle(pid: Pid) {
    let deadline = Instant::now() + OTHERS;
    while let Err(Error::Refused(Refusal::Busy(_))) = lock_one(pid) {
        if Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Locks a process, and those that share its memory: nobody attaches to it or detaches from it meanwhile.
///
/// # Errors
/// If another prof does, or the process has ended.
pub fn lock(pid: Pid) -> Result<Lock> {
    let (own, mut sharers) = (lock_one(pid)?, Vec::new());
    for other in Sharers::of(pid, MEMFD_NAME).others() {
        match lock_one(*other) {
            Err(Error::Refused(Refusal::NoSuchProcess(_))) => {}
            locked => sharers.push(locked?),
        }
    }
    Ok(Lock { own, _sharers: sharers })
}

/// Locks one process by an advisory lock on its file in `/proc`. That file is the same for everyone who sees the
/// process, and the kernel releases the lock if its holder dies.
fn lock_one(pid: Pid) -> Result<File> {
    let path = format!("/proc/{pid}/status");
    let Ok(file) = File::open(&path) else { return Err(Refusal::NoSuchProcess(pid).into()) };
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Refusal::Busy(pid).into()),
        Err(TryLockError::Error(errno)) => Err(Error::File { path: path.into(), errno }),
    }
}
