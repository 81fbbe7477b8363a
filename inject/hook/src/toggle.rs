//! The handler of the toggle signal and of the dump signal.

use crate::mapping::Shared;
use crate::{clock, header, sys};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use prof_trace::modules::doubt;
use prof_trace::protocol;
use prof_trace::shared::state;

/// Turns recording off, or on again; at the dump signal, adds one to the number that the collector looks at. Installed
/// with `SA_RESTART | SA_ONSTACK`.
///
/// # Safety
/// Only the kernel may call this.
pub unsafe extern "C" fn handler(signal: i32) {
    // A forked child inherits the handler but none of the memory that it switches. To the child the signal
    // means what it meant before prof came: the default, as prof installs the handler only over that.
    if !header::attached() {
        return sys::by_default(signal);
    }
    let shared = header::shared();
    if shared.control().state.load(Relaxed) != state::ATTACHED {
        return;
    }
    if signal.cast_unsigned() == shared.control().dump_signal.load(Relaxed) {
        // Release order: a collector that sees the new count finds in the ring all events that this thread recorded before.
        shared.control().dumps_asked.fetch_add(1, AcqRel);
        return;
    }
    // Done before recording is on: modules may have come and gone while it was off, without a notice.
    doubt(shared.control());
    let on = header::flag()[0].fetch_xor(1, AcqRel) ^ 1;
    if on == 1 {
        shared.control().orphaned.store(0, Relaxed);
    }
    note(shared, on);
}

/// Notes that recording was turned on (1) or off (0), and when.
#[inline(never)]
pub fn note(shared: &Shared, on: u32) {
    protocol::note(shared.control(), on == 1, || clock::before(shared));
}
