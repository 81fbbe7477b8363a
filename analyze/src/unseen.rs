//! Detects that a recording misses memory that its target takes.
//!
//! A target may take memory from the kernel itself, or have its work done by other processes. Then its recording is
//! nearly empty, and looks healthy. The sign of this is growth of the target's private memory that the recorded blocks
//! do not explain.

use crate::Analysis;
use crate::load::{Sample, WorkerSeen};
use crate::rewrite::target;
use prof_os::Pid;
use prof_trace::records::{Memory, Target, map_kind};
use prof_trace::runtimes::Runtime;
use prof_trace::values::text::{bytes, count, duration};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const MIB: u64 = 1 << 20;
/// Least growth that is reported: if nothing is known of the target, if it is known to take memory itself, and if that
/// is nearly all it has.
const LEAST: [u64; 3] = [4 * MIB, 4 * MIB, 2 * MIB];
/// Assumed overhead of an allocator, per block and in total.
const PER_BLOCK: u64 = 64;
const SLACK: u64 = MIB;
/// Processor time in milliseconds after which a nearly empty recording is suspicious: some ticks of the kernel.
const BUSY_MS: u64 = 50;
/// Number of worker processes that are named.
const NAMED: usize = 5;

/// Signs that a recording misses memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// Growth of the target's private memory since the attach.
    pub grown_bytes: u64,
    /// Greatest part of that growth that recorded blocks explain.
    pub recorded_bytes: u64,
    /// Number of recorded events.
    pub events: u64,
    /// Processor time since the attach, in milliseconds.
    pub cpu_ms: u64,
    /// Runtimes in the target that are known to take memory from the kernel themselves.
    pub runtimes: Vec<&'static str>,
    /// The modules whose functions are recorded.
    pub hooked: Vec<String>,
    /// The signs in words, a line each.
    pub text: Vec<String>,
}

impl Unseen {
    /// Checks a recording of all blocks, with the target's present figures if it still runs.
    #[must_use]
    pub fn of(analysis: &Analysis, now: Option<Sample>) -> Option<Self> {
        let meta = analysis.meta();
        let capture = analysis.capture();
        let all_sizes = capture.min_size == 0 && capture.max_size == u64::MAX;
        if !all_sizes || meta.lacks_blocks() || !was_on(analysis) {
            return None;
        }
        let lost = meta.counters.lost;
        if lost > analysis.events() / 8 {
            return None;
        }
        let first = meta.process.first()?;
        let last = match now {
            Some(now) => Sample { ticks: analysis.end_ticks(), ..now },
            None => meta.process.last()?,
        };
        let grown = grown(analysis, first, last);
        let cpu_ms = last.cpu_ms.saturating_sub(first.cpu_ms);
        let runtimes = &meta.runtimes;
        let takes_all = runtimes.iter().any(|r| r.takes_all());
        let least = LEAST[if takes_all { 2 } else { usize::from(!runtimes.is_empty()) }];
        let (recorded, explained) = explained(analysis);
        let silent =
            takes_all && cpu_ms >= BUSY_MS && !capture.is_sampled() && analysis.events() < cpu_ms;
        // Allocators keep memory in proportion to the blocks.
        let has_grown = grown.saturating_sub(explained) >= least.max(grown / 4);
        if !silent && !has_grown {
            return None;
        }
        let mut unseen = Self {
            grown_bytes: grown,
            recorded_bytes: recorded.min(grown),
            events: analysis.events(),
            cpu_ms,
            runtimes: runtimes.iter().map(|r| r.name()).collect(),
            hooked: hooked(analysis),
            text: Vec::new(),
        };
        unseen.text = unseen.words(runtimes, has_grown);
        Some(unseen)
    }

    fn words(&self, runtimes: &[Runtime], has_grown: bool) -> Vec<String> {
        let hooked = if self.hooked.is_empty() {
            String::new()
        } else {
            format!(" (in {})", self.hooked.join(", "))
        };
        let first = if has_grown {
            format!(
                "the process has {} more private memory than at the attach, and recorded blocks are at most {} \
                 of it: the rest did not come out of a function that is recorded{hooked}",
                bytes(self.grown_bytes),
                bytes(self.recorded_bytes)
            )
        } else {
            format!(
                "{} in {} of processor time: the process does its work in memory that did not come out of a \
                 function that is recorded{hooked}",
                count(self.events, "event", "events"),
                duration(self.cpu_ms.saturating_mul(1_000_000))
            )
        };
        let mut all = vec![first];
        all.extend(runtimes.iter().map(|r| r.what().to_owned()));
        if runtimes.is_empty() {
            all.push(
                "it maps that memory itself (mmap, an allocator of its own: --alloc-fn and --free-fn name its \
                 functions), or had it before the attach and uses it only now"
                    .into(),
            );
        }
        all
    }
}

/// Returns whether recording was never paused: growth during a pause can't be explained.
fn was_on(analysis: &Analysis) -> bool {
    let parts = analysis.parts();
    let on = parts.iter().map(|p| p.end.since(p.start)).fold(0, u64::saturating_add);
    let start = analysis.meta().target.start_ticks;
    let all = analysis.end_ticks().since(start);
    // A few milliseconds pass before recording is on for the first time.
    let late = parts.first().map_or(all, |p| p.start.since(start));
    parts.len() == 1 && on.saturating_add(late) >= all / 20 * 19
}

/// Returns the lasting growth of private memory, without stacks: to the minimum of the last fifth of the time.
fn grown(analysis: &Analysis, first: Sample, last: Sample) -> u64 {
    let meta = analysis.meta();
    let fifth = last.ticks.since(first.ticks) / 5;
    let least = meta.process.least_since(last.ticks.saturating_sub(fifth));
    let end = least.map_or(last.private, |l| l.min(last.private));
    let stacks = |m: &Memory| {
        let kinds = m.maps.as_chunks::<3>().0.iter();
        kinds.filter(|k| k[0] == map_kind::STACK).map(|k| k[2]).fold(0, u64::saturating_add)
    };
    let (before, after) = (meta.memory.first.as_ref(), meta.memory.last.as_ref());
    let stacks = before.zip(after).map_or(0, |(a, b)| stacks(b).saturating_sub(stacks(a)));
    end.saturating_sub(first.private).saturating_sub(stacks)
}

/// Returns the bytes of recorded blocks, and the growth that they may explain. If the target is known to take memory
/// itself, the blocks live at one time count; otherwise all blocks ever, as an allocator may keep what was freed.
fn explained(analysis: &Analysis) -> (u64, u64) {
    let t = analysis.totals();
    let f = &t.figures;
    let of = |bytes: u64, blocks: u64| {
        let more = bytes / 4 + blocks.saturating_mul(PER_BLOCK) + SLACK;
        let sampled = analysis.meta().distance_range().1.saturating_mul(16);
        (bytes, bytes.saturating_add(more).saturating_add(sampled))
    };
    if analysis.meta().runtimes.is_empty() {
        of(f.allocated_bytes, f.allocations.saturating_add(f.reallocations))
    } else {
        of(f.peak_bytes, f.peak_count)
    }
}

/// Returns the file names of the hooked modules.
fn hooked(analysis: &Analysis) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for h in &analysis.meta().hooks.hooked {
        let name = crate::style::printable(h.module.rsplit('/').next().unwrap_or_default());
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A worker process in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerData {
    /// Process ID in prof's namespace.
    pub pid: Pid,
    /// Resident bytes when it was last seen.
    pub rss_bytes: u64,
    /// Growth of the resident bytes since it was first seen.
    pub grown_bytes: u64,
    /// Whether the worker was forked after the attach: then it contains prof's jumps and can't be recorded as it is.
    pub forked_since: bool,
}

/// Returns the worker processes that were seen more than once, sorted by growth, the most first. Those that have a recording
/// beside that of their master, in the folder of a family, are left out.
#[must_use]
pub fn workers(seen: &[WorkerSeen], of_master: &Path) -> Vec<WorkerData> {
    // Short-lived children, such as one that saves a snapshot, are not seen twice.
    let mut stays: Vec<&WorkerSeen> = seen.iter().filter(|w| w.looks > 1).collect();
    if !stays.is_empty() {
        let recorded = beside(of_master);
        stays.retain(|w| !recorded.contains(&w.now.pid.as_u32()));
    }
    let mut all: Vec<WorkerData> = stays
        .into_iter()
        .map(|w| WorkerData {
            pid: w.now.pid,
            rss_bytes: w.now.rss,
            grown_bytes: w.grown(),
            forked_since: w.since,
        })
        .collect();
    all.sort_by_key(|w| std::cmp::Reverse((w.grown_bytes, w.rss_bytes)));
    all
}

/// Returns the processes that have a recording in the folder of this one, as those of a family do: `COMM.PID.prof`. Those that
/// had ended before it was begun are of other processes with these numbers.
fn beside(recording: &Path) -> Vec<u32> {
    let folder = recording.parent().filter(|p| !p.as_os_str().is_empty());
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten();
    let Ok(own) = target(recording) else { return Vec::new() };
    let pid = |path: PathBuf| {
        let pid = path.file_stem()?.to_str()?.rsplit_once('.')?.1.parse().ok()?;
        let is_its = |t: Target| {
            let written = std::fs::metadata(&path).and_then(|m| m.modified());
            let since = written.ok().and_then(|w| w.duration_since(UNIX_EPOCH).ok());
            let is_later = since.is_some_and(|s| s.as_nanos() >= own.wall_ns.into());
            t.pid == pid && t.pid_namespace == own.pid_namespace && is_later
        };
        target(&path).is_ok_and(is_its).then_some(pid)
    };
    entries.flatten().filter_map(|e| pid(e.path())).collect()
}

/// Returns a text that names the worker processes.
#[must_use]
pub fn workers_text(all: &[WorkerData]) -> Option<String> {
    all.first()?;
    let one = |w: &WorkerData| {
        let grown = match w.grown_bytes {
            0 => "not grown".to_owned(),
            n => format!("grown by {}", bytes(n)),
        };
        format!("{} (RSS {}, {grown})", w.pid, bytes(w.rss_bytes))
    };
    let mut named: Vec<String> = all.iter().take(NAMED).map(one).collect();
    if all.len() > NAMED {
        let others = (all.len() - NAMED) as u64;
        named.push(format!("and {}", count(others, "other", "others")));
    }
    let (is, named) = (if all.len() == 1 { "worker is" } else { "workers are" }, named.join(", "));
    let how = match all.iter().find(|w| !w.forked_since) {
        Some(w) => format!("`prof attach {}` records one", w.pid),
        None => "they were forked since the attach and can't be recorded, but those can be that this process \
                 forks after `prof detach`"
            .into(),
    };
    Some(format!(
        "this is a master: its {is} {named}; what they allocate is not in this recording, {how}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_os::workers::Worker;
    use prof_trace::chunk;
    use prof_trace::records::kind;

    #[test]
    fn only_workers_that_stay_are_named() {
        let seen = |pid, rss, first, looks| WorkerSeen {
            now: Worker { pid: Pid::from_raw(pid), start: 1, rss },
            first,
            looks,
            since: pid == 8,
        };
        let seen = [seen(7, MIB, MIB, 2), seen(8, 3 * MIB, MIB, 2), seen(9, 9 * MIB, 0, 1)];
        let all = workers(&seen, Path::new("r.prof"));
        assert_eq!(all.iter().map(|w| w.pid).collect::<Vec<_>>(), [8, 7].map(Pid::from_raw));
        let text = workers_text(&all).expect("workers");
        assert!(text.contains("8 (RSS 3.0 MiB, grown by 2.0 MiB), 7 (RSS 1.0 MiB, not grown)"));
        assert!(text.contains("`prof attach 7`"), "8 was forked later: {text}");
        assert_eq!(workers_text(&[]), None);
        // One of them has a recording in the same folder. A file that only has such a name is none.
        let folder = std::env::temp_dir().join(format!("prof-workers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let now = std::time::SystemTime::now();
        let write = |pid: u32, before_s: u64| {
            let mut bytes = chunk::file_header().to_vec();
            let written = now - std::time::Duration::from_secs(before_s);
            let wall_ns = written.duration_since(UNIX_EPOCH).expect("a time").as_nanos() as u64;
            let target = Target { pid, wall_ns, ..Target::default() };
            chunk::put(&mut bytes, kind::TARGET, &target.encode());
            let path = folder.join(format!("w.{pid}.prof"));
            std::fs::write(&path, bytes).expect("written");
            let file = std::fs::File::options().write(true).open(path).expect("a file");
            file.set_modified(written).expect("a time");
        };
        write(6, 100);
        write(8, 10);
        std::fs::write(folder.join("w.7.prof"), "").expect("written");
        let others = || {
            let all = workers(&seen, &folder.join("w.6.prof"));
            all.iter().map(|w| w.pid).collect::<Vec<_>>()
        };
        assert_eq!(others(), [Pid::from_raw(7)]);
        // One that had ended before the master's is of another process.
        write(8, 200);
        assert_eq!(others(), [8, 7].map(Pid::from_raw));
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
