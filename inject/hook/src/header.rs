//! The static data by which the hook finds all its other memory.

use crate::mapping::Shared;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use prof_trace::shared::{FLAG_COOKIE, Locations};

/// Locations of the shared memory and of the flag page, which the injector sets.
pub static LOCATIONS: Locations = Locations::new();

/// Returns the memory shared with prof.
#[inline(always)]
pub fn shared() -> &'static Shared {
    // SAFETY: the injector has set it to the mapping that it made, before any code of the hook could be
    // reached.
    unsafe { LOCATIONS.shared.get() }
}

/// Returns the recording flag and the cookie beside it.
#[inline(always)]
pub fn flag() -> &'static [AtomicU32; 2] {
    // SAFETY: the injector has mapped the page for as long as the hook is mapped; in forked children it is
    // wiped, not unmapped.
    unsafe { &*(LOCATIONS.flag.load(Relaxed) as *const [AtomicU32; 2]) }
}

/// Returns whether prof attached to this very process. A forked child has only the flag page and the hook's
/// code.
#[inline(always)]
pub fn attached() -> bool {
    flag()[1].load(Relaxed) == FLAG_COOKIE
}

/// Makes this process one that prof has not attached to.
pub fn let_go() {
    let [on, cookie] = flag();
    on.store(0, Relaxed);
    cookie.store(0, Relaxed);
}
