//! Mappings as `prof maps` shows them. The fields of a mapping are those of bytehound, and some more.

use super::{Kind, Map, MapFilter, Maps, PageAsk, Perms, Source, Totals};
use crate::Analysis;
use crate::report::{FilterData, FrameData, Head, frames_of};
use crate::symbols::Symbolizer;
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::collections::BTreeMap;

/// A time, or a moment since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeval {
    /// Whole seconds.
    pub secs: u64,
    /// Nanoseconds.
    pub fract_nsecs: u64,
}

impl Timeval {
    /// Converts nanoseconds.
    #[must_use]
    pub const fn of(ns: u64) -> Self {
        Self { secs: ns / 1_000_000_000, fract_nsecs: ns % 1_000_000_000 }
    }
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Since 1970.
    pub timestamp: Timeval,
    /// Since the start of the recording.
    pub timestamp_relative: Timeval,
    /// Part of the recording's time: 0 at the start, 1 at the end.
    pub timestamp_relative_p: f64,
}

impl Timing {
    /// Converts ticks.
    #[must_use]
    pub fn of(analysis: &Analysis, ticks: Ticks) -> Self {
        let ns = analysis.meta().clock.ns(ticks);
        Self {
            timestamp: Timeval::of(analysis.meta().target.wall_ns.saturating_add(ns)),
            timestamp_relative: Timeval::of(ns),
            timestamp_relative_p: ns as f64 / (analysis.duration_ns().max(1)) as f64,
        }
    }

    /// Returns nanoseconds since the start of the recording.
    #[must_use]
    pub const fn ns(&self) -> u64 {
        let t = self.timestamp_relative;
        t.secs.saturating_mul(1_000_000_000).saturating_add(t.fract_nsecs)
    }
}

/// A call that made or ended a mapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapSourceData {
    /// Time of the call.
    #[serde(flatten)]
    pub at: Timing,
    /// Id of the thread.
    pub thread: u32,
    /// Number of the stack.
    pub backtrace_id: u32,
    /// The frames, outermost first.
    pub backtrace: Vec<FrameData>,
}

/// The end of a mapping, or of a region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapEndData {
    /// Time of the end, since 1970.
    pub timestamp: Timeval,
    /// Nanoseconds since the start of the recording.
    pub ns: u64,
    /// The call that ended a mapping, if it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<MapSourceData>,
    /// The parts of a region that were unmapped or replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<MapCutData>>,
}

/// A part of a region that was unmapped, or replaced by another mapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapCutData {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// The call, if it was recorded.
    pub source: Option<MapSourceData>,
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapData {
    /// Number of the mapping.
    pub id: u32,
    /// First address.
    pub address: u64,
    /// First address, in hexadecimal: many readers of JSON have no such large numbers.
    pub address_s: String,
    /// Time at which it was made, or seen first.
    #[serde(flatten)]
    pub begun: Timing,
    /// Bytes of address space: now, or last.
    pub size: u64,
    /// Greatest number of bytes of address space.
    pub peak_size: u64,
    /// The call that made it, if it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<MapSourceData>,
    /// The end of the mapping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deallocation: Option<MapEndData>,
    /// Whether the mapping can be read.
    pub is_readable: bool,
    /// Whether the mapping can be written to.
    pub is_writable: bool,
    /// The mapping's content can be executed.
    pub is_executable: bool,
    /// Whether the mapping is shared.
    pub is_shared: bool,
    /// Path or name.
    pub name: String,
    /// Kind of the mapping.
    pub kind: Kind,
    /// The call that made it was recorded.
    pub caught: bool,
    /// Whether the mapping is from before the attach.
    pub before: bool,
    /// Resident bytes when seen last.
    pub rss: u64,
    /// Most resident bytes that were seen.
    pub peak_rss: u64,
    /// Use when seen last.
    pub usage: MapUsageData,
    /// For bytehound's readers: always absent.
    pub graph_url: Option<String>,
    /// For bytehound's readers: always absent.
    pub graph_preview_url: Option<String>,
    /// Address ranges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<Vec<MapRegionData>>,
    /// Use over time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_history: Option<Vec<MapUsageData>>,
}

/// An address range of a mapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs)] // as in [`MapData`]
pub struct MapRegionData {
    pub address: u64,
    pub address_s: String,
    #[serde(flatten)]
    pub begun: Timing,
    pub size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deallocation: Option<MapEndData>,
    pub is_readable: bool,
    pub is_writable: bool,
    pub is_executable: bool,
    pub is_shared: bool,
    pub file_offset: u64,
    pub inode: u64,
    pub major: u32,
    pub minor: u32,
    pub name: String,
}

/// The use of a mapping at a moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)] // as in [`Usage`](super::Usage)
pub struct MapUsageData {
    #[serde(flatten)]
    pub at: Timing,
    pub address_space: u64,
    pub anonymous: u64,
    pub shared_clean: u64,
    pub shared_dirty: u64,
    pub private_clean: u64,
    pub private_dirty: u64,
    pub swap: u64,
    pub huge: u64,
    pub rss: u64,
}

/// Sums over all mappings but prof's own, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)] // as in [`Totals`]
pub struct MapTotalsData {
    pub ns: u64,
    /// Time when use was counted: all that follows but `address_space` is of that moment.
    pub counted_ns: u64,
    pub address_space: u64,
    pub rss: u64,
    pub anonymous: u64,
    pub dirty: u64,
    pub clean: u64,
    pub swap: u64,
    pub huge: u64,
    /// Resident bytes by kind.
    pub by_kind: BTreeMap<&'static str, u64>,
}

/// Mappings with something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MapGroupData {
    /// The group's common property: a file, a kind, or the number of a stack.
    pub name: String,
    /// Number of mappings.
    pub count: u64,
    /// Bytes of address space.
    pub size: u64,
    /// Resident bytes.
    pub rss: u64,
    /// Sum of the most that was seen resident of each.
    pub peak_rss: u64,
    /// Bytes written to.
    pub dirty: u64,
    /// Bytes swapped out.
    pub swap: u64,
    /// The frames of a stack, innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<FrameData>,
}

/// The key that mappings are sorted by: the largest value first; the earliest time and the lowest address first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum MapSort {
    /// Address space
    #[default]
    Size,
    /// Resident memory
    Rss,
    /// The most that was seen resident
    PeakRss,
    /// When they were made
    #[cfg_attr(feature = "clap", value(alias = "timestamp"))]
    Time,
    /// Address
    Address,
}

/// A common property of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum MapGroupBy {
    /// The stack that made them
    Stack,
    /// The file or name of the mapping
    File,
    /// The kind of the mapping
    Kind,
}

/// Options of the report.
#[derive(Clone, Debug, Default)]
pub struct MapsOptions {
    /// Number of rows; 0: all.
    pub top: usize,
    /// Order.
    pub sort: MapSort,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// Show groups.
    pub group_by: Option<MapGroupBy>,
    /// Show all of these: regions, use over time, stacks.
    pub details: bool,
    /// Show the sums over time.
    pub over_time: bool,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
    /// Leave out mappings that have ended, as the filter does not ask for them.
    pub live: bool,
    /// Leave out prof's own mappings.
    pub without_ours: bool,
}

/// The report of `prof maps`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapsReport {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The recording tells of mappings.
    pub maps_recorded: bool,
    /// Why it does not, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<&'static str>,
    /// Sums when the mappings were looked at last.
    pub now: Option<MapTotalsData>,
    /// Number of selected mappings.
    pub total_count: u64,
    /// Number of mappings that are not shown as they have ended.
    pub ended_count: u64,
    /// Sums over the selected mappings.
    pub selected: MapGroupData,
    /// The mappings, or the groups.
    pub maps: Vec<MapData>,
    /// The groups, if they were asked for.
    pub groups: Vec<MapGroupData>,
    /// The sums over time, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub over_time: Vec<MapTotalsData>,
    #[serde(skip)]
    pub(super) details: bool,
}

/// Converts mappings to what is shown of them.
pub struct Shower<'a> {
    analysis: &'a Analysis,
    symbols: Symbolizer<'a>,
}

impl<'a> Shower<'a> {
    /// Creates it.
    #[must_use]
    pub fn new(analysis: &'a Analysis) -> Self {
        Self { analysis, symbols: Symbolizer::new(analysis) }
    }

    /// Returns the frames of a stack, innermost first.
    pub fn frames(&mut self, node: u32) -> Vec<FrameData> {
        frames_of(self.analysis, node, &mut self.symbols)
    }

    fn source(&mut self, s: &Source) -> MapSourceData {
        let mut backtrace = frames_of(self.analysis, s.node, &mut self.symbols);
        backtrace.reverse();
        MapSourceData {
            at: Timing::of(self.analysis, s.ticks),
            thread: self.analysis.meta().threads.get(&s.thread).map_or(0, |t| t.tid),
            backtrace_id: s.node,
            backtrace,
        }
    }

    fn end(&mut self, ticks: Ticks) -> MapEndData {
        let at = Timing::of(self.analysis, ticks);
        MapEndData { timestamp: at.timestamp, ns: at.ns(), source: None, sources: None }
    }

    /// Converts a mapping; `regions` and `history`: with its regions, and its use over time.
    pub fn map(&mut self, m: &Map, regions: bool, history: bool) -> MapData {
        let analysis = self.analysis;
        let usage = |u: &super::Usage| MapUsageData {
            at: Timing::of(analysis, u.ticks),
            address_space: u.address_space,
            anonymous: u.anonymous,
            shared_clean: u.shared_clean,
            shared_dirty: u.shared_dirty,
            private_clean: u.private_clean,
            private_dirty: u.private_dirty,
            swap: u.swap,
            huge: u.huge,
            rss: u.rss,
        };
        let source = m.source.map(|s| self.source(&s));
        let deallocation = m.end.map(|e| {
            let source = e.source.map(|s| self.source(&s));
            MapEndData { source, ..self.end(e.ticks) }
        });
        let Perms { read, write, execute, shared } = m.perms;
        let last = m.last_usage();
        MapData {
            id: m.id,
            address: m.address,
            address_s: format!("{:016X}", m.address),
            begun: Timing::of(analysis, m.begun),
            size: m.size,
            peak_size: m.peak_size,
            source,
            deallocation,
            is_readable: read,
            is_writable: write,
            is_executable: execute,
            is_shared: shared,
            name: crate::style::printable(&m.name),
            kind: m.kind,
            caught: m.is_caught(),
            before: m.before,
            rss: last.rss,
            peak_rss: m.peak_rss,
            usage: usage(&last),
            graph_url: None,
            graph_preview_url: None,
            regions: regions.then(|| m.regions.iter().map(|r| self.region(r)).collect()),
            usage_history: history.then(|| m.usage.iter().map(usage).collect()),
        }
    }

    fn region(&mut self, r: &super::Region) -> MapRegionData {
        let deallocation = r.end.as_ref().map(|e| {
            let cut = |u: &super::UnmapSource| MapCutData {
                address: u.address,
                length: u.length,
                source: u.source.map(|s| self.source(&s)),
            };
            let sources = e.sources.iter().map(cut).collect();
            MapEndData { sources: Some(sources), ..self.end(e.ticks) }
        });
        MapRegionData {
            address: r.address,
            address_s: format!("{:016X}", r.address),
            begun: Timing::of(self.analysis, r.begun),
            size: r.size,
            deallocation,
            is_readable: r.perms.read,
            is_writable: r.perms.write,
            is_executable: r.perms.execute,
            is_shared: r.perms.shared,
            file_offset: r.offset,
            inode: r.inode,
            major: r.major,
            minor: r.minor,
            name: crate::style::printable(&r.name),
        }
    }
}

impl MapTotalsData {
    /// Converts the sums of a moment.
    #[must_use]
    pub fn of(analysis: &Analysis, t: &Totals) -> Self {
        Self {
            ns: analysis.meta().clock.ns(t.ticks),
            counted_ns: analysis.meta().clock.ns(t.counted),
            address_space: t.address_space,
            rss: t.rss,
            anonymous: t.anonymous,
            dirty: t.dirty,
            clean: t.clean,
            swap: t.swap,
            huge: t.huge,
            by_kind: Kind::ALL.into_iter().map(|k| (k.name(), t.of(k))).collect(),
        }
    }
}

impl MapGroupData {
    fn add(&mut self, m: &Map) {
        let u = if m.end.is_none() { m.last_usage() } else { super::Usage::default() };
        self.count += 1;
        let pairs = [
            (&mut self.size, m.size),
            (&mut self.rss, u.rss),
            (&mut self.peak_rss, m.peak_rss),
            (&mut self.dirty, u.shared_dirty.saturating_add(u.private_dirty)),
            (&mut self.swap, u.swap),
        ];
        for (to, n) in pairs {
            *to = to.saturating_add(n);
        }
    }
}

impl MapSort {
    /// All orders with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Size, "size"),
        (Self::Rss, "rss"),
        (Self::PeakRss, "peak-rss"),
        (Self::Time, "time"),
        (Self::Address, "address"),
    ];

    /// Returns the value by which a mapping is sorted, the smallest first.
    pub(super) fn key(self, m: &Map) -> u64 {
        match self {
            Self::Size => !m.size,
            Self::Rss => !m.last_usage().rss,
            Self::PeakRss => !m.peak_rss,
            Self::Time => m.begun.0,
            Self::Address => m.address,
        }
    }
}

impl MapsReport {
    /// Computes the report.
    #[must_use]
    pub fn new(
        analysis: &Analysis,
        maps: &Maps,
        filter: &MapFilter,
        options: &MapsOptions,
    ) -> Self {
        let most = if options.top == 0 { usize::MAX } else { options.top };
        let ask = PageAsk {
            sort: options.sort,
            reverse: options.reverse,
            skip: 0,
            count: if options.group_by.is_some() { 0 } else { most },
            live: options.live,
            without_ours: options.without_ours,
        };
        let mut selected = MapGroupData::default();
        let mut groups = Groups { by: options.group_by, all: BTreeMap::new() };
        let page = maps.page(analysis, filter, &ask, |m| {
            selected.add(m);
            groups.add(m);
        });
        let mut shower = Shower::new(analysis);
        let shown = page.maps.iter().map(|m| shower.map(m, options.details, options.details));
        let shown = shown.collect();
        let mut groups = groups.finish(options, &mut shower);
        groups.truncate(most);
        let totals = |t: &Totals| MapTotalsData::of(analysis, t);
        let over_time = if options.over_time { maps.totals() } else { &[] };
        Self {
            version: 1,
            head: Head::new(analysis, &options.filter),
            maps_recorded: maps.is_recorded(),
            why_not: (!maps.is_recorded()).then(|| super::why_unrecorded(analysis.meta())),
            now: maps.totals().last().map(totals),
            total_count: page.total,
            ended_count: page.ended,
            selected,
            maps: shown,
            groups,
            over_time: over_time.iter().map(totals).collect(),
            details: options.details,
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Mappings by a common property.
struct Groups {
    by: Option<MapGroupBy>,
    all: BTreeMap<(String, u32), MapGroupData>,
}

impl Groups {
    fn add(&mut self, m: &Map) {
        let Some(by) = self.by else { return };
        let key = match by {
            MapGroupBy::Kind => (m.kind.name().to_owned(), 0),
            MapGroupBy::File if m.name.is_empty() => (format!("[{}]", m.kind.name()), 0),
            MapGroupBy::File => (crate::style::printable(&m.name), 0),
            MapGroupBy::Stack => (String::new(), m.source.map_or(0, |s| s.node)),
        };
        self.all.entry(key).or_default().add(m);
    }

    /// Returns the groups in order.
    fn finish(self, options: &MapsOptions, shower: &mut Shower<'_>) -> Vec<MapGroupData> {
        let mut groups: Vec<MapGroupData> = Vec::new();
        for ((name, node), g) in self.all {
            let frames = shower.frames(node);
            let name = match self.by {
                Some(MapGroupBy::Stack) if node == 0 => "seen, not caught".into(),
                Some(MapGroupBy::Stack) => node.to_string(),
                _ => name,
            };
            groups.push(MapGroupData { name, frames, ..g });
        }
        groups.sort_by_key(|g| {
            std::cmp::Reverse(match options.sort {
                MapSort::Rss => g.rss,
                MapSort::PeakRss => g.peak_rss,
                _ => g.size,
            })
        });
        if options.reverse {
            groups.reverse();
        }
        groups
    }
}
