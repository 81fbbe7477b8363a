//! The ring of one processor, which the kernel fills with records.

use crate::perf::Event;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets of the positions in the first page, in bytes.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Bytes of a record's header: kind (u32), flags (u16), length (u16).
pub(crate) const HEADER: usize = 8;

/// A mapped ring.
#[derive(Debug)]
pub(crate) struct Ring {
    base: *mut u8,
    page: usize,
    len: usize,
    /// A record that goes over the ring's end, in one piece.
    scratch: Vec<u8>,
}

// SAFETY: the mapping is of the process, and only this value refers to it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of an event; `len` is its length in bytes, a power of two of at least a page.
    pub(crate) fn map(event: &Event, len: usize, page: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address, so that no other mapping is touched.
        let base = unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let none = std::ptr::null_mut();
            libc::mmap(none, page + len, both, libc::MAP_SHARED, event.fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), page, len, scratch: Vec::new() })
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page is mapped as long as `self` lives, and has an aligned u64 there.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Returns the bytes that wait to be read.
    pub(crate) fn waiting(&self) -> u64 {
        let tail = self.position(TAIL).load(Ordering::Relaxed);
        self.position(HEAD).load(Ordering::Acquire).saturating_sub(tail)
    }

    /// Passes each record that waits to `f`, with its kind and the bytes behind its header, and gives the room back.
    pub(crate) fn read(&mut self, mut f: impl FnMut(u32, &[u8])) {
        let head = self.position(HEAD).load(Ordering::Acquire);
        let mut tail = self.position(TAIL).load(Ordering::Relaxed);
        let mut scratch = std::mem::take(&mut self.scratch);
        // SAFETY: the mapping has `page + len` bytes, and the kernel writes none between tail and head.
        let data = unsafe { std::slice::from_raw_parts(self.base.add(self.page), self.len) };
        while tail < head {
            let at = tail as usize & (self.len - 1);
            // Records begin at multiples of 8, so the header is in one piece.
            let Some(header) = data[at..].first_chunk::<HEADER>() else { break };
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let len = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if len < HEADER || len as u64 > head - tail {
                break;
            }
            match data.get(at + HEADER..at + len) {
                Some(body) => f(kind, body),
                None => {
                    let first = &data[at + HEADER..];
                    scratch.clear();
                    scratch.extend_from_slice(first);
                    scratch.extend_from_slice(&data[..len - HEADER - first.len()]);
                    f(kind, &scratch);
                }
            }
            tail += len as u64;
        }
        self.scratch = scratch;
        self.position(TAIL).store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, to which nothing refers any more.
        unsafe { libc::munmap(self.base.cast(), self.page + self.len) };
    }
}
