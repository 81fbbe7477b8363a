//! The hook's header: the static that leads to all other memory of the hook.

use crate::mapping::Shared;
use crate::{calls, entry, fork, named, toggle};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use prof_arch::native::capture;
use prof_trace::shared::{Code, Entries, FLAG_COOKIE, HookHeader, LAYOUT, MAGIC, Place};

type Entry = unsafe extern "C" fn();

const fn code(f: Entry) -> Code {
    Code(f as *const ())
}

/// Address of [`HEADER`]; the injector finds it by name in the hook's image. An exported symbol's address is
/// looked up in a table at each use, even inside its own library; so the header itself is not exported.
#[unsafe(no_mangle)]
pub static PROF_HOOK: &HookHeader = &HEADER;

/// The header. The injector sets the locations of the shared memory and of the flag page.
pub static HEADER: HookHeader = HookHeader {
    magic: MAGIC,
    layout: LAYOUT,
    shared: Place::new(),
    flag: AtomicU64::new(0),
    state_size: crate::state::SIZE as u64,
    entries: Entries {
        alloc: code(entry::alloc),
        realloc: code(entry::realloc),
        free: code(entry::free),
        delete: code(entry::delete),
        loader: code(entry::loader),
        resize: code(named::resize),
        named_alloc: code(named::alloc),
        named_realloc: code(named::realloc),
        named_free: code(named::free),
        sandbox: code(entry::sandbox),
        fork: code(fork::fork),
        call: code(calls::call),
    },
    pass: [code(entry::pass_malloc), code(entry::pass_free), code(entry::pass_delete)],
    handler: Code(toggle::handler as *const ()),
    restorer: Code(capture::restorer as *const ()),
};

/// Returns the memory shared with prof.
#[inline(always)]
pub fn shared() -> &'static Shared {
    // SAFETY: the injector has set it to the mapping that it made, before any code of the hook could be
    // reached.
    unsafe { HEADER.shared.get() }
}

/// Returns the recording flag and the cookie beside it.
#[inline(always)]
pub fn flag() -> &'static [AtomicU32; 2] {
    // SAFETY: the injector has mapped the page for as long as the hook is mapped; in forked children it is
    // wiped, not unmapped.
    unsafe { &*(HEADER.flag.load(Relaxed) as *const [AtomicU32; 2]) }
}

/// Returns whether prof attached to this very process. A forked child has only the flag page and the hook's
/// code.
#[inline(always)]
pub fn attached() -> bool {
    flag()[1].load(Relaxed) == FLAG_COOKIE
}
