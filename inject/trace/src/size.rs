//! The size of a block, and with it what glibc's header of the block says of it.

/// Bits of a size that a header can be said with; the header's bits begin there.
pub const BITS: u32 = 40;
/// There is a header.
const PRESENT: u64 = 1 << 55;
const OTHER_ARENA: u64 = 2;
const ARENA: u64 = 3;
const MAPPED: u64 = 4;
const EXTRA: u32 = 3;
const MOST_STEPS: u64 = (1 << 12) - 1;

/// What glibc's header of a block says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Header {
    /// Of which arena: 0 that is not known or of none, 1 the main one, 2 another.
    pub arena: u8,
    /// It is a mapping of its own.
    pub mapped: bool,
    /// Steps of [`Chunks`] that its chunk is larger than it must be.
    pub extra: u32,
}

impl Header {
    /// As a number; 0 if nothing is known.
    #[inline(always)]
    pub fn code(self) -> u16 {
        let mapped = if self.mapped { MAPPED } else { 0 };
        (u64::from(self.arena) & ARENA | mapped | u64::from(self.extra) << EXTRA) as u16
    }

    /// From [`Header::code`].
    #[inline(always)]
    pub fn from_code(code: u16) -> Self {
        let code = u64::from(code);
        let arena = (code & ARENA).min(OTHER_ARENA) as u8;
        let extra = (code >> EXTRA & MOST_STEPS) as u32;
        Self { arena, mapped: code & MAPPED != 0, extra }
    }

    /// Whether anything is known.
    pub fn is_known(self) -> bool {
        self.arena != 0 || self.mapped
    }
}

/// How glibc's chunks are made with pointers of a certain width: a word for the header in front of the
/// block, the whole a multiple of two words, the block at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    word: u64,
}

impl Chunks {
    /// This machine's.
    pub const NATIVE: Self = Self { word: size_of::<usize>() as u64 };

    /// With pointers of 4 bytes, or else of 8.
    pub const fn of(pointer_size: u32) -> Self {
        Self { word: if pointer_size == 4 { 4 } else { 8 } }
    }

    /// What the size of a chunk, and the address of a block, is a multiple of.
    #[inline(always)]
    pub const fn step(self) -> u64 {
        2 * self.word
    }

    /// Bytes of the smallest chunk for a block of that many; senseless if none can be so large.
    #[inline(always)]
    pub fn smallest(self, size: u64) -> u64 {
        let step = self.step();
        (size.wrapping_add(self.word + step - 1) & !(step - 1)).max(2 * step)
    }

    /// Bytes of the chunk of a block of that many, as far as is known.
    pub fn bytes(self, size: u64, header: Header) -> u64 {
        if size >> BITS != 0 {
            return size;
        }
        self.smallest(size).saturating_add(u64::from(header.extra) * self.step())
    }

    /// Bytes that the program may use of a block of that many, if its header is known.
    pub fn usable(self, size: u64, header: Header) -> Option<u64> {
        // A mapped chunk has no use for the first word of the next one.
        let used = if header.mapped { 2 * self.word } else { self.word };
        let chunk = self.smallest(size).saturating_add(u64::from(header.extra) * self.step());
        (header.is_known() && size >> BITS == 0).then(|| chunk.saturating_sub(used))
    }
}

/// What an event says of the size: the bytes asked for, and, where that is not as it was at the last
/// event of the thread, the header.
#[inline(always)]
pub fn with_header(size: u64, header: Header) -> u64 {
    if size >> BITS != 0 || u64::from(header.extra) > MOST_STEPS {
        return size;
    }
    PRESENT | u64::from(header.code()) << BITS | size
}

/// Whether a header can be said of a block of that size and so many steps.
#[inline(always)]
pub fn can_have_header(size: u64, steps: u64) -> bool {
    size >> BITS == 0 && steps <= MOST_STEPS
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
                for (mapped, extra) in [(false, 0), (true, 255), (false, 1), (false, 4095)] {
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
        assert!(!can_have_header(1 << 40, 0) && !can_have_header(1, 4096));
        assert!(can_have_header(1, 4095));
    }

    #[test]
    fn usable_sizes_are_those_of_malloc_usable_size() {
        let main = Header { arena: 1, ..Header::default() };
        let (wide, narrow) = (Chunks::of(8), Chunks::of(4));
        for (size, usable) in [(0, 24), (24, 24), (25, 40), (40, 40), (41, 56)] {
            assert_eq!(wide.usable(size, main), Some(usable));
            assert_eq!(wide.usable(size, Header { extra: 1, ..main }), Some(usable + 16));
        }
        for (size, usable) in [(0, 12), (12, 12), (13, 20), (20, 20), (21, 28)] {
            assert_eq!(narrow.usable(size, main), Some(usable));
            assert_eq!(narrow.usable(size, Header { extra: 1, ..main }), Some(usable + 8));
        }
        let mapped = Header { mapped: true, ..Header::default() };
        assert_eq!(wide.usable(300_000, mapped), Some(300_000));
        assert_eq!(narrow.usable(300_001, mapped), Some(300_000));
        assert_eq!(wide.usable(10, Header::default()), None);
        // Of larger ones nothing is known, whatever the thread's last block was.
        assert_eq!((wide.usable(1 << 40, main), wide.usable(u64::MAX, main)), (None, None));
    }
}
