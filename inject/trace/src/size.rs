//! The size of a block, and with it what glibc's header of the block says of it.

/// Bits of a size that a header can be said with; the header's bits begin there.
pub const BITS: u32 = 40;
/// There is a header.
const PRESENT: u64 = 1 << 55;
const OTHER_ARENA: u64 = 2;
const ARENA: u64 = 3;
const MAPPED: u64 = 4;
const EXTRA: u32 = 3;
const MOST_EXTRA: u64 = (1 << 12) - 1;

/// What glibc's header of a block says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Header {
    /// Of which arena: 0 that is not known or of none, 1 the main one, 2 another.
    pub arena: u8,
    /// It is a mapping of its own.
    pub mapped: bool,
    /// Bytes that its chunk is larger than [`chunk_size`].
    pub extra: u32,
}

impl Header {
    /// As a number; 0 if nothing is known.
    #[inline(always)]
    pub fn code(self) -> u16 {
        let mapped = if self.mapped { MAPPED } else { 0 };
        (u64::from(self.arena) & ARENA | mapped | u64::from(self.extra / 16) << EXTRA) as u16
    }

    /// From [`Header::code`].
    #[inline(always)]
    pub fn from_code(code: u16) -> Self {
        let code = u64::from(code);
        let arena = (code & ARENA).min(OTHER_ARENA) as u8;
        let extra = ((code >> EXTRA & MOST_EXTRA) * 16) as u32;
        Self { arena, mapped: code & MAPPED != 0, extra }
    }

    /// Whether anything is known.
    pub fn is_known(self) -> bool {
        self.arena != 0 || self.mapped
    }

    /// Bytes that the program may use of a block of that many.
    pub fn usable(self, size: u64) -> Option<u64> {
        // A mapped chunk has no use for the first word of the next one.
        let header = if self.mapped { 16 } else { 8 };
        let chunk = chunk_size(size).saturating_add(self.extra.into());
        self.is_known().then(|| chunk.saturating_sub(header))
    }
}

/// Bytes of the smallest chunk that glibc, with 64-bit addresses, needs for that many.
#[inline(always)]
pub fn chunk_size(size: u64) -> u64 {
    (size.saturating_add(8 + 15) & !15).max(32)
}

/// What an event says of the size: the bytes asked for, and, where that is not as it was at the last
/// event of the thread, the header.
#[inline(always)]
pub fn with_header(size: u64, header: Header) -> u64 {
    if size >> BITS != 0 || u64::from(header.extra / 16) > MOST_EXTRA {
        return size;
    }
    PRESENT | u64::from(header.code()) << BITS | size
}

/// Whether a header can be said of a block of that size.
#[inline(always)]
pub fn can_have_header(size: u64, extra: u64) -> bool {
    size >> BITS == 0 && extra & 15 == 0 && extra / 16 <= MOST_EXTRA
}

/// The size that stands in an event, apart.
#[inline(always)]
pub fn apart(size: u64) -> (u64, Option<Header>) {
    if size & PRESENT == 0 {
        return (size, None);
    }
    let code = (size >> BITS) as u16 & !(1 << (55 - BITS));
    (size & ((1 << BITS) - 1), Some(Header::from_code(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_headers_come_apart_again() {
        for size in [0, 1, 24, 25, 1 << 20, (1 << 40) - 1] {
            for arena in 0..=2 {
                for (mapped, extra) in [(false, 0), (true, 4080), (false, 16), (false, 65_520)] {
                    let h = Header { arena, mapped, extra };
                    assert_eq!(Header::from_code(h.code()), h);
                    assert_eq!(apart(with_header(size, h)), (size, Some(h)));
                    assert_eq!(apart(size), (size, None));
                    assert!(with_header(size, h) < 1 << 56);
                }
            }
        }
        let h = Header { arena: 1, mapped: false, extra: 0 };
        assert_eq!(apart(with_header(1 << 40, h)), (1 << 40, None));
        assert!(!can_have_header(1 << 40, 0) && !can_have_header(1, 65_536));
        assert!(!can_have_header(1, 8) && can_have_header(1, 16));
    }

    #[test]
    fn usable_sizes_are_those_of_malloc_usable_size() {
        let main = Header { arena: 1, ..Header::default() };
        for (size, usable) in [(0, 24), (24, 24), (25, 40), (40, 40), (41, 56)] {
            assert_eq!(main.usable(size), Some(usable));
            assert_eq!(Header { extra: 16, ..main }.usable(size), Some(usable + 16));
        }
        assert_eq!(Header::default().usable(10), None);
    }
}
