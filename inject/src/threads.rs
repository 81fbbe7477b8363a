//! Stopping all threads of the target, for as short as can be.

use crate::tracee::Tracee;
use crate::{Error, Result, proc};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// How long the target was stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopTimes {
    /// The longest single stop of any of its threads.
    pub longest: Duration,
    /// All stops together.
    pub sum: Duration,
    /// How many there were.
    pub count: usize,
}

impl StopTimes {
    /// Counts one more stop that began at `since` and ends now.
    pub fn add(&mut self, since: Instant) {
        let d = since.elapsed();
        log::debug!("stop of {} us", d.as_micros());
        self.longest = self.longest.max(d);
        self.sum += d;
        self.count += 1;
    }
}

/// All threads of a process, stopped. Dropping it lets them go.
#[derive(Debug)]
pub struct Stopped {
    /// The threads.
    pub threads: Vec<Tracee>,
    /// When the first of them was asked to stop.
    pub since: Instant,
}

/// Stops all threads of `pid`: seizes and interrupts what `/proc` lists until nothing new appears.
///
/// # Errors
/// If the process is gone, may not be traced, or a thread does not stop within `timeout`; then all
/// are let go.
pub fn stop_all(pid: i32, timeout: Duration) -> Result<Stopped> {
    let mut seen = HashSet::new();
    let mut threads: Vec<Tracee> = Vec::new();
    // Seizing does not stop; do it for all that are known before the first is stopped.
    seize_new(pid, &mut seen, &mut threads)?;
    let since = Instant::now();
    let deadline = since + timeout;
    let mut asked = 0;
    loop {
        for t in &mut threads[asked..] {
            t.interrupt();
        }
        for t in &mut threads[asked..] {
            t.wait_stopped(deadline)?;
        }
        asked = threads.len();
        // A thread that was not stopped yet may have made new ones.
        seize_new(pid, &mut seen, &mut threads)?;
        if threads.len() == asked {
            break;
        }
    }
    threads.retain(|t| !t.is_gone());
    if threads.is_empty() {
        return Err(Error::Gone(pid));
    }
    Ok(Stopped { threads, since })
}

fn seize_new(pid: i32, seen: &mut HashSet<i32>, threads: &mut Vec<Tracee>) -> Result<()> {
    for tid in proc::threads(pid)? {
        if seen.insert(tid) {
            threads.extend(Tracee::seize(pid, tid)?);
        }
    }
    Ok(())
}

impl Stopped {
    /// Lets all threads go; returns when the stop began.
    pub fn resume(self) -> Instant {
        for t in self.threads {
            t.detach();
        }
        self.since
    }
}
