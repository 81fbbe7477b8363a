//! Recordings made of others: [`strip`] leaves short-lived blocks out, [`pack`] puts everything in that is
//! needed to read them anywhere, [`extract`] takes files out again.

mod anonymous;
mod extract;
mod out;
mod pack;
mod strip;

use crate::Error;
use crate::index::Damaged;
use crate::query::QueryError;
use std::io;

pub use anonymous::Anonymize;
pub use extract::{ExtractOptions, Extracted, extract};
pub use pack::{PackOptions, Packed, pack};
pub use strip::{Stripped, strip};

/// Why no recording was made.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// The recording can't be read.
    #[error(transparent)]
    Recording(#[from] Error),
    /// Its index can't be read.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The index can't be asked.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The output can't be written.
    #[error("cannot write {0}: {1}")]
    Write(String, io::Error),
    /// What is to be taken out would be too large.
    #[error("{0}")]
    TooMuch(String),
}

impl From<io::Error> for RewriteError {
    fn from(e: io::Error) -> Self {
        RewriteError::Write("the recording".into(), e)
    }
}
