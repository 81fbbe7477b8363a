//! jemalloc's extents: runs of pages that are one large block, a slab of small ones, or free
//! (`edata_t` in include/jemalloc/internal/edata.h of 5.3, `extent_t` in extent_structs.h of 5.0 to 5.2).

/// Words of an extent's data in front of the bitmap of its regions.
pub(crate) const HEAD: u64 = 8;
/// Bits of the number of an extent's arena, the lowest ones of the first word.
const ARENA: u64 = (1 << 12) - 1;
/// Bit of the first word: the extent is a slab.
const SLAB: u32 = 12;
/// Width of the number of a size class.
const CLASS: u32 = 8;
/// Binary logarithm of the least size of a block.
const TINY: u32 = 3;

/// The bits at which the fields of an extent's first word begin. The versions of jemalloc differ in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Minor number of the version that it came with.
    pub minor: u32,
    state: u32,
    state_width: u32,
    class: u32,
}

/// The layouts that are known.
pub(crate) const LAYOUTS: [Layout; 3] = [
    Layout { minor: 3, state: 17, state_width: 3, class: 20 },
    // 5.1 as well.
    Layout { minor: 2, state: 16, state_width: 2, class: 18 },
    Layout { minor: 0, state: 15, state_width: 2, class: 17 },
];

/// The purpose of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Of blocks.
    Active,
    /// Free, with contents.
    Dirty,
    /// Free; the kernel takes the contents when it needs the memory.
    Muzzy,
    /// Free address space.
    Retained,
    /// About to become another.
    Changing,
}

/// An extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Address of the first block: a large one may begin inside of the first page.
    pub address: u64,
    /// Bytes, a multiple of a page.
    pub size: u64,
    pub arena: u16,
    pub state: Use,
    /// Number of the size class of its blocks.
    pub class: u8,
    pub slab: bool,
    /// Number of free regions of a slab.
    pub free: u32,
    /// The first word of its bits among those of all extents.
    pub bits: u32,
    /// Address of its data.
    pub at: u64,
}

impl Extent {
    /// Reads the first words of an extent.
    pub(crate) fn of(at: u64, [bits, address, size]: [u64; 3], layout: Layout, shift: u32) -> Self {
        let field = |at: u32, width: u32| bits >> at & ((1 << width) - 1);
        Self {
            address,
            size: size >> shift << shift,
            arena: (bits & ARENA) as u16,
            state: match field(layout.state, layout.state_width) {
                0 => Use::Active,
                1 => Use::Dirty,
                2 => Use::Muzzy,
                3 => Use::Retained,
                _ => Use::Changing,
            },
            class: field(layout.class, CLASS) as u8,
            slab: field(SLAB, 1) != 0,
            free: field(layout.class + CLASS, shift - TINY + 1) as u32,
            bits: 0,
            at,
        }
    }

    /// Returns the start of the first page.
    pub(crate) fn base(&self, shift: u32) -> u64 {
        self.address >> shift << shift
    }

    /// Returns the number of blocks of a size that it has room for, or `None` if it makes no sense.
    pub(crate) fn room(&self, size: u64, shift: u32) -> Option<u64> {
        let base = self.base(shift);
        base.checked_add(self.size).filter(|end| end >> super::ADDRESS == 0)?;
        if self.slab {
            let n = self.size / size;
            return (self.address == base && (1..=1 << (shift - TINY)).contains(&n)).then_some(n);
        }
        ((self.address - base).checked_add(size)? <= self.size).then_some(1)
    }
}

/// Returns the words of the bitmap of so many regions.
pub(crate) fn words_of(room: u64) -> u64 {
    room.div_ceil(64)
}

/// Returns the bits that a bitmap's word of this number has for regions.
pub(crate) fn mask(room: u64, word: u64) -> u64 {
    match room.saturating_sub(word * 64) {
        0 => 0,
        n if n >= 64 => u64::MAX,
        n => (1 << n) - 1,
    }
}
