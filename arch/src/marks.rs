//! What says of a piece of memory that there is nothing to do for it.

/// Bytes that each stand for pieces of memory, so that a hooked function can see at once that it has
/// nothing to do for an address. Offsets are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// In the static that is named beside this: where the base address of all other offsets stands.
    pub base: usize,
    /// From the base: the first mark.
    pub first: usize,
    /// How many marks there are (a power of two); further pieces of memory have the same ones again.
    pub count: usize,
    /// Bytes of memory that a mark stands for (a power of two). There is nothing to do where it is 0.
    pub granule: usize,
    /// From the base: a word of 32 bits that is not 0 if the marks say nothing.
    pub void: usize,
    /// In the function's descriptor: the address to go on with where there is nothing to do.
    pub original: usize,
}

impl Marks {
    /// Whether the low 32 bits of an address say which is its mark.
    #[must_use]
    pub const fn is_low(&self) -> bool {
        let bits = self.granule.trailing_zeros() + self.count.trailing_zeros();
        self.granule.is_power_of_two() && self.count.is_power_of_two() && bits <= 32
    }
}
