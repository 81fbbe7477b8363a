//! Why something could not be learnt of a process.

use crate::Pid;
use std::io;
use std::path::PathBuf;

/// Why something could not be learnt of a process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process is gone.
    #[error("process {0} is gone")]
    Gone(Pid),
    /// A file in `/proc` can't be read.
    #[error("cannot read {path}: {errno}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        errno: io::Error,
    },
}

/// Result of a question about a process.
pub type Result<T> = std::result::Result<T, Error>;
