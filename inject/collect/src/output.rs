//! The recording as it is being written.

use crate::Error;
use prof_trace::chunk::{self, CHUNK_HEADER, Next};
use prof_trace::event::Codec;
use prof_trace::records::{Hooks, Target, kind};
use prof_trace::wire::{Reader, Writer};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Buffered events above this are written out within a pass.
const FLUSH_AT: usize = 1 << 20;

/// Creates the file of a recording; it must not exist. Only its owner may read it: addresses and
/// names of a process are nobody else's business.
///
/// # Errors
/// As opening a file.
pub fn create_recording(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Writes what a recording begins with: header, target, hooks.
///
/// # Errors
/// As writing to a file.
pub fn write_prologue(file: &mut File, target: &Target, hooks: &Hooks) -> io::Result<()> {
    let mut b = chunk::file_header().to_vec();
    chunk::put(&mut b, kind::TARGET, &target.encode());
    chunk::put(&mut b, kind::HOOKS, &hooks.encode());
    file.write_all(&b)
}

/// The end of a recording, to which whole chunks are appended.
///
/// What describes events (threads, modules, stack nodes) and the events themselves are gathered
/// apart, and written in that order, so that a reader knows every node before an event names it.
#[derive(Debug)]
pub struct Output {
    file: File,
    end: u64,
    meta: Vec<u8>,
    events: Vec<u8>,
    failed: Option<io::Error>,
    lost: u64,
}

impl Output {
    /// Appends to `file`, which ends with a whole chunk.
    ///
    /// # Errors
    /// If its size can't be read.
    pub fn new(file: File) -> Result<Self, Error> {
        let end = file.metadata().map_err(Error::io("cannot stat the recording"))?.len();
        let (meta, events) = (Vec::new(), Vec::with_capacity(2 * FLUSH_AT));
        Ok(Self { file, end, meta, events, failed: None, lost: 0 })
    }

    /// Adds a chunk that describes.
    pub fn put(&mut self, kind: u16, payload: &[u8]) {
        chunk::put(&mut self.meta, kind, payload);
    }

    /// Adds a chunk of events.
    pub fn put_events(&mut self, thread: u32, from: &Codec, count: u32, bytes: &[u8]) {
        let mut w = Writer { bytes: std::mem::take(&mut self.events) };
        let at = w.bytes.len();
        w.bytes.extend_from_slice(&[0; CHUNK_HEADER]);
        w.int(thread.into()).int(from.time).int(from.addr).int(from.node.into());
        w.int(count.into()).blob(bytes);
        self.events = w.bytes;
        let payload = &self.events[at + CHUNK_HEADER..];
        let (len, sum) = (payload.len() as u32, chunk::checksum(kind::EVENTS, payload));
        let head = &mut self.events[at..at + CHUNK_HEADER];
        head[..2].copy_from_slice(&kind::EVENTS.to_le_bytes());
        head[4..8].copy_from_slice(&len.to_le_bytes());
        head[8..16].copy_from_slice(&sum.to_le_bytes());
    }

    /// Whether it is time to [`Output::flush`].
    pub fn is_full(&self) -> bool {
        self.events.len() + self.meta.len() >= FLUSH_AT
    }

    /// Whether anything waits to be written.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.meta.is_empty()
    }

    /// Writes all that was added. After an error the file ends with the last chunk that was written
    /// whole, and all further chunks are dropped; see [`Output::failure`].
    pub fn flush(&mut self) {
        let (mut meta, mut events) =
            (std::mem::take(&mut self.meta), std::mem::take(&mut self.events));
        self.write_chunks(&meta);
        self.write_chunks(&events);
        meta.clear();
        events.clear();
        (self.meta, self.events) = (meta, events);
    }

    fn write_chunks(&mut self, bytes: &[u8]) {
        let mut done = 0;
        while self.failed.is_none() && done < bytes.len() {
            match self.file.write_at(&bytes[done..], self.end + done as u64) {
                Ok(0) => self.failed = Some(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => self.failed = Some(e),
            }
        }
        if self.failed.is_none() {
            self.end += bytes.len() as u64;
            return;
        }
        let whole = whole_chunks(&bytes[..done]);
        if done > whole {
            // If this fails too, readers stop at the damaged chunk all the same.
            let _ = self.file.set_len(self.end + whole as u64);
        }
        self.end += whole as u64;
        self.lost += count_events(&bytes[whole..]);
    }

    /// The error at which writing ended.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    /// The same, for keeps.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Events that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes of the file so far.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Tries a last time, after an error, with a few small chunks: the place that a cut-off chunk
    /// has left is often enough to say how the recording ended.
    pub fn put_last(&mut self, chunks: &[u8]) {
        if self.failed.is_none() {
            self.meta.extend_from_slice(chunks);
            return self.flush();
        }
        let n = self.file.write_at(chunks, self.end).unwrap_or(0);
        if n == chunks.len() {
            self.end += n as u64;
        } else if n > 0 {
            let whole = whole_chunks(&chunks[..n]);
            let _ = self.file.set_len(self.end + whole as u64);
            self.end += whole as u64;
        }
    }
}

/// Length of the chunks at the front of `bytes` that are whole.
fn whole_chunks(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Next::Chunk(_, _, n) = chunk::next(&bytes[at..]) {
        at += n;
    }
    at
}

fn count_events(bytes: &[u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Next::Chunk(k, payload, n) = chunk::next(&bytes[at..]) {
        at += n;
        if k == kind::EVENTS {
            let mut r = Reader::new(payload);
            let mut field = || r.int();
            let fields = [field(), field(), field(), field(), field()];
            count += fields[4].unwrap_or(0);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_leaves_whole_chunks() {
        // /dev/full refuses every write; a file with a size limit would need a signal handler.
        let file = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let mut out = Output::new(file).expect("output");
        out.put_events(1, &Codec::default(), 3, &[1, 2, 3]);
        out.put_events(2, &Codec::default(), 4, &[1, 2, 3]);
        out.flush();
        assert_eq!(out.failure().and_then(|e| e.raw_os_error()), Some(libc::ENOSPC));
        assert_eq!((out.lost(), out.len()), (7, 0));
        out.put_events(2, &Codec::default(), 5, &[1, 2, 3]);
        out.flush();
        assert_eq!(out.lost(), 12);
    }

    #[test]
    fn cut_off_chunks_are_not_counted_as_whole() {
        let mut b = Vec::new();
        chunk::put(&mut b, 1, b"abc");
        let n = b.len();
        chunk::put(&mut b, 2, b"defg");
        assert_eq!(whole_chunks(&b), b.len());
        assert_eq!(whole_chunks(&b[..b.len() - 1]), n);
        assert_eq!(whole_chunks(&b[..n - 1]), 0);
    }
}
