//! The errors of a scan.

use prof_os::Pid;
use std::fmt;

/// An error of the one who knows the blocks.
pub type Boxed = Box<dyn std::error::Error + Send + Sync>;

/// Why a scan has failed.
#[derive(Debug)]
pub enum Error {
    /// The process has ended.
    Ended(Pid),
    /// The process's memory can't be opened.
    Memory(Pid, std::io::Error),
    /// A thread can't be looked at.
    Threads(prof_inject::Error),
    /// The process was to be held, and something that has its memory went on.
    Moving(Pid),
    /// Time was up.
    Late(Pid),
    /// The blocks are not known.
    Blocks(Boxed),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(pid) => write!(f, "process {pid} has ended"),
            Self::Memory(pid, e) => write!(f, "cannot read the memory of process {pid}: {e}"),
            Self::Moving(pid) => write!(
                f,
                "process {pid} could not be held as a whole at its end: a thread, or another process that has its \
                 memory, went on"
            ),
            Self::Late(pid) => write!(
                f,
                "process {pid} was not read within the time limit; give more with --timeout"
            ),
            Self::Threads(e) => e.fmt(f),
            Self::Blocks(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<prof_inject::Error> for Error {
    fn from(e: prof_inject::Error) -> Self {
        Self::Threads(e)
    }
}

impl From<Boxed> for Error {
    fn from(e: Boxed) -> Self {
        Self::Blocks(e)
    }
}
