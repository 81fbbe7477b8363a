//! One prof at a time: attaching and detaching hold a lock on the target.

use crate::{Error, Refusal, Result};
use prof_trace::process::Sharers;
use std::fs::{File, TryLockError};

/// What holds a process, and those that share its memory, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _files: Vec<File>,
}

/// Whether nobody is attaching to a process or detaching from it at this moment.
///
/// # Errors
/// If somebody is.
pub fn idle(pid: i32) -> Result<()> {
    lock(pid).map(drop)
}

/// Locks a process, and those that share its memory.
pub(crate) fn lock(pid: i32) -> Result<Lock> {
    let mut files = vec![lock_one(pid)?];
    for other in Sharers::of(pid).others() {
        match lock_one(*other) {
            Err(Error::Refused(Refusal::NoSuchProcess(_))) => {}
            locked => files.push(locked?),
        }
    }
    Ok(Lock { _files: files })
}

/// Locks a process: an advisory lock on its file in `/proc`, which is the same for everybody who sees
/// it, and which the kernel releases if the holder dies.
fn lock_one(pid: i32) -> Result<File> {
    let path = format!("/proc/{pid}/status");
    let Ok(file) = File::open(&path) else { return Err(Refusal::NoSuchProcess(pid).into()) };
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Refusal::Busy(pid).into()),
        Err(TryLockError::Error(errno)) => Err(Error::File { path: path.into(), errno }),
    }
}
