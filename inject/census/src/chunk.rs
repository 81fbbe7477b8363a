//! Chunks, the pieces into which glibc divides a heap: two words of header, of which the first belongs to the chunk
//! before while that is in use (malloc/malloc.c of glibc, "Chunk representation").

use crate::view::WORD;

/// Bytes in front of the memory that the program gets.
pub(crate) const HEADER: u64 = 2 * WORD;
/// Alignment of chunks, and least size of one.
pub(crate) const ALIGN: u64 = 2 * WORD;
pub(crate) const LEAST: u64 = 4 * WORD;
/// Bits of a size that are not of the size.
const FLAGS: u64 = 7;
/// Flag: the chunk before is in use.
pub(crate) const BEFORE_IN_USE: u64 = 1;
/// Flag: the chunk has a mapping of its own.
pub(crate) const MAPPED: u64 = 2;
/// Number of states.
const STATES: u64 = 4;

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// In use by the program.
    InUse,
    /// Free: in a bin, or not yet put into one.
    Binned,
    /// Free, in the cache of a thread.
    Cached,
    /// Free, in a fast bin.
    Fast,
}

impl State {
    const ALL: [Self; STATES as usize] = [Self::InUse, Self::Binned, Self::Cached, Self::Fast];
}

/// A chunk: 16 bytes, of which there may be many millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Address of the header.
    pub at: u64,
    /// Size with the header, and the state in the bits of the flags.
    size: u64,
}

impl Chunk {
    /// Creates a chunk. The size must be a multiple of the alignment.
    pub(crate) fn new(at: u64, size: u64, state: State) -> Self {
        Self { at, size: size | state as u64 }
    }

    /// Returns the size with the header.
    pub(crate) fn size(&self) -> u64 {
        self.size & !FLAGS
    }

    pub(crate) fn state(&self) -> State {
        State::ALL[(self.size % STATES) as usize]
    }

    pub(crate) fn set(&mut self, state: State) {
        self.size = self.size() | state as u64;
    }

    /// Returns the address that the program gets.
    pub(crate) fn user(&self) -> u64 {
        self.at + HEADER
    }

    /// Returns the bytes that the program may use: the first word of the next chunk is one of them.
    pub(crate) fn usable(&self) -> u64 {
        self.size() - WORD
    }
}

/// The size field of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeField(pub u64);

impl SizeField {
    /// Returns the size with the header.
    pub(crate) fn size(self) -> u64 {
        self.0 & !FLAGS
    }

    pub(crate) fn before_in_use(self) -> bool {
        self.0 & BEFORE_IN_USE != 0
    }

    /// Returns whether a chunk of a heap can have this size.
    pub(crate) fn is_sane(self) -> bool {
        self.0 & MAPPED == 0 && self.size() >= LEAST && self.size().is_multiple_of(ALIGN)
    }

    /// Returns whether this is the end of a heap that could not grow where it was: a chunk too small to be one.
    pub(crate) fn is_fence(self) -> bool {
        // What is in front of the first one may be free; the second one's size is 0 or the header's.
        self.0 & MAPPED == 0 && (self.size() == HEADER || self.0 == BEFORE_IN_USE)
    }
}
