//! Stops all threads of the target, for as short a time as possible.

use crate::process::sharing::about;
use crate::stopped::patience::Patience;
use crate::stopped::tracee::{Tracee, wait_stopped_again};
use crate::{Error, Result};
use prof_os::sharers::Sharers;
use prof_os::{Pid, process};
use prof_trace::shared::MEMFD_NAME;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Durations of the target's stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopTimes {
    /// The longest time for which a thread was stopped at once.
    pub longest: Duration,
    /// Sum of all stops.
    pub sum: Duration,
    /// Number of stops.
    pub count: usize,
}

impl StopTimes {
    /// Counts a stop that began at `since` and ends now.
    pub fn add(&mut self, since: Instant) {
        self.count(since.elapsed());
    }

    /// Makes the longest of these stops last at least this long, as one of the threads was held longer than the others.
    pub(crate) fn lasts(&mut self, d: Duration) {
        self.sum += d.saturating_sub(self.longest);
        self.longest = self.longest.max(d);
        self.count = self.count.max(1);
    }

    /// Adds other stops.
    pub(crate) fn join(&mut self, other: Self) {
        self.longest = self.longest.max(other.longest);
        self.sum += other.sum;
        self.count += other.count;
    }

    fn count(&mut self, d: Duration) {
        log::debug!("stop of {} us", d.as_micros());
        self.longest = self.longest.max(d);
        self.sum += d;
        self.count += 1;
    }
}

/// All stopped threads of a process and of the processes that share its memory. Dropping this value lets them go.
#[derive(Debug)]
pub struct Stopped {
    /// The threads.
    pub threads: Vec<Tracee>,
    /// Time at which the first of them was asked to stop.
    pub since: Instant,
    /// Begin and end of earlier attempts, in which some thread did not stop.
    tries: Vec<(Instant, Instant)>,
}

/// Time for which all threads are held, in the first attempt, while no further one stops: a thread may wait in the
/// kernel for a disk, for the end of a vfork, or for a processor. Thousands of threads take longer to stop in all.
const FIRST_TRY: Duration = Duration::from_millis(50);

/// Time that many threads may take to stop again after they were let run.
const MANY: Duration = Duration::from_secs(2);

/// Stops all threads that have the memory of `pid`: seizes and interrupts the threads that `/proc` lists until no new
/// ones appear.
///
/// If a thread does not stop soon, the others run while prof waits for it. Then prof tries again, for a longer time.
///
/// # Errors
/// If the process is gone, may not be traced, or a thread does not stop within `timeout`. All threads are let go
/// then.
pub fn stop_all(pid: Pid, timeout: Duration) -> Result<Stopped> {
    let deadline = Instant::now() + timeout;
    let mut span = FIRST_TRY;
    let mut tries = Vec::new();
    let mut sharers = Sharers::of(pid, MEMFD_NAME);
    loop {
        let began = Instant::now();
        let mut threads = Vec::new();
        match try_stop(&mut sharers, (span, deadline), &mut threads) {
            Ok(since) => {
                threads.retain(|t| !t.is_gone());
                if !threads.iter().any(|t| t.pid == pid) {
                    return Err(Error::Gone(pid));
                }
                return Ok(Stopped { threads, since, tries });
            }
            Err(e) => {
                let (stopped, mut stuck): (Vec<_>, Vec<_>) =
                    threads.into_iter().partition(Tracee::is_stopped);
                wait_stopped_again(Tracee::detach_all(stopped));
                tries.push((began, Instant::now()));
                if !matches!(e, Error::NotStopping { .. }) {
                    return Err(e);
                }
                wait_for(&mut stuck, (Duration::MAX, deadline)).map_err(|e| match e {
                    Error::NotStopping { pid, tid, .. } => {
                        Error::NotStopping { pid, tid, waited: timeout }
                    }
                    e => e,
                })?;
                span *= 4;
            }
        }
    }
}

/// Stops all threads, adds them to `threads`, and returns when the first was asked to stop.
fn try_stop(
    sharers: &mut Sharers,
    patience: (Duration, Instant),
    threads: &mut Vec<Tracee>,
) -> Result<Instant> {
    let mut seen = HashSet::new();
    // Seizing does not stop a thread, so all known threads are seized before the first is stopped.
    seize_new(sharers, &mut seen, threads)?;
    let since = Instant::now();
    let mut asked = 0;
    loop {
        for t in &mut threads[asked..] {
            t.interrupt();
        }
        wait_for(&mut threads[asked..], patience)?;
        asked = threads.len();
        // Threads that had not stopped yet may have made new threads and processes.
        if let Some(t) = threads.iter().find(|t| t.pid == sharers.pid() && t.is_stopped()) {
            sharers.look_while_stopped(t.tid);
        }
        seize_new(sharers, &mut seen, threads)?;
        if threads.len() == asked {
            let_others_go(sharers, threads);
            return Ok(since);
        }
    }
}

/// Lets go of processes that run another program by now.
fn let_others_go(sharers: &Sharers, threads: &mut Vec<Tracee>) {
    for other in sharers.others() {
        if !sharers.still_shares(*other) {
            threads.retain(|t| t.pid != *other);
        }
    }
}

/// Waits until all threads have stopped or ended, as long as some do within each span, and at most until the
/// deadline. Each is handled in the order in which they stop: a call that a stop has ended is issued again only when
/// prof sees the stop, and never if prof dies before.
fn wait_for(threads: &mut [Tracee], (span, deadline): (Duration, Instant)) -> Result<()> {
    let mut patience = Patience::while_moving(span, deadline);
    let mut waiting: Vec<&mut Tracee> = threads.iter_mut().collect();
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut failed = Ok(());
        waiting.retain_mut(|t| match t.look() {
            Ok(done) => !done,
            Err(e) => {
                failed = Err(e);
                false
            }
        });
        failed?;
        if waiting.len() == before {
            patience.rest(waiting[0].pid, waiting[0].tid)?;
        } else {
            patience.renew();
        }
    }
    Ok(())
}

fn seize_new(sharers: &Sharers, seen: &mut HashSet<Pid>, threads: &mut Vec<Tracee>) -> Result<()> {
    for tid in process::threads(sharers.pid())? {
        if seen.insert(tid) {
            threads.extend(Tracee::seize(sharers.pid(), tid)?);
        }
    }
    for other in sharers.others() {
        // A process that has ended or runs another program shares nothing.
        for tid in process::threads(*other).unwrap_or_default() {
            if !seen.insert(tid) {
                continue;
            }
            match Tracee::seize(*other, tid) {
                Ok(seized) => threads.extend(seized),
                Err(_) if !sharers.still_shares(*other) => {}
                Err(e) => return Err(about(sharers.pid(), *other, e)),
            }
        }
    }
    Ok(())
}

impl Stopped {
    /// Lets some of the threads run for a while, and stops them again. Returns `false` if one of them has not stopped soon,
    /// or the process has other threads by then: then some thread runs.
    ///
    /// # Errors
    /// If one of them may not be traced any more.
    pub(crate) fn let_run(&mut self, pid: Pid, which: &[Pid], time: Duration) -> Result<bool> {
        let all = std::mem::take(&mut self.threads);
        let (run, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(|t| which.contains(&t.tid));
        self.threads = stay;
        let ids: Vec<(Pid, Pid)> = run.iter().map(|t| (t.pid, t.tid)).collect();
        wait_stopped_again(Tracee::detach_all(run));
        std::thread::sleep(time);
        let mut again = Vec::new();
        for (pid, tid) in ids {
            again.extend(Tracee::seize(pid, tid)?);
        }
        again.iter_mut().for_each(Tracee::interrupt);
        // Each needs a processor for that.
        let waited = wait_for(&mut again, (FIRST_TRY, Instant::now() + MANY));
        again.retain(|t| !t.is_gone());
        self.threads.extend(again);
        match waited {
            Err(Error::NotStopping { .. }) => return Ok(false),
            waited => waited?,
        }
        let known: HashSet<Pid> = self.threads.iter().map(|t| t.tid).collect();
        Ok(process::threads(pid)?.iter().all(|tid| known.contains(tid)))
    }

    /// Lets all threads go, and counts the stop.
    pub fn resume(self, stops: &mut StopTimes) {
        let group_stopped = Tracee::detach_all(self.threads);
        for (began, end) in self.tries {
            stops.count(end - began);
        }
        stops.add(self.since);
        wait_stopped_again(group_stopped);
    }
}
