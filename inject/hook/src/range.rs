//! A range of addresses that can be read.

use crate::memory::WORD;

/// A readable range of addresses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    /// First address.
    pub start: u64,
    /// End address.
    pub end: u64,
}

impl Extent {
    /// Returns whether the address is in the range.
    #[inline(always)]
    pub fn holds(&self, addr: u64) -> bool {
        addr >= self.start && addr < self.end
    }

    /// Returns whether the word at `addr` is in the range.
    #[inline(always)]
    pub fn has_word(&self, addr: u64) -> bool {
        addr >= self.start && addr.saturating_add(WORD) <= self.end
    }
}
