//! Header of the hook's image, by which the injector and the hook find each other.

use crate::shared::{Code, Entries, LAYOUT, MAGIC, Shared};
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU64;

/// Name of the symbol that holds the address of the [`HookHeader`] in the hook library.
pub const HOOK_SYMBOL: &str = "PROF_HOOK";

/// Header that the injector finds in the hook's image.
#[repr(C)]
#[derive(Debug)]
pub struct HookHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// Size of a thread state, in bytes (a multiple of the page size).
    pub state_size: u64,
    /// Entries that stubs jump to, see [`Kind::entry`](crate::shared::Kind::entry).
    pub entries: Entries,
    /// Entries used instead while not all blocks are recorded, for functions most of whose calls are not:
    /// malloc where it calls no other hooked function, [`Kind::Free`](crate::shared::Kind::Free),
    /// [`Kind::Delete`](crate::shared::Kind::Delete).
    pub pass: [Code; 3],
    /// Handler of the toggle signal and of the dump signal, installed with `SA_RESTART | SA_ONSTACK`.
    pub handler: Code,
    /// `sa_restorer` of the handler, on architectures that have one.
    pub restorer: Code,
    /// Address of the [`Locations`].
    pub locations: Code,
}

/// Addresses that the injector sets in the hook's image. They are apart from the [`HookHeader`], which names all entries,
/// so that what the entries call need not know the entries.
#[repr(C)]
#[derive(Debug)]
pub struct Locations {
    /// [`MAGIC`], by which the injector knows that it has found them.
    pub magic: u64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// Location of the shared memory.
    pub shared: RingLocation,
    /// [`Stable::flag_addr`](crate::shared::Stable::flag_addr).
    pub flag: AtomicU64,
}

impl Locations {
    /// Makes empty locations.
    #[allow(clippy::new_without_default)] // for a static
    pub const fn new() -> Self {
        let (shared, flag) = (RingLocation::new(), AtomicU64::new(0));
        Self { magic: MAGIC, layout: LAYOUT, shared, flag }
    }
}

/// Location of the shared memory. The injector sets it before any code of the hook can run.
#[repr(transparent)]
#[derive(Debug)]
pub struct RingLocation(UnsafeCell<Shared<'static>>);

// SAFETY: it is written once, before any other thread reads it.
unsafe impl Sync for RingLocation {}

impl RingLocation {
    /// Offset of the number of segments (a `usize`). The offset of the address is 0.
    pub const SEGMENTS: usize = Shared::SEGMENTS;

    /// Makes an empty location.
    #[allow(clippy::new_without_default)] // for a static
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Shared::NONE))
    }

    /// Sets the location.
    ///
    /// # Safety
    /// Nobody may have called [`RingLocation::get`] yet, nor call it meanwhile.
    pub unsafe fn set(&self, shared: Shared<'static>) {
        // SAFETY: nobody else accesses it, by the caller's promise.
        unsafe { *self.0.get() = shared };
    }

    /// Returns the shared memory by reference, so that it can be passed on without a copy.
    ///
    /// # Safety
    /// [`RingLocation::set`] must have been called.
    #[inline(always)]
    pub unsafe fn get(&'static self) -> &'static Shared<'static> {
        // SAFETY: it was set, by the caller's promise, and never changes afterwards.
        unsafe { &*self.0.get() }
    }
}
