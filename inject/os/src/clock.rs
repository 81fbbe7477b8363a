//! Reads the clocks of the kernel.

use nix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns the time of `CLOCK_BOOTTIME`, which counts while the machine sleeps, in nanoseconds.
#[must_use]
pub fn boot_ns() -> u64 {
    read(ClockId::CLOCK_BOOTTIME)
}

/// Returns the time since 1970 in nanoseconds.
#[must_use]
pub fn wall_ns() -> u64 {
    read(ClockId::CLOCK_REALTIME)
}

/// Returns the processor time that this process has used, in nanoseconds.
#[must_use]
pub fn process_ns() -> u64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the processor time that the calling thread has used, in nanoseconds.
#[must_use]
pub fn thread_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the time of a clock that every kernel has.
fn read(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |t| {
        let (s, ns) = (t.tv_sec() as u64, t.tv_nsec() as u64);
        s.saturating_mul(1_000_000_000).saturating_add(ns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn clocks_do_not_go_back_and_agree_with_the_library() {
        for clock in [monotonic_ns, boot_ns, process_ns, thread_ns] {
            let before = clock();
            assert!(before > 0 && clock() >= before);
        }
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let before = now();
        let ours = wall_ns() / 1_000_000_000;
        assert!((before..=now()).contains(&ours));
    }
}
