//! The data of a report. The fields are in the order of the JSON.

use super::figures::{FiguresData, SumData};
use super::head::{FilterData, Head, KernelData};
use super::named::SymbolsData;
use super::places::PlaceData;
use super::sort::{Order, SortKey};
use crate::Analysis;
use crate::askers::{Askers, Seen, bare};
use crate::maps::Beside;
use crate::model::Group;
use crate::style::printable;
use crate::symbols::{Frame, Symbolizer};
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
    pub figures: FiguresData,
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
    /// Who asked for the blocks; `None` for a stack without frames.
    pub asked_by: Option<AskedData>,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// The frame that asked for blocks: the innermost that is neither an allocator, nor a wrapper of one, nor in a standard
/// library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AskedData {
    /// Function, file and line of the frame.
    #[serde(flatten)]
    pub place: PlaceData,
    /// The wrapper or library function that the frame called.
    pub through: Option<String>,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrameData {
    /// The address in the stack, in hexadecimal.
    pub address: String,
    /// The function, if it is known.
    pub function: Option<String>,
    /// Distance of the address from the start of the function, in bytes.
    pub function_offset: Option<u64>,
    /// The source file, if it is known.
    pub file: Option<String>,
    /// The line, if it is known.
    pub line: Option<u32>,
    /// Path of the module, if it is known.
    pub module: Option<String>,
    /// The address relative to the module's file, in hexadecimal.
    pub offset: Option<String>,
    /// Whether the compiler inlined the function into that of the next frame.
    pub inlined: bool,
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

/// Returns the frames of a stack, innermost first.
pub fn frames_of(analysis: &Analysis, node: u32, symbols: &mut Symbolizer<'_>) -> Vec<FrameData> {
    let stack = analysis.meta().stack(node);
    let frames = stack
        .into_iter()
        .flat_map(|pc| symbols.frames(pc).iter().map(FrameData::new).collect::<Vec<_>>());
    frames.collect()
}

/// Returns the frame that asked for the blocks of a stack.
pub(crate) fn asked_by(frames: &[FrameData], askers: &Askers) -> Option<AskedData> {
    let frame = |i: usize| {
        let f: &FrameData = frames.get(i)?;
        let (function, module) = (f.function.as_deref(), f.module.as_deref());
        Some(Seen { function, module, file: f.file.as_deref() })
    };
    let asked = askers.find(frame)?;
    let through = asked.through.and_then(|i| frames[i].function.as_deref()).map(bare);
    Some(AskedData { place: PlaceData::of(&frames[asked.asker]), through })
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
    /// Returns the data of a frame; control characters in names are escaped.
    pub fn new(f: &Frame) -> Self {
        Self {
            address: format!("{:#x}", f.address),
            function: f.function.as_deref().map(printable),
            function_offset: f.function_offset,
            file: f.file.as_deref().map(printable),
            line: f.line,
            module: f.module.as_deref().map(printable),
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
