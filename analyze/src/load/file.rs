//! Reads whole chunks of a file that may still be growing.

use crate::Error;
use prof_os::files::open_regular;
use prof_trace::chunk::{self, HeaderError, Next};
use prof_trace::damage::Search;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Number of bytes read at a time.
const BLOCK: usize = 1 << 20;
/// Number of bytes read at a time while chunks are passed over: little more than the header of each.
const SMALL_BLOCK: usize = 4 << 10;

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
    /// Bytes of damage that were passed over.
    skipped: u64,
    search: Search,
    /// Least number of bytes that are read at a time.
    block: usize,
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
        // An attach that is killed early leaves an empty file.
        let cut_off = head.len() < chunk::FILE_HEADER && chunk::file_header().starts_with(&head);
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
        Ok(Self {
            file,
            path: path.to_owned(),
            buf: Vec::new(),
            at: 0,
            base,
            version,
            skipped: 0,
            search: Search::default(),
            block: BLOCK,
        })
    }

    /// Returns the file.
    pub(crate) fn same_file(&self) -> Result<File, Error> {
        self.file.try_clone().map_err(|e| Error::read(&self.path, e))
    }

    /// Returns whether another file has the path by now.
    pub(crate) fn is_replaced(&self) -> bool {
        let id = |m: std::io::Result<Metadata>| m.ok().map(|m| (m.dev(), m.ino()));
        let there = id(std::fs::metadata(&self.path));
        there.is_some() && there != id(self.file.metadata())
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

    /// Returns the number of bytes that were passed over, as they are no whole chunks and chunks follow them.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped
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
            let more =
                (want - have).max(self.block).min(usize::try_from(left).unwrap_or(usize::MAX));
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

    /// Returns the next chunk. Damage is passed over if a whole chunk follows it.
    pub(crate) fn next(&mut self) -> Result<Item<'_>, Error> {
        let header = chunk::CHUNK_HEADER;
        let (kind, n) = loop {
            self.fill_chunk()?;
            let end = match chunk::next(&self.buf[self.at..]) {
                Next::Chunk(kind, _, n) => break (kind, n),
                Next::End => return Ok(Item::End),
                Next::Partial => Item::Partial,
                Next::Damaged => Item::Damaged,
            };
            let at = self.position();
            let next = self.search.behind(&self.file, at, self.len());
            let Some(next) = next.ok().flatten() else { return Ok(end) };
            self.skipped += next - at;
            (self.base, self.at) = (next, 0);
            self.buf.clear();
        };
        let (from, at) = (self.at + header, self.base + (self.at + header) as u64);
        self.at += n;
        Ok(Item::Chunk(kind, &self.buf[from..self.at], at))
    }

    /// Sets whether most chunks are going to be passed over, so that little is to be read at a time.
    pub(crate) fn set_sparse(&mut self, sparse: bool) {
        self.block = if sparse { SMALL_BLOCK } else { BLOCK };
    }

    /// Passes over the next chunk without reading it, if it is whole and of one of these kinds; returns whether it was.
    /// The chunk's checksum is not compared.
    pub(crate) fn pass_over(&mut self, kinds: &[u16]) -> Result<bool, Error> {
        let header = chunk::CHUNK_HEADER;
        if self.buf.len() - self.at < header {
            self.fill(header)?;
        }
        let Some(h) = self.buf[self.at..].first_chunk::<8>() else { return Ok(false) };
        let len = u32::from_le_bytes([h[4], h[5], h[6], h[7]]) as usize;
        let is_wanted = kinds.contains(&u16::from_le_bytes([h[0], h[1]])) && h[2..4] == [0, 0];
        let end = self.at + header + len;
        let next = self.base + end as u64;
        if !is_wanted || len > chunk::MAX_PAYLOAD || next > self.len() {
            return Ok(false);
        }
        if end <= self.buf.len() {
            self.at = end;
        } else {
            (self.base, self.at) = (next, 0);
            self.buf.clear();
        }
        Ok(true)
    }

    /// Makes the next chunk available, as far as the file has it.
    fn fill_chunk(&mut self) -> Result<(), Error> {
        let header = chunk::CHUNK_HEADER;
        if self.buf.len() - self.at < header {
            self.fill(header)?;
        }
        if let Some(h) = self.buf[self.at..].first_chunk::<8>() {
            let len = u32::from_le_bytes([h[4], h[5], h[6], h[7]]) as usize;
            let want = header + len;
            if len <= chunk::MAX_PAYLOAD && self.buf.len() - self.at < want {
                self.fill(want)?;
            }
        }
        Ok(())
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
