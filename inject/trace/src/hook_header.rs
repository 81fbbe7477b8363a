//! What the injector finds in the hook's image, and fills in.

use crate::shared::Shared;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU64;

/// Symbol of the address of the [`HookHeader`] in the hook library.
pub const HOOK_SYMBOL: &str = "PROF_HOOK";

/// What the injector finds in the hook's image, and fills in before the image can run.
#[repr(C)]
#[derive(Debug)]
pub struct HookHeader {
    /// [`MAGIC`](crate::shared::MAGIC).
    pub magic: u64,
    /// [`LAYOUT`](crate::shared::LAYOUT).
    pub layout: u32,
    /// To be filled in.
    pub shared: Place,
    /// To be filled in: [`Control::flag_addr`](crate::shared::Control::flag_addr).
    pub flag: AtomicU64,
    /// Bytes that a thread state takes (a multiple of the page size).
    pub state_size: u64,
    /// The code that a stub jumps to, by [`Kind`](crate::shared::Kind).
    pub entries: [Code; 17],
    /// The same where not all blocks are recorded, for functions of which most calls need nothing: malloc
    /// where it ends in no other hooked function, [`Kind::Free`](crate::shared::Kind::Free),
    /// [`Kind::Delete`](crate::shared::Kind::Delete).
    pub pass: [Code; 3],
    /// Handler of the toggle signal, for `sa_handler` (with `SA_RESTART | SA_ONSTACK`).
    pub handler: Code,
    /// `sa_restorer` for it, where the architecture has one.
    pub restorer: Code,
}

/// Where the hook finds the shared memory: to be filled in before any of its code can run.
#[repr(transparent)]
#[derive(Debug)]
pub struct Place(UnsafeCell<Shared>);

// SAFETY: filled in while nobody looks, and never changed again.
unsafe impl Sync for Place {}

impl Place {
    /// Offset of the number of segments (a `usize`). That of the address is 0.
    pub const SEGMENTS: usize = Shared::SEGMENTS;

    /// Nothing is known yet.
    #[allow(clippy::new_without_default)] // for a static
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Shared::NONE))
    }

    /// Fills it in.
    ///
    /// # Safety
    /// Nobody may have asked for it yet, nor do so meanwhile.
    pub unsafe fn set(&self, shared: Shared) {
        // SAFETY: the caller's promise.
        unsafe { *self.0.get() = shared };
    }

    /// The memory, in one place, so that it can be handed on without a copy.
    ///
    /// # Safety
    /// It must have been filled in.
    #[inline(always)]
    pub unsafe fn get(&'static self) -> &'static Shared {
        // SAFETY: the caller's promise; it is not changed any more.
        unsafe { &*self.0.get() }
    }
}

/// The address of code in the hook's image: a pointer of the target's width.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Code(pub *const ());

// SAFETY: an address is a number; nothing is done with it here.
unsafe impl Sync for Code {}
// SAFETY: as above.
unsafe impl Send for Code {}
