//! The data about the recording that every report begins with.

use super::before::BeforeData;
use super::block_stats::SumData;
use crate::Analysis;
use crate::analysis::Rule;
use crate::heap::{Errors, Group};
use crate::style::printable;
use crate::unseen::{self, Unseen, WorkerData};
use prof_trace::records::{Joined, map_kind};
use prof_trace::ticks::Ticks;
use serde::Serialize;

/// A field of the filter in effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterData {
    /// Name of the field.
    pub name: String,
    /// Text of its value, as it was given.
    pub value: String,
}

/// The recorded process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetData {
    /// Process ID in prof's namespace.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Command line arguments.
    pub cmdline: Vec<String>,
    /// Architecture of the process.
    pub arch: String,
    /// Name of the process.
    pub comm: String,
}

/// The recording and its completeness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordingData {
    /// Path of the file.
    pub path: String,
    /// Periods in which recording was on.
    pub parts: Vec<PartData>,
    /// Moments that were given names, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<MarkData>,
    /// Nanoseconds from the start to the end, pauses included.
    pub duration_ns: u64,
    /// Whether the recording was finished and nothing of it is missing.
    pub complete: bool,
    /// Facts about the recordings of several processes that this one was joined from, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joined: Option<JoinedData>,
    /// Number of events.
    pub events: u64,
    /// Number of events that the hook could not write.
    pub lost_events: u64,
    /// Number of stacks that were cut short.
    pub truncated_stacks: u64,
    /// Number of freed blocks that were from before the attach, or from a pause.
    pub unknown_frees: u64,
    /// Number of blocks that ended without a recorded free, because another block began at their address: they were
    /// freed in a pause, or the free was lost.
    pub implied_frees: u64,
    /// Number of calls that signal handlers made while their thread was in the hook; these are not recorded.
    pub reentered: u64,
    /// The recorded part of the blocks; `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureData>,
    /// Periods with one sampling distance each, if it adapts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<DistanceData>,
    /// Number of stacks that were unwound both with and without the memo (`--verify-stacks`).
    pub verified_stacks: u64,
    /// Number of these stacks that differed.
    pub mismatched_stacks: u64,
    /// Why the recording ended.
    pub end_reason: Option<String>,
    /// Time when the recording began, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Number of threads seen.
    pub threads: u64,
    /// Hooked functions.
    pub hooks: Vec<HookData>,
    /// Functions that could not be hooked.
    pub not_hooked: Vec<NotHookedData>,
    /// Since when the recording has figures by stack alone, if it had events before, in nanoseconds since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures_since_ns: Option<u64>,
    /// Further facts that a reader should know.
    pub notes: Vec<String>,
}

/// Facts about the recordings of several processes that were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct JoinedData {
    /// Number of recordings that were joined.
    pub recordings: u64,
    /// Number of those that had no end, and whose processes lived.
    pub growing: u64,
    /// Number of others that are not complete: they have no end, are damaged or cut off, or lack figures.
    pub incomplete: u64,
    /// Number of recordings that were gone or could not be read.
    pub lost: u64,
    /// Number of processes that could not be recorded, most as they had ended before.
    pub missed_processes: u64,
    /// Whether there may have been more of them.
    pub may_lack_more: bool,
    /// Number of recordings that were off for a time, or all the time.
    pub paused: u64,
    /// Whether peaks of all blocks are upper bounds, as when processes held some of these at the same time is not known.
    pub peaks_at_most: bool,
}

impl JoinedData {
    /// Returns those of a recording; `None` if it is that of one process, of whose family nothing is lost.
    pub fn new(analysis: &Analysis) -> Option<Self> {
        let meta = analysis.meta();
        let &Joined { recordings, growing, incomplete, lost, missed, more, paused } =
            analysis.joined()?;
        // What was not folded is known block by block.
        let is_exact = meta.stripped.is_none()
            && meta.folded.as_ref().is_some_and(|f| f.until < analysis.totals().peak_ticks);
        let peaks_at_most = meta.is_of_several() && meta.lacks_blocks() && !is_exact;
        Some(Self {
            recordings,
            growing,
            incomplete,
            lost,
            missed_processes: missed,
            may_lack_more: more > 0,
            paused,
            peaks_at_most,
        })
    }
}

/// The recorded part of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureData {
    /// Average number of allocated bytes per recorded block; 0: not sampled by bytes.
    pub sample_bytes: u64,
    /// Least and greatest average, if it follows the allocation rate of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_bytes_range: Option<[u64; 2]>,
    /// Distance of recorded allocations, counted in allocations of a thread; 0 or 1: not sampled by count.
    pub sample_every: u64,
    /// Least size of recorded blocks.
    pub min_size: u64,
    /// Greatest size of recorded blocks; `None`: no limit.
    pub max_size: Option<u64>,
}

impl CaptureData {
    pub(crate) fn new(analysis: &Analysis) -> Option<Self> {
        let c = analysis.capture();
        let (least, most) = analysis.meta().distance_range();
        let sample_bytes_range = c.adapts.then_some([least, most]);
        let max_size = (c.max_size < u64::MAX).then_some(c.max_size);
        let (sample_bytes, sample_every, min_size) = (c.sample_bytes, c.sample_every, c.min_size);
        (!c.is_everything()).then_some(Self {
            sample_bytes,
            sample_bytes_range,
            sample_every,
            min_size,
            max_size,
        })
    }

    /// Returns whether the blocks are a sample, and figures are estimates.
    pub fn is_sampled(&self) -> bool {
        self.sample_bytes > 0 || self.sample_every > 1
    }
}

/// A period with one sampling distance, in nanoseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DistanceData {
    /// Start of the period.
    pub start_ns: u64,
    /// End of the period.
    pub end_ns: u64,
    /// Average number of allocated bytes per recorded block.
    pub bytes: u64,
}

impl DistanceData {
    /// Returns the periods of a recording whose distance adapts.
    pub(crate) fn all(analysis: &Analysis) -> Vec<Self> {
        let (meta, end) = (analysis.meta(), analysis.duration_ns());
        let first = (meta.target.start_ticks, meta.target.sample_bytes);
        let all: Vec<(Ticks, u64)> = [first].into_iter().chain(meta.distances.clone()).collect();
        let next = |i: usize| all.get(i + 1).map_or(end, |next| meta.clock.ns(next.0).min(end));
        let period = |(i, (ticks, bytes)): (usize, &(Ticks, u64))| Self {
            start_ns: meta.clock.ns(*ticks).min(end),
            end_ns: next(i),
            bytes: *bytes,
        };
        let adapts = analysis.capture().adapts;
        all.iter().enumerate().filter(|_| adapts).map(period).collect()
    }
}

/// A period in which recording was on, in nanoseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PartData {
    /// Start of the period.
    pub start_ns: u64,
    /// End of the period.
    pub end_ns: u64,
}

/// A moment that was given a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MarkData {
    /// Number, from 1.
    pub number: usize,
    /// Name; may be empty.
    pub name: String,
    /// Nanoseconds since the start.
    pub at_ns: u64,
}

/// A hooked function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HookData {
    /// Name of the function.
    pub function: String,
    /// Path of its module.
    pub module: String,
    /// Method of hooking: `inline` or `got`.
    pub method: String,
    /// Number of recorded calls. Calls by an alias count for its first name.
    pub calls: u64,
    /// First name of the function, if this is an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias_of: Option<String>,
}

/// A function that could not be hooked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotHookedData {
    /// Name of the function.
    pub function: String,
    /// Path of its module.
    pub module: String,
    /// Why it could not be hooked.
    pub reason: String,
}

/// Figures of all blocks; see [`BlockStats`](crate::heap::BlockStats) and [`Totals`](crate::heap::Totals).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TotalsData {
    /// Number of allocations, other than reallocations.
    pub allocations: u64,
    /// Standard error of `allocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations_stderr: Option<u64>,
    /// Number of frees, other than by reallocation.
    pub frees: u64,
    /// Standard error of `frees`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frees_stderr: Option<u64>,
    /// Number of reallocations.
    pub reallocations: u64,
    /// Standard error of `reallocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reallocations_stderr: Option<u64>,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Standard error of `allocated_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes_stderr: Option<u64>,
    /// Number of live blocks.
    pub live_count: u64,
    /// Standard error of `live_count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_count_stderr: Option<u64>,
    /// Bytes of the live blocks.
    pub live_bytes: u64,
    /// Standard error of `live_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_bytes_stderr: Option<u64>,
    /// Greatest number of blocks live at any time.
    pub peak_count: u64,
    /// Standard error of `peak_count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_count_stderr: Option<u64>,
    /// Greatest number of bytes live at any time.
    pub peak_bytes: u64,
    /// Standard error of `peak_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes_stderr: Option<u64>,
    /// Time of the peak of live bytes, in nanoseconds since the start.
    pub peak_at_ns: u64,
    /// Number of temporary blocks; `None` if not all blocks are recorded.
    pub temporary: Option<u64>,
    /// Number of stacks.
    pub groups: u64,
    /// Blocks from before the recording, which are no allocations; `None`: no census has counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_attach: Option<BeforeData>,
}

/// The target's memory as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KernelData {
    /// Bytes of the address space.
    pub vss_bytes: u64,
    /// Bytes of the resident set.
    pub rss_bytes: u64,
    /// Time of the reading, in nanoseconds since the start.
    pub at_ns: u64,
    /// The parts of the resident set when its mappings were looked at last.
    pub resident: Option<ResidentData>,
}

/// The parts of the resident set, in bytes: the sum of all but the page tables is `rss_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResidentData {
    /// Time of the look, in nanoseconds since the start.
    pub at_ns: u64,
    /// The resident set.
    pub rss_bytes: u64,
    /// The heap and other anonymous memory.
    pub anonymous_bytes: u64,
    /// Stacks of threads.
    pub stacks_bytes: u64,
    /// Code, data and other files.
    pub files_bytes: u64,
    /// prof's own memory.
    pub prof_bytes: u64,
    /// Other mappings.
    pub other_bytes: u64,
    /// The rest that the mappings do not account for; negative if they sum up to more.
    pub unexplained_bytes: i64,
    /// Page tables, which the kernel does not count as resident; 0: unknown.
    pub page_tables_bytes: u64,
}

impl ResidentData {
    fn new(analysis: &Analysis) -> Option<Self> {
        let m = analysis.meta().memory.last.as_ref()?;
        let all = m.maps.as_chunks::<3>().0;
        let of =
            |k: u64| all.iter().filter(|m| m[0] == k).fold(0u64, |s, m| s.saturating_add(m[2]));
        let anonymous_bytes = of(map_kind::HEAP).saturating_add(of(map_kind::ANONYMOUS));
        let parts = [map_kind::STACK, map_kind::FILE, map_kind::PROF, map_kind::OTHER].map(of);
        let sum = parts.iter().fold(anonymous_bytes, |s, n| s.saturating_add(*n));
        let [stacks_bytes, files_bytes, prof_bytes, other_bytes] = parts;
        Some(Self {
            at_ns: analysis.meta().clock.ns(m.ticks),
            rss_bytes: m.rss,
            anonymous_bytes,
            stacks_bytes,
            files_bytes,
            prof_bytes,
            other_bytes,
            unexplained_bytes: (m.rss as i64).saturating_sub(sum as i64),
            page_tables_bytes: m.page_tables,
        })
    }
}

/// The recording that a report is about, its completeness, and its totals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// The recorded process.
    pub target: TargetData,
    /// The recording and its completeness.
    pub recording: RecordingData,
    /// The filter that selected the blocks; empty: all blocks.
    pub filter: Vec<FilterData>,
    /// The moment that the figures describe, in nanoseconds since the start; `None`: the end.
    pub at_ns: Option<u64>,
    /// Figures of all selected blocks.
    pub totals: TotalsData,
    /// Figures that suppression rules removed (`--ignore`, `--suppressions`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<SuppressedData>,
    /// Signs that the recording misses memory that the target takes; only for reports on all blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<Unseen>,
    /// Worker processes of the same program, which are not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerData>,
}

/// The stacks that suppression rules excluded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuppressedData {
    /// Number of stacks.
    pub stacks: u64,
    /// Sums of their figures.
    #[serde(flatten)]
    pub sums: SumData,
    /// The rules that excluded a stack.
    pub rules: Vec<RuleData>,
    /// Number of rules that excluded nothing.
    pub unused_rules: u64,
    /// Modules whose embedded suppressions could not be read.
    pub unread: Vec<String>,
}

/// A suppression rule. A stack that matches several counts for the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleData {
    /// Text of the rule.
    pub rule: String,
    /// Name of its list.
    pub from: String,
    /// Number of stacks that it excluded.
    pub stacks: u64,
    /// Sums of their figures.
    #[serde(flatten)]
    pub sums: SumData,
}

impl SuppressedData {
    fn new(analysis: &Analysis) -> Option<Self> {
        let left_out = analysis.left_out()?;
        let capture = analysis.capture();
        let used: Vec<_> = left_out.rules.iter().filter(|r| r.1 > 0).collect();
        let rule = |(rule, stacks, group): &&(Rule, u64, Group)| RuleData {
            rule: printable(&rule.text),
            from: printable(&rule.from),
            stacks: *stacks,
            sums: SumData::of(capture, [group]),
        };
        Some(Self {
            stacks: used.iter().map(|r| r.1).sum(),
            sums: SumData::of(capture, used.iter().map(|r| &r.2)),
            rules: used.iter().map(rule).collect(),
            unused_rules: (left_out.rules.len() - used.len()) as u64,
            unread: left_out.unread.iter().map(|p| printable(p)).collect(),
        })
    }
}

impl Head {
    /// Collects the data of a recording.
    pub fn new(analysis: &Analysis, filter: &[FilterData]) -> Self {
        let all = filter.is_empty() && analysis.at_ns().is_none() && analysis.left_out().is_none();
        Self {
            unseen: if all { Unseen::of(analysis, None) } else { None },
            workers: unseen::workers(analysis.meta().process.workers(), &analysis.shown_path()),
            target: TargetData::new(analysis),
            recording: RecordingData::new(analysis),
            filter: filter.to_vec(),
            at_ns: analysis.at_ns(),
            totals: TotalsData::new(analysis),
            suppressed: SuppressedData::new(analysis),
        }
    }
}

impl TargetData {
    fn new(analysis: &Analysis) -> Self {
        let t = &analysis.meta().target;
        Self {
            pid: t.pid,
            exe: printable(&t.exe),
            cmdline: t.cmdline.iter().map(|a| printable(a)).collect(),
            arch: printable(&t.arch),
            comm: printable(&t.comm),
        }
    }
}

impl RecordingData {
    fn new(analysis: &Analysis) -> Self {
        let (meta, totals) = (analysis.meta(), analysis.totals());
        let parts = analysis
            .parts()
            .into_iter()
            .map(|p| PartData { start_ns: meta.clock.ns(p.start), end_ns: meta.clock.ns(p.end) });
        let marks = meta.marks.iter().enumerate().map(|(i, m)| MarkData {
            number: i + 1,
            name: printable(&m.name),
            at_ns: meta.clock.ns(m.ticks),
        });
        let calls = |i: u32| meta.counters.calls.get(i as usize).copied().unwrap_or(0);
        let hooks = meta.hooks.hooked.iter().enumerate().map(|(i, h)| {
            let first = meta.hooks.hooked[..i].iter().find(|first| first.index == h.index);
            HookData {
                function: printable(&h.function),
                module: printable(&h.module),
                method: printable(&h.method),
                calls: if first.is_none() { calls(h.index) } else { 0 },
                alias_of: first.map(|first| printable(&first.function)),
            }
        });
        let not_hooked = meta.hooks.not_hooked.iter().map(|h| NotHookedData {
            function: printable(&h.function),
            module: printable(&h.module),
            reason: printable(&h.reason),
        });
        Self {
            path: analysis.shown_path().to_string_lossy().into_owned(),
            parts: parts.collect(),
            marks: marks.collect(),
            duration_ns: analysis.duration_ns(),
            complete: analysis.complete(),
            joined: JoinedData::new(analysis),
            events: analysis.events(),
            lost_events: meta.counters.lost,
            truncated_stacks: meta.counters.truncated,
            unknown_frees: totals.unknown_frees,
            implied_frees: totals.implied_frees,
            reentered: meta.counters.reentered,
            distances: DistanceData::all(analysis),
            capture: CaptureData::new(analysis),
            verified_stacks: meta.counters.verified,
            mismatched_stacks: meta.counters.mismatches,
            end_reason: meta.end.as_ref().map(|e| printable(&e.reason)),
            started_unix_ns: meta.target.wall_ns,
            threads: meta.thread_count() as u64,
            hooks: hooks.collect(),
            not_hooked: not_hooked.collect(),
            figures_since_ns: meta.went_over.as_ref().map(|w| meta.clock.ns(w.ticks)),
            notes: analysis.notes().iter().map(ToString::to_string).collect(),
        }
    }
}

impl TotalsData {
    fn new(analysis: &Analysis) -> Self {
        let t = analysis.totals();
        let (capture, errors) = (analysis.capture(), &analysis.totals().errors);
        let error = |of: fn(&Errors) -> u64| capture.is_sampled().then(|| of(errors));
        let f = &t.figures;
        Self {
            allocations: f.allocations,
            allocations_stderr: error(|e| e.allocations),
            frees: t.frees,
            frees_stderr: error(|e| e.frees),
            reallocations: f.reallocations,
            reallocations_stderr: error(|e| e.reallocations),
            allocated_bytes: f.allocated_bytes,
            allocated_bytes_stderr: error(|e| e.allocated_bytes),
            live_count: f.live_count,
            live_count_stderr: error(|e| e.live_count),
            live_bytes: f.live_bytes,
            live_bytes_stderr: error(|e| e.live_bytes),
            peak_count: f.peak_count,
            peak_count_stderr: error(|e| e.peak_count),
            peak_bytes: f.peak_bytes,
            peak_bytes_stderr: error(|e| e.peak_bytes),
            peak_at_ns: analysis.peak_at_ns(),
            temporary: capture.is_everything().then_some(f.temporary),
            groups: analysis.groups().len() as u64,
            before_attach: BeforeData::new(analysis),
        }
    }
}

impl KernelData {
    pub(super) fn new(analysis: &Analysis) -> Option<Self> {
        analysis.meta().kernel.map(|k| Self {
            vss_bytes: k.vss_bytes,
            rss_bytes: k.rss_bytes,
            at_ns: analysis.meta().clock.ns(k.ticks),
            resident: ResidentData::new(analysis),
        })
    }
}
