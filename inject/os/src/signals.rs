//! Waits for signals.

use nix::sys::signal::SigSet;
use std::time::Duration;

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
    use nix::sys::signal::Signal;

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
