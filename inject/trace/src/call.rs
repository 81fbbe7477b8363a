//! Calls that change the address space, or the settings of the allocator: what the hook writes of them, and what a
//! recording says.

use crate::ticks::Ticks;
/// Function that was called.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    /// `mmap`, `mmap64`.
    #[default]
    Mmap = 1,
    /// `munmap`.
    Munmap = 2,
    /// `mremap`.
    Mremap = 3,
    /// `brk`, called by the program.
    Brk = 4,
    /// `brk`, called by libc's `sbrk`.
    Sbrk = 5,
    /// `shmat`.
    Shmat = 6,
    /// `shmdt`.
    Shmdt = 7,
    /// `madvise`.
    Madvise = 8,
    /// `mprotect`.
    Mprotect = 9,
    /// `prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME)`.
    NameVma = 10,
    /// `mallopt`.
    Mallopt = 11,
    /// `malloc_trim`.
    MallocTrim = 12,
    /// `malloc_info`.
    MallocInfo = 13,
    /// jemalloc's `mallctl`, if it writes a value or asks for none.
    Mallctl = 14,
    /// As `Mallctl`, by jemalloc's `mallctlbymib`.
    MallctlByMib = 15,
}

impl CallKind {
    /// All kinds, with the names of the functions.
    pub const ALL: [(Self, &'static str); 15] = [
        (Self::Mmap, "mmap"),
        (Self::Munmap, "munmap"),
        (Self::Mremap, "mremap"),
        (Self::Brk, "brk"),
        (Self::Sbrk, "sbrk"),
        (Self::Shmat, "shmat"),
        (Self::Shmdt, "shmdt"),
        (Self::Madvise, "madvise"),
        (Self::Mprotect, "mprotect"),
        (Self::NameVma, "prctl"),
        (Self::Mallopt, "mallopt"),
        (Self::MallocTrim, "malloc_trim"),
        (Self::MallocInfo, "malloc_info"),
        (Self::Mallctl, "mallctl"),
        (Self::MallctlByMib, "mallctlbymib"),
    ];

    /// Returns the kind with a number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.iter().map(|(kind, _)| *kind).find(|kind| *kind as u64 == number)
    }

    /// Returns the name of the function.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    /// Returns whether the call only gives memory back. Another thread may get the same addresses before it has
    /// returned, so it counts from its beginning on.
    #[must_use]
    pub fn is_release(self) -> bool {
        matches!(self, Self::Munmap | Self::Shmdt)
    }

    /// Returns whether the function changes the allocator's settings, or asks it to do something, rather than
    /// mappings.
    #[must_use]
    pub fn is_of_allocator(self) -> bool {
        self as u8 >= Self::Mallopt as u8
    }

    /// Returns whether calls have a name in front of them: the one that is given to a mapping, or that of a setting.
    #[must_use]
    pub fn has_name(self) -> bool {
        matches!(self, Self::NameVma | Self::Mallctl | Self::MallctlByMib)
    }
}

/// Greatest length of a name, in bytes: the kernel's limit on those of mappings, without the NUL.
pub const MAX_NAME: usize = 79;
/// Bytes of text in one entry of a segment.
pub const TEXT_BYTES: usize = 28;
/// Greatest number of entries in front of a call, which hold its name.
pub const TEXTS: usize = MAX_NAME.div_ceil(TEXT_BYTES);

/// A call as the ring holds it. Numbers have 56 bits; higher bits are cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawCall {
    /// Function that was called.
    pub kind: CallKind,
    /// Ticks after the call had returned.
    pub time: Ticks,
    /// Ticks from before the call to `time`.
    pub took: u64,
    /// See `Call::addr` in the records.
    pub addr: u64,
    /// See `Call::len` in the records.
    pub len: u64,
    /// Depends on the kind: the offset in the file, the old address, the old break, or the value that `mallopt` or
    /// `mallctl` was given, in zigzag coding.
    pub first: u64,
    /// Depends on the kind: the descriptor or id plus one, the old length, the result of the allocator's function, or,
    /// where the call [has a name](CallKind::has_name), the length of that. A part of a name that belongs to a lost call
    /// is so told from this call's.
    pub second: u64,
    /// Protection, see [`pack_prot`].
    pub prot: u8,
    /// Flags, advice, or parameter.
    pub flags: u32,
    /// Error number, at most 2047; 0: the call has succeeded.
    pub errno: u16,
    /// Stack node, as in [`Event::Alloc`](crate::event::Event::Alloc).
    pub node: u32,
}

/// Something of a call that a segment holds.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// The next bytes of the name in the next call, and their number.
    Text([u8; TEXT_BYTES], usize),
    /// A call, with the recording's node.
    Call(RawCall, u32),
}

/// Returns the bits of a protection in one byte: the lowest six, and `PROT_GROWSDOWN` and `PROT_GROWSUP`.
#[inline]
#[must_use]
pub fn pack_prot(prot: u64) -> u8 {
    (prot & 0x3f | prot >> 18 & 0xc0) as u8
}

/// Returns the protection that [`pack_prot`] has packed.
#[must_use]
pub fn unpack_prot(packed: u8) -> u32 {
    u32::from(packed & 0x3f) | u32::from(packed & 0xc0) << 18
}

impl RawCall {
    /// Returns kind, error, protection and flags in one integer of 56 bits.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.kind as u64
            | u64::from(self.errno.min(0x7ff)) << 5
            | u64::from(self.prot) << 16
            | u64::from(self.flags) << 24
    }

    /// Returns a call with what [`RawCall::head`] has packed; `None` if the kind is unknown.
    #[inline]
    pub(crate) fn from_head(head: u64) -> Option<Self> {
        Some(Self {
            kind: CallKind::from_number(head & 0x1f)?,
            errno: (head >> 5 & 0x7ff) as u16,
            prot: (head >> 16) as u8,
            flags: (head >> 24) as u32,
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back() {
        for (kind, name) in CallKind::ALL {
            assert_eq!((CallKind::from_number(kind as u64), kind.name()), (Some(kind), name));
            let call =
                RawCall { kind, errno: 2047, prot: 0xc7, flags: u32::MAX, ..RawCall::default() };
            assert!(call.head() < 1 << 56);
            assert_eq!(RawCall::from_head(call.head()), Some(call));
        }
        assert_eq!(RawCall::from_head(0), None);
        assert_eq!(RawCall::from_head(31), None);
    }

    #[test]
    fn protections_come_back() {
        for prot in [0, 1, 7, 0x20, 0x0100_0003, 0x0200_0000] {
            assert_eq!(u64::from(unpack_prot(pack_prot(prot))), prot);
        }
    }
}
