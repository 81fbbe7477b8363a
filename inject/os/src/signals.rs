//! Waits for signals, and reads and sets what they do.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::time::Duration;

/// Returns whether a signal has its default action in this process.
#[must_use]
pub fn is_default(signal: i32) -> bool {
    handler(signal) == Some(libc::SIG_DFL)
}

/// Returns whether this process ignores a signal.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    handler(signal) == Some(libc::SIG_IGN)
}

/// Returns the address of a signal's handler, or what stands for none.
fn handler(signal: i32) -> Option<libc::sighandler_t> {
    // nix cannot ask without setting an action.
    // SAFETY: the call writes the struct, for which all zeros are a valid value.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &mut old) == 0).then_some(old.sa_sigaction)
    }
}

/// Has a function called at a signal. Interrupted system calls are restarted.
///
/// # Errors
/// If the signal does not exist, or can't be handled.
///
/// # Safety
/// The function must do only what a signal handler may do.
pub unsafe fn handle(signal: i32, function: extern "C" fn(i32)) -> nix::Result<()> {
    // SAFETY: the caller answers for the function.
    unsafe { set(signal, SigHandler::Handler(function)) }
}

/// Gives a signal its default action.
///
/// # Errors
/// If the signal does not exist, or always has it.
pub fn set_default(signal: i32) -> nix::Result<()> {
    // SAFETY: there is no handler.
    unsafe { set(signal, SigHandler::SigDfl) }
}

/// Sets what a signal does.
///
/// # Safety
/// A handler must do only what a signal handler may do.
unsafe fn set(signal: i32, to: SigHandler) -> nix::Result<()> {
    let action = SigAction::new(to, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: as the caller says.
    unsafe { sigaction(Signal::try_from(signal)?, &action) }.map(drop)
}

/// Waits until one of the signals, which the calling thread must block, is pending, takes it, and returns its number.
/// Returns `None` after `time`, or if another signal's handler has run.
pub fn wait(signals: &SigSet, time: Duration) -> Option<i32> {
    let time = libc::timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    // nix has `sigwait` only, which waits without an end.
    // SAFETY: the set and the time are valid, and the kernel accepts no place for details.
    let signal = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &time) };
    (signal > 0).then_some(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: i32) {}

    #[test]
    fn actions_are_set_and_read() {
        assert!(is_default(libc::SIGXCPU) && !is_ignored(libc::SIGXCPU));
        // SAFETY: the handler does nothing.
        unsafe { handle(libc::SIGXCPU, nothing) }.expect("a handler");
        assert!(!is_default(libc::SIGXCPU) && !is_ignored(libc::SIGXCPU));
        nix::sys::signal::raise(Signal::SIGXCPU).expect("raise");
        set_default(libc::SIGXCPU).expect("the default");
        assert!(is_default(libc::SIGXCPU) && !is_default(-1));
        assert!(set_default(libc::SIGKILL).is_err());
    }

    #[test]
    fn a_blocked_signal_is_taken_once() {
        let set = SigSet::from(Signal::SIGUSR2);
        let old = set.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK).expect("mask");
        assert_eq!(wait(&set, Duration::ZERO), None);
        nix::sys::signal::raise(Signal::SIGUSR2).expect("raise");
        assert_eq!(wait(&set, Duration::from_secs(60)), Some(libc::SIGUSR2));
        assert_eq!(wait(&set, Duration::ZERO), None);
        old.thread_set_mask().expect("mask");
    }
}
