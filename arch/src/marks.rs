//! Marks of memory for which a hooked function has nothing to do.

/// Location of the marks: bytes that each stand for pieces of memory, so that a hooked function can see at
/// once that it has nothing to do for an address. Offsets are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// Offset, in the static that is named beside this, of the base address of all other offsets.
    pub base: usize,
    /// Offset of the first mark from the base.
    pub first: usize,
    /// Number of marks (a power of two); further pieces of memory share them.
    pub count: usize,
    /// Bytes of memory per mark (a power of two). A mark of 0 says that there is nothing to do.
    pub granule: usize,
    /// Offset from the base of a 32-bit word that is not 0 if the marks mean nothing.
    pub void: usize,
    /// Offset, in the function's descriptor, of the address to continue at if there is nothing to do.
    pub original: usize,
}

impl Marks {
    /// Returns whether the low 32 bits of an address determine its mark.
    #[must_use]
    pub const fn is_low(&self) -> bool {
        let bits = self.granule.trailing_zeros() + self.count.trailing_zeros();
        self.granule.is_power_of_two() && self.count.is_power_of_two() && bits <= 32
    }
}
