//! Computes statistics: calls, rates, sizes, lifetimes, and the places that allocate the most.

use super::histogram::{SizeData, bar, limits};
use super::places::{PlaceData, Places};
use super::rows::{Ask, Row, RowData, rows};
use super::text::place_line;
use super::unnamed::SymbolsData;
use super::words::temporary;
use super::{Head, KernelData, Style};
use crate::Analysis;
use crate::heap::Group;
use crate::index::ScanError;
use crate::query::{By, LIFETIMES, SIZE_CLASSES, Tally};
use crate::style::{base, printable};
use crate::table::{Table, title};
use prof_trace::ticks::Ticks;
use prof_trace::values::text::{about_bytes, about_number, bytes, duration, number};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

/// Statistics of the selected blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The last reading of the target's memory.
    pub kernel: Option<KernelData>,
    /// Number of calls of each function, for the whole recording.
    pub calls: Vec<CallsData>,
    /// Time in which recording was on, up to the reported moment, in nanoseconds.
    pub recorded_ns: u64,
    /// Allocations and reallocations per second of recorded time.
    pub allocations_per_second: f64,
    /// Bytes allocated per second of recorded time.
    pub bytes_per_second: f64,
    /// Mean size of a block in bytes.
    pub mean_size: f64,
    /// Histogram of sizes.
    pub sizes: Vec<SizeData>,
    /// Histogram of lifetimes.
    pub lifetimes: Vec<LifetimeData>,
    /// The sizes with the most blocks.
    pub top_sizes_by_count: Vec<TopSizeData>,
    /// The sizes with the most bytes.
    pub top_sizes_by_bytes: Vec<TopSizeData>,
    /// Blocks of sizes that were not counted separately, as there were too many.
    pub other_sizes: TallyData,
    /// The places that made the most allocations.
    pub top_places_by_count: Vec<TopPlaceData>,
    /// The places that allocated the most bytes.
    pub top_places_by_bytes: Vec<TopPlaceData>,
    /// Statistics of the symbolised code addresses.
    pub symbols: SymbolsData,
}

/// Number of calls of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallsData {
    /// Name of the function; several names if it has aliases.
    pub function: String,
    /// Path of its module.
    pub module: String,
    /// Number of recorded calls.
    pub calls: u64,
}

/// Number and bytes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TallyData {
    /// Number of blocks ever allocated, by reallocation or not.
    pub count: u64,
    /// Standard error of `count`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_stderr: Option<u64>,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Standard error of `bytes`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_stderr: Option<u64>,
}

impl From<Tally> for TallyData {
    fn from(t: Tally) -> Self {
        Self {
            count: t.count,
            count_stderr: t.count_error,
            bytes: t.bytes,
            bytes_stderr: t.bytes_error,
        }
    }
}

/// Blocks of one class of lifetimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LifetimeData {
    /// Least lifetime in nanoseconds; `None` for live blocks.
    pub min_ns: Option<u64>,
    /// Upper bound of the lifetimes in nanoseconds; `None`: no bound.
    pub below_ns: Option<u64>,
    /// Number and bytes of these blocks.
    #[serde(flatten)]
    pub tally: TallyData,
}

/// Blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TopSizeData {
    /// Size of each block in bytes.
    pub size: u64,
    /// Number and bytes of these blocks.
    #[serde(flatten)]
    pub tally: TallyData,
}

/// A place that asked for memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopPlaceData {
    /// Function, file and line; `None` for blocks without a stack.
    pub place: Option<PlaceData>,
    /// Sums of its blocks' figures.
    #[serde(flatten)]
    pub sums: super::SumData,
}

impl Stats {
    /// Computes the statistics.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(ask: &Ask<'_>) -> Result<Self, ScanError> {
        let (analysis, options) = (&ask.analysis, &ask.options);
        let f = &analysis.totals().figures;
        let until = options.at.unwrap_or(Ticks::MAX);
        let recorded = analysis.parts().iter().fold(0u64, |sum, p| {
            sum.saturating_add(
                analysis.meta().clock.between(p.start, p.end.min(until).max(p.start)),
            )
        });
        let calls = f.allocations + f.reallocations;
        let rate = |n: u64| if recorded == 0 { 0.0 } else { n as f64 * 1e9 / recorded as f64 };
        let spread = ask.query.spread(options.at)?;
        let top = if options.top == 0 { usize::MAX } else { options.top };
        let sizes = |key: fn(&Tally) -> u64| {
            let mut all = spread.sizes.clone();
            all.sort_by_key(|(size, t)| (Reverse(key(t)), *size));
            let data = |(size, t): (u64, Tally)| TopSizeData { size, tally: t.into() };
            all.into_iter().take(top).map(data).collect()
        };
        let (symbols, [top_places_by_count, top_places_by_bytes]) = places(ask, top);
        Ok(Self {
            version: 1,
            head: Head::new(analysis, &options.filter),
            kernel: KernelData::new(analysis),
            calls: calls_of(analysis),
            recorded_ns: recorded,
            allocations_per_second: rate(calls),
            bytes_per_second: rate(f.allocated_bytes),
            mean_size: f.allocated_bytes as f64 / calls.max(1) as f64,
            sizes: by_size(ask)?,
            lifetimes: lifetimes(&spread.lifetimes),
            top_sizes_by_count: sizes(|t| t.count),
            top_sizes_by_bytes: sizes(|t| t.bytes),
            other_sizes: spread.other_sizes.into(),
            top_places_by_count,
            top_places_by_bytes,
            symbols,
        })
    }

    /// Returns the statistics as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Returns the calls by function; aliases of a function are one entry.
fn calls_of(analysis: &Analysis) -> Vec<CallsData> {
    let meta = analysis.meta();
    let mut by_index: BTreeMap<u32, CallsData> = BTreeMap::new();
    for h in &meta.hooks.hooked {
        let calls = meta.counters.calls.get(h.index as usize).copied().unwrap_or(0);
        let (function, module) = (printable(&h.function), printable(&h.module));
        match by_index.get_mut(&h.index) {
            Some(c) => c.function = format!("{}, {function}", c.function),
            None => {
                by_index.insert(h.index, CallsData { function, module, calls });
            }
        }
    }
    let mut all: Vec<_> = by_index.into_values().collect();
    all.sort_by(|a, b| (b.calls, &a.function).cmp(&(a.calls, &b.function)));
    all
}

fn by_size(ask: &Ask<'_>) -> Result<Vec<SizeData>, ScanError> {
    let rows = rows(ask, By::Sizes, SIZE_CLASSES)?;
    let there = rows.iter().enumerate().filter(|(_, r)| !r.is_empty());
    let size = |(i, r): (usize, &Row)| {
        let (min_size, max_size) = limits(i);
        SizeData { min_size, max_size, row: RowData::new(ask, r) }
    };
    Ok(there.map(size).collect())
}

fn lifetimes(tallies: &[Tally]) -> Vec<LifetimeData> {
    let data = |(i, t): (usize, &Tally)| LifetimeData {
        min_ns: match i {
            0 => Some(0),
            i => LIFETIMES.get(i - 1).copied(),
        },
        below_ns: LIFETIMES.get(i).copied(),
        tally: (*t).into(),
    };
    tallies.iter().enumerate().map(data).collect()
}

/// Returns the places with the most allocations, and those with the most bytes.
fn places(ask: &Ask<'_>, top: usize) -> (SymbolsData, [Vec<TopPlaceData>; 2]) {
    let mut places = Places::new(ask.index.analysis());
    let mut by_place: HashMap<Option<u32>, Vec<Group>> = HashMap::new();
    for g in ask.analysis.groups() {
        let stack = places.stack(g.node);
        let place = places.asker(&stack).map(|i| stack[i]);
        by_place.entry(place).or_default().push(*g);
    }
    let capture = ask.analysis.capture();
    let mut all: Vec<TopPlaceData> = by_place
        .into_iter()
        .map(|(place, groups)| TopPlaceData {
            place: place.map(|id| places.get(id).clone()),
            sums: super::SumData::of(capture, &groups),
        })
        .collect();
    let calls = |p: &TopPlaceData| p.sums.allocations + p.sums.reallocations;
    let bytes = |p: &TopPlaceData| p.sums.allocated_bytes;
    all.sort_by(|a, b| (calls(b), &a.place).cmp(&(calls(a), &b.place)));
    let first = all.iter().take(top).cloned().collect();
    all.sort_by(|a, b| (bytes(b), &a.place).cmp(&(bytes(a), &b.place)));
    (SymbolsData::new(&places.symbols), [first, all.into_iter().take(top).collect()])
}

impl Stats {
    /// Returns the statistics as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        self.symbols.write(style, out)?;
        title(style, "rates", out)?;
        let on = duration(self.recorded_ns);
        let calls = self.allocations_per_second.round() as u64;
        let size = self.bytes_per_second as u64;
        writeln!(out, "{} allocations and {} a second, over {on}", number(calls), bytes(size))?;
        writeln!(out, "{:.1} bytes a block on average", self.mean_size)?;
        if let Some(n) = self.head.totals.temporary {
            let t = &self.head.totals;
            let all = t.allocations + t.reallocations;
            writeln!(out, "{}", temporary(n, all))?;
        }
        self.calls_table(style, out)?;
        title(style, "by size", out)?;
        super::histogram::table(&self.sizes, self.head.totals.temporary.is_some(), false)
            .write(style, out)?;
        self.lifetime_table(style, out)?;
        self.top(style, out)
    }

    fn calls_table(&self, style: Style, out: &mut String) -> fmt::Result {
        title(style, "calls, of the whole recording", out)?;
        let mut table = Table::new(vec!["CALLS", "FUNCTION"]);
        for c in self.calls.iter().filter(|c| c.calls > 0) {
            let name = format!("{} ({})", printable(&c.function), printable(base(&c.module)));
            table.row(vec![number(c.calls), name]);
        }
        table.write(style, out)
    }

    fn lifetime_table(&self, style: Style, out: &mut String) -> fmt::Result {
        title(style, "by lifetime", out)?;
        let mut table = Table::new(vec!["LIVED", "COUNT", "BYTES", ""]);
        let most = self.lifetimes.iter().map(|l| l.tally.count).max().unwrap_or(0);
        for l in self.lifetimes.iter().filter(|l| l.tally.count > 0) {
            let lived = match (l.min_ns, l.below_ns) {
                (_, Some(below)) => format!("below {}", duration(below)),
                (Some(min), None) => format!("{} or more", duration(min)),
                (None, None) => "live".to_owned(),
            };
            let t = &l.tally;
            table.row(vec![
                lived,
                about_number(t.count, t.count_stderr),
                about_bytes(t.bytes, t.bytes_stderr),
                bar(t.count, most),
            ]);
        }
        table.write(style, out)
    }

    fn top(&self, style: Style, out: &mut String) -> fmt::Result {
        let sizes = [("count", &self.top_sizes_by_count), ("bytes", &self.top_sizes_by_bytes)];
        // A recording of figures alone has none.
        for (key, sizes) in sizes.into_iter().filter(|(_, s)| !s.is_empty()) {
            title(style, &format!("top sizes by {key}"), out)?;
            let mut table = Table::new(vec!["COUNT", "BYTES", "SIZE"]);
            for s in sizes {
                let t = &s.tally;
                let count = about_number(t.count, t.count_stderr);
                let all = about_bytes(t.bytes, t.bytes_stderr);
                table.row(vec![count, all, format!("{} B", number(s.size))]);
            }
            table.write(style, out)?;
        }
        if self.other_sizes.count > 0 {
            let n = about_number(self.other_sizes.count, self.other_sizes.count_stderr);
            writeln!(out, "{n} blocks have sizes that are not told apart: there are too many")?;
        }
        let places = [("count", &self.top_places_by_count), ("bytes", &self.top_places_by_bytes)];
        for (key, places) in places {
            title(style, &format!("top places by {key}"), out)?;
            let mut table = Table::new(vec!["COUNT", "BYTES", "PLACE"]);
            for p in places {
                let s = &p.sums;
                let error = s.allocations_stderr.zip(s.reallocations_stderr);
                let error = error.map(|(a, b)| (a as f64).hypot(b as f64).round() as u64);
                let place = p.place.as_ref().map_or("(no stack)".to_owned(), place_line);
                table.row(vec![
                    about_number(s.allocations + s.reallocations, error),
                    about_bytes(s.allocated_bytes, s.allocated_bytes_stderr),
                    place,
                ]);
            }
            table.write(style, out)?;
        }
        Ok(())
    }
}
