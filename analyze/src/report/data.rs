//! What a report says, as data. The fields are, in this order, those of the JSON.

use super::figures::{FiguresData, SumData};
use super::head::{FilterData, Head, KernelData, shown};
use super::named::SymbolsData;
use super::places::PlaceData;
use super::sort::{Order, SortKey};
use crate::Analysis;
use crate::askers::{Askers, bare};
use crate::model::Group;
use crate::symbols::{Frame, Symbolizer};
use serde::Serialize;

/// What to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOptions {
    /// How many stacks; 0: all.
    pub top: usize,
    /// Which ones.
    pub sort: SortKey,
    /// The smallest first.
    pub reverse: bool,
    /// Also those that have nothing of what is sorted by; they come last.
    pub empty: bool,
    /// How many frames of a stack the text shows; 0: all.
    pub depth: usize,
    /// The filter that the figures are of; only to be named.
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

/// A report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of this format: 1.
    pub version: u32,
    /// Which recording.
    #[serde(flatten)]
    pub head: Head,
    /// The kernel's last word on the target's memory.
    pub kernel: Option<KernelData>,
    /// What the groups are ordered by.
    pub sort: SortKey,
    /// How many frames of a stack the text shows; 0: all.
    #[serde(skip)]
    pub depth: usize,
    /// The stacks that are shown, the worst first.
    pub groups: Vec<GroupData>,
    /// All other stacks: with them the groups add up to the totals.
    pub rest: RestData,
    /// How the code addresses that were looked up could be named.
    pub symbols: SymbolsData,
}

/// A stack and what it allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupData {
    /// Its number in this recording, for `--stacks`.
    pub id: u32,
    /// What it allocated.
    #[serde(flatten)]
    pub figures: FiguresData,
    /// Age of its oldest live block, if it has one.
    pub oldest_live_age_ns: Option<u64>,
    /// When its first block was handed out, in nanoseconds since the start.
    pub first_ns: u64,
    /// When its last block was handed out.
    pub last_ns: u64,
    /// When the most of its bytes were first live.
    pub peak_at_ns: u64,
    /// The stack was cut short: its outer frames are not known.
    pub truncated: bool,
    /// Who asked for the blocks; `None` for a stack without frames.
    pub asked_by: Option<AskedData>,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// Who asked for blocks: the innermost frame of a stack that is no allocator, no wrapper of one, and in no
/// standard library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AskedData {
    /// Where in the program.
    #[serde(flatten)]
    pub place: PlaceData,
    /// The function of a standard library or the wrapper that it called.
    pub through: Option<String>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrameData {
    /// The address in the stack, in hexadecimal.
    pub address: String,
    /// The function, if it is known.
    pub function: Option<String>,
    /// How far into the function the address lies.
    pub function_offset: Option<u64>,
    /// The source file, if it is known.
    pub file: Option<String>,
    /// The line, if it is known.
    pub line: Option<u32>,
    /// Path of the module, if it is known.
    pub module: Option<String>,
    /// The address as the module's file counts it, in hexadecimal.
    pub offset: Option<String>,
    /// Whether its code was put into that of the next frame.
    pub inlined: bool,
}

/// The stacks that are not shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestData {
    /// How many.
    pub groups: u64,
    /// What they allocated.
    #[serde(flatten)]
    pub sums: SumData,
}

/// The frames of a stack, innermost first.
pub fn frames_of(analysis: &Analysis, node: u32, symbols: &mut Symbolizer<'_>) -> Vec<FrameData> {
    let stack = analysis.meta().stack(node);
    let frames = stack
        .into_iter()
        .flat_map(|pc| symbols.frames(pc).iter().map(FrameData::new).collect::<Vec<_>>());
    frames.collect()
}

/// Who asked for the blocks of a stack.
pub(crate) fn asked_by(frames: &[FrameData], askers: &Askers) -> Option<AskedData> {
    let frame = |i: usize| {
        let f: &FrameData = frames.get(i)?;
        Some((f.function.as_deref(), f.module.as_deref()))
    };
    let asked = askers.find(frame)?;
    let through = asked.through.and_then(|i| frames[i].function.as_deref()).map(bare);
    Some(AskedData { place: PlaceData::of(&frames[asked.asker]), through })
}

impl Report {
    /// Makes the report on a recording. Only the stacks that are shown are looked up.
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
        }
    }

    /// The report as JSON.
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
            figures: FiguresData::new(analysis.capture(), group),
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

impl FrameData {
    pub(crate) fn new(f: &Frame) -> Self {
        Self {
            address: format!("{:#x}", f.address),
            function: f.function.as_deref().map(shown),
            function_offset: f.function_offset,
            file: f.file.as_deref().map(shown),
            line: f.line,
            module: f.module.as_deref().map(shown),
            offset: f.offset.map(|o| format!("{o:#x}")),
            inlined: f.inlined,
        }
    }
}

impl RestData {
    pub(super) fn new(analysis: &Analysis, groups: &[Group]) -> Self {
        Self { groups: groups.len() as u64, sums: SumData::of(analysis.capture(), groups) }
    }
}
