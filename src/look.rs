//! Whether a recording sees what its process does: looked at a moment after the attach, by `prof status`, and
//! after `prof run`.

use crate::session::Attached;
use crate::term::say;
use prof_analyze::load::Sample;
use prof_analyze::unseen::workers_text;
use prof_analyze::{Now, Summary, live_summary};
use prof_trace::family::{Stat, Worker, workers};
use std::path::Path;
use std::time::{Duration, Instant};

/// Larger recordings are not replayed for this alone: there is something in them.
const REPLAYED: u64 = 64 << 20;
/// How often it is looked whether there is more to wait for.
const TICK: Duration = Duration::from_millis(20);
/// A process that does nothing for so long is not waited for.
const IDLE: Duration = Duration::from_millis(100);
/// So many events show that a process is seen, if nothing is known that speaks against it.
const ENOUGH: u64 = 1000;

/// What is known of a process beside its recording.
#[must_use]
pub fn now(pid: i32) -> Now {
    let private = prof_collect::private(pid as u32);
    let sample = Stat::of(pid).filter(|_| private > 0);
    let sample = sample.map(|s| Sample { ticks: 0, private, cpu_ms: s.cpu_ms() });
    Now { sample, workers: workers(pid) }
}

/// Looks for up to `time` at a process that has been attached to, and says if its recording does not see the
/// memory that it takes, or whose work it is.
pub fn after(attached: &mut Attached, time: Duration) {
    if time.is_zero() {
        return;
    }
    let pid = attached.pid;
    let began = Instant::now();
    let before = now(pid);
    let ran = runs(pid);
    let mut is_idle = true;
    while began.elapsed() < time {
        std::thread::sleep(TICK.min(time.saturating_sub(began.elapsed())));
        if !matches!(attached.collector.try_wait(), Ok(None)) {
            return;
        }
        is_idle &= runs(pid) == ran;
        let waits = before.workers.is_empty();
        if waits && is_idle && began.elapsed() >= IDLE {
            return;
        }
        if waits && attached.runtimes.is_empty() && events(pid) >= ENOUGH {
            return;
        }
    }
    let mut now = now(pid);
    // Whose first look is this one, or has not been looked at yet by the collector, is young.
    now.workers.retain(|w| before.workers.iter().any(|b| (b.pid, b.start) == (w.pid, w.start)));
    let Some(mut summary) = read(&attached.path, &now) else { return };
    summary.workers = grown(&before.workers, &now.workers);
    lines(&summary).iter().for_each(|line| say(line));
}

/// Workers that were there at both looks, by their growth.
fn grown(before: &[Worker], now: &[Worker]) -> Vec<prof_analyze::unseen::WorkerData> {
    let of = |w: &Worker| {
        let first = before.iter().find(|b| (b.pid, b.start) == (w.pid, w.start))?.rss;
        Some(prof_analyze::load::WorkerSeen { now: *w, first, looks: 2, since: false })
    };
    prof_analyze::unseen::workers(&now.iter().filter_map(of).collect::<Vec<_>>())
}

/// What there is to say of a recording, if anything.
#[must_use]
pub fn lines(summary: &Summary) -> Vec<String> {
    let unseen = summary.unseen.iter().flat_map(|u| u.text.clone());
    unseen.chain(workers_text(&summary.workers)).collect()
}

/// A recording that is not too long, with what is known of its process now.
#[must_use]
pub fn read(path: &Path, now: &Now) -> Option<Summary> {
    let size = std::fs::metadata(path).ok()?.len();
    (size <= REPLAYED).then(|| live_summary(path, now).ok()).flatten()
}

/// How often the threads of a process have given up a processor, and how much they have used.
fn runs(pid: i32) -> u64 {
    const MOST: usize = 64;
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |t: std::fs::DirEntry| {
        let status = std::fs::read_to_string(t.path().join("status")).unwrap_or_default();
        let lines = status.lines().filter(|l| l.contains("ctxt_switches"));
        lines.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
    };
    let cpu = Stat::of(pid).map_or(0, |s| s.cpu);
    tasks.take(MOST).map(of).fold(cpu, u64::wrapping_add)
}

fn events(pid: i32) -> u64 {
    prof_collect::Peek::of(pid as u32).ok().flatten().map_or(0, |p| p.counters.events)
}
