//! Makes recordings from others: [`mod@strip`] removes short-lived blocks, [`mod@pack`] adds everything that is
//! needed to read a recording on another machine, [`mod@extract`] takes the added files out, [`mod@join`] makes
//! one of several processes' recordings, or adds to that of one what it has from its parents.

mod add_up;
mod aggregate;
mod anonymous;
mod begun;
mod cull;
mod extract;
mod fold;
mod inherited;
mod join;
mod kept;
mod out;
mod pack;
mod strip;
mod thin;

use crate::Error;
use crate::index::ScanError;
use crate::query::QueryError;
use std::io;

pub use crate::joined::{JOINED, is_joined};
pub use aggregate::{Aggregate, AggregateOptions};
pub use anonymous::Anonymize;
pub use begun::{forked_of, hooks_of, target_of};
pub use cull::{Cull, CullOptions};
pub use extract::{ExtractOptions, Extracted, extract};
pub use fold::{Fold, fold};
pub use inherited::Ancestor;
pub use join::{JoinOptions, Joined, join, join_inherited, target};
pub use pack::{PackOptions, Packed, pack};
pub use strip::{Stripped, strip};

/// Why a recording could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// The recording could not be read.
    #[error(transparent)]
    Recording(#[from] Error),
    /// The index of the recording could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The query on the index failed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// This output could not be written.
    #[error("cannot write {0}: {1}")]
    Write(String, io::Error),
    /// The recordings can't be joined.
    #[error("{0}")]
    Different(String),
    /// A recording has been folded, or replaced, since its reading began.
    #[error("the oldest part of {0} was dropped while it was read (--on-limit); try again")]
    Replaced(String),
    /// The files to extract are larger than allowed.
    #[error("{0}")]
    TooMuch(String),
}

impl From<io::Error> for RewriteError {
    fn from(e: io::Error) -> Self {
        RewriteError::Write("the recording".into(), e)
    }
}
