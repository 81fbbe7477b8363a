//! Finds the next whole chunk of a recording behind a damaged one.

use crate::chunk::{CHUNK_HEADER, MAX_PAYLOAD, Next, next};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::vec;
use std::vec::Vec;

/// Number of bytes in which chunks are looked for at a time.
const BLOCK: u64 = 2 << 20;
/// Kinds of chunks that are looked for, with room for those of later versions.
const KINDS: core::ops::RangeInclusive<u16> = 1..=64;
/// Limit of the bytes that are checksummed: a made-up file must not take for ever.
const MOST: u64 = 1 << 30;

/// A search for whole chunks in one file.
#[derive(Clone, Debug)]
pub struct Search {
    /// Bytes that may still be checksummed.
    left: u64,
}

impl Default for Search {
    fn default() -> Self {
        Self { left: MOST }
    }
}

impl Search {
    /// Returns the offset of the first whole chunk behind `at`, where there is none, in a file of `len` bytes; `None` if none
    /// follows, or the search has taken too long.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn behind(&mut self, file: &File, at: u64, len: u64) -> io::Result<Option<u64>> {
        let header = CHUNK_HEADER as u64;
        if at.saturating_add(header) > len {
            return Ok(None);
        }
        // If the payload alone is damaged, the header says where the next one is; what looks like a chunk within the
        // payload is none.
        let claimed = at + header + payload_len(&read(file, at, 8)?);
        if claimed < len && self.is_chunk(file, claimed, len)? {
            return Ok(Some(claimed));
        }
        let mut from = at + 1;
        while from + header <= len {
            let block = read(file, from, (len - from).min(BLOCK) as usize)?;
            for (k, h) in block.windows(CHUNK_HEADER).enumerate() {
                let kind = u16::from_le_bytes([h[0], h[1]]);
                let next = from + k as u64;
                if KINDS.contains(&kind) && h[2..4] == [0, 0] && self.is_chunk(file, next, len)? {
                    return Ok(Some(next));
                }
            }
            // The last ones are the first of the next block.
            from += block.len() as u64 + 1 - header;
        }
        Ok(None)
    }

    /// Returns whether a whole chunk begins at `at`.
    fn is_chunk(&mut self, file: &File, at: u64, len: u64) -> io::Result<bool> {
        let header = CHUNK_HEADER as u64;
        if len.saturating_sub(at) < header {
            return Ok(false);
        }
        let payload = payload_len(&read(file, at, 8)?);
        if payload > (MAX_PAYLOAD as u64).min(len - at - header) {
            return Ok(false);
        }
        let Some(left) = self.left.checked_sub(header + payload) else { return Ok(false) };
        self.left = left;
        let bytes = read(file, at, (header + payload) as usize)?;
        Ok(matches!(next(&bytes), Next::Chunk(..)))
    }
}

/// Returns the length that the beginning of a chunk's header gives for its payload.
fn payload_len(header: &[u8]) -> u64 {
    let len = header.get(4..8).and_then(|n| n.try_into().ok());
    len.map_or(0, |n| u64::from(u32::from_le_bytes(n)))
}

fn read(file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
