//! The shared memory as the hook has it mapped.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The memory that the hook shares with prof. The injector maps it before any code of the hook can run, and unmaps it
/// when no thread can come back into that code.
pub type Shared = prof_trace::shared::Shared<'static>;

/// Adds to a counter that only this thread writes.
#[inline(always)]
pub fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}
