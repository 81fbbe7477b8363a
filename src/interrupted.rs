//! Notes Ctrl-C and its like, for commands that have something to undo or to finish.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_: i32) {
    INTERRUPTED.store(true, Relaxed);
}

/// Notes from here on Ctrl-C and its like, for [`is_interrupted`].
pub(crate) fn on_interrupt() -> Result<()> {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
    let handler = SigHandler::Handler(interrupted);
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGHUP] {
        // SAFETY: the handler is async-signal-safe, as it only stores to an atomic.
        let old = unsafe { sigaction(signal, &action) }.context("cannot set a signal handler")?;
        // `nohup` ignores it, so that the recording outlives the terminal.
        if signal == Signal::SIGHUP && matches!(old.handler(), SigHandler::SigIgn) {
            // SAFETY: the action that was in effect before is set again.
            unsafe { sigaction(signal, &old) }.context("cannot set a signal handler")?;
        }
    }
    Ok(())
}

/// Returns whether there was a Ctrl-C since the last call.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.swap(false, Relaxed)
}
