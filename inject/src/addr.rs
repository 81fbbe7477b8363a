//! Addresses, by the space they live in.

use std::fmt;

/// An address in the target. It means nothing in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddr(pub u64);

impl RemoteAddr {
    /// The address `n` bytes on.
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
