//! A range of addresses in the target.

/// A range of addresses in the target, such as a mapping that prof made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Area {
    /// First address.
    pub addr: u64,
    /// Length in bytes; 0: unused.
    pub len: u64,
}
