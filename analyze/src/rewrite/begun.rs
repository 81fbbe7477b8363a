//! Reads what a recording begins with.

use prof_trace::chunk::{self, Next};
use prof_trace::records::{Forked, Hooks, Runtimes, Target, kind};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of bytes at a recording's front that surely contain its target.
const FRONT: usize = 1 << 22;

/// Number of chunks among which is what a recording begins with.
const FIRST: usize = 4;

/// Returns the target of a recording that has begun.
///
/// # Errors
/// If the file can't be read, or does not begin with the record of its target.
pub fn target_of(file: &File) -> io::Result<Target> {
    let front = front(file)?;
    let target = match chunks(&front).next() {
        Some((kind::TARGET, payload)) => Target::decode(payload),
        _ => None,
    };
    target.ok_or_else(|| lacks("its target"))
}

/// Returns the functions that are hooked in the target of a recording that has begun, and its runtimes.
///
/// # Errors
/// If the file can't be read, or does not begin with the records of its target and of these functions.
pub fn hooks_of(file: &File) -> io::Result<(Hooks, Runtimes)> {
    let front = front(file)?;
    let mut chunks = chunks(&front).skip(1);
    let hooks = match chunks.next() {
        Some((kind::HOOKS, payload)) => Hooks::decode(payload),
        _ => None,
    };
    let runtimes = match chunks.next() {
        Some((kind::RUNTIMES, payload)) => Runtimes::decode(payload),
        _ => None,
    };
    Ok((hooks.ok_or_else(|| lacks("hooked functions"))?, runtimes.unwrap_or_default()))
}

/// Returns from which process the target of a recording was forked, if the recording says so.
///
/// # Errors
/// If the file can't be read.
pub fn forked_of(file: &File) -> io::Result<Option<Forked>> {
    let front = front(file)?;
    // It is one of the first.
    let mut first = chunks(&front).take(FIRST);
    Ok(first.find(|c| c.0 == kind::FORKED).and_then(|c| Forked::decode(c.1)))
}

fn front(file: &File) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(FRONT).min(FRONT);
    let mut front = vec![0; len];
    file.read_exact_at(&mut front, 0)?;
    Ok(front)
}

/// Returns kind and payload of the whole chunks at the front.
fn chunks(front: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = front.get(chunk::file_header().len()..).unwrap_or_default();
    std::iter::from_fn(move || match chunk::next(rest) {
        Next::Chunk(kind, payload, len) => {
            rest = &rest[len..];
            Some((kind, payload))
        }
        _ => None,
    })
}

fn lacks(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it has no record of {what}"))
}
