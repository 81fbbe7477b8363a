//! The function that a call was made to, and its original.

use prof_arch::native::capture::{Call, Go};
use prof_trace::shared::Function;

/// Returns the function that a call was made to.
#[inline(always)]
pub(crate) fn function(call: &Call) -> &'static Function {
    // SAFETY: the stub passes the address of its function entry in the shared memory, which stays mapped as
    // long as the stub.
    unsafe { &*(call.function as *const Function) }
}

/// Continues with the original, which does not return to the hook.
#[inline(always)]
pub(crate) fn pass(f: &Function) -> Go {
    Go { target: f.original, stay: 0 }
}
