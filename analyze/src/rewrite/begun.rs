//! Reads what a recording begins with.

use prof_trace::chunk::{self, Next};
use prof_trace::records::{Target, kind};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of bytes at a recording's front that surely contain its target.
const FRONT: usize = 1 << 22;

/// Returns the target of a recording that has begun.
///
/// # Errors
/// If the file can't be read, or does not begin with the record of its target.
pub fn target_of(file: &File) -> io::Result<Target> {
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(FRONT).min(FRONT);
    let mut front = vec![0; len];
    file.read_exact_at(&mut front, 0)?;
    let first = front.get(chunk::file_header().len()..).map(chunk::next);
    let target = match first {
        Some(Next::Chunk(kind::TARGET, payload, _)) => Target::decode(payload),
        _ => None,
    };
    target
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no record of its target"))
}
