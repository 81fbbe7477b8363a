//! A child that limits its address space, as a sandbox or a job does for itself between fork and exec.
//!
//! The shared memory that its parent has made for it is a large part of that space, so with it the child would get no memory any
//! more. It is taken away first, and the child is then one that is not recorded.

use crate::entry::after_nothing;
use crate::fork::is_marked;
use crate::mapping::Shared;
use crate::original::{function, pass};
use crate::{header, memory, sys};
use core::sync::atomic::Ordering::Relaxed;
use prof_arch::native::capture::{Call, Go};
use prof_trace::shared::Function;

prof_arch::hook_entry!(
    /// Entry of setrlimit and prlimit.
    limit, before_limit, after_nothing);

/// `RLIMIT_AS`.
const ADDRESS_SPACE: u32 = if cfg!(target_arch = "mips64") { 6 } else { 9 };
/// Limit from which on the shared memory is no matter.
const AMPLE: u64 = 64 << 30;

extern "C" fn before_limit(call: &mut Call) -> Go {
    let f = function(call);
    let go = pass(f);
    let shared = header::shared();
    // A handler may have interrupted a call that goes on in that memory.
    let may_go =
        limits_itself(shared, f, &call.args) && !is_marked(shared) && sys::is_alone(shared);
    // Neither the function nor anything else in the shared memory is used behind this.
    if may_go {
        header::let_go();
        sys::unmap(shared.base() as u64, shared.control().ring_len.load(Relaxed));
    }
    go
}

/// Returns whether a child that has its memory from its parent is about to get a limit that matters.
fn limits_itself(shared: &Shared, f: &Function, args: &[u64; 6]) -> bool {
    let resource = f.size_arg as usize;
    let arg = |index: usize| args.get(index).copied().unwrap_or(0);
    // `prlimit` names a process in front; 0 is the calling one.
    let itself = resource == 0 || arg(0) as u32 == 0 || arg(0) as u32 == sys::getpid();
    let is_heir = shared.control().forked_at[0].load(Relaxed) != 0;
    if !is_heir || !itself || arg(resource) as u32 != ADDRESS_SPACE {
        return false;
    }
    let mut limit = [0; size_of::<usize>()];
    memory::read(shared, arg(resource + 1), &mut limit)
        && (usize::from_ne_bytes(limit) as u64) < AMPLE.min(usize::MAX as u64)
}
