//! The address space, in bins.

use crate::ask::Ask;
use crate::data;
use crate::reply::{Answer, Failure};
use prof_analyze::Index;
use prof_analyze::index::{Column, ScanError};
use prof_analyze::query::value;
use prof_analyze::query::{Query, Selection};
use prof_trace::ticks::Ticks;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Greatest number of bins.
const MOST_BINS: u64 = 8192;
/// A gap of so many bytes, a power of two, divides the space.
const GAP: u32 = 25;
/// Greatest number of pieces of that size that are told apart: those of a made-up recording may be anywhere.
const MOST_PIECES: usize = 1 << 20;

/// A stretch of addresses without a large gap, and its bins.
struct Stretch {
    start: u64,
    end: u64,
    /// Bytes of a bin.
    step: u64,
    live: Vec<u64>,
    blocks: Vec<u64>,
    oldest: Vec<u64>,
}

/// Calls `take` with address, size and begin of each selected block that is live at a moment.
fn each_live(
    query: &Query<'_>,
    index: &Index,
    at: u64,
    mut take: impl FnMut(u64, u64, u64),
) -> Result<(), ScanError> {
    let (mut selection, mut columns) = (Selection::default(), <[Vec<u64>; 4]>::default());
    index.each(|block| {
        if block.range(Column::Begin).0 > at || block.range(Column::End).1 <= at {
            return Some(());
        }
        query.select(block, &mut selection)?;
        if selection.rows.is_empty() {
            return Some(());
        }
        let read = [Column::Addr, Column::Size, Column::Begin, Column::End];
        for (c, values) in read.into_iter().zip(&mut columns) {
            block.read(c, values)?;
        }
        for &i in &selection.rows {
            let i = i as usize;
            if columns[2][i] <= at && columns[3][i] > at {
                take(columns[0][i], columns[1][i], columns[2][i]);
            }
        }
        Some(())
    })
}

fn address(ask: &mut Ask, name: &str, default: u64) -> Result<u64, Failure> {
    let Some(text) = ask.params.take(name)? else { return Ok(default) };
    value::address(&text).map_err(|e| Failure::of(name, e))
}

/// Finds the stretches between two addresses that have live blocks.
fn stretches(
    query: &Query<'_>,
    index: &Index,
    at: u64,
    (start, end): (u64, u64),
) -> Result<Vec<(u64, u64)>, ScanError> {
    let mut pieces: BTreeSet<u64> = BTreeSet::new();
    let mut edges: std::collections::HashMap<u64, (u64, u64)> = std::collections::HashMap::new();
    each_live(query, index, at, |addr, size, _| {
        let last = addr.saturating_add(size.max(1)).min(end);
        if addr >= end || last <= start {
            return;
        }
        let from = addr.max(start);
        for piece in [from >> GAP, (last - 1) >> GAP] {
            if pieces.len() < MOST_PIECES || pieces.contains(&piece) {
                pieces.insert(piece);
                let edge = edges.entry(piece).or_insert((u64::MAX, 0));
                *edge = (edge.0.min(from), edge.1.max(last));
            }
        }
    })?;
    let mut found: Vec<(u64, u64)> = Vec::new();
    for piece in pieces {
        let (from, to) = edges[&piece];
        match found.last_mut() {
            Some(last) if from.saturating_sub(last.1) < 1 << GAP => last.1 = last.1.max(to),
            _ => found.push((from, to)),
        }
    }
    Ok(found)
}

/// Divides the bins among the stretches, by their size.
fn bins(stretches: &[(u64, u64)], most: u64) -> Vec<Stretch> {
    let all: u128 = stretches.iter().map(|(a, b)| u128::from(b - a)).sum();
    let largest = stretches.iter().take(most as usize);
    largest
        .map(|&(start, end)| {
            let long = end - start;
            let share = (u128::from(most) * u128::from(long) / all.max(1)).max(1) as u64;
            let step = long.div_ceil(share).max(1);
            let n = long.div_ceil(step) as usize;
            Stretch {
                start,
                end,
                step,
                live: vec![0; n],
                blocks: vec![0; n],
                oldest: vec![u64::MAX; n],
            }
        })
        .collect()
}

/// The live blocks by their addresses.
pub(crate) fn space(ask: &mut Ask) -> Result<Answer, Failure> {
    let start = address(ask, "start", 0)?;
    let end = address(ask, "end", u64::MAX)?;
    if start >= end {
        return Err(Failure::of("start", "is not below the end"));
    }
    let most = ask.params.number("bins", MOST_BINS)?.unwrap_or(2048).max(1);
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let filter = ask.params.filter()?;
    let query = data::query(ask, &filter)?;
    let index = ask.index();
    let analysis = index.analysis();
    // A live block's end is the latest time there is.
    let ticks = at.unwrap_or(Ticks::LAST);
    let mut found = bins(&stretches(&query, index, ticks.0, (start, end))?, most);
    each_live(&query, index, ticks.0, |addr, size, begin| {
        let i = found.partition_point(|s| s.end <= addr);
        if let Some(s) = found.get_mut(i) {
            s.add(addr, size, begin);
        }
    })?;
    let clock = &analysis.meta().clock;
    let shown: Vec<Value> = found
        .iter()
        .map(|s| {
            let age =
                |t: &u64| if *t == u64::MAX { Value::Null } else { clock.ns(Ticks(*t)).into() };
            json!({
                "start": format!("{:#x}", s.start),
                "end": format!("{:#x}", s.end),
                "bin_bytes": s.step,
                "live_bytes": s.live,
                "blocks": s.blocks,
                "oldest_ns": s.oldest.iter().map(age).collect::<Vec<_>>(),
            })
        })
        .collect();
    let at_ns = at.map_or(analysis.duration_ns(), |t| clock.ns(t));
    Answer::json(&json!({ "at_ns": at_ns, "stretches": shown, "arenas": [] }))
}

impl Stretch {
    fn add(&mut self, addr: u64, size: u64, begin: u64) {
        let last = addr.saturating_add(size.max(1)).min(self.end);
        let from = addr.max(self.start);
        if from >= last {
            return;
        }
        let mut at = from;
        let first = ((from - self.start) / self.step) as usize;
        if let Some(n) = self.blocks.get_mut(first) {
            *n += 1;
        }
        while at < last {
            let bin = ((at - self.start) / self.step) as usize;
            if bin >= self.live.len() {
                break;
            }
            let edge =
                self.start.saturating_add((bin as u64 + 1).saturating_mul(self.step)).min(last);
            let held = if size == 0 { 0 } else { edge - at };
            self.live[bin] = self.live[bin].saturating_add(held);
            self.oldest[bin] = self.oldest[bin].min(begin);
            at = edge;
        }
    }
}
