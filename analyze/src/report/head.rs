//! What every report says of its recording, as data.

use super::figures::SumData;
use crate::Analysis;
use crate::model::{Errors, Group};
use crate::query::Rule;
use crate::unseen::{self, Unseen, WorkerData};
use prof_trace::capture::Capture;
use serde::Serialize;

/// A field of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterData {
    /// Its name.
    pub name: String,
    /// Its value, as it was given.
    pub value: String,
}

/// The target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetData {
    /// Its process id, as prof saw it.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Its arguments.
    pub cmdline: Vec<String>,
    /// Its architecture.
    pub arch: String,
    /// Its name.
    pub comm: String,
}

/// The recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordingData {
    /// The file.
    pub path: String,
    /// When recording was on.
    pub parts: Vec<PartData>,
    /// From the start to the end, pauses included.
    pub duration_ns: u64,
    /// Whether it was finished and nothing is missing of it.
    pub complete: bool,
    /// Events in it.
    pub events: u64,
    /// Events that the hook could not write.
    pub lost_events: u64,
    /// Stacks that were cut short.
    pub truncated_stacks: u64,
    /// Blocks given back that were from before the attach, or from a pause.
    pub unknown_frees: u64,
    /// Blocks whose address was handed out again without a free between: given back in a pause,
    /// or lost.
    pub implied_frees: u64,
    /// Calls by signal handlers inside the hook, which are not recorded.
    pub reentered: u64,
    /// Which blocks are in it; `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureData>,
    /// Stacks that were taken both with and without memo (`--verify-stacks`).
    pub verified_stacks: u64,
    /// Those of them that differed.
    pub mismatched_stacks: u64,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// When it began, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Threads seen.
    pub threads: u64,
    /// Hooked functions.
    pub hooks: Vec<HookData>,
    /// Functions that could not be hooked.
    pub not_hooked: Vec<NotHookedData>,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

/// Which blocks are in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureData {
    /// A sample: one for each so many bytes that are allocated, on average; 0: no such sample.
    pub sample_bytes: u64,
    /// A sample: one of so many allocations in a row of a thread; 0 or 1: no such sample.
    pub sample_every: u64,
    /// Only blocks of this size or larger.
    pub min_size: u64,
    /// Only blocks of this size or smaller; `None`: no limit.
    pub max_size: Option<u64>,
}

impl CaptureData {
    pub(crate) fn new(c: &Capture) -> Option<Self> {
        let max_size = (c.max_size < u64::MAX).then_some(c.max_size);
        let (sample_bytes, sample_every, min_size) = (c.sample_bytes, c.sample_every, c.min_size);
        (!c.is_everything()).then_some(Self { sample_bytes, sample_every, min_size, max_size })
    }

    /// Figures are estimates.
    pub fn is_sampled(&self) -> bool {
        self.sample_bytes > 0 || self.sample_every > 1
    }
}

/// A time in which recording was on, in nanoseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PartData {
    /// Its start.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
}

/// A hooked function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HookData {
    /// Its name.
    pub function: String,
    /// Path of its module.
    pub module: String,
    /// `inline` or `got`.
    pub method: String,
    /// Calls that were recorded; of a function with several names, with the first of them.
    pub calls: u64,
    /// The first name of the same function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias_of: Option<String>,
}

/// A function that could not be hooked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotHookedData {
    /// Its name.
    pub function: String,
    /// Path of its module.
    pub module: String,
    /// Why.
    pub reason: String,
}

/// The figures of all blocks; see [`Figures`](crate::model::Figures) and
/// [`Totals`](crate::model::Totals) for what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TotalsData {
    /// Blocks handed out, other than by reallocation.
    pub allocations: u64,
    /// Standard error of `allocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations_stderr: Option<u64>,
    /// Blocks given back, other than by reallocation.
    pub frees: u64,
    /// Standard error of `frees`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frees_stderr: Option<u64>,
    /// Reallocations.
    pub reallocations: u64,
    /// Standard error of `reallocations`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reallocations_stderr: Option<u64>,
    /// Bytes ever handed out.
    pub allocated_bytes: u64,
    /// Standard error of `allocated_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes_stderr: Option<u64>,
    /// Live blocks.
    pub live_count: u64,
    /// Standard error of `live_count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_count_stderr: Option<u64>,
    /// Their bytes.
    pub live_bytes: u64,
    /// Standard error of `live_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_bytes_stderr: Option<u64>,
    /// The most blocks that were live at a time.
    pub peak_count: u64,
    /// Standard error of `peak_count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_count_stderr: Option<u64>,
    /// The most bytes that were live at a time.
    pub peak_bytes: u64,
    /// Standard error of `peak_bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes_stderr: Option<u64>,
    /// When that was, in nanoseconds since the start.
    pub peak_at_ns: u64,
    /// Temporary blocks; `None` where not all blocks are recorded.
    pub temporary: Option<u64>,
    /// Stacks seen.
    pub groups: u64,
}

/// What the kernel said of the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KernelData {
    /// Bytes of the address space.
    pub vss_bytes: u64,
    /// Bytes of the resident set.
    pub rss_bytes: u64,
    /// When, in nanoseconds since the start.
    pub at_ns: u64,
}

/// Which recording something is about, and how far it is exact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Whose memory it is.
    pub target: TargetData,
    /// What was recorded, and how far it is exact.
    pub recording: RecordingData,
    /// Which blocks the figures are of; none given: all.
    pub filter: Vec<FilterData>,
    /// The moment that the figures are of, in nanoseconds since the start; `None`: the end.
    pub at_ns: Option<u64>,
    /// The figures of all blocks that are meant.
    pub totals: TotalsData,
    /// What lists left out of them (`--ignore`, `--suppressions`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<SuppressedData>,
    /// What shows that the recording does not see the memory that the target takes; for all blocks only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<Unseen>,
    /// Processes of the same program that do its work, and are not in the recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerData>,
}

/// What lists left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuppressedData {
    /// Stacks.
    pub stacks: u64,
    /// Their figures.
    #[serde(flatten)]
    pub sums: SumData,
    /// Which lines of the lists left anything out.
    pub rules: Vec<RuleData>,
    /// Lines that left nothing out.
    pub unused_rules: u64,
    /// Modules with suppressions of their own that could not be read.
    pub unread: Vec<String>,
}

/// A line of a list. A stack that several name is counted for the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleData {
    /// The line.
    pub rule: String,
    /// The list.
    pub from: String,
    /// Stacks that it left out.
    pub stacks: u64,
    /// Their figures.
    #[serde(flatten)]
    pub sums: SumData,
}

impl SuppressedData {
    fn new(analysis: &Analysis) -> Option<Self> {
        let left_out = analysis.left_out()?;
        let capture = analysis.capture();
        let used: Vec<_> = left_out.rules.iter().filter(|r| r.1 > 0).collect();
        let rule = |(rule, stacks, group): &&(Rule, u64, Group)| RuleData {
            rule: shown(&rule.text),
            from: shown(&rule.from),
            stacks: *stacks,
            sums: SumData::of(capture, [group]),
        };
        Some(Self {
            stacks: used.iter().map(|r| r.1).sum(),
            sums: SumData::of(capture, used.iter().map(|r| &r.2)),
            rules: used.iter().map(rule).collect(),
            unused_rules: (left_out.rules.len() - used.len()) as u64,
            unread: left_out.unread.iter().map(|p| shown(p)).collect(),
        })
    }
}

impl Head {
    /// Of a recording.
    pub fn new(analysis: &Analysis, filter: &[FilterData]) -> Self {
        let all = filter.is_empty() && analysis.at_ns().is_none() && analysis.left_out().is_none();
        Self {
            unseen: if all { Unseen::of(analysis, None) } else { None },
            workers: unseen::workers(analysis.meta().process.workers()),
            target: TargetData::new(analysis),
            recording: RecordingData::new(analysis),
            filter: filter.to_vec(),
            at_ns: analysis.at_ns(),
            totals: TotalsData::new(analysis),
            suppressed: SuppressedData::new(analysis),
        }
    }
}

/// Names come from the process that was recorded and from its files, and are shown on terminals: what
/// could move a cursor is escaped.
pub(crate) fn shown(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escape).collect()
}

impl TargetData {
    fn new(analysis: &Analysis) -> Self {
        let t = &analysis.meta().target;
        Self {
            pid: t.pid,
            exe: shown(&t.exe),
            cmdline: t.cmdline.iter().map(|a| shown(a)).collect(),
            arch: shown(&t.arch),
            comm: shown(&t.comm),
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
        let calls = |i: u32| meta.counters.calls.get(i as usize).copied().unwrap_or(0);
        let hooks = meta.hooks.hooked.iter().enumerate().map(|(i, h)| {
            let first = meta.hooks.hooked[..i].iter().find(|first| first.index == h.index);
            HookData {
                function: shown(&h.function),
                module: shown(&h.module),
                method: shown(&h.method),
                calls: if first.is_none() { calls(h.index) } else { 0 },
                alias_of: first.map(|first| shown(&first.function)),
            }
        });
        let not_hooked = meta.hooks.not_hooked.iter().map(|h| NotHookedData {
            function: shown(&h.function),
            module: shown(&h.module),
            reason: shown(&h.reason),
        });
        Self {
            path: analysis.path().to_string_lossy().into_owned(),
            parts: parts.collect(),
            duration_ns: analysis.duration_ns(),
            complete: analysis.complete(),
            events: analysis.events(),
            lost_events: meta.counters.lost,
            truncated_stacks: meta.counters.truncated,
            unknown_frees: totals.unknown_frees,
            implied_frees: totals.implied_frees,
            reentered: meta.counters.reentered,
            capture: CaptureData::new(&analysis.capture()),
            verified_stacks: meta.counters.verified,
            mismatched_stacks: meta.counters.mismatches,
            end_reason: meta.end.as_ref().map(|e| shown(&e.reason)),
            started_unix_ns: meta.target.wall_ns,
            threads: meta.threads.len() as u64,
            hooks: hooks.collect(),
            not_hooked: not_hooked.collect(),
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
        }
    }
}

impl KernelData {
    pub(super) fn new(analysis: &Analysis) -> Option<Self> {
        analysis.meta().kernel.map(|k| Self {
            vss_bytes: k.vss_bytes,
            rss_bytes: k.rss_bytes,
            at_ns: analysis.meta().clock.ns(k.ticks),
        })
    }
}
