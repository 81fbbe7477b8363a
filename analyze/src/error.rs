//! Errors that concern a recording as a whole.

use std::path::{Path, PathBuf};

/// Why a recording can't be read at all. Damage further in is no error: what precedes it is reported, with a
/// [`Note`](crate::Note).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened.
    #[error("cannot open {path}: {source}; check the path and its permissions")]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a recording.
    #[error(
        "{path} is not a recording of prof; give a file that `prof attach` or `prof run` wrote"
    )]
    NotARecording {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was made by a newer prof.
    #[error(
        "{path} was recorded by a newer prof (format {found}, this prof reads up to {supported}); \
         use that prof to read it"
    )]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// The highest format version that this prof reads.
        supported: u32,
    },
    /// The recording was folded more than once since it was read last.
    #[error(
        "{path} was folded more often than it was read (--on-limit drop-oldest), so that events between are gone; begin \
         to read it again"
    )]
    Folded {
        /// Path of the file.
        path: PathBuf,
    },
    /// The recording has figures by stack in place of the events that were read.
    #[error(
        "{path} met its bound, and has figures by stack alone from now on (--on-limit aggregate): begin to read it again, \
         if this does not need single blocks"
    )]
    WentOver {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file ends before the record that describes the target.
    #[error(
        "{path} is empty, or cut off before its first whole record, so there is nothing to report: the `prof attach` \
         that made it was ended; if it has just begun, try again in a moment"
    )]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The [job](crate::Job) that reads it was cancelled.
    #[error("reading {path} was cancelled")]
    Cancelled {
        /// Path of the file.
        path: PathBuf,
    },
}

impl Error {
    pub(crate) fn open(path: &Path, source: std::io::Error) -> Self {
        Error::Open { path: path.to_owned(), source }
    }

    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Error::Read { path: path.to_owned(), source }
    }
}
