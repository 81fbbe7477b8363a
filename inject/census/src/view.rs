//! The target's memory, read in windows.

pub(crate) use prof_glibc::{Memory, WORD, words};
use prof_inject::isolated::Interrupts;
use prof_os::memory::Reader;
use std::ops::Range;
use std::time::Instant;

/// Bytes of a window.
const WINDOW: u64 = 64 << 10;
/// Number of reads between two looks at the clock.
const READS: u32 = 64;

/// Reads words at ascending addresses with few system calls, and nothing more from a moment on: whoever follows lists or
/// searches memory stops at what can't be read, so that no heap, however it lies, keeps the target stopped for longer.
pub(crate) struct View<'a> {
    pub reader: &'a Reader,
    /// Address of the window's first byte, and its contents.
    window: (u64, Vec<u8>),
    /// Bytes that were read.
    pub bytes: u64,
    until: Instant,
    reads: u32,
    late: bool,
}

impl<'a> View<'a> {
    pub(crate) fn new(reader: &'a Reader, until: Instant) -> Self {
        Self { reader, window: (0, Vec::new()), bytes: 0, until, reads: 0, late: false }
    }

    /// Returns whether something was not read because time was up, or prof was asked to end.
    pub(crate) fn is_late(&self) -> bool {
        self.late
    }

    /// Reads memory, unless it is late. Returns the number of bytes.
    fn read(&mut self, at: u64, to: &mut [u8]) -> usize {
        if self.reads.is_multiple_of(READS) {
            self.late |= Instant::now() >= self.until || Interrupts::are_due();
        }
        self.reads = self.reads.wrapping_add(1);
        if self.late {
            return 0;
        }
        let n = self.reader.read(at, to);
        self.bytes += n as u64;
        n
    }

    /// Forgets what was read: the target may have changed it.
    pub(crate) fn forget(&mut self) {
        self.window.1.clear();
    }

    /// Reads a word. `end`: nothing from there on is read with it.
    pub(crate) fn word(&mut self, at: u64, end: u64) -> Option<u64> {
        let (start, bytes) = (self.window.0, &self.window.1);
        let behind = at.checked_add(WORD)?;
        if at < start || behind > start + bytes.len() as u64 {
            self.fill(at, end.max(behind).min(at.saturating_add(WINDOW)));
        }
        let (start, bytes) = (self.window.0, &self.window.1);
        let from = usize::try_from(at - start).ok()?;
        words(bytes.get(from..from + WORD as usize)?).next()
    }

    fn fill(&mut self, at: u64, end: u64) {
        let mut bytes = std::mem::take(&mut self.window.1);
        bytes.resize((end - at) as usize, 0);
        let n = self.read(at, &mut bytes);
        bytes.truncate(n);
        self.window = (at, bytes);
    }
}

impl Memory for View<'_> {
    /// Reads words at an address without a window.
    fn words<const N: usize>(&mut self, at: u64) -> Option<[u64; N]> {
        let mut bytes = [[0u8; WORD as usize]; N];
        let all = bytes.as_flattened_mut();
        (self.read(at, all) == all.len()).then(|| bytes.map(|w| usize::from_ne_bytes(w) as u64))
    }

    fn all(&mut self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
        let n = self.read(range.start, &mut bytes);
        bytes.truncate(n);
        bytes
    }
}
