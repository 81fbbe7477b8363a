//! The handler of the toggle signal.

use crate::mapping::Shared;
use crate::{clock, header, sys};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use prof_trace::modules::doubt;
use prof_trace::shared::{TOGGLES, state};

/// Turns recording off, or on again. Installed with `SA_RESTART | SA_ONSTACK`.
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
    // This comes before recording is on: nobody has told of modules that came and went meanwhile.
    doubt(shared.control());
    let on = header::flag()[0].fetch_xor(1, AcqRel) ^ 1;
    if on == 1 {
        shared.control().orphaned.store(0, Relaxed);
    }
    note(shared, on);
}

/// Notes that recording was switched, and when.
pub fn note(shared: &Shared, on: u32) {
    let c = shared.control();
    c.unseen.fetch_add(1, AcqRel);
    let n = c.toggle_count.fetch_add(1, AcqRel);
    let t = &c.toggles[n as usize % TOGGLES];
    t.on.store(on as u64, Relaxed);
    t.time.store(clock::before(shared), Release);
}
