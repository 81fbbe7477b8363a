//! Framing of a recording: a file header, then chunks, each with kind, length and checksum.
//!
//! A reader takes whole chunks from the front. Behind a damaged one it continues at the next whole chunk, if there is
//! one. It skips chunk kinds that it does not know.

use std::vec::Vec;

/// Magic number: the first bytes of a recording.
pub const FILE_MAGIC: [u8; 8] = *b"PROFREC\n";
/// Version of the format. A reader refuses a file with a larger one.
pub const FILE_VERSION: u32 = 6;
/// Version that recordings without a [fold](crate::records::Folded) have, so that earlier readers take them.
const UNFOLDED: u32 = 5;
/// Bytes of the file header: magic, version (u32), and 4 bytes of zeroes.
pub const FILE_HEADER: usize = 16;
/// Bytes of a chunk header: kind (u16), flags (u16), payload length (u32), checksum (u64).
pub const CHUNK_HEADER: usize = 16;
/// Maximum length of a payload, in bytes.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// Returns the file header.
pub fn file_header() -> [u8; FILE_HEADER] {
    header_of(UNFOLDED)
}

/// Returns the header of a file with a [fold](crate::records::Folded), without which an earlier reader would count too
/// little.
pub fn folded_header() -> [u8; FILE_HEADER] {
    header_of(FILE_VERSION)
}

fn header_of(version: u32) -> [u8; FILE_HEADER] {
    let mut h = [0; FILE_HEADER];
    h[..8].copy_from_slice(&FILE_MAGIC);
    h[8..12].copy_from_slice(&version.to_le_bytes());
    h
}

/// Reason why a file header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The magic number or the version is none of a recording.
    NotARecording,
    /// A newer prof wrote the file, in this format version.
    Newer(u32),
}

/// Checks the file header at the start of `bytes`; returns the format version.
///
/// # Errors
/// If the file is no recording, or its version is above [`FILE_VERSION`].
pub fn check_header(bytes: &[u8]) -> Result<u32, HeaderError> {
    let h = bytes.first_chunk::<FILE_HEADER>().ok_or(HeaderError::NotARecording)?;
    if h[..8] != FILE_MAGIC {
        return Err(HeaderError::NotARecording);
    }
    match u32::from_le_bytes([h[8], h[9], h[10], h[11]]) {
        0 => Err(HeaderError::NotARecording),
        v if v > FILE_VERSION => Err(HeaderError::Newer(v)),
        v => Ok(v),
    }
}

/// Computes the checksum of a chunk's kind and payload: a multiplicative hash over 8-byte words. It detects
/// damage, not tampering.
pub fn checksum(kind: u16, payload: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = (kind as u64 ^ (payload.len() as u64) << 16).wrapping_mul(K);
    let (words, tail) = payload.as_chunks::<8>();
    for w in words {
        h = (h ^ u64::from_le_bytes(*w)).wrapping_mul(K);
        h ^= h >> 29;
    }
    let mut last = [0u8; 8];
    last[..tail.len()].copy_from_slice(tail);
    h = (h ^ u64::from_le_bytes(last)).wrapping_mul(K);
    h ^ h >> 32
}

/// Appends a chunk (header and payload) to `out`.
pub fn put(out: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(kind, payload).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Result of reading the next chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// A whole chunk: its kind, its payload, and its length in the file including the header.
    Chunk(u16, &'a [u8], usize),
    /// The end of the file.
    End,
    /// A truncated chunk, possibly still being written.
    Partial,
    /// A chunk whose checksum, flags or length is wrong.
    Damaged,
}

/// Reads the chunk at the start of `bytes`.
pub fn next(bytes: &[u8]) -> Next<'_> {
    if bytes.is_empty() {
        return Next::End;
    }
    let Some(h) = bytes.first_chunk::<CHUNK_HEADER>() else { return Next::Partial };
    let kind = u16::from_le_bytes([h[0], h[1]]);
    let len = u32::from_le_bytes([h[4], h[5], h[6], h[7]]) as usize;
    let sum = u64::from_le_bytes([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]);
    if len > MAX_PAYLOAD || h[2..4] != [0, 0] {
        return Next::Damaged;
    }
    let Some(payload) = bytes.get(CHUNK_HEADER..CHUNK_HEADER + len) else { return Next::Partial };
    if checksum(kind, payload) != sum {
        return Next::Damaged;
    }
    Next::Chunk(kind, payload, CHUNK_HEADER + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_back_and_damage_is_seen() {
        let mut f = Vec::new();
        put(&mut f, 3, b"hello, chunk");
        put(&mut f, 9, b"");
        let Next::Chunk(3, b"hello, chunk", n) = next(&f) else { panic!() };
        assert_eq!(next(&f[n..]), Next::Chunk(9, b"", 16));
        assert_eq!(next(&f[n + 16..]), Next::End);
        for cut in 1..n {
            assert_eq!(next(&f[..cut]), Next::Partial);
        }
        for bit in 0..n * 8 {
            let mut g = f.clone();
            g[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(next(&g), Next::Chunk(3, b"hello, chunk", _)), "bit {bit}");
        }
    }

    #[test]
    fn headers_are_told_apart() {
        assert_eq!(check_header(&folded_header()), Ok(FILE_VERSION));
        assert_eq!(check_header(&file_header()), Ok(UNFOLDED));
        let mut h = file_header();
        h[8] = 200;
        assert_eq!(check_header(&h), Err(HeaderError::Newer(200)));
        assert_eq!(check_header(b"\x7fELF0123456789012"), Err(HeaderError::NotARecording));
        assert_eq!(check_header(b""), Err(HeaderError::NotARecording));
    }
}
