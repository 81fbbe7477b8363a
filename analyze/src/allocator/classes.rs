//! Sizes to which allocators round blocks up.

use prof_trace::records::allocator;
use prof_trace::size::{GlibcChunks, Header};

/// The rule by which an allocator makes blocks larger than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Classes {
    /// glibc's chunks, where the header of a block was not seen.
    Chunks(GlibcChunks),
    /// Four sizes for each doubling, at least so many bytes apart, as jemalloc has them; and sizes above a limit, in
    /// bytes, are rounded up to whole pages of 4 KiB instead.
    Quarters { quantum: u64, paged_from: u64 },
    /// Not known.
    Unknown,
}

/// Pages to which mimalloc rounds up.
const PAGE: u64 = 4096;
/// Greatest block that mimalloc (1.7 to 2.1, with pointers of 8 bytes) has a size class for.
const MIMALLOC_MOST: u64 = 128 << 10;
/// Greatest block of the smallest class.
const TINY: u64 = 8;

/// Bytes that a block takes: in all, and those of headers among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub bytes: u64,
    pub header: u64,
}

impl Classes {
    /// Returns the rule of an allocator, given the target's pointer size.
    pub(super) fn of(name: &str, pointer_size: u32) -> Self {
        match (name, pointer_size) {
            (allocator::JEMALLOC, 8) => Self::Quarters { quantum: 16, paged_from: u64::MAX },
            (allocator::MIMALLOC, 8) => Self::Quarters { quantum: 16, paged_from: MIMALLOC_MOST },
            _ => Self::Unknown,
        }
    }

    /// Returns what a block of `size` bytes takes; `None` if it is not known.
    pub(super) fn taken(self, size: u64) -> Option<Taken> {
        match self {
            Self::Chunks(chunks) => of_chunk(chunks, size, Header::default()),
            Self::Quarters { quantum, paged_from } => {
                Some(Taken { bytes: quarter(size, quantum, paged_from)?, header: 0 })
            }
            Self::Unknown => None,
        }
    }
}

/// Returns what a block of glibc's with this header takes. A word precedes each block; one with a mapping of its own can't
/// use the next chunk's first word either.
pub(super) fn of_chunk(chunks: GlibcChunks, size: u64, header: Header) -> Option<Taken> {
    if size >> prof_trace::size::BITS != 0 {
        return None;
    }
    let word = chunks.step() / 2;
    let header_bytes = if header.mapped { 2 * word } else { word };
    Some(Taken { bytes: chunks.bytes(size, header), header: header_bytes })
}

fn quarter(size: u64, quantum: u64, paged_from: u64) -> Option<u64> {
    if size <= TINY {
        return Some(TINY);
    }
    if size > paged_from {
        return size.checked_next_multiple_of(PAGE);
    }
    let doubling = 63 - (size - 1).leading_zeros();
    let step = (1u64 << doubling.saturating_sub(2)).max(quantum);
    size.checked_next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what malloc_usable_size has said.
    fn usable(name: &str, size: u64) -> u64 {
        Classes::of(name, 8).taken(size).expect("known").bytes
    }

    #[test]
    fn blocks_are_rounded_up_as_the_allocators_do() {
        let jemalloc = [
            (1, 8),
            (8, 8),
            (9, 16),
            (40, 48),
            (64, 64),
            (65, 80),
            (73, 80),
            (129, 160),
            (257, 320),
            (4097, 5120),
            (16385, 20480),
            (1_000_000, 1 << 20),
            (5 << 20, 5 << 20),
        ];
        for (size, taken) in jemalloc {
            assert_eq!(usable(allocator::JEMALLOC, size), taken, "{size}");
        }
        for (size, taken) in [(1, 8), (40, 48), (73, 80), (1000, 1024), (131_073, 135_168)] {
            assert_eq!(usable(allocator::MIMALLOC, size), taken, "{size}");
        }
        assert_eq!(Classes::of(allocator::JEMALLOC, 4), Classes::Unknown);
        assert_eq!(Classes::of(allocator::TCMALLOC, 8).taken(1), None);
        assert_eq!(Classes::of(allocator::JEMALLOC, 8).taken(u64::MAX), None);
    }

    #[test]
    fn a_mapped_chunk_has_a_larger_header() {
        let chunks = GlibcChunks::of(8);
        let plain = Header { arena: 1, ..Header::default() };
        assert_eq!(of_chunk(chunks, 41, plain), Some(Taken { bytes: 64, header: 8 }));
        let mapped = Header { mapped: true, extra: 3, ..Header::default() };
        assert_eq!(of_chunk(chunks, 41, mapped), Some(Taken { bytes: 112, header: 16 }));
        assert_eq!(of_chunk(chunks, 1 << 40, plain), None);
    }
}
