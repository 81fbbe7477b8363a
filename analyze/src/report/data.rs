//! The data of a report. The fields are in the order of the JSON.

use super::block_stats::{BlockStatsData, SumData};
use super::frames::{AskedData, FrameData, asked_by, frames_of};
use super::head::{FilterData, Head, KernelData};
use super::sort::{Order, SortKey};
use super::unnamed::SymbolsData;
use crate::Analysis;
use crate::askers::Askers;
use crate::heap::Group;
use crate::maps::Beside;
use crate::symbols::Symbolizer;
use serde::Serialize;

/// Options of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOptions {
    /// Number of stacks to show; 0: all.
    pub top: usize,
    /// The key that stacks are sorted by.
    pub sort: SortKey,
    /// Reverses the order: the smallest first.
    pub reverse: bool,
    /// Also shows stacks whose sort key is 0; they come last.
    pub empty: bool,
    /// Number of frames of a stack that the text shows; 0: all.
    pub depth: usize,
    /// The filter in effect, to be named in the output.
    pub filter: Vec<FilterData>,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            top: 10,
            sort: SortKey::Size,
            reverse: false,
            empty: false,
            depth: 0,
            filter: Vec::new(),
        }
    }
}

/// The stacks that hold the memory, with the figures of the whole recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The last reading of the target's memory.
    pub kernel: Option<KernelData>,
    /// The key that the groups are sorted by.
    pub sort: SortKey,
    /// Number of frames of a stack that the text shows; 0: all.
    #[serde(skip)]
    pub depth: usize,
    /// The stacks that are shown, in the order of the key.
    pub groups: Vec<GroupData>,
    /// The sums of all other stacks: groups and rest add up to the totals.
    pub rest: RestData,
    /// Statistics of the symbolised code addresses.
    pub symbols: SymbolsData,
    /// Mappings, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maps: Option<Beside>,
}

/// A stack and its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupData {
    /// Number of the stack in this recording, for `--stacks`.
    pub id: u32,
    /// Figures of its blocks.
    #[serde(flatten)]
    pub figures: BlockStatsData,
    /// Age of its oldest live block in nanoseconds, if it has one.
    pub oldest_live_age_ns: Option<u64>,
    /// Time when its first block was allocated, in nanoseconds since the start.
    pub first_ns: u64,
    /// Time when its last block was allocated, in nanoseconds since the start.
    pub last_ns: u64,
    /// Time of its peak of live bytes, in nanoseconds since the start.
    pub peak_at_ns: u64,
    /// The stack was cut short: outer frames are missing.
    pub truncated: bool,
    /// The function that asked for the blocks; `None` for a stack without frames.
    pub asked_by: Option<AskedData>,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// The stacks that are not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestData {
    /// Number of these stacks.
    pub groups: u64,
    /// Sums of their figures.
    #[serde(flatten)]
    pub sums: SumData,
}

impl Report {
    /// Computes the report on a recording. Only the stacks that are shown are symbolised.
    pub fn new(analysis: &Analysis, options: &ReportOptions) -> Self {
        let order = Order { analysis, sort: options.sort, reverse: options.reverse };
        let (groups, shown) = order.top(analysis.groups(), options.top, options.empty);
        let mut symbols = Symbolizer::new(analysis);
        let askers = Askers::new(analysis, &mut symbols);
        let shown_groups: Vec<_> = groups[..shown]
            .iter()
            .map(|g| GroupData::new(analysis, g, &mut symbols, &askers))
            .collect();
        Self {
            version: 1,
            head: Head::new(analysis, &options.filter),
            kernel: KernelData::new(analysis),
            sort: options.sort,
            depth: options.depth,
            groups: shown_groups,
            rest: RestData::new(analysis, &groups[shown..]),
            symbols: SymbolsData::new(&symbols),
            maps: None,
        }
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl GroupData {
    pub(super) fn new(
        analysis: &Analysis,
        group: &Group,
        symbols: &mut Symbolizer<'_>,
        askers: &Askers,
    ) -> Self {
        let clock = &analysis.meta().clock;
        let frames = frames_of(analysis, group.node, symbols);
        Self {
            id: group.node,
            figures: BlockStatsData::new(analysis.capture(), group),
            oldest_live_age_ns: analysis.oldest_age_ns(group),
            first_ns: clock.ns(group.first),
            last_ns: clock.ns(group.last),
            peak_at_ns: clock.ns(group.peak_ticks),
            truncated: analysis.meta().is_cut(group.node),
            asked_by: asked_by(&frames, askers),
            frames,
        }
    }
}

impl RestData {
    pub(super) fn new(analysis: &Analysis, groups: &[Group]) -> Self {
        Self { groups: groups.len() as u64, sums: SumData::of(analysis.capture(), groups) }
    }
}
