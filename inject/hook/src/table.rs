//! The hook's header, which names its entries to the injector.

use crate::header::LOCATIONS;
use crate::{calls, entry, fork, limit, other_args, toggle};
use prof_arch::native::capture;
use prof_trace::shared::{Code, Entries, HookHeader, LAYOUT, MAGIC};

type Entry = unsafe extern "C" fn();

const fn code(f: Entry) -> Code {
    Code(f as *const ())
}

/// Address of [`HEADER`]; the injector finds it by name in the hook's image. An exported symbol's address is
/// looked up in a table at each use, even inside its own library; so the header itself is not exported.
#[unsafe(no_mangle)]
pub static PROF_HOOK: &HookHeader = &HEADER;

/// The header.
pub static HEADER: HookHeader = HookHeader {
    magic: MAGIC,
    layout: LAYOUT,
    state_size: crate::state::SIZE as u64,
    entries: Entries {
        alloc: code(entry::alloc),
        realloc: code(entry::realloc),
        free: code(entry::free),
        delete: code(entry::delete),
        loader: code(entry::loader),
        resize: code(other_args::resize),
        named_alloc: code(other_args::alloc),
        named_realloc: code(other_args::realloc),
        named_free: code(other_args::free),
        sandbox: code(entry::sandbox),
        limit: code(limit::limit),
        fork: code(fork::fork),
        call: code(calls::call),
    },
    pass: [code(entry::pass_malloc), code(entry::pass_free), code(entry::pass_delete)],
    handler: Code(toggle::handler as *const ()),
    restorer: Code(capture::restorer as *const ()),
    locations: Code((&raw const LOCATIONS).cast()),
};
