//! Reports live blocks, and the process's memory, over time.

use super::rows::Ask;
use super::{Head, Style};
use crate::index::ScanError;
use crate::maps::{Maps, MapsTimeline};
use crate::query::{Band, Span, Timeline};
use crate::table::{Table, title};
use prof_trace::values::text::{bytes, duration};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Number of rows, unless another is asked for.
const ROWS: usize = 20;

/// Figures of all memory over time, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverTime {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The recording tells of mappings.
    pub maps_recorded: bool,
    /// The rows, each of the same duration.
    pub over_time: Vec<MomentData>,
}

/// A part of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MomentData {
    /// Begin of the part, in nanoseconds since the start.
    pub from_ns: u64,
    /// End of the part, in nanoseconds since the start.
    pub to_ns: u64,
    /// Live bytes of the selected blocks.
    pub live_bytes: ExtentData,
    /// Resident set of the process, as the kernel counts it; absent if it was not recorded.
    pub rss: Option<ExtentData>,
    /// Sums over all mappings but prof's own, by the names of the series of a timeline, such as `maps_dirty` and
    /// `maps_kind_code`. Those of kinds, and all but `maps_address_space`, are resident bytes, or swapped out.
    pub maps: BTreeMap<String, ExtentData>,
}

/// Values within a part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExtentData {
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// The value at the end.
    pub last: u64,
}

impl ExtentData {
    fn of(band: &Band, i: usize) -> Self {
        let at = |v: &[u64]| v.get(i).copied().unwrap_or(0);
        Self { min: at(&band.min), max: at(&band.max), last: at(&band.last) }
    }
}

impl OverTime {
    /// Computes the figures; `rows`: number of parts of the time (0: the default).
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(ask: &Ask<'_>, maps: &Maps, rows: usize) -> Result<Self, ScanError> {
        let analysis = ask.index.analysis();
        let span = Span::whole(ask.index, if rows == 0 { ROWS } else { rows });
        let blocks: Timeline = ask.query.timeline(&span, false)?;
        let clock = &analysis.meta().clock;
        let mapped: Option<MapsTimeline> = maps.timeline(&span, clock, analysis.end_ticks());
        let bands = mapped.as_ref().map_or(Vec::new(), MapsTimeline::bands);
        let row = |i: usize| MomentData {
            from_ns: blocks.edges_ns[i],
            to_ns: blocks.edges_ns[i + 1],
            live_bytes: ExtentData::of(&blocks.live_bytes, i),
            rss: blocks.rss.as_ref().map(|b| ExtentData::of(b, i)),
            maps: bands.iter().map(|(n, b)| (n.clone(), ExtentData::of(b, i))).collect(),
        };
        Ok(Self {
            version: 1,
            head: Head::new(&ask.analysis, &ask.options.filter),
            maps_recorded: maps.is_recorded(),
            over_time: (0..blocks.edges_ns.len().saturating_sub(1)).map(row).collect(),
        })
    }

    /// Returns the figures as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the figures as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        title(style, "over time: at the end of each part of it", out)?;
        // A column of nothing but zeros says nothing.
        let there = |name: &&(&str, &str)| {
            let of = |m: &MomentData| m.maps.get(name.1).is_some_and(|e| e.max > 0);
            self.over_time.iter().any(of)
        };
        let columns: Vec<_> = COLUMNS.iter().filter(there).collect();
        let rss = self.over_time.iter().any(|m| m.rss.is_some());
        let mut head = vec!["UNTIL", "LIVE"];
        head.extend(rss.then_some("RSS"));
        head.extend(columns.iter().map(|c| c.0));
        head.push("");
        let mut table = Table::new(head);
        for m in &self.over_time {
            let mut row = vec![duration(m.to_ns), bytes(m.live_bytes.last)];
            if rss {
                row.push(m.rss.map_or(String::new(), |e| bytes(e.last)));
            }
            let of = |c: &&(&str, &str)| m.maps.get(c.1).map_or(String::new(), |e| bytes(e.last));
            row.extend(columns.iter().map(of));
            row.push(String::new());
            table.row(row);
        }
        table.write(style, out)?;
        match self.maps_recorded {
            true => writeln!(
                out,
                "\nLIVE: blocks of the heap; RSS: resident, as the kernel counts it; the others: what mappings but \
                 prof's own have resident, as they were seen last"
            ),
            false => writeln!(out, "\nThe recording does not tell of mappings."),
        }
    }
}

/// Columns of the text: heading, and name of the series.
const COLUMNS: [(&str, &str); 13] = [
    ("ANON", "maps_anonymous"),
    ("DIRTY", "maps_dirty"),
    ("CLEAN", "maps_clean"),
    ("SWAP", "maps_swap"),
    ("HUGE", "maps_huge"),
    ("[HEAP]", "maps_kind_heap"),
    ("[ANON]", "maps_kind_anonymous"),
    ("[STACKS]", "maps_kind_stack"),
    ("[CODE]", "maps_kind_code"),
    ("[DATA]", "maps_kind_data"),
    ("[FILES]", "maps_kind_file"),
    ("[SHARED]", "maps_kind_shared"),
    ("SPACE", "maps_address_space"),
];
