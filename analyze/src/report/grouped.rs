//! Reports blocks by function, by source file, by module or by thread.

use super::block_stats::{Adder, BlockStatsData};
use super::places::{PlaceData, Places};
use super::rows::{Ask, RestRowsData, Row, RowData, order, rows};
use super::unnamed::SymbolsData;
use super::words::calls;
use super::{Head, KernelData, SortKey, Style};
use crate::index::ScanError;
use crate::query::{By, Tally};
use crate::style::{base, printable};
use crate::table::{Table, title};
use prof_trace::values::text::{
    about, about_bytes, about_number, bytes, count, duration, number, signed_bytes, signed_number,
};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::{self, Write};

/// The criterion by which blocks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum GroupBy {
    /// The function that asked for them: the innermost that is not an allocator
    Function,
    /// The source file of that function, or its module if the file is not known
    File,
    /// The module of that function
    Module,
    /// The thread that allocated them
    Thread,
}

impl GroupBy {
    fn name(self) -> &'static str {
        match self {
            GroupBy::Function => "function",
            GroupBy::File => "file",
            GroupBy::Module => "module",
            GroupBy::Thread => "thread",
        }
    }

    /// Returns the key that all blocks of a place have in common.
    fn key(self, place: &PlaceData) -> Key {
        let module = place.module.clone();
        match self {
            GroupBy::Function => {
                Key { name: place.function.clone().or(place.offset.clone()), module }
            }
            GroupBy::File if place.file.is_some() => Key { name: place.file.clone(), module: None },
            GroupBy::File => Key { name: None, module },
            _ => Key { name: module, module: None },
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    name: Option<String>,
    module: Option<String>,
}

/// A report of blocks by function, file, module or thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Grouped {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording.
    #[serde(flatten)]
    pub head: Head,
    /// The last reading of the target's memory.
    pub kernel: Option<KernelData>,
    /// The criterion by which the blocks are grouped.
    pub group_by: GroupBy,
    /// The key that the rows are sorted by.
    pub sort: SortKey,
    /// The earlier moment of a comparison, in nanoseconds since the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_ns: Option<u64>,
    /// The rows that are shown.
    pub rows: Vec<GroupedData>,
    /// The sums of all other rows: rows and rest add up to the totals.
    pub rest: RestRowsData,
    /// Statistics of the symbolised code addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbols: Option<SymbolsData>,
}

/// A row of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupedData {
    /// The function, the file, the module, or the name of the thread; `None` if it is not known.
    pub name: Option<String>,
    /// Path of the module of a function, or of blocks whose file is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// ID of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Number of blocks that the thread freed, other than by reallocation; other threads may have allocated them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frees: Option<u64>,
    /// Standard error of `frees`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frees_stderr: Option<u64>,
    /// Bytes of the blocks that the thread freed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_bytes: Option<u64>,
    /// Number of stacks of these blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<u64>,
    /// Figures of the row.
    #[serde(flatten)]
    pub row: RowData,
}

/// Assigns stacks to classes.
#[derive(Default)]
struct Classes {
    ids: HashMap<Key, u32>,
    keys: Vec<Key>,
    totals: Vec<Adder>,
    stacks: Vec<u64>,
}

impl Classes {
    fn id(&mut self, key: Key) -> u32 {
        *self.ids.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            self.totals.push(Adder::default());
            self.stacks.push(0);
            self.keys.len() as u32 - 1
        })
    }
}

impl Grouped {
    /// Groups the blocks.
    ///
    /// # Errors
    /// If the index can't be read.
    pub fn new(ask: &Ask<'_>, by: GroupBy) -> Result<Self, ScanError> {
        let (mut rows, data, symbols) = match by {
            GroupBy::Thread => threads(ask)?,
            _ => places(ask, by)?,
        };
        let shown = order(ask, &mut rows, ask.options.top);
        let all = rows[..shown].iter().map(|r| {
            let data = data.get(r.group.node as usize).cloned().unwrap_or_default();
            GroupedData {
                name: data.key.name,
                module: data.key.module,
                tid: data.tid,
                frees: data.frees.map(|f| f.count),
                frees_stderr: data.frees.and_then(|f| f.count_error),
                freed_bytes: data.frees.map(|f| f.bytes),
                stacks: data.stacks,
                row: RowData::new(ask, r),
            }
        });
        Ok(Self {
            version: 1,
            head: Head::new(&ask.analysis, &ask.options.filter),
            kernel: KernelData::new(&ask.analysis),
            group_by: by,
            sort: ask.options.sort,
            base_ns: ask.options.base.map(|t| ask.analysis.meta().clock.ns(t)),
            rows: all.collect(),
            rest: RestRowsData::new(ask, &rows[shown..]),
            symbols,
        })
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Rows, their labels, and statistics of the symbolised code addresses.
type Labelled = (Vec<Row>, Vec<Label>, Option<SymbolsData>);

/// The name of a row, and the fields that only some kinds of rows have.
#[derive(Clone, Default)]
struct Label {
    key: Key,
    tid: Option<u32>,
    frees: Option<Tally>,
    stacks: Option<u64>,
}

fn places(ask: &Ask<'_>, by: GroupBy) -> Result<Labelled, ScanError> {
    let whole = ask.index.analysis();
    let mut places = Places::new(whole);
    let mut classes = Classes::default();
    let mut of_place: HashMap<u32, u32> = HashMap::new();
    let mut of_node: HashMap<u32, u32> = HashMap::new();
    for g in ask.analysis.groups() {
        let stack = places.stack(g.node);
        let ids: Vec<u32> = stack
            .iter()
            .map(|p| *of_place.entry(*p).or_insert_with(|| classes.id(by.key(places.get(*p)))))
            .collect();
        let asker = places.asker(&stack);
        let class = asker.map_or_else(|| classes.id(Key::default()), |i| ids[i]);
        of_node.insert(g.node, class);
        classes.stacks[class as usize] += 1;
        // A function that occurs in a stack several times, by recursion, counts once.
        let mut distinct = ids;
        distinct.push(class);
        distinct.sort_unstable();
        distinct.dedup();
        distinct.iter().for_each(|c| classes.totals[*c as usize].add(g));
    }
    let class = |g: &crate::heap::Group| of_node.get(&g.node).copied().unwrap_or(u32::MAX);
    let of: Vec<u32> = whole.groups().iter().map(class).collect();
    let mut rows = rows(ask, By::Classes(&of), classes.keys.len())?;
    for (row, total) in rows.iter_mut().zip(&classes.totals) {
        row.total = Some(*total);
    }
    let labels = classes.keys.into_iter().zip(&classes.stacks);
    let labels = labels.map(|(key, n)| Label { key, stacks: Some(*n), ..Label::default() });
    Ok((rows, labels.collect(), Some(SymbolsData::new(&places.symbols))))
}

fn threads(ask: &Ask<'_>) -> Result<Labelled, ScanError> {
    let numbers = ask.index.thread_numbers();
    let rows = rows(ask, By::Threads, numbers.len())?;
    let frees = ask.query.frees_by_thread(ask.options.at)?;
    let threads = &ask.analysis.meta().threads;
    let label = |(number, frees): (&u32, Tally)| {
        let thread = threads.get(number);
        Label {
            key: Key {
                name: thread.map(|t| crate::style::printable(&t.name)).filter(|n| !n.is_empty()),
                module: None,
            },
            tid: thread.map(|t| t.tid),
            frees: Some(frees),
            stacks: None,
        }
    };
    Ok((rows, numbers.iter().zip(frees).map(label).collect(), None))
}

impl Grouped {
    /// Returns the report as text.
    pub fn text(&self, style: Style) -> String {
        let mut out = self.head.text(style);
        // Writing to a string can't fail.
        let _ = self.write(style, &mut out);
        out
    }

    fn write(&self, style: Style, out: &mut String) -> fmt::Result {
        if let Some(symbols) = &self.symbols {
            symbols.write(style, out)?;
        }
        let mut name = format!("by {}", self.group_by.name());
        if let Some(at) = self.base_ns {
            write!(name, ": what has changed since {}", duration(at))?;
        }
        title(style, &name, out)?;
        let mut table = Table::new(self.columns());
        self.rows.iter().for_each(|r| table.row(self.cells(r)));
        table.write(style, out)?;
        writeln!(out)?;
        if self.rest.rows > 0 {
            let rest = &self.rest;
            let what = match self.group_by {
                GroupBy::Function => ("other function", "other functions"),
                GroupBy::File => ("other file", "other files"),
                GroupBy::Module => ("other module", "other modules"),
                GroupBy::Thread => ("other thread", "other threads"),
            };
            let others = count(rest.rows, what.0, what.1);
            let sums = match &rest.change {
                Some(c) => {
                    format!(
                        "{} live in {} blocks",
                        signed_bytes(c.live_bytes),
                        signed_number(c.live_count)
                    )
                }
                None => {
                    let live = about_bytes(rest.sums.live_bytes, rest.sums.live_bytes_stderr);
                    let (n, error) = (rest.sums.live_count, rest.sums.live_count_stderr);
                    format!("{live} live in {}", about(n, error, "block", "blocks"))
                }
            };
            style.line(out, "rest", &format!("{others}: {sums} (--top 0 shows all)"))?;
        }
        let t = &self.head.totals;
        let live = about_bytes(t.live_bytes, t.live_bytes_stderr);
        let blocks = about(t.live_count, t.live_count_stderr, "block", "blocks");
        style.line(out, "traced", &format!("{live} live in {blocks}"))
    }

    fn is_sampled(&self) -> bool {
        self.head.totals.live_count_stderr.is_some()
    }

    fn columns(&self) -> Vec<&'static str> {
        let mut columns = match self.base_ns {
            Some(_) => vec!["SIZE", "CHANGE", "COUNT", "CHANGE", "ALLOCATED", "ALLOCATIONS"],
            None => vec!["SIZE", "COUNT", "PEAK", "ALLOCATED", "ALLOCATIONS"],
        };
        if self.head.totals.temporary.is_some() {
            columns.push("TEMPORARY");
        }
        if self.group_by == GroupBy::Thread {
            columns.extend(["FREES", "TID"]);
        } else if self.base_ns.is_none() {
            columns.push("TOTAL");
        }
        if let Some((name, _)) = time_of(self.sort, None) {
            columns.push(name);
        }
        columns.push(match self.group_by {
            GroupBy::Function => "FUNCTION",
            GroupBy::File => "FILE",
            GroupBy::Module => "MODULE",
            GroupBy::Thread => "NAME",
        });
        columns
    }

    fn cells(&self, r: &GroupedData) -> Vec<String> {
        let f = &r.row.figures;
        let mut cells = match &r.row.change {
            Some(c) => vec![
                bytes(f.live_bytes),
                signed_bytes(c.live_bytes),
                number(f.live_count),
                signed_number(c.live_count),
                signed_bytes(c.allocated_bytes),
                signed_number(c.allocations),
            ],
            None => numbers(f),
        };
        if self.head.totals.temporary.is_some() {
            cells.push(match &r.row.change {
                Some(c) => signed_number(c.temporary),
                None => number(f.temporary.unwrap_or(0)),
            });
        }
        if self.group_by == GroupBy::Thread {
            cells.push(about_number(r.frees.unwrap_or(0), r.frees_stderr));
            cells.push(r.tid.map_or("?".to_owned(), |t| t.to_string()));
        } else if self.base_ns.is_none() {
            let total = r.row.total.unwrap_or_default();
            cells.push(about_bytes(total.live_bytes, total.live_bytes_stderr));
        }
        if let Some((_, time)) = time_of(self.sort, Some(&r.row)) {
            cells.push(time.map_or("-".to_owned(), duration));
        }
        debug_assert!(self.is_sampled() || r.frees_stderr.is_none());
        cells.push(self.label(r));
        cells
    }

    fn label(&self, r: &GroupedData) -> String {
        let module = r.module.as_deref().map(|m| printable(base(m)));
        match (&r.name, module, self.group_by) {
            (Some(name), Some(m), _) => format!("{} ({m})", printable(name)),
            (Some(name), None, _) => printable(name),
            (None, Some(m), GroupBy::File) => format!("(no source file known: {m})"),
            (None, m, _) => m.unwrap_or("(not known)".to_owned()),
        }
    }
}

/// Returns the usual columns of figures.
fn numbers(f: &BlockStatsData) -> Vec<String> {
    vec![
        about_bytes(f.live_bytes, f.live_bytes_stderr),
        about_number(f.live_count, f.live_count_stderr),
        about_bytes(f.peak_bytes, f.peak_bytes_stderr),
        about_bytes(f.allocated_bytes, f.allocated_bytes_stderr),
        calls(f),
    ]
}

/// Returns heading and value of the column for a sort key that is a time.
fn time_of(sort: SortKey, row: Option<&RowData>) -> Option<(&'static str, Option<u64>)> {
    let (name, time) = match sort {
        SortKey::Age => ("AGE", row.and_then(|r| r.oldest_live_age_ns)),
        SortKey::First => ("FIRST", row.and_then(|r| r.first_ns)),
        SortKey::Last => ("LAST", row.and_then(|r| r.last_ns)),
        SortKey::PeakAt => ("PEAK AT", row.and_then(|r| r.peak_at_ns)),
        SortKey::Interval => {
            let interval = row.and_then(|r| Some(r.last_ns?.saturating_sub(r.first_ns?)));
            ("INTERVAL", interval)
        }
        _ => return None,
    };
    Some((name, time))
}

/// Formats a number of stacks: `3 stacks`.
pub(super) fn stacks(n: u64) -> String {
    count(n, "stack", "stacks")
}
