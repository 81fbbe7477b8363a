//! Calling a function so that it returns by way of code of the target's own: not done here.

use crate::unwind::CfiModule;

/// A place to return to, see the same of AMD64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// Its address.
    pub back: u64,
    /// Bytes of its frame.
    pub frame: u64,
    /// The register that it calls.
    pub register: u8,
}

/// The smallest frame that will do.
pub const LEAST_FRAME: u64 = 0;

/// None is looked for: exceptions do not pass through the hook.
#[must_use]
pub fn bridges(_cfi: &CfiModule<'_>, _code: &[u8], _addr: u64) -> Option<Bridge> {
    None
}
