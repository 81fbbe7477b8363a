//! Describes the file of a recording: kinds of chunks, kinds of events, threads, modules, lifetimes of blocks.

mod chunks;
mod text;

use crate::index::{Column, ScanError};
use crate::load::ScanAt;
use crate::query::{self, Filter, Query};
use crate::report::Head;
use crate::style::printable;
use crate::{Error, Index};
use chunks::Chunks;
use prof_trace::ticks::Ticks;
use serde::Serialize;

/// Upper bounds of the classes of lifetimes, in nanoseconds.
const LIFETIMES: [u64; 11] = [
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
    300_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
];

/// Why a file can't be described.
#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    /// The recording could not be read.
    #[error(transparent)]
    Recording(#[from] Error),
    /// The index could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

/// The description of a recording's file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Info {
    /// Version of this format: 1.
    pub version: u32,
    /// Describes the recording, its losses, parts and coverage.
    #[serde(flatten)]
    pub head: Head,
    /// Facts about the file itself.
    pub file: FileData,
    /// The kinds of chunks, those with the most bytes first.
    pub chunks: Vec<ChunkData>,
    /// Kinds of events.
    pub events: Vec<EventData>,
    /// Lifetimes of the blocks, the shortest first.
    pub lifetimes: Vec<LifetimeData>,
    /// The threads.
    pub threads: Vec<ThreadData>,
    /// The modules.
    pub modules: Vec<ModuleData>,
    /// Scans of the target's memory, in the order in which they were made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scans: Vec<ScanData>,
}

/// A scan of the target's memory, see `prof holds`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScanData {
    /// Number of the scan, from 1 on.
    pub number: usize,
    /// Name that a user has given it; empty: it has none.
    pub name: String,
    /// Time since the start of the recording.
    pub at_ns: u64,
    /// Number of live blocks in it.
    pub blocks: u64,
    /// Whether blocks from before the attach are among them.
    pub census: bool,
}

/// The file of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileData {
    /// Length of the file.
    pub bytes: u64,
    /// Length of its whole chunks.
    pub read_bytes: u64,
    /// Version of the file format.
    pub format: u32,
    /// Version of the prof that recorded it.
    pub recorded_by: String,
    /// Frequency of the recording's clock, in ticks per second.
    pub ticks_per_sec: u64,
    /// Number of the collector's passes over the ring.
    pub passes: u64,
    /// The compressions in use.
    pub compression: Vec<CompressionData>,
    /// Bytes of all events in the ring, before compression.
    pub ring_bytes: u64,
    /// Number of stacks that blocks were allocated from.
    pub stacks: u64,
    /// Path of the index, if there is one.
    pub index: Option<String>,
}

/// Counts of the events with one compression.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompressionData {
    /// `none`, `fast` or `best`, as in the option of `prof attach`.
    pub name: &'static str,
    /// Number of events.
    pub events: u64,
    /// Bytes of their chunks in the file.
    pub bytes: u64,
}

/// A kind of chunk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChunkData {
    /// Number of the kind.
    pub kind: u16,
    /// Name of the kind; `unknown` if a newer prof wrote it.
    pub name: &'static str,
    /// Number of chunks.
    pub count: u64,
    /// Bytes of the chunks in the file, headers included.
    pub bytes: u64,
}

/// A kind of event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventData {
    /// `alloc`, `free`, `free with stack` or `realloc`.
    pub kind: &'static str,
    /// Number of events.
    pub count: u64,
    /// Bytes of the events in the ring.
    pub ring_bytes: u64,
    /// Bytes of the events in the file. Those of a compressed chunk are divided in proportion to the bytes in the ring.
    pub bytes: u64,
}

/// Blocks within one class of lifetimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LifetimeData {
    /// Upper bound of the lifetimes; the lower bound is that of the entry before. `None`: there is no upper bound.
    pub below_ns: Option<u64>,
    /// The blocks are live at the end.
    pub live: bool,
    /// Number of blocks; a sampled block counts as one.
    pub count: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
}

/// A thread of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadData {
    /// Number of the thread in the recording.
    pub number: u32,
    /// Thread ID in the target.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// Number of its events.
    pub events: u64,
}

/// A module of the target: the program or a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleData {
    /// Number of the module in the recording.
    pub number: u32,
    /// Path of the module in the target.
    pub path: String,
    /// Build ID, in hexadecimal.
    pub build_id: String,
    /// First address, in hexadecimal.
    pub start: String,
    /// First address behind its end, in hexadecimal.
    pub end: String,
    /// Time when it was first seen, in nanoseconds since the start.
    pub loaded_ns: u64,
    /// Time when it was found unloaded, in nanoseconds since the start.
    pub unloaded_ns: Option<u64>,
    /// Bytes of its symbols in the recording.
    pub symbol_bytes: u64,
}

impl Info {
    /// Describes the file of a recording.
    ///
    /// # Errors
    /// If the recording or its index can't be read.
    pub fn new(index: &Index) -> Result<Self, InfoError> {
        let analysis = index.analysis();
        let meta = analysis.meta();
        let seen = Chunks::of(&analysis.path())?;
        let ns = |ticks: Ticks| meta.clock.ns(ticks);
        let module = |m: &prof_trace::records::Module| ModuleData {
            number: m.number,
            path: printable(&m.path),
            build_id: m.build_id.iter().map(|b| format!("{b:02x}")).collect(),
            start: format!("{:#x}", m.start),
            end: format!("{:#x}", m.end),
            loaded_ns: ns(m.loaded),
            unloaded_ns: (m.unloaded != Ticks::ZERO).then(|| ns(m.unloaded)),
            symbol_bytes: meta.symbols.get(&m.number).map_or(0, |s| s.len as u64),
        };
        let scan = |number, s: &ScanAt| ScanData {
            number,
            name: printable(&s.name),
            at_ns: meta.clock.ns(s.ticks),
            blocks: s.blocks,
            census: s.census,
        };
        let thread = |(number, events): (&u32, &u64)| {
            let known = meta.threads.get(number);
            let (number, events) = (*number, *events);
            let name = known.map_or(String::new(), |t| printable(&t.name));
            ThreadData { number, tid: known.map_or(0, |t| t.tid), name, events }
        };
        Ok(Self {
            version: 1,
            head: Head::new(analysis, &[]),
            file: FileData {
                bytes: seen.file_bytes,
                read_bytes: seen.read_bytes,
                format: seen.format,
                recorded_by: printable(&meta.target.prof_version),
                ticks_per_sec: meta.target.ticks_per_sec,
                passes: meta.passes,
                compression: seen.compression(),
                ring_bytes: seen.ring_bytes(),
                stacks: analysis.groups().len() as u64,
                index: index.path().map(|p| p.to_string_lossy().into_owned()),
            },
            chunks: seen.chunks(),
            events: seen.events(),
            lifetimes: lifetimes(index)?,
            threads: seen.threads.iter().map(thread).collect(),
            modules: meta.modules.values().map(module).collect(),
            scans: (1..).zip(&meta.scans).map(|(n, s)| scan(n, s)).collect(),
        })
    }

    /// Returns the description as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Counts the blocks by lifetime.
fn lifetimes(index: &Index) -> Result<Vec<LifetimeData>, ScanError> {
    const OTHERS: usize = LIFETIMES.len();
    let class = |i: usize| LifetimeData {
        below_ns: LIFETIMES.get(i).copied(),
        live: i == OTHERS + 1,
        ..LifetimeData::default()
    };
    if index.analysis().meta().is_aggregated() {
        let query = Query::new(index, &Filter::default()).map_err(|_| ScanError::NoBlocks)?;
        let spread = query.spread(None)?;
        let mut all: Vec<LifetimeData> = (0..OTHERS + 2).map(class).collect();
        for (i, t) in spread.lifetimes.iter().enumerate() {
            // Its classes are these, and finer ones.
            let at = match query::LIFETIMES.get(i) {
                Some(limit) => LIFETIMES.partition_point(|l| l < limit),
                None => OTHERS + i - query::LIFETIMES.len(),
            };
            all[at].count += t.count;
            all[at].bytes = all[at].bytes.saturating_add(t.bytes);
        }
        return Ok(all);
    }
    let clock = &index.analysis().meta().clock;
    let state = || ([(0u64, 0u64); OTHERS + 2], [const { Vec::new() }; 3]);
    let states = index.scan(state, |(sums, columns), block| {
        for (c, values) in [Column::Begin, Column::End, Column::Size].into_iter().zip(&mut *columns)
        {
            block.read(c, values)?;
        }
        let [begins, ends, sizes] = columns;
        for ((begin, end), size) in begins.iter().zip(ends.iter()).zip(sizes.iter()) {
            let at = match *end {
                u64::MAX => OTHERS + 1,
                end => {
                    let lived = clock.between(Ticks(*begin), Ticks(end));
                    LIFETIMES.partition_point(|limit| *limit <= lived)
                }
            };
            sums[at].0 += 1;
            sums[at].1 = sums[at].1.saturating_add(*size);
        }
        Some(())
    })?;
    let mut all: Vec<LifetimeData> = (0..OTHERS + 2).map(class).collect();
    for (sums, _) in states {
        for (a, (count, bytes)) in all.iter_mut().zip(sums) {
            a.count += count;
            a.bytes = a.bytes.saturating_add(bytes);
        }
    }
    Ok(all)
}
