//! Reports blocks by the place in the code that asked for them, with the stacks that lead there.

use super::block_stats::BlockStatsData;
use super::frames::frames_of;
use super::grouped::stacks;
use super::places::{PlaceData, Places};
use super::rows::{Ask, RestRowsData, Row, RowData, order, rows};
use super::text::{place_line, printable_frames};
use super::unnamed::SymbolsData;
use super::words::{bracketed, temporary};
use super::{FrameData, Head, KernelData, SortKey, Style};
use crate::heap::Group;
use crate::index::ScanError;
use crate::query::By;
use crate::table::title;
use prof_trace::values::text::{
    about, about_bytes, about_number, bytes, count, duration, number, signed_bytes, signed_number,
};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::{self, Write};

/// A report of blocks by place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Merged {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The last reading of the target's memory.
    pub kernel: Option<KernelData>,
    /// The key that places and stacks are sorted by.
    pub sort: SortKey,
    /// The earlier moment of a comparison, in nanoseconds since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ns: Option<u64>,
    /// The places that are shown.
    pub locations: Vec<LocationData>,
    /// The sums of all other places: places and rest add up to the totals.
    pub rest: RestRowsData,
    /// Statistics of the symbolised code addresses.
    pub symbols: SymbolsData,
}

/// A place that asked for memory: the innermost frame that is not an allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocationData {
    /// Function, file and line; `None` for blocks without a stack.
    pub place: Option<PlaceData>,
    /// Figures of all its stacks.
    #[serde(flatten)]
    pub row: RowData,
    /// The stacks that are shown.
    pub stacks: Vec<PathData>,
    /// The sums of its other stacks.
    pub rest: RestRowsData,
}

/// A stack of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathData {
    /// Number of the stack in this recording, for `--stacks`.
    pub id: u32,
    /// Figures of the stack.
    #[serde(flatten)]
    pub row: RowData,
    /// The stack was cut short: outer frames are missing.
    pub truncated: bool,
    /// Index of the frame that is the place.
    pub at: u64,
    /// The frames, innermost first.
    pub frames: Vec<FrameData>,
}

/// The stacks of a place.
#[derive(Default)]
struct Paths {
    place: Option<u32>,
    /// Stacks, and the index of the frame that is the place.
    rows: Vec<(Row, usize)>,
}

impl Merged {
    /// Groups the blocks by place.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(ask: &Ask<'_>) -> Result<Self, ScanError> {
        let whole = ask.index.analysis();
        let mut places = Places::new(whole);
        let earlier = ask.before.iter().flat_map(|b| b.groups());
        let earlier: HashMap<u32, Group> = earlier.map(|g| (g.node, *g)).collect();
        let mut ids: HashMap<Option<u32>, u32> = HashMap::new();
        let mut all: Vec<Paths> = Vec::new();
        let mut of_node: HashMap<u32, u32> = HashMap::new();
        for g in ask.analysis.groups() {
            let stack = places.stack(g.node);
            let at = places.asker(&stack);
            let place = at.map(|i| stack[i]);
            let class = *ids.entry(place).or_insert_with(|| {
                all.push(Paths { place, rows: Vec::new() });
                all.len() as u32 - 1
            });
            of_node.insert(g.node, class);
            let row = ask.row(*g, earlier.get(&g.node).copied());
            all[class as usize].rows.push((row, at.unwrap_or(0)));
        }
        let class = |g: &Group| of_node.get(&g.node).copied().unwrap_or(u32::MAX);
        let of: Vec<u32> = whole.groups().iter().map(class).collect();
        let mut rows = rows(ask, By::Classes(&of), all.len())?;
        let shown = order(ask, &mut rows, ask.options.top);
        let locations = rows[..shown].iter().map(|r| {
            let paths = &all[r.group.node as usize];
            let (stacks, rest) = paths.data(ask, &mut places);
            LocationData {
                place: paths.place.map(|id| places.get(id).clone()),
                row: RowData::new(ask, r),
                stacks,
                rest,
            }
        });
        let locations: Vec<_> = locations.collect();
        Ok(Self {
            version: 1,
            head: Head::new(&ask.analysis, &ask.options.filter),
            kernel: KernelData::new(&ask.analysis),
            sort: ask.options.sort,
            base_ns: ask.options.base.map(|t| ask.analysis.meta().clock.ns(t)),
            locations,
            rest: RestRowsData::new(ask, &rows[shown..]),
            symbols: SymbolsData::new(&places.symbols),
        })
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the report as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        self.symbols.write(style, out)?;
        if let Some(at) = self.base_ns {
            style.line(out, "since", &duration(at))?;
        }
        for (i, l) in self.locations.iter().enumerate() {
            let figures = figures(&l.row, self.sort);
            title(style, &format!("=== location #{} === {figures}", i + 1), out)?;
            match &l.place {
                Some(p) => writeln!(out, "    {}", place_line(p))?,
                None => writeln!(out, "    (no stack)")?,
            }
            for p in &l.stacks {
                writeln!(out, "  {} from", brief(&p.row, self.sort))?;
                let outer = p.frames.get(p.at as usize + 1..).unwrap_or_default();
                printable_frames(outer, p.truncated, style, out)?;
            }
            if l.rest.rows > 0 {
                let places = count(l.rest.rows, "other stack", "other stacks");
                writeln!(out, "  and {} from {places}", rest(&l.rest, self.sort))?;
            }
        }
        writeln!(out)?;
        if self.rest.rows > 0 {
            let others = count(self.rest.rows, "other location", "other locations");
            let rest = rest(&self.rest, self.sort);
            style.line(out, "rest", &format!("{others}: {rest} (--top 0 shows all)"))?;
        }
        let t = &self.head.totals;
        let live = about_bytes(t.live_bytes, t.live_bytes_stderr);
        let blocks = about(t.live_count, t.live_count_stderr, "block", "blocks");
        let groups = stacks(t.groups);
        style.line(out, "traced", &format!("{live} live in {blocks}, of {groups}"))
    }
}

impl Paths {
    fn data(&self, ask: &Ask<'_>, places: &mut Places<'_>) -> (Vec<PathData>, RestRowsData) {
        let at: HashMap<u32, usize> = self.rows.iter().map(|(r, at)| (r.group.node, *at)).collect();
        let mut rows: Vec<Row> = self.rows.iter().map(|r| r.0.clone()).collect();
        let shown = order(ask, &mut rows, ask.options.paths);
        let path = |r: &Row| {
            let node = r.group.node;
            PathData {
                id: node,
                row: RowData::new(ask, r),
                truncated: ask.analysis.meta().is_cut(node),
                at: at.get(&node).copied().unwrap_or(0) as u64,
                frames: frames_of(&ask.analysis, node, &mut places.symbols),
            }
        };
        let shown_rows = rows[..shown].iter().map(path).collect();
        (shown_rows, RestRowsData::new(ask, &rows[shown..]))
    }
}

/// Formats the figures of a row, in brackets.
fn figures(row: &RowData, sort: SortKey) -> String {
    match &row.change {
        None => bracketed(&row.figures, row, sort),
        Some(c) => format!(
            "[size: {}, {}] [count: {}, {}] [allocations: {}]",
            bytes(row.figures.live_bytes),
            signed_bytes(c.live_bytes),
            number(row.figures.live_count),
            signed_number(c.live_count),
            signed_number(c.allocations)
        ),
    }
}

/// Formats the value of a stack's sort key: `20.0 KiB in 3 blocks`, `7 of 9 allocations temporary`.
fn brief(row: &RowData, sort: SortKey) -> String {
    if let Some(c) = &row.change {
        return format!("{} in {} blocks", signed_bytes(c.live_bytes), signed_number(c.live_count));
    }
    let f: &BlockStatsData = &row.figures;
    let calls = f.allocations + f.reallocations;
    match sort {
        SortKey::Allocated => {
            let all = about_bytes(f.allocated_bytes, f.allocated_bytes_stderr);
            format!("{all} by {}", count(calls, "allocation", "allocations"))
        }
        SortKey::Allocations => count(calls, "allocation", "allocations"),
        SortKey::Temporary => temporary(f.temporary.unwrap_or(0), calls),
        SortKey::PeakSize | SortKey::PeakCount => {
            let peak = about_bytes(f.peak_bytes, f.peak_bytes_stderr);
            let blocks = about_number(f.peak_count, f.peak_count_stderr);
            format!("at most {peak}, at most {blocks} blocks")
        }
        _ => {
            let live = about_bytes(f.live_bytes, f.live_bytes_stderr);
            let blocks = about_number(f.live_count, f.live_count_stderr);
            format!("{live} in {blocks} blocks")
        }
    }
}

fn rest(r: &RestRowsData, sort: SortKey) -> String {
    if let Some(c) = &r.change {
        return format!("{} in {} blocks", signed_bytes(c.live_bytes), signed_number(c.live_count));
    }
    let s = &r.sums;
    let calls = s.allocations + s.reallocations;
    match sort {
        SortKey::Allocated => {
            let all = about_bytes(s.allocated_bytes, s.allocated_bytes_stderr);
            format!("{all} by {}", count(calls, "allocation", "allocations"))
        }
        SortKey::Allocations => count(calls, "allocation", "allocations"),
        SortKey::Temporary => temporary(s.temporary.unwrap_or(0), calls),
        _ => {
            let live = about_bytes(s.live_bytes, s.live_bytes_stderr);
            let blocks = about_number(s.live_count, s.live_count_stderr);
            format!("{live} in {blocks} blocks")
        }
    }
}
