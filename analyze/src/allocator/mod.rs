//! Reports on the target's allocators: which they are, their settings, glibc's arenas, what they have done, and what blocks
//! take beyond what was asked for.

mod classes;
mod doings;
mod overhead;
mod text;

use crate::index::{Index, ScanError};
use crate::query::Query;
use crate::report::{FilterData, FrameData, Head, frames_of};
use crate::style::printable;
use crate::symbols::Symbolizer;
use classes::Classes;
use prof_trace::records::{Allocators, allocator};
use prof_trace::size::GlibcChunks;
use prof_trace::ticks::Ticks;
use serde::Serialize;

pub use doings::{DoingData, MadeData, SettingCallData, SettingGroupData};
pub use overhead::{OverheadData, SizeOverheadData};

/// Options of the report.
#[derive(Clone, Debug)]
pub struct AllocatorOptions {
    /// Number of stacks and of calls to show; 0: all.
    pub top: usize,
    /// The order of the stacks.
    pub sort: OverheadSort,
    /// Ticks of the moment whose live blocks count; `None`: the end, or the peak if nothing is live at the end.
    pub at: Option<Ticks>,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
}

/// The order of stacks, most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OverheadSort {
    /// Bytes beyond what was asked for
    #[default]
    Overhead,
    /// Overhead as a part of the bytes that the blocks take
    Part,
    /// Bytes that the blocks take
    Taken,
    /// Bytes that were asked for
    Requested,
    /// Number of blocks
    Count,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum AllocatorError {
    /// The index could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The recording could not be read.
    #[error(transparent)]
    Read(#[from] crate::Error),
}

/// The allocators of a process, their settings, arenas and overhead.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllocatorReport {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording; absent if the process itself was looked at.
    #[serde(flatten)]
    pub head: Option<Head>,
    /// Process id.
    pub process: u32,
    /// When settings and arenas were read last, in nanoseconds since the start; `None`: now, or never.
    pub read_ns: Option<u64>,
    /// The recording or the process tells of allocators; recordings of earlier versions do not.
    pub known: bool,
    /// The allocators.
    pub allocators: Vec<FoundData>,
    /// Their settings.
    pub settings: Vec<SettingData>,
    /// Other figures.
    pub figures: Vec<FigureData>,
    /// glibc's arenas, the main one first.
    pub arenas: Vec<ArenaData>,
    /// The sums of the arenas.
    pub arenas_total: Option<ArenaData>,
    /// Bytes that blocks take beyond those requested; absent without a recording.
    pub overhead: Option<OverheadReport>,
    /// Calls that change the allocator's settings, or ask it to do something, in the order of time.
    pub calls: Vec<SettingCallData>,
    /// Number of calls that are not shown.
    pub other_calls: u64,
    /// The calls of `calls` by function and parameter, most frequent first.
    pub call_groups: Vec<SettingGroupData>,
    /// The allocator's own calls of the kernel, by what they do.
    pub doings: Vec<DoingData>,
    /// Arenas, and heaps of arenas, that were made.
    pub made: Vec<MadeData>,
    /// Number of arenas and heaps that are not listed.
    pub other_made: u64,
    /// Whether the recording has the calls that an allocator makes of the kernel.
    pub calls_recorded: bool,
    /// Figures that are unknown, with the reason.
    pub unknown: Vec<UnknownData>,
}

/// An allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundData {
    /// Name of the allocator: `glibc`, `musl`, `jemalloc`, `mimalloc`, `tcmalloc`.
    pub name: String,
    /// Version of the allocator; empty: unknown.
    pub version: String,
    /// Path of the file that contains it.
    pub file: String,
    /// Functions of the file that are recorded as allocating.
    pub functions: Vec<String>,
}

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingData {
    /// `environment`: a variable that the program was started with; `memory`: the allocator's own variable.
    pub source: String,
    /// Name of the setting.
    pub name: String,
    /// Value of the setting.
    pub value: String,
}

/// A figure that an allocator counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FigureData {
    /// Name of the allocator.
    pub allocator: String,
    /// Name of the figure.
    pub name: String,
    /// The figure.
    pub value: u64,
}

/// An arena of glibc's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArenaData {
    /// Address of its `malloc_state`; 0 of the sum.
    pub address: u64,
    /// Whether this is the main arena, which grows by `brk`.
    pub main: bool,
    /// Number of heaps of other arenas.
    pub heaps: u64,
    /// Bytes of chunks in use, those in threads' caches included.
    pub in_use_bytes: u64,
    /// Bytes of free chunks.
    pub free_bytes: u64,
    /// Resident bytes of free chunks.
    pub dirty_bytes: u64,
    /// Bytes taken from the kernel.
    pub mapped_bytes: u64,
    /// The most bytes that were taken from the kernel at a time.
    pub most_mapped_bytes: u64,
    /// Bytes of the free chunk at the end.
    pub top_bytes: u64,
    /// Bytes of the free chunks in fast bins.
    pub fast_bytes: u64,
    /// Number of free chunks, without that at the end.
    pub free_chunks: u64,
    /// Number of threads that use it.
    pub threads: u64,
}

/// Bytes that blocks take beyond those requested.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverheadReport {
    /// The moment of the live blocks, in nanoseconds since the start.
    pub at_ns: u64,
    /// Source of the sizes: `headers` of glibc's blocks, `size-classes` of the allocator, or `unknown`.
    pub how: &'static str,
    /// The allocator whose size classes were used, and of whose blocks the headers were.
    pub allocator: String,
    /// Live blocks.
    pub live: OverheadData,
    /// All blocks that were ever allocated.
    pub all: OverheadData,
    /// Live blocks by size: up to 8 bytes, up to 16, up to 32, and so on.
    pub by_size: Vec<SizeOverheadData>,
    /// The stacks.
    pub stacks: Vec<StackOverheadData>,
    /// Number of stacks that are not shown.
    pub other_stacks: u64,
}

/// Bytes that the blocks of a stack take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackOverheadData {
    /// Number of the stack in this recording, for `--stacks`.
    pub id: u32,
    /// Live blocks of the stack.
    pub live: OverheadData,
    /// All its blocks.
    pub all: OverheadData,
    /// The stack was cut short: outer frames are missing.
    pub truncated: bool,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// Something that can't be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownData {
    /// Name of the allocator.
    pub allocator: String,
    /// Name of the figure, and the reason.
    pub what: String,
}

/// Names of allocators in the names of files, in the order in which they count.
const IN_FILES: [(&str, &str); 6] = [
    ("jemalloc", allocator::JEMALLOC),
    ("mimalloc", allocator::MIMALLOC),
    ("tcmalloc", allocator::TCMALLOC),
    ("ld-musl", allocator::MUSL),
    ("libc.musl", allocator::MUSL),
    ("libc.so", allocator::GLIBC),
];

impl AllocatorReport {
    /// Reports on a recording.
    ///
    /// # Errors
    /// If the recording or its index can't be read.
    pub fn new(
        index: &Index,
        query: &Query<'_>,
        options: &AllocatorOptions,
    ) -> Result<Self, AllocatorError> {
        let analysis = index.analysis();
        let meta = analysis.meta();
        let mut all = meta.allocators.clone().unwrap_or_default();
        let known = meta.allocators.is_some();
        let read_ns = known.then(|| meta.clock.ns(all.ticks));
        add_hooked(analysis, &mut all);
        let head = Head::new(&query.analysis(None)?, &options.filter);
        let mut report = Self::of(&all, meta.target.pid);
        for f in &mut report.allocators {
            let hooks = meta.hooks.hooked.iter().filter(|h| printable(&h.module) == f.file);
            let functions = hooks.filter(|h| !doings::is_call(&h.function));
            f.functions = functions.map(|h| printable(&h.function)).collect();
        }
        let mut symbols = Symbolizer::new(analysis);
        let doings = doings::Doings::of(analysis, &all, &mut symbols)?;
        let most = if options.top == 0 { doings.calls.len() } else { options.top };
        report.other_calls = doings.calls.len().saturating_sub(most) as u64;
        report.calls = doings.first_calls(most, analysis, &mut symbols);
        report.other_made = doings.heaps_made.saturating_sub(doings.made.len() as u64);
        report.call_groups = doings.groups;
        (report.doings, report.made) = (doings.doings, doings.made);
        report.calls_recorded = doings.recorded;
        if !known {
            let what = "its settings, its arenas and its version: an earlier prof made the recording, or the process \
                        ended before they were read";
            report.unknown.push(UnknownData { allocator: "all".into(), what: what.into() });
        }
        report.overhead = Some(overhead_of(index, query, options, &all, &mut symbols)?);
        (report.head, report.known, report.read_ns) = (Some(head), known, read_ns);
        Ok(report)
    }

    /// Reports on a process that is not being recorded, of which this was read.
    #[must_use]
    pub fn of(a: &Allocators, pid: u32) -> Self {
        let triple = |t: &[String; 3]| t.clone().map(|text| printable(&text));
        let found = a.found.as_chunks::<3>().0.iter().map(triple);
        let settings = a.settings.as_chunks::<3>().0.iter().map(triple);
        let figures = a.all_figures().map(|(of, name, value)| FigureData {
            allocator: printable(of),
            name: printable(name),
            value,
        });
        let unknown = a.unknown.as_chunks::<2>().0.iter();
        let arenas: Vec<ArenaData> = a.all_arenas().iter().map(ArenaData::of).collect();
        Self {
            version: 1,
            head: None,
            process: pid,
            read_ns: None,
            known: true,
            allocators: found
                .map(|[name, version, file]| FoundData {
                    name,
                    version,
                    file,
                    functions: Vec::new(),
                })
                .collect(),
            settings: settings
                .map(|[source, name, value]| SettingData { source, name, value })
                .collect(),
            figures: figures.collect(),
            arenas_total: (!arenas.is_empty()).then(|| ArenaData::sum(&arenas)),
            arenas,
            overhead: None,
            calls: Vec::new(),
            other_calls: 0,
            call_groups: Vec::new(),
            other_made: 0,
            doings: Vec::new(),
            made: Vec::new(),
            calls_recorded: false,
            unknown: unknown
                .map(|[of, what]| UnknownData { allocator: printable(of), what: printable(what) })
                .collect(),
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl ArenaData {
    fn of(a: &prof_trace::records::Arena) -> Self {
        Self {
            address: a.address,
            main: a.heaps == 0,
            heaps: a.heaps,
            in_use_bytes: a.in_use(),
            free_bytes: a.free,
            dirty_bytes: a.dirty,
            mapped_bytes: a.mapped,
            most_mapped_bytes: a.most_mapped,
            top_bytes: a.top,
            fast_bytes: a.fast,
            free_chunks: a.free_chunks,
            threads: a.threads,
        }
    }

    fn sum(all: &[Self]) -> Self {
        let sum = |part: fn(&Self) -> u64| all.iter().map(part).fold(0, u64::saturating_add);
        Self {
            address: 0,
            main: false,
            heaps: sum(|a| a.heaps),
            in_use_bytes: sum(|a| a.in_use_bytes),
            free_bytes: sum(|a| a.free_bytes),
            dirty_bytes: sum(|a| a.dirty_bytes),
            mapped_bytes: sum(|a| a.mapped_bytes),
            most_mapped_bytes: sum(|a| a.most_mapped_bytes),
            top_bytes: sum(|a| a.top_bytes),
            fast_bytes: sum(|a| a.fast_bytes),
            free_chunks: sum(|a| a.free_chunks),
            threads: sum(|a| a.threads),
        }
    }
}

/// Adds the allocators that the names of files with hooked functions tell of, where they were not found otherwise: a
/// process may have ended before its files were searched.
fn add_hooked(analysis: &crate::Analysis, all: &mut Allocators) {
    for h in &analysis.meta().hooks.hooked {
        let file = h.module.rsplit('/').next().unwrap_or_default();
        let old = if file.starts_with("libc-2.") { Some(allocator::GLIBC) } else { None };
        let named = IN_FILES.iter().find(|(part, _)| file.contains(part)).map(|(_, name)| *name);
        let Some(name) = named.or(old).filter(|_| !doings::is_call(&h.function)) else { continue };
        if !all.found.as_chunks::<3>().0.iter().any(|f| f[0] == name) {
            all.found.extend([name.into(), String::new(), h.module.clone()]);
        }
    }
}

/// Returns the allocator from which blocks without one of glibc's headers are: one that is there beside glibc.
fn other_of(all: &Allocators) -> Option<String> {
    let mut names = all.found.as_chunks::<3>().0.iter().map(|f| f[0].as_str());
    names.find(|n| *n != allocator::GLIBC).map(str::to_owned)
}

fn overhead_of(
    index: &Index,
    query: &Query<'_>,
    options: &AllocatorOptions,
    all: &Allocators,
    symbols: &mut Symbolizer<'_>,
) -> Result<OverheadReport, ScanError> {
    let (analysis, meta) = (index.analysis(), index.analysis().meta());
    let chunks = GlibcChunks::of(meta.target.pointer_size);
    let other = other_of(all);
    let is_glibc = all.found.as_chunks::<3>().0.iter().any(|f| f[0] == allocator::GLIBC);
    let classes = match &other {
        Some(name) => Classes::of(name, meta.target.pointer_size),
        None if is_glibc => Classes::Chunks(chunks),
        None => Classes::Unknown,
    };
    let ask = overhead::Ask { at: options.at, chunks, classes };
    let mut found = overhead::find(index, query, &ask)?;
    let mut at = options.at;
    if at.is_none() && found.live.count == 0 {
        let peak = analysis.totals().peak_ticks;
        found = overhead::find(index, query, &overhead::Ask { at: Some(peak), ..ask })?;
        at = Some(peak);
    }
    let mut order: Vec<usize> =
        (0..found.groups.len()).filter(|i| found.groups[*i].0.count > 0).collect();
    let key = |d: &OverheadData| match options.sort {
        OverheadSort::Overhead => d.overhead_bytes(),
        OverheadSort::Part => (d.overhead_part * 1e9) as u64,
        OverheadSort::Taken => d.taken_bytes,
        OverheadSort::Requested => d.requested_bytes,
        OverheadSort::Count => d.count,
    };
    order.sort_by_key(|i| {
        let (live, all) = &found.groups[*i];
        (std::cmp::Reverse((key(live), key(all))), *i)
    });
    let most = if options.top == 0 { order.len() } else { options.top.min(order.len()) };
    let stack = |i: &usize| {
        let (node, (live, all)) = (analysis.groups()[*i].node, found.groups[*i]);
        StackOverheadData {
            id: node,
            live,
            all,
            truncated: meta.is_cut(node),
            frames: frames_of(analysis, node, symbols),
        }
    };
    let stacks: Vec<StackOverheadData> = order[..most].iter().map(stack).collect();
    let (how, of) = match (found.by_header, &ask.classes) {
        (true, _) => ("headers", allocator::GLIBC.to_owned()),
        (_, Classes::Unknown) => ("unknown", other.clone().unwrap_or_default()),
        (_, Classes::Chunks(_)) => ("headers", allocator::GLIBC.to_owned()),
        _ => ("size-classes", other.clone().unwrap_or_default()),
    };
    Ok(OverheadReport {
        at_ns: meta.clock.ns(at.unwrap_or_else(|| analysis.end_ticks())),
        how,
        allocator: of,
        live: found.live,
        all: found.all,
        by_size: found.by_size,
        other_stacks: (order.len() - stacks.len()) as u64,
        stacks,
    })
}
