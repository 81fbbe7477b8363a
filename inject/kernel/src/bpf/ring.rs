//! The ring of one processor, which programs fill with records.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Marks of a record's length: it is being written, or it is none.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Bytes of a record's header.
const HEADER: usize = 8;
/// Bytes that are read before their room is given back.
const STEP: u64 = 1 << 16;

/// A mapped ring.
#[derive(Debug)]
pub(super) struct Ring {
    /// The page with the reader's position.
    consumer: *mut u8,
    /// The page with the writers' position, and behind it the content twice, so that no record ends at its end.
    producer: *mut u8,
    page: usize,
    len: usize,
}

// SAFETY: the mappings are of the process, and only this value refers to them.
unsafe impl Send for Ring {}

fn mapped(fd: &OwnedFd, len: usize, protection: i32, offset: usize) -> io::Result<*mut u8> {
    let (none, fd) = (std::ptr::null_mut(), fd.as_raw_fd());
    // SAFETY: the kernel chooses the address, so that no other mapping is touched.
    let base = unsafe { libc::mmap(none, len, protection, libc::MAP_SHARED, fd, offset as _) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.cast()) }
}

impl Ring {
    /// Maps a ring; `len` is the length of its content in bytes.
    pub(super) fn map(ring: &OwnedFd, len: usize, page: usize) -> io::Result<Self> {
        let consumer = mapped(ring, page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = mapped(ring, page + 2 * len, libc::PROT_READ, page).inspect_err(|_| {
            // SAFETY: this is the mapping that was just made.
            unsafe { libc::munmap(consumer.cast(), page) };
        })?;
        Ok(Self { consumer, producer, page, len })
    }

    fn positions(&self) -> (&AtomicU64, &AtomicU64) {
        // SAFETY: both pages are mapped as long as `self` lives, and begin with an aligned u64.
        unsafe { (&*self.consumer.cast::<AtomicU64>(), &*self.producer.cast::<AtomicU64>()) }
    }

    /// Returns the bytes that wait to be read.
    pub(super) fn waiting(&self) -> u64 {
        let (consumer, producer) = self.positions();
        producer.load(Ordering::Acquire).saturating_sub(consumer.load(Ordering::Relaxed))
    }

    /// Passes each record that waits to `f`, and gives the room back.
    pub(super) fn read(&mut self, mut f: impl FnMut(&[u8])) {
        let (consumer, producer) = self.positions();
        let head = producer.load(Ordering::Acquire);
        let mut tail = consumer.load(Ordering::Relaxed);
        let mut given = tail;
        while tail < head {
            let at = tail as usize & (self.len - 1);
            // SAFETY: the mapping has `page + 2 * len` bytes, and headers begin at multiples of 8.
            let start = unsafe { self.producer.add(self.page + at) };
            // SAFETY: the header begins with an aligned u32.
            let header = unsafe { &*start.cast::<AtomicU32>() }.load(Ordering::Acquire);
            let len = (header & !(BUSY | DISCARDED)) as usize;
            // What an interrupted program writes comes with the next pass.
            if header & BUSY != 0 || len + HEADER > self.len {
                break;
            }
            if header & DISCARDED == 0 {
                // SAFETY: the content is mapped twice, so the record is in one piece, and the kernel does not write to
                // it before its room is given back.
                f(unsafe { std::slice::from_raw_parts(start.add(HEADER), len) });
            }
            tail += (len + HEADER).next_multiple_of(8) as u64;
            if tail - given >= STEP {
                consumer.store(tail, Ordering::Release);
                given = tail;
            }
        }
        consumer.store(tail, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: these are the whole mappings, to which nothing refers any more.
        unsafe {
            libc::munmap(self.consumer.cast(), self.page);
            libc::munmap(self.producer.cast(), self.page + 2 * self.len);
        }
    }
}
