//! Sizes of blocks, encoded together with the content of glibc's chunk header and the sampling distance.

/// Bits of a size that can carry a header; the bits of the header begin there.
pub const BITS: u32 = 40;
/// Flag: the size carries a header.
const PRESENT: u64 = 1 << 55;
const OTHER_ARENA: u64 = 2;
const ARENA: u64 = 3;
/// Value in place of the arena: the high bits of the size hold the arena and the exponent of the sampling distance.
const WITH_RATE: u64 = 3;
const RATE_BITS: u32 = 33;
const RATE_ARENA: u32 = RATE_BITS;
const RATE: u32 = RATE_BITS + 2;
/// Exponents of sampling distances. A block of 2^33 bytes or more can't state its exponent and need not do
/// so: at each of these distances it is recorded with certainty.
pub const RATES: core::ops::RangeInclusive<u8> = 1..=28;
const MAPPED: u64 = 4;
const EXTRA: u32 = 3;
const MOST_STEPS: u64 = (1 << 12) - 1;

/// Content of glibc's chunk header of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Header {
    /// Arena: 0 unknown or none, 1 the main arena, 2 another.
    pub arena: u8,
    /// Whether the chunk is a mapping of its own.
    pub mapped: bool,
    /// Steps ([`GlibcChunks::step`]) by which the chunk is larger than the smallest for its size.
    pub extra: u32,
}

impl Header {
    /// Returns the header as a number; 0 if nothing is known.
    #[inline(always)]
    pub fn code(self) -> u16 {
        let mapped = if self.mapped { MAPPED } else { 0 };
        (u64::from(self.arena) & ARENA | mapped | u64::from(self.extra) << EXTRA) as u16
    }

    /// Decodes the result of [`Header::code`].
    #[inline(always)]
    pub fn from_code(code: u16) -> Self {
        let code = u64::from(code);
        let arena = (code & ARENA).min(OTHER_ARENA) as u8;
        let extra = (code >> EXTRA & MOST_STEPS) as u32;
        Self { arena, mapped: code & MAPPED != 0, extra }
    }

    /// Returns whether anything is known of the block.
    pub fn is_known(self) -> bool {
        self.arena != 0 || self.mapped
    }
}

/// Layout of glibc's chunks for a pointer width: a header of one word in front of the block. Sizes of chunks
/// and addresses of blocks are multiples of two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlibcChunks {
    word: u64,
}

impl GlibcChunks {
    /// Layout on this machine.
    pub const NATIVE: Self = Self { word: size_of::<usize>() as u64 };

    /// Returns the layout with pointers of 4 bytes, or else of 8.
    pub const fn of(pointer_size: u32) -> Self {
        Self { word: if pointer_size == 4 { 4 } else { 8 } }
    }

    /// Returns the alignment of chunk sizes and block addresses, in bytes.
    #[inline(always)]
    pub const fn step(self) -> u64 {
        2 * self.word
    }

    /// Returns the size of the smallest chunk for a block of `size` bytes; meaningless if no chunk can be so
    /// large.
    #[inline(always)]
    pub fn smallest(self, size: u64) -> u64 {
        let step = self.step();
        (size.wrapping_add(self.word + step - 1) & !(step - 1)).max(2 * step)
    }

    /// Returns the size of a block's chunk, as far as it is known.
    pub fn bytes(self, size: u64, header: Header) -> u64 {
        if size >> BITS != 0 {
            return size;
        }
        self.smallest(size).saturating_add(u64::from(header.extra) * self.step())
    }

    /// Returns the usable bytes of a block, if its header is known.
    pub fn usable(self, size: u64, header: Header) -> Option<u64> {
        // A mapped chunk can't use the first word of the next chunk.
        let used = if header.mapped { 2 * self.word } else { self.word };
        let chunk = self.smallest(size).saturating_add(u64::from(header.extra) * self.step());
        (header.is_known() && size >> BITS == 0).then(|| chunk.saturating_sub(used))
    }
}

/// The size of a new block as events have it: the requested bytes with the block's chunk header and sampling distance, as
/// far as a reader does not expect them (FORMAT.md, section 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct CodedSize(pub u64);

impl CodedSize {
    /// Encodes a size and a header. A size without a header says that the header is as expected.
    #[inline(always)]
    pub fn with_header(size: u64, header: Header) -> Self {
        if size >> BITS != 0 || u64::from(header.extra) > MOST_STEPS {
            return Self(size);
        }
        Self(PRESENT | u64::from(header.code()) << BITS | size)
    }

    /// Encodes size, header and the sampling distance 2^`rate`; 0: no distance.
    #[inline(always)]
    pub fn with_rate(size: u64, header: Header, rate: u8) -> Self {
        if rate == 0 {
            return Self::with_header(size, header);
        }
        if size >> RATE_BITS != 0 || u64::from(header.extra) > MOST_STEPS {
            return Self(size);
        }
        let code = u64::from(header.code());
        let (arena, rest) = (code & ARENA, code & !ARENA | WITH_RATE);
        Self(PRESENT | rest << BITS | u64::from(rate & 31) << RATE | arena << RATE_ARENA | size)
    }

    /// Returns whether it is a size and nothing else, and less than 2^[`BITS`] bytes.
    #[inline(always)]
    pub fn is_plain(self) -> bool {
        self.0 >> BITS == 0
    }

    /// Returns the exponent of the sampling distance that it states; 0: none.
    #[inline(always)]
    pub fn rate(self) -> u8 {
        if self.has_rate() { (self.0 >> RATE & 31) as u8 } else { 0 }
    }

    #[inline(always)]
    fn has_rate(self) -> bool {
        self.0 & (PRESENT | WITH_RATE << BITS) == PRESENT | WITH_RATE << BITS
    }

    /// Returns the requested bytes, and the header that it states.
    #[inline(always)]
    pub fn decode(self) -> (u64, Option<Header>) {
        let size = self.0;
        if size & PRESENT == 0 {
            return (size, None);
        }
        let code = (size >> BITS) as u16 & !(1 << (55 - BITS));
        if self.has_rate() {
            let arena = (size >> RATE_ARENA) as u16 & ARENA as u16;
            let header = Header::from_code(code & !(ARENA as u16) | arena);
            return (size & ((1 << RATE_BITS) - 1), Some(header));
        }
        (size & ((1 << BITS) - 1), Some(Header::from_code(code)))
    }
}

impl From<u64> for CodedSize {
    /// Takes a size of which nothing else is known.
    #[inline(always)]
    fn from(size: u64) -> Self {
        Self(size)
    }
}

/// Returns whether a header with so many steps can be encoded for a block of that size.
#[inline(always)]
pub fn can_have_header(size: u64, steps: u64) -> bool {
    size >> BITS == 0 && steps <= MOST_STEPS
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
                    assert_eq!(CodedSize::with_header(size, h).decode(), (size, Some(h)));
                    assert_eq!(CodedSize(size).decode(), (size, None));
                    assert!(CodedSize::with_header(size, h).0 < 1 << 56);
                    for rated in RATES {
                        let all = CodedSize::with_rate(size, h, rated);
                        assert!(all.0 < 1 << 56);
                        let fits = size >> RATE_BITS == 0;
                        let (header, rated) = if fits { (Some(h), rated) } else { (None, 0) };
                        assert_eq!((all.decode(), all.rate()), ((size, header), rated));
                    }
                    assert_eq!(CodedSize::with_rate(size, h, 0), CodedSize::with_header(size, h));
                    assert_eq!(CodedSize(size).rate(), 0);
                    assert_eq!(CodedSize::with_header(size, h).rate(), 0);
                }
            }
        }
        let h = Header { arena: 1, mapped: false, extra: 0 };
        assert_eq!(CodedSize::with_header(1 << 40, h).decode(), (1 << 40, None));
        assert!(!can_have_header(1 << 40, 0) && !can_have_header(1, 4096));
        assert!(can_have_header(1, 4095));
    }

    #[test]
    fn usable_sizes_are_those_of_malloc_usable_size() {
        let main = Header { arena: 1, ..Header::default() };
        let (wide, narrow) = (GlibcChunks::of(8), GlibcChunks::of(4));
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
        // Nothing is known of larger blocks, whatever the thread's last block was.
        assert_eq!((wide.usable(1 << 40, main), wide.usable(u64::MAX, main)), (None, None));
    }
}
