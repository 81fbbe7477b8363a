//! Type for addresses in the target, which must not be taken for pointers of this process.

use std::fmt;

/// Address in the target's memory. It can't be dereferenced in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddr(pub u64);

impl RemoteAddr {
    /// Returns the address `n` bytes higher, modulo 2^64.
    #[must_use]
    pub fn plus(self, n: u64) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

impl fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
