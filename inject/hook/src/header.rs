//! The one static of the hook: where everything is.

use crate::{entry, fork, named, toggle};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use prof_arch::native::capture;
use prof_trace::shared::{Code, FLAG_COOKIE, HookHeader, LAYOUT, MAGIC, Place, Shared};

type Entry = unsafe extern "C" fn();

const fn code(f: Entry) -> Code {
    Code(f as *const ())
}

/// Where [`HEADER`] is: found by name in the hook's image. What is found by name has its address looked
/// up in a table at each use, even in the library that it is in; so the header itself is not.
#[unsafe(no_mangle)]
pub static PROF_HOOK: &HookHeader = &HEADER;

/// The injector fills in where the shared memory is.
pub static HEADER: HookHeader = HookHeader {
    magic: MAGIC,
    layout: LAYOUT,
    shared: Place::new(),
    flag: AtomicU64::new(0),
    state_size: crate::state::SIZE as u64,
    entries: [
        code(entry::alloc),
        code(entry::alloc),
        code(entry::realloc),
        code(entry::realloc),
        code(entry::alloc),
        code(entry::alloc),
        code(entry::free),
        code(entry::alloc),
        code(entry::alloc),
        code(entry::delete),
        code(entry::loader),
        code(named::resize),
        code(named::alloc),
        code(named::realloc),
        code(named::free),
        code(entry::sandbox),
        code(fork::fork),
    ],
    pass: [code(entry::pass_malloc), code(entry::pass_free), code(entry::pass_delete)],
    handler: Code(toggle::handler as *const ()),
    restorer: Code(capture::restorer as *const ()),
};

/// The memory shared with prof.
#[inline(always)]
pub fn shared() -> &'static Shared {
    // SAFETY: the injector filled it in from the mapping it made, before any code of the hook
    // could be reached.
    unsafe { HEADER.shared.get() }
}

/// The recording flag and the cookie beside it.
#[inline(always)]
pub fn flag() -> &'static [AtomicU32; 2] {
    // SAFETY: a page that the injector mapped for as long as the hook is mapped; in forked
    // children it is wiped, not unmapped.
    unsafe { &*(HEADER.flag.load(Relaxed) as *const [AtomicU32; 2]) }
}

/// Whether this process is the one that prof attached to, and not a forked child of it, in which
/// only the flag page and the hook's code exist.
#[inline(always)]
pub fn attached() -> bool {
    flag()[1].load(Relaxed) == FLAG_COOKIE
}
