//! What can go wrong with a recording as a whole.

use std::path::{Path, PathBuf};

/// Why a recording could not be read at all. Damage further in is no error: what stands before it
/// is reported, with a [`Note`](crate::Note).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened.
    #[error("cannot open {path}: {source}; check the path and its permissions")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error(
        "{path} is not a recording of prof; give a file that `prof attach` or `prof run` wrote"
    )]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// The file was made by a newer prof.
    #[error(
        "{path} was recorded by a newer prof (format {found}, this prof reads up to {supported}); \
         use that prof to read it"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The highest version that is understood.
        supported: u32,
    },
    /// The file ends before the recording says whose it is.
    #[error(
        "{path} is cut off before its first whole record, so there is nothing to report; if the \
         recording has just begun, try again in a moment"
    )]
    Empty {
        /// The file.
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
