//! Reads everything in a recording except its events.

use crate::load::Meta;
use prof_trace::chunk::{self, Next};
use prof_trace::records::kind;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of bytes read at a time: one such read skips a chunk of events.
const WINDOW: usize = 4 << 10;

/// Reads all chunks up to byte `end` except those of events; `None` if one is not whole.
pub(super) fn read(file: &File, end: u64) -> io::Result<Option<Meta>> {
    let mut meta = Meta::default();
    let mut at = chunk::FILE_HEADER as u64;
    let mut buf = vec![0; WINDOW];
    // File offset of `buf`, and number of valid bytes in it.
    let (mut base, mut have) = (0u64, 0usize);
    while at < end {
        let within = |base: u64, have: usize, len: usize| {
            let skip = at.checked_sub(base).map_or(usize::MAX, |n| n as usize);
            (skip <= have && have - skip >= len).then_some(skip)
        };
        let skip = match within(base, have, chunk::CHUNK_HEADER) {
            Some(skip) => skip,
            None => {
                (base, have) = (at, fill(file, at, &mut buf[..WINDOW])?);
                0
            }
        };
        let Some(h) = buf[skip..have].first_chunk::<8>() else { return Ok(None) };
        let kind = u16::from_le_bytes([h[0], h[1]]);
        let len = u32::from_le_bytes([h[4], h[5], h[6], h[7]]) as usize;
        if len > chunk::MAX_PAYLOAD {
            return Ok(None);
        }
        let whole = chunk::CHUNK_HEADER + len;
        if matches!(kind, kind::EVENTS | kind::PACKED) {
            at += whole as u64;
            continue;
        }
        let skip = match within(base, have, whole) {
            Some(skip) => skip,
            None => {
                if buf.len() < whole {
                    buf.resize(whole, 0);
                }
                let most = whole.max(WINDOW);
                (base, have) = (at, fill(file, at, &mut buf[..most])?);
                0
            }
        };
        let Next::Chunk(kind, payload, n) = chunk::next(&buf[skip..have]) else {
            return Ok(None);
        };
        meta.take(kind, payload, at + chunk::CHUNK_HEADER as u64);
        at += n as u64;
    }
    Ok(Some(meta))
}

/// Reads until the buffer is full or the file ends; returns the number of bytes read.
fn fill(file: &File, at: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match file.read_at(&mut buf[n..], at + n as u64) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}
