//! The handler of the toggle signal.

use crate::{clock, header, sys};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use prof_trace::modules::doubt;
use prof_trace::shared::{Shared, TOGGLES, state};

/// Turns recording off, or on again. Installed with `SA_RESTART | SA_ONSTACK`.
///
/// # Safety
/// Called by the kernel only.
pub unsafe extern "C" fn handler(signal: i32) {
    // A forked child inherits the handler but nothing of what it would switch. To it the signal means
    // what it did before prof came, which is the default: it is nowhere installed otherwise.
    if !header::attached() {
        return sys::by_default(signal);
    }
    let shared = header::shared();
    if shared.control().state.load(Relaxed) != state::ATTACHED {
        return;
    }
    // Before it is on: what was loaded and unloaded meanwhile nobody has told.
    doubt(shared.control());
    let on = header::flag()[0].fetch_xor(1, AcqRel) ^ 1;
    if on == 1 {
        shared.control().orphaned.store(0, Relaxed);
    }
    note(shared, on);
}

/// Writes down when recording was switched.
pub fn note(shared: &Shared, on: u32) {
    let c = shared.control();
    c.unseen.fetch_add(1, AcqRel);
    let n = c.toggle_count.fetch_add(1, AcqRel);
    let t = &c.toggles[n as usize % TOGGLES];
    t.on.store(on as u64, Relaxed);
    t.time.store(clock::before(shared), Release);
}
