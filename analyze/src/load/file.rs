//! Whole chunks of a file that may still be growing.

use crate::Error;
use prof_trace::chunk::{self, HeaderError, Next};
use prof_trace::files::open_regular;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 20;

/// What [`ChunkFile::next`] came to.
pub(crate) enum Item<'a> {
    /// A chunk: kind, payload, and where in the file the payload stands.
    Chunk(u16, &'a [u8], u64),
    /// The end, for now.
    End,
    /// Less than a chunk is left.
    Partial,
    /// What comes next is no chunk.
    Damaged,
}

/// Reads chunk after chunk. The file is read, not mapped, so that one that shrinks under the
/// reader, or lies on a failing disk, is an error and not a signal.
pub(crate) struct ChunkFile {
    file: File,
    path: PathBuf,
    buf: Vec<u8>,
    /// The first byte of `buf` that was not given out.
    at: usize,
    /// Where in the file `buf` begins.
    base: u64,
    version: u32,
}

/// Opens what may be a recording for reading. A pipe or a device is none, and is not waited for.
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

    /// Version of its format.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Its path, as given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where in the file the next chunk begins.
    pub(crate) fn position(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Bytes of the file now.
    pub(crate) fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |m| m.len())
    }

    /// Makes at least `want` bytes available if the file has them.
    fn fill(&mut self, want: usize) -> Result<(), Error> {
        if self.at > 0 {
            self.buf.drain(..self.at);
            self.base += self.at as u64;
            self.at = 0;
        }
        while self.buf.len() < want {
            let have = self.buf.len();
            // One more than there is, to come upon the end by the same read; a file that grows is read again.
            let left = self.len().saturating_sub(self.base + have as u64).saturating_add(1);
            let more = (want - have).max(BLOCK).min(usize::try_from(left).unwrap_or(usize::MAX));
            // A length that a damaged chunk claims is not believed before the bytes are there.
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

    /// The next chunk.
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

    /// Reads bytes that were given out before.
    pub(crate) fn reread(&self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at).map_err(|e| Error::read(&self.path, e))?;
        Ok(bytes)
    }
}

/// Whether the file begins as a recording does (of any version).
pub fn is_recording(path: &Path) -> bool {
    let mut magic = [0; chunk::FILE_MAGIC.len()];
    open_regular(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok()
        && magic == chunk::FILE_MAGIC
}
