//! Checks whether a recording sees the memory that its process takes: shortly after the attach, in `prof status`, and
//! after `prof run`.

use crate::session::Attached;
use crate::term::say;
use prof_analyze::load::Sample;
use prof_analyze::unseen::workers_text;
use prof_analyze::{Now, Summary, live_summary};
use prof_os::stat::Stat;
use prof_os::status::Status;
use prof_os::workers::{Worker, workers};
use prof_os::{Pid, process};
use prof_trace::chunk::{self, CHUNK_HEADER, Next};
use prof_trace::records::{End, kind};
use prof_trace::ticks::Ticks;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Larger recordings are not replayed for this alone: they are evidently not empty.
const REPLAYED: u64 = 64 << 20;
/// Length of the end of a recording in which its last record is looked for.
const TAIL: u64 = 4 << 10;
/// Interval at which the wait is reconsidered.
const TICK: Duration = Duration::from_millis(20);
/// The wait ends if the process does nothing for this long.
const IDLE: Duration = Duration::from_millis(100);
/// This number of events shows that a process is seen, unless there are signs against it.
const ENOUGH: u64 = 1000;

/// Returns the present figures of a process.
#[must_use]
pub(crate) fn now(pid: Pid) -> Now {
    let private = prof_collect::private(pid);
    let sample = Stat::living(pid).filter(|_| private > 0);
    let sample = sample.map(|s| Sample { ticks: Ticks::ZERO, private, cpu_ms: s.cpu_ms() });
    Now { sample, workers: workers(pid) }
}

/// Watches a newly attached process for up to `time`, and reports if its recording misses memory that it takes, or if
/// workers do its work.
pub(crate) fn after(attached: &mut Attached, time: Duration) {
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
    // Workers that were not there at the first look are too young.
    now.workers.retain(|w| before.workers.iter().any(|b| (b.pid, b.start) == (w.pid, w.start)));
    let Some(mut summary) = read(&attached.path, &now) else { return };
    summary.workers = grown(&before.workers, &now.workers, &attached.path);
    lines(&summary).iter().for_each(|line| say(line));
}

/// Returns the workers that were there at both looks, with their growth.
fn grown(
    before: &[Worker],
    now: &[Worker],
    recording: &Path,
) -> Vec<prof_analyze::unseen::WorkerData> {
    let of = |w: &Worker| {
        let first = before.iter().find(|b| (b.pid, b.start) == (w.pid, w.start))?.rss;
        Some(prof_analyze::load::WorkerSeen { now: *w, first, looks: 2, since: false })
    };
    prof_analyze::unseen::workers(&now.iter().filter_map(of).collect::<Vec<_>>(), recording)
}

/// Returns the messages about a recording.
#[must_use]
pub(crate) fn lines(summary: &Summary) -> Vec<String> {
    let unseen = summary.unseen.iter().flat_map(|u| u.text.clone());
    unseen.chain(workers_text(&summary.workers)).collect()
}

/// Analyses a recording that is not too long, with the present figures of its process.
#[must_use]
pub(crate) fn read(path: &Path, now: &Now) -> Option<Summary> {
    let size = std::fs::metadata(path).ok()?.len();
    (size <= REPLAYED).then(|| live_summary(path, now).ok()).flatten()
}

/// Returns a message about the bound that has ended a recording, if one has.
#[must_use]
pub(crate) fn limit(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let mut tail = vec![0; len.min(TAIL) as usize];
    let from = len - tail.len() as u64;
    file.read_exact_at(&mut tail, from).ok()?;
    // The last chunk says how the recording ended, however long that is.
    let last = (0..tail.len().checked_sub(CHUNK_HEADER)?).find_map(|at| {
        match chunk::next(&tail[at..]) {
            Next::Chunk(kind::END, payload, n) if at + n == tail.len() => End::decode(payload),
            _ => None,
        }
    })?;
    let why = last.reason.strip_prefix(End::LIMIT)?;
    Some(format!("the recording ended early, and prof was detached: {why}"))
}

/// Returns a number that changes when the process runs: context switches of its threads, and processor time.
fn runs(pid: Pid) -> u64 {
    const MOST: usize = 64;
    let tids = process::threads(pid).unwrap_or_default().into_iter();
    let of = |tid| Status::of_thread(pid, tid).map_or(0, |s| s.context_switches());
    let cpu = Stat::living(pid).map_or(0, |s| s.cpu());
    tids.take(MOST).map(of).fold(cpu, u64::wrapping_add)
}

fn events(pid: Pid) -> u64 {
    prof_collect::Peek::of(pid).ok().flatten().map_or(0, |p| p.counters.events)
}
