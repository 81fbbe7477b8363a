//! The process that is to be recorded.

use prof_os::Pid;
use std::path::PathBuf;

/// A process that prof may attach to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The process's pid, in this process's namespace.
    pub pid: Pid,
    /// The process's name.
    pub name: String,
    /// Path of the executable.
    pub exe: PathBuf,
    /// The command-line arguments.
    pub cmdline: Vec<String>,
}
