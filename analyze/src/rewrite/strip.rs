//! Removes short-lived blocks from a recording, but keeps the figures of all stacks.
//!
//! Two queries on the index decide which blocks stay: those that are live at the end, and those whose chain of
//! reallocations lived long enough; a chain stays or goes as a whole. Their events are written anew from the rows, in
//! the order of time; all other chunks are copied. The figures of all blocks are saved in a chunk of their own
//! (STRIPPED), from which a reader takes totals and groups.

use super::RewriteError;
use super::kept::Kept;
use super::out::{Out, Passes};
use crate::Index;
use crate::heap::{NOWHERE, to_records};
use crate::history::{self, Step};
use crate::index::{Block, Column, flags};
use crate::load::{ChunkFile, Item};
use crate::progress::Step as Progress;
use crate::query::{Filter, FilterError, Query, Select, Selection};
use prof_trace::event::Event;
use prof_trace::records::{Pass, kind};
use prof_trace::ticks::Ticks;
use std::collections::{HashMap, HashSet};
use std::io::Write;

/// Result of stripping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stripped {
    /// Number of blocks removed.
    pub blocks: u64,
    /// Number of blocks that stay.
    pub kept: u64,
    /// Length of the recording before.
    pub bytes_before: u64,
    /// Length of the stripped recording.
    pub bytes: u64,
}

/// Writes a recording without the blocks that lived shorter than `threshold_ns`.
///
/// # Errors
/// If the recording can't be read, or the output can't be written.
pub fn strip(
    index: &Index,
    threshold_ns: u64,
    out: &mut dyn Write,
) -> Result<Stripped, RewriteError> {
    let analysis = index.analysis();
    let long = query(index, "min-chain-lifetime", &format!("{threshold_ns}ns"))?;
    let live = query(index, "lifetime", "chain-leaked")?;
    let select = |block: &mut Block<'_>, s: &mut Selection| {
        long.select(block, s)?;
        let mut rows = std::mem::take(&mut s.rows);
        live.select(block, s)?;
        rows.append(&mut s.rows);
        rows.extend(found(block)?);
        rows.sort_unstable();
        rows.dedup();
        s.rows = rows;
        Some(())
    };
    let (kept_rows, kept_bytes, all_bytes) = sizes(index, select)?;
    let lone = lone_chains(index, &long, &live)?;
    let mut to = Out::new(out)?;
    let (passes, last) = describe(index, &mut to)?;
    let mut w = Writer {
        index,
        to,
        passes: passes.into_iter().peekable(),
        kept: Kept::default(),
        old_blocks: HashMap::new(),
        unseen: Vec::new(),
        lone,
    };
    history::steps(index, select, Ticks::MAX, |s| w.step(s))?;
    w.finish()?;
    let removed = index.rows() - kept_rows;
    let before = analysis.meta().stripped.as_ref();
    let record = prof_trace::records::Stripped {
        threshold_ns: before.map_or(threshold_ns, |b| b.threshold_ns.max(threshold_ns)),
        blocks: before.map_or(0, |b| b.blocks).saturating_add(removed),
        bytes: before.map_or(0, |b| b.bytes).saturating_add(all_bytes.saturating_sub(kept_bytes)),
        how: before.map_or(prof_trace::records::Stripped::LATER, |b| b.how),
        early: before.map_or(0, |b| b.early),
        ..prof_trace::records::Stripped::default()
    };
    for part in to_records(&record, analysis.totals(), analysis.groups()) {
        w.to.put(kind::STRIPPED, &part.encode())?;
    }
    for (kind, payload) in last {
        w.to.put(kind, &payload)?;
    }
    Ok(Stripped {
        blocks: removed,
        kept: kept_rows,
        bytes_before: std::fs::metadata(analysis.path()).map_or(0, |m| m.len()),
        bytes: w.to.bytes,
    })
}

fn query<'a>(index: &'a Index, name: &'static str, value: &str) -> Result<Query<'a>, RewriteError> {
    let mut filter = Filter::default();
    let set: Result<(), FilterError> = filter.set(name, value);
    // Both fields exist, and accept any time, so this can't fail.
    set.map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(Query::new(index, &filter)?)
}

/// Returns the number of rows that stay, their bytes, and the bytes of all rows.
fn sizes(index: &Index, select: impl Select) -> Result<(u64, u64, u64), RewriteError> {
    let state = || (Selection::default(), Vec::new(), [0u64; 3]);
    let states = index.scan(state, |(selection, sizes, sums), block| {
        select(block, selection)?;
        block.read(crate::index::Column::Size, sizes)?;
        sums[0] += selection.rows.len() as u64;
        let kept = selection.rows.iter().map(|i| sizes[*i as usize]);
        sums[1] = kept.fold(sums[1], u64::saturating_add);
        sums[2] = sizes.iter().copied().fold(sums[2], u64::saturating_add);
        Some(())
    })?;
    let sum = |i: usize| states.iter().map(|s| s.2[i]).fold(0, u64::saturating_add);
    Ok((sum(0), sum(1), sum(2)))
}

/// Returns the rows of blocks that a census has found. Its chunks are copied, so the ends of all of them must be there.
fn found(block: &mut Block<'_>) -> Option<Vec<u32>> {
    if block.range(Column::Flags).1 & flags::FOUND == 0 {
        return Some(Vec::new());
    }
    let mut flag = Vec::new();
    block.read(Column::Flags, &mut flag)?;
    let rows = (0..).zip(&flag).filter(|(_, f)| **f & flags::FOUND != 0);
    Some(rows.map(|(row, _)| row).collect())
}

/// Returns the chains that go, but for the block at their beginning, which a census has found.
fn lone_chains(
    index: &Index,
    long: &Query<'_>,
    live: &Query<'_>,
) -> Result<HashSet<u32>, RewriteError> {
    let state = || (Selection::default(), Vec::new(), HashSet::new());
    let states = index.scan(state, |(selection, chains, lone), block| {
        let mut rows = found(block)?;
        if rows.is_empty() {
            return Some(());
        }
        for query in [long, live] {
            query.select(block, selection)?;
            rows.retain(|row| selection.rows.binary_search(row).is_err());
        }
        block.read(Column::Chain, chains)?;
        lone.extend(rows.iter().map(|row| chains[*row as usize] as u32));
        Some(())
    })?;
    Ok(states.into_iter().flat_map(|s| s.2).collect())
}

/// Payloads of the collector's passes, with their ticks.
type Passing = Vec<(Ticks, Vec<u8>)>;
/// Kinds and payloads of chunks.
type Chunks = Vec<(u16, Vec<u8>)>;

/// Copies all chunks other than events. Returns the passes that are kept, and the chunks for the end.
fn describe(index: &Index, to: &mut Out<'_>) -> Result<(Passing, Chunks), RewriteError> {
    let analysis = index.analysis();
    let mut file = ChunkFile::open(&analysis.path())?;
    let step = Progress::begin("copying the recording", analysis.bytes());
    let mut keep = Passes::new(&analysis.meta().target);
    let (mut passes, mut last): (Vec<_>, Chunks) = (Vec::new(), Chunks::new());
    while file.position() < analysis.bytes() {
        step.set(file.position());
        let Item::Chunk(kind, payload, _) = file.next()? else { break };
        match kind {
            kind::EVENTS | kind::PACKED | kind::STRIPPED => {}
            // The figures of all blocks are saved.
            kind::FOLDED | kind::FOLD_END => {}
            kind::PASS => {
                if let Some(p) = Pass::decode(payload).filter(|p| keep.keep(p)) {
                    passes.push((p.ticks, payload.to_vec()));
                }
            }
            // The last chunk of a kind counts. An incomplete recording gets no end.
            kind::COUNTERS | kind::END => {
                last.retain(|c| c.0 != kind);
                if kind != kind::END || analysis.was_finished() {
                    last.push((kind, payload.to_vec()));
                }
            }
            _ => to.put_zipped(kind, payload)?,
        }
    }
    passes.sort_by_key(|p| p.0);
    last.sort_by_key(|c| c.0);
    if let Some(losses) = analysis.unrecorded_losses() {
        last.insert(0, (kind::JOINED, losses.encode()));
    }
    Ok((passes, last))
}

struct Writer<'a, 'b, P: Iterator<Item = (Ticks, Vec<u8>)>> {
    index: &'a Index,
    to: Out<'b>,
    passes: std::iter::Peekable<P>,
    kept: Kept,
    /// For each chain: address and time of the block that was passed to `realloc`, and whether it was temporary.
    old_blocks: HashMap<u32, (u64, Ticks, bool)>,
    /// Blocks whose free was not recorded: time of the end, address and thread index.
    unseen: Vec<(Ticks, u64, u32)>,
    /// See [`lone_chains`].
    lone: HashSet<u32>,
}

impl<P: Iterator<Item = (Ticks, Vec<u8>)>> Writer<'_, '_, P> {
    fn step(&mut self, s: &Step) -> Result<(), RewriteError> {
        let (time, addr, thread_index) = (s.time(), s.addr, s.thread_index);
        self.end_unseen(s)?;
        if s.begins() && s.found() {
            return Ok(());
        }
        if s.begins() {
            let groups = self.index.analysis().groups();
            let node = groups.get(s.group as usize).map_or(0, |g| g.node);
            let size = self.kept.sized(thread_index, s.size, s.header, s.rate);
            if !s.again() {
                self.put(thread_index, Event::Alloc { time, addr, size, node }, addr, false)?;
                return Ok(());
            }
            let (old, time_before, temporary) =
                self.old_blocks.remove(&s.chain).unwrap_or((NOWHERE, time, false));
            let event = Event::Realloc { time_before, time, old, addr, size, node };
            return self.put(thread_index, event, old, temporary);
        }
        if s.implied() {
            self.unseen.push((time, addr, thread_index));
            return Ok(());
        }
        if s.continues() && s.chain != 0 && !self.lone.contains(&s.chain) {
            self.old_blocks.insert(s.chain, (addr, time, s.temporary()));
            return Ok(());
        }
        self.put(thread_index, Event::Free { time, addr, node: s.end_node }, addr, s.temporary())
    }

    /// Ends blocks whose free was not recorded. If the block that begins at their address was removed, they get a free.
    fn end_unseen(&mut self, s: &Step) -> Result<(), RewriteError> {
        if self.unseen.is_empty() {
            return Ok(());
        }
        if s.begins() {
            self.unseen.retain(|u| (u.0, u.1) != (s.time(), s.addr));
        }
        let now = s.time();
        let late: Vec<_> = self.unseen.iter().copied().filter(|u| u.0 < now).collect();
        self.unseen.retain(|u| u.0 >= now);
        for (time, addr, thread_index) in late {
            self.put(thread_index, Event::Free { time, addr, node: 0 }, addr, false)?;
        }
        Ok(())
    }

    /// Adds an event, which ends the block `old` unless it is an allocation.
    fn put(
        &mut self,
        thread_index: u32,
        event: Event,
        old: u64,
        temporary: bool,
    ) -> Result<(), RewriteError> {
        let time = event.time();
        while let Some((_, pass)) = self.passes.next_if(|p| p.0 <= time) {
            self.write()?;
            self.to.put(kind::PASS, &pass)?;
        }
        if self.kept.add(thread_index, event, old, temporary) { self.write() } else { Ok(()) }
    }

    /// Writes what was added, thread by thread.
    fn write(&mut self) -> Result<(), RewriteError> {
        let (index, to) = (self.index, &mut self.to);
        self.kept.write(|thread_index, events| {
            let thread = index.thread_numbers().get(thread_index as usize).copied().unwrap_or(0);
            Ok(to.events(thread, events)?)
        })
    }

    fn finish(&mut self) -> Result<(), RewriteError> {
        for (time, addr, thread_index) in std::mem::take(&mut self.unseen) {
            self.put(thread_index, Event::Free { time, addr, node: 0 }, addr, false)?;
        }
        self.write()?;
        for (_, pass) in self.passes.by_ref() {
            self.to.put(kind::PASS, &pass)?;
        }
        Ok(())
    }
}
