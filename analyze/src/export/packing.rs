//! Compresses exports while they are written.

use std::io::{self, Write};
use std::path::Path;

/// Compression of a file, chosen by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// `.gz`
    Gzip,
    /// `.zst`
    Zstd,
}

impl Packing {
    /// Returns the compression that a name ending in `.gz` or `.zst` asks for.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "gz" => Some(Self::Gzip),
            "zst" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// An output file, compressed or not.
pub enum Output<W: Write> {
    /// Not compressed.
    Plain(W),
    /// By gzip.
    Gzip(flate2::write::GzEncoder<W>),
    /// By Zstandard.
    Zstd(zstd::stream::Encoder<'static, W>),
}

impl<W: Write> Output<W> {
    /// Writes to a file with this compression.
    ///
    /// # Errors
    /// If the compressor can't be set up.
    pub fn new(file: W, packing: Option<Packing>) -> io::Result<Self> {
        Ok(match packing {
            None => Self::Plain(file),
            Some(Packing::Gzip) => {
                Self::Gzip(flate2::write::GzEncoder::new(file, flate2::Compression::default()))
            }
            Some(Packing::Zstd) => Self::Zstd(zstd::stream::Encoder::new(file, 0)?),
        })
    }

    /// Writes what the compressor still holds back, and flushes the file.
    ///
    /// # Errors
    /// If the file can't be written to.
    pub fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Gzip(packed) => packed.finish()?.flush(),
            Self::Zstd(packed) => packed.finish()?.flush(),
        }
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Gzip(packed) => packed.write(bytes),
            Self::Zstd(packed) => packed.write(bytes),
        }
    }

    // A flush would end a block of the compressor, and make the file larger.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
