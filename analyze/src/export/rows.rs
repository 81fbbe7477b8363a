//! Writes every block as CSV or JSON, in the order in which the blocks ended; live blocks come last. The weight of a
//! sampled block is the number of the program's blocks that it represents; that of others is 1.

use super::{ExportError, Profile, Source};
use crate::Job;
use crate::index::{Column, ScanError, flags};
use crate::query::Selection;
use crate::report::{CaptureData, FrameData, frames_of};
use crate::symbols::Symbolizer;
use prof_trace::size::{GlibcChunks, Header};
use prof_trace::ticks::Ticks;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};

/// A block with the columns of the exports.
#[derive(Serialize)]
pub(super) struct Row {
    pub address: u64,
    pub size: u64,
    pub allocated_at_ns: u64,
    pub freed_at_ns: Option<u64>,
    pub stack: u32,
    pub thread: u32,
    pub free_stack: Option<u32>,
    pub free_thread: Option<u32>,
    pub temporary: bool,
    pub by_realloc: bool,
    pub to_realloc: bool,
    pub implied_free: bool,
    pub chain: Option<u64>,
    pub chain_position: u64,
    /// Figures of glibc's chunk header, if the block is glibc's.
    pub usable_size: Option<u64>,
    pub mmapped: Option<bool>,
    pub main_arena: Option<bool>,
    /// Number of the program's blocks that this one represents.
    pub weight: f64,
}

/// Number of rows after which an export looks whether it was cancelled.
const LOOK: usize = 2048;

/// The columns of the index that a row is made of.
const READ: [Column; 13] = [
    Column::Addr,
    Column::Size,
    Column::Begin,
    Column::End,
    Column::Group,
    Column::ThreadIndex,
    Column::EndNode,
    Column::EndThreadIndex,
    Column::Flags,
    Column::Chain,
    Column::Position,
    Column::Header,
    Column::Rate,
];

/// Calls `take` for each block that the query selects, until it fails.
///
/// # Errors
/// If the index can't be read, the job was cancelled, or `take` fails.
pub(super) fn each(
    source: &Source<'_>,
    mut take: impl FnMut(&Row) -> io::Result<()>,
) -> Result<(), ExportError> {
    if !source.has_blocks() {
        return Ok(());
    }
    let meta = source.index.analysis().meta();
    let tid = |thread_index: u64| {
        let number = source.index.thread_numbers().get(thread_index as usize).copied().unwrap_or(0);
        meta.threads.get(&number).map_or(0, |t| t.tid)
    };
    let mut selection = Selection::default();
    let mut columns = READ.map(|_| Vec::new());
    let mut failed = None;
    source.index.each(|block| {
        source.query.select(block, &mut selection)?;
        if selection.rows.is_empty() || failed.is_some() {
            return Some(());
        }
        for (c, values) in READ.into_iter().zip(&mut columns) {
            block.read(c, values)?;
        }
        for (n, &i) in selection.rows.iter().enumerate() {
            // To write a whole block of rows takes a tenth of a second.
            if n % LOOK == 0 && Job::is_current_cancelled() {
                failed = Some(io::Error::other(ScanError::Cancelled));
                return Some(());
            }
            let values = std::array::from_fn(|c| columns[c][i as usize]);
            let Some(row) = make(source, &tid, values) else { continue };
            if let Err(e) = take(&row) {
                failed = Some(e);
                return Some(());
            }
        }
        Some(())
    })?;
    if Job::is_current_cancelled() {
        return Err(ScanError::Cancelled.into());
    }
    failed.map_or(Ok(()), |e| Err(e.into()))
}

/// Makes the row of a block from its values in the columns of [`READ`]; `None` if it was allocated after the moment that
/// is exported. `tid` returns the id of the thread with an index.
fn make(source: &Source<'_>, tid: &dyn Fn(u64) -> u32, values: [u64; READ.len()]) -> Option<Row> {
    let [
        addr,
        size,
        begin,
        end,
        group,
        thread_index,
        end_node,
        end_thread_index,
        flag,
        chain,
        position,
        header,
        rate,
    ] = values;
    let (analysis, until) = (source.index.analysis(), source.until());
    if begin > until.0 {
        return None;
    }
    let meta = analysis.meta();
    let header = Header::from_code(header as u16);
    let ended = end != u64::MAX && end <= until.0;
    Some(Row {
        address: addr,
        size,
        allocated_at_ns: meta.clock.ns(Ticks(begin)),
        freed_at_ns: ended.then(|| meta.clock.ns(Ticks(end))),
        stack: analysis.groups().get(group as usize).map_or(0, |g| g.node),
        thread: tid(thread_index),
        free_stack: (ended && end_node != 0).then_some(end_node as u32),
        free_thread: ended.then(|| tid(end_thread_index)),
        temporary: ended && flag & flags::TEMPORARY != 0,
        by_realloc: flag & flags::REALLOCATED != 0,
        to_realloc: ended && flag & flags::CONTINUED != 0,
        implied_free: ended && flag & flags::IMPLIED != 0,
        chain: (chain != 0).then_some(chain),
        chain_position: position,
        usable_size: GlibcChunks::of(meta.target.pointer_size).usable(size, header),
        mmapped: header.is_known().then_some(header.mapped),
        main_arena: (header.arena != 0).then_some(header.arena == 1),
        weight: source.weight(size, rate as u8),
    })
}

pub(super) fn csv(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    writeln!(out, "{}", NAMES.join(","))?;
    let some = |v: Option<u64>| v.map_or(String::new(), |v| v.to_string());
    each(source, |r| {
        writeln!(
            out,
            "{:#x},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            r.address,
            r.size,
            r.allocated_at_ns,
            some(r.freed_at_ns),
            r.stack,
            r.thread,
            some(r.free_stack.map(u64::from)),
            some(r.free_thread.map(u64::from)),
            u8::from(r.temporary),
            u8::from(r.by_realloc),
            u8::from(r.to_realloc),
            u8::from(r.implied_free),
            some(r.chain),
            r.chain_position,
            some(r.usable_size),
            some(r.mmapped.map(u64::from)),
            some(r.main_arena.map(u64::from)),
            r.weight,
        )
    })
}

/// Writes the beginning that all versions of the JSON have in common.
fn json_head(source: &Source<'_>, version: u32, out: &mut dyn Write) -> Result<(), ExportError> {
    let capture = CaptureData::new(source.index.analysis());
    let capture = serde_json::to_string(&capture).map_err(io::Error::from)?;
    write!(out, "{{\"version\":{version},\"capture\":{capture},")?;
    Ok(())
}

/// Returns the stacks of all that is exported. Mappings without a stack have none here, as their rows have their names.
fn stacks(source: &Source<'_>) -> Profile {
    let mut profile = source.profile_of(source.index.analysis(), source.at);
    let mut known = HashSet::new();
    profile.stacks.retain(|s| (s.node != 0 || !s.of_maps) && known.insert(s.node));
    profile
}

/// Writes the mappings, if they are exported.
fn json_mappings(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    source.held.map_or(Ok(()), |held| super::mapped::json(source, held, out))
}

/// Writes JSON version 1: an object for each block, and the frames of each stack in full.
pub(super) fn json_objects(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let analysis = source.index.analysis();
    let mut symbols = Symbolizer::new(analysis);
    json_head(source, 1, out)?;
    write!(out, "\"stacks\":[")?;
    for (i, s) in stacks(source).stacks.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let frames = frames_of(analysis, s.node, &mut symbols);
        let frames = serde_json::to_string(&frames).map_err(io::Error::from)?;
        let (id, cut) = (s.node, s.truncated);
        write!(out, "{comma}\n{{\"id\":{id},\"truncated\":{cut},\"frames\":{frames}}}")?;
    }
    writeln!(out, "],")?;
    json_mappings(source, out)?;
    write!(out, "\"allocations\":[")?;
    let mut first = true;
    each(source, |r| {
        let comma = if std::mem::take(&mut first) { "" } else { "," };
        write!(out, "{comma}\n{}", serde_json::to_string(r).map_err(io::Error::from)?)
    })?;
    writeln!(out, "]}}")?;
    Ok(())
}

/// Writes JSON version 2: an array for each block, in the order of `columns`; stacks are indices into `frames`.
pub(super) fn json(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let profile = stacks(source);
    json_head(source, 2, out)?;
    // The frames of an address are adjacent, so a stack refers to a range for each address.
    let mut starts = Vec::with_capacity(profile.locations.len() + 1);
    let mut next = 0;
    write!(out, "\"frames\":[")?;
    for location in &profile.locations {
        starts.push(next);
        for f in location.frames.iter() {
            let comma = if next == 0 { "" } else { "," };
            let frame = serde_json::to_string(&FrameData::new(f)).map_err(io::Error::from)?;
            write!(out, "{comma}\n{frame}")?;
            next += 1;
        }
    }
    starts.push(next);
    write!(out, "],\n\"stacks\":[")?;
    for (i, s) in profile.stacks.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let (id, cut) = (s.node, s.truncated);
        write!(out, "{comma}\n{{\"id\":{id},\"truncated\":{cut},\"frames\":[")?;
        let of = s.locations.iter().flat_map(|l| starts[*l as usize]..starts[*l as usize + 1]);
        for (j, frame) in of.enumerate() {
            let comma = if j == 0 { "" } else { "," };
            write!(out, "{comma}{frame}")?;
        }
        write!(out, "]}}")?;
    }
    write!(out, "],\n\"columns\":{},", serde_json::json!(NAMES))?;
    writeln!(out)?;
    json_mappings(source, out)?;
    write!(out, "\"allocations\":[")?;
    let mut first = true;
    each(source, |r| {
        let comma = if std::mem::take(&mut first) { "" } else { "," };
        write!(out, "{comma}\n[")?;
        array(r, out)
    })?;
    writeln!(out, "]}}")?;
    Ok(())
}

/// Names of a block's columns.
const NAMES: [&str; 18] = [
    "address",
    "size",
    "allocated_at_ns",
    "freed_at_ns",
    "stack",
    "thread",
    "free_stack",
    "free_thread",
    "temporary",
    "by_realloc",
    "to_realloc",
    "implied_free",
    "chain",
    "chain_position",
    "usable_size",
    "mmapped",
    "main_arena",
    "weight",
];

/// Formats a value that may be missing as JSON.
struct Null<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Null<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(v) => v.fmt(f),
            None => f.write_str("null"),
        }
    }
}

/// Writes the values of a block, and the closing bracket.
fn array(r: &Row, out: &mut dyn Write) -> io::Result<()> {
    write!(
        out,
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]",
        r.address,
        r.size,
        r.allocated_at_ns,
        Null(r.freed_at_ns),
        r.stack,
        r.thread,
        Null(r.free_stack),
        Null(r.free_thread),
        r.temporary,
        r.by_realloc,
        r.to_realloc,
        r.implied_free,
        Null(r.chain),
        r.chain_position,
        Null(r.usable_size),
        Null(r.mmapped),
        Null(r.main_arena),
        r.weight,
    )
}
