//! Decompresses parts of ELF files. The size that such a part claims is not trusted.

use flate2::read::ZlibDecoder;
use std::io::Read;

/// Greatest size of a decompressed section.
const LARGEST: u64 = 8 << 30;

/// Limit on the size of embedded symbols, and on the memory of their decoder.
const LARGEST_INNER: u64 = 256 << 20;

/// Reads exactly `size` bytes; `None` if there are fewer.
fn exactly(from: impl Read, size: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    from.take(size).read_to_end(&mut out).ok()?;
    (out.len() as u64 == size).then_some(out)
}

pub(super) fn zlib(data: &[u8], size: u64) -> Option<Vec<u8>> {
    if size > LARGEST {
        return None;
    }
    exactly(ZlibDecoder::new(data), size)
}

pub(super) fn zstd(data: &[u8], size: u64) -> Option<Vec<u8>> {
    if size > LARGEST {
        return None;
    }
    exactly(zstd::stream::read::Decoder::with_buffer(data).ok()?, size)
}

pub(super) fn xz(data: &[u8]) -> Option<Vec<u8>> {
    let limit = u32::try_from(LARGEST_INNER >> 10).unwrap_or(u32::MAX);
    let decoder = lzma_rust2::XzReader::new_mem_limit(data, false, limit);
    let mut out = Vec::new();
    decoder.take(LARGEST_INNER).read_to_end(&mut out).ok()?;
    Some(out)
}
