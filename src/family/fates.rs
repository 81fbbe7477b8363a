//! Which processes of a family have children that are too short to be recorded. Memory for these would only cost time: a shell
//! forks a child for each command that it runs.

use prof_collect::hold_heirs;
use prof_os::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Number of short children, one after the other, after which a process makes no memory for its children: at first, and where
/// that has been so before.
const SHORT: (u32, u32) = (8, 2);
/// Time for which it makes none. It doubles each time, up to the second value.
const HELD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// The fates of the children of one process.
#[derive(Default)]
struct Fate {
    /// Number of children in a row that ended, or ran another program, before a collector was there.
    short: u32,
    /// Number of times that the process was told to make no memory.
    times: u32,
    until: Option<Instant>,
}

/// The fates of the children of all processes of a family.
#[derive(Default)]
pub(super) struct Fates(HashMap<Pid, Fate>);

impl Fates {
    /// Takes notice of a child that was too short.
    pub(super) fn short(&mut self, parent: Pid) {
        if let Some(time) = self.0.entry(parent).or_default().count() {
            let _ = hold_heirs(parent, time);
        }
    }

    /// Returns whether a process was told to make no memory for its children now.
    pub(super) fn is_held(&self, parent: Pid) -> bool {
        self.0.get(&parent).is_some_and(Fate::is_held)
    }

    /// Has a process make no memory for its children for a short time, as prof has enough to do with those that there were.
    pub(super) fn pause(&mut self, parent: Pid) {
        let fate = self.0.entry(parent).or_default();
        if !fate.is_held() {
            (fate.short, fate.until) = (0, Some(Instant::now() + HELD.0));
            let _ = hold_heirs(parent, HELD.0);
        }
    }

    /// Takes notice of a child that is recorded.
    pub(super) fn lives(&mut self, parent: Pid) {
        if self.0.remove(&parent).is_some_and(|f| f.until.is_some()) {
            let _ = hold_heirs(parent, Duration::ZERO);
        }
    }

    /// Forgets a process that has ended.
    pub(super) fn ended(&mut self, pid: Pid) {
        self.0.remove(&pid);
    }
}

impl Fate {
    fn is_held(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Counts a short child. Returns for how long there is to be no memory for children, if that changes.
    fn count(&mut self) -> Option<Duration> {
        if self.is_held() {
            return None;
        }
        self.short += 1;
        if self.short < if self.times == 0 { SHORT.0 } else { SHORT.1 } {
            return None;
        }
        let time = HELD.0.saturating_mul(1 << self.times.min(16)).min(HELD.1);
        (self.short, self.times, self.until) = (0, self.times + 1, Some(Instant::now() + time));
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_made_again_after_a_time_that_grows() {
        let mut fate = Fate::default();
        assert!((1..SHORT.0).all(|_| fate.count().is_none()));
        assert_eq!(fate.count(), Some(HELD.0));
        assert_eq!(fate.count(), None, "no memory is made now");
        let mut longest = HELD.0;
        for _ in 0..20 {
            fate.until = Some(Instant::now());
            assert_eq!(fate.count(), None);
            let next = fate.count().expect("the second");
            assert!(next == longest * 2 || next == HELD.1, "{next:?}");
            longest = next;
        }
        assert_eq!(longest, HELD.1);
    }
}
