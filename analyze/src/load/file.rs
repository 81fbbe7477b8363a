//! Reads whole chunks of a file that may still be growing.

use crate::Error;
use prof_trace::chunk::{self, HeaderError, Next};
use prof_trace::files::open_regular;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Number of bytes read at a time.
const BLOCK: usize = 1 << 20;

/// Result of [`ChunkFile::next`].
pub(crate) enum Item<'a> {
    /// A chunk: kind, payload, and file offset of the payload.
    Chunk(u16, &'a [u8], u64),
    /// The end of the file, for now.
    End,
    /// The file ends within a chunk.
    Partial,
    /// The next bytes are not a chunk.
    Damaged,
}

/// Reads chunk after chunk. The file is read, not mapped, so that a file that is truncated meanwhile, or lies on a
/// failing disk, causes an error and not a signal.
pub(crate) struct ChunkFile {
    file: File,
    path: PathBuf,
    buf: Vec<u8>,
    /// Index in `buf` of the first byte that was not returned yet.
    at: usize,
    /// File offset of `buf`.
    base: u64,
    version: u32,
}

/// Opens a file that may be a recording. Pipes and devices are refused without waiting for them.
pub(crate) fn open_file(path: &Path) -> Result<File, Error> {
    open_regular(path).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => Error::NotARecording { path: path.to_owned() },
        _ => Error::open(path, e),
    })
}

impl ChunkFile {
    /// Opens a recording and checks its header.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mut file = open_file(path)?;
        let mut head = Vec::with_capacity(chunk::FILE_HEADER);
        (&mut file)
            .take(chunk::FILE_HEADER as u64)
            .read_to_end(&mut head)
            .map_err(|e| Error::read(path, e))?;
        let cut_off = !head.is_empty()
            && head.len() < chunk::FILE_HEADER
            && chunk::file_header().starts_with(&head);
        let version = match chunk::check_header(&head) {
            Ok(v) => v,
            Err(_) if cut_off => return Err(Error::Empty { path: path.to_owned() }),
            Err(HeaderError::NotARecording) => {
                return Err(Error::NotARecording { path: path.to_owned() });
            }
            Err(HeaderError::Newer(found)) => {
                let supported = chunk::FILE_VERSION;
                return Err(Error::Newer { path: path.to_owned(), found, supported });
            }
        };
        let base = chunk::FILE_HEADER as u64;
        Ok(Self { file, path: path.to_owned(), buf: Vec::new(), at: 0, base, version })
    }

    /// Returns the version of the file format.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Returns the path, as given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file offset of the next chunk.
    pub(crate) fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Returns the file's present length.
    pub(crate) fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |m| m.len())
    }

    /// Makes at least `want` bytes available, if the file has them.
    fn fill(&mut self, want: usize) -> Result<(), Error> {
        if self.at > 0 {
            self.buf.drain(..self.at);
            self.base += self.at as u64;
            self.at = 0;
        }
        while self.buf.len() < want {
            let have = self.buf.len();
            // Read one byte more than is left, so that the same read finds the end; a file that grows is read again.
            let left = self.len().saturating_sub(self.base + have as u64).saturating_add(1);
            let more = (want - have).max(BLOCK).min(usize::try_from(left).unwrap_or(usize::MAX));
            // A damaged chunk may claim any length: allocate only as the bytes arrive.
            self.buf.resize(have + more.min(4 * BLOCK), 0);
            let n = loop {
                match self.file.read_at(&mut self.buf[have..], self.base + have as u64) {
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            self.buf.truncate(have + *n.as_ref().unwrap_or(&0));
            if n.map_err(|e| Error::read(&self.path, e))? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Returns the next chunk.
    pub(crate) fn next(&mut self) -> Result<Item<'_>, Error> {
        let header = chunk::CHUNK_HEADER;
        let left = &self.buf[self.at..];
        if left.len() < header {
            self.fill(header)?;
        }
        if let Some(h) = self.buf[self.at..].first_chunk::<8>() {
            let len = u32::from_le_bytes([h[4], h[5], h[6], h[7]]) as usize;
            let want = header + len;
            if len <= chunk::MAX_PAYLOAD && self.buf.len() - self.at < want {
                self.fill(want)?;
            }
        }
        match chunk::next(&self.buf[self.at..]) {
            Next::Chunk(kind, payload, n) => {
                let at = self.base + (self.at + header) as u64;
                self.at += n;
                Ok(Item::Chunk(kind, payload, at))
            }
            Next::End => Ok(Item::End),
            Next::Partial => Ok(Item::Partial),
            Next::Damaged => Ok(Item::Damaged),
        }
    }

    /// Reads bytes again that were returned before.
    pub(crate) fn reread(&self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at).map_err(|e| Error::read(&self.path, e))?;
        Ok(bytes)
    }
}

/// Returns whether the file begins as a recording of any version.
pub fn is_recording(path: &Path) -> bool {
    let mut magic = [0; chunk::FILE_MAGIC.len()];
    open_regular(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok()
        && magic == chunk::FILE_MAGIC
}
