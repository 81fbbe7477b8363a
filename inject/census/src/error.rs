//! The errors of a census.

use prof_os::Pid;
use std::fmt;

/// Why there is no census.
#[derive(Debug)]
pub enum Error {
    /// The process has ended.
    Ended(Pid),
    /// The process's memory can't be opened.
    Memory(Pid, std::io::Error),
    /// The threads can't be stopped.
    Threads(prof_inject::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(pid) => write!(f, "process {pid} has ended"),
            Self::Memory(pid, e) => write!(f, "cannot read the memory of process {pid}: {e}"),
            Self::Threads(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<prof_inject::Error> for Error {
    fn from(e: prof_inject::Error) -> Self {
        Self::Threads(e)
    }
}
