//! A range of addresses in the target.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A range of addresses in the target, such as a mapping that prof made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Area {
    /// First address.
    pub addr: u64,
    /// Length in bytes; 0: unused.
    pub len: u64,
}

/// An [`Area`] in the shared memory, to which the target may write at any time.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SharedArea {
    addr: AtomicU64,
    len: AtomicU64,
}

impl SharedArea {
    /// Returns the area. If the target changes it meanwhile, its parts need not fit each other.
    #[inline(always)]
    pub fn get(&self) -> Area {
        Area { addr: self.addr.load(Relaxed), len: self.len.load(Relaxed) }
    }

    /// Sets the area.
    pub fn set(&self, a: Area) {
        self.addr.store(a.addr, Relaxed);
        self.len.store(a.len, Relaxed);
    }
}
