//! Keeps the kernel's figures of the target over time: private memory, processor time, worker processes.

use prof_os::Pid;
use prof_os::workers::Worker;
use prof_trace::records::Process;
use prof_trace::ticks::Ticks;

/// The figures of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Ticks of the reading.
    pub ticks: Ticks,
    /// Resident bytes that are neither file-backed nor shared.
    pub private: u64,
    /// Processor time so far, in milliseconds.
    pub cpu_ms: u64,
}

/// A worker process, from the first to the last time it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSeen {
    /// Latest state of the worker.
    pub now: Worker,
    /// Resident bytes when it was first seen.
    pub first: u64,
    /// Number of times it was seen.
    pub looks: u32,
    /// Whether the worker was started after the attach.
    pub since: bool,
}

impl WorkerSeen {
    /// Returns its growth in resident bytes since it was first seen.
    #[must_use]
    pub fn grown(&self) -> u64 {
        self.now.rss.saturating_sub(self.first)
    }
}

/// Greatest number of moments that are kept.
const MOST: usize = 2048;

/// The figures of all moments.
#[derive(Clone, Debug, Default)]
pub struct ProcessSeen {
    samples: Vec<Sample>,
    /// Keeps one of 2^`every` moments.
    every: u32,
    seen: u64,
    last: Option<Sample>,
    workers: Vec<WorkerSeen>,
    /// The target was searched for workers at least once.
    looked: bool,
}

impl ProcessSeen {
    pub(super) fn take(&mut self, p: &Process) {
        if p.private > 0 {
            self.push(Sample { ticks: p.ticks, private: p.private, cpu_ms: p.cpu_ms });
        }
        if p.private > 0 && self.seen == 1 && p.children.is_empty() {
            self.looked = true; // the first look found none
        }
        if !p.children.is_empty() {
            let of =
                |t: &[u64; 3]| Worker { pid: Pid::from_u32(t[0] as u32), start: t[1], rss: t[2] };
            let now: Vec<Worker> = p.children.as_chunks::<3>().0.iter().map(of).collect();
            self.workers = self.seen_again(&now);
            self.looked = true;
        }
    }

    fn push(&mut self, sample: Sample) {
        self.last = Some(sample);
        let due = self.seen == 0 || self.seen.trailing_zeros() >= self.every;
        self.seen += 1;
        if !due {
            return;
        }
        self.samples.push(sample);
        if self.samples.len() >= MOST {
            let mut i = 0;
            self.samples.retain(|_| {
                i += 1;
                i % 2 == 1
            });
            self.every += 1;
        }
    }

    /// Returns these workers with what is known of them from earlier.
    #[must_use]
    pub fn seen_again(&self, now: &[Worker]) -> Vec<WorkerSeen> {
        let seen = |w: &Worker| {
            let same = |s: &&WorkerSeen| (s.now.pid, s.now.start) == (w.pid, w.start);
            let known = self.workers.iter().find(same);
            let (first, looks) = known.map_or((w.rss, 0), |s| (s.first, s.looks));
            let since = known.map_or(self.looked, |s| s.since);
            WorkerSeen { now: *w, first, looks: looks + 1, since }
        };
        now.iter().map(seen).collect()
    }

    /// Returns the workers that were seen last.
    #[must_use]
    pub fn workers(&self) -> &[WorkerSeen] {
        &self.workers
    }

    /// Returns the first moment.
    #[must_use]
    pub fn first(&self) -> Option<Sample> {
        self.samples.first().copied()
    }

    /// Returns the last moment.
    #[must_use]
    pub fn last(&self) -> Option<Sample> {
        self.last
    }

    /// Returns the smallest private memory since a moment, in bytes. The first moment does not count.
    #[must_use]
    pub fn least_since(&self, ticks: Ticks) -> Option<u64> {
        let all = self.samples.iter().chain(&self.last).filter(|s| Some(**s) != self.first());
        all.filter(|s| s.ticks >= ticks).map(|s| s.private).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_moments_are_thinned_and_the_last_is_kept() {
        let mut seen = ProcessSeen::default();
        for i in 1..=10_000 {
            seen.take(&Process { ticks: Ticks(i), private: i, cpu_ms: 2 * i, children: vec![] });
        }
        assert!(seen.samples.len() < MOST);
        assert_eq!(seen.first(), Some(Sample { ticks: Ticks(1), private: 1, cpu_ms: 2 }));
        assert_eq!(seen.last().map(|s| s.ticks), Some(Ticks(10_000)));
        assert!(seen.least_since(Ticks(9_000)).is_some_and(|b| (9_000..9_100).contains(&b)));
    }

    #[test]
    fn a_worker_with_a_number_that_was_used_before_is_another() {
        let mut seen = ProcessSeen::default();
        let look = |children: &[u64]| Process {
            ticks: Ticks(1),
            private: 0,
            cpu_ms: 0,
            children: children.to_vec(),
        };
        seen.take(&look(&[7, 100, 1000, 8, 100, 500]));
        seen.take(&look(&[7, 100, 1800, 8, 300, 600]));
        assert_eq!(seen.workers().iter().map(WorkerSeen::grown).collect::<Vec<_>>(), [800, 0]);
        assert_eq!(seen.workers().iter().map(|w| w.since).collect::<Vec<_>>(), [false, true]);
        assert_eq!(seen.first(), None);
    }
}
