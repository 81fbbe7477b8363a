//! Single blocks, and stacks with what belongs to them.

use super::groups;
use crate::ask::Ask;
use crate::data;
use crate::names::{BlockStatsOf, Names};
use crate::reply::{Answer, Failure};
use prof_analyze::Index;
use prof_analyze::answers::{
    BlockRow, BlockSort, BlocksAsk, ChainRow, Cursor, FreedAt, MOST_SKIPPED,
};
use prof_analyze::leaks::{Class, LeakOptions, Leaks};
use prof_analyze::query::{Filter, Query, Span};
use prof_analyze::report::{Ask as Asked, FrameData, Histogram, Stats, ViewOptions};
use prof_analyze::symbols::Frame;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Greatest number of blocks of a page.
const MOST: u64 = 1000;
/// Number of neighbours on each side.
const BESIDE: usize = 6;
/// Columns of the timeline of a stack.
const COLUMNS: usize = 200;

const ORDERS: [(&str, BlockSort); 4] = [
    ("time", BlockSort::Time),
    ("address", BlockSort::Address),
    ("size", BlockSort::Size),
    ("lifetime", BlockSort::Lifetime),
];

/// Returns a frame as reports have it.
pub(crate) fn frame(f: &Frame) -> Value {
    json!(FrameData::new(f))
}

pub(super) fn stack(names: &Names, index: &Index, node: u32) -> Value {
    let mut frames: Vec<Value> = names.frames(node).map(frame).collect();
    if frames.is_empty() {
        // Stacks of frees are not among those that allocate.
        frames = symbolised(index, node);
    }
    let asked = names.stack(node).and_then(|s| frames.get(s.asker)).or(frames.first()).cloned();
    json!({ "asked_by": asked, "frames": frames, "truncated": names.is_cut(node) })
}

/// Looks a stack up that is none of the recording's groups.
pub(crate) fn symbolised(index: &Index, node: u32) -> Vec<Value> {
    let analysis = index.analysis();
    let mut symbols = prof_analyze::symbols::Symbolizer::new(analysis);
    let pcs = analysis.meta().stack(node);
    pcs.into_iter()
        .flat_map(|pc| symbols.frames(pc).iter().map(frame).collect::<Vec<_>>())
        .collect()
}

/// Returns the chains that blocks belong to.
pub(crate) fn chains_of(
    index: &Index,
    rows: &[BlockRow],
) -> Result<HashMap<u32, ChainRow>, Failure> {
    let ids = rows.iter().map(|r| r.chain).filter(|c| *c != 0).collect();
    Ok(index.chain_rows(&ids)?)
}

/// Writes blocks with what is known of their chains.
struct Writer<'a> {
    index: &'a Index,
    chains: HashMap<u32, ChainRow>,
    stacks: HashSet<u32>,
}

impl<'a> Writer<'a> {
    fn new(index: &'a Index, rows: &[BlockRow]) -> Result<Self, Failure> {
        Ok(Self { index, chains: chains_of(index, rows)?, stacks: HashSet::new() })
    }

    fn thread(&self, number: Option<u32>) -> Value {
        let threads = &self.index.analysis().meta().threads;
        let thread = number.and_then(|n| threads.get(&n));
        thread.map_or(Value::Null, |t| json!({ "tid": t.tid, "name": t.name }))
    }

    fn row(&mut self, r: &BlockRow) -> Value {
        self.stacks.insert(r.stack);
        self.stacks.extend(r.end_stack);
        let chain = self.chains.get(&r.chain);
        let (last, began) = chain.map_or((*r, r.begin_ns), |c| (c.last, c.begin_ns));
        let lived = |end: Option<u64>, begin: u64| end.map(|end| end.saturating_sub(begin));
        json!({
            "id": r.row,
            "address": format!("{:#x}", r.address),
            "size": r.size,
            "usable": r.usable,
            "thread": self.thread(Some(r.thread)),
            "free_thread": self.thread(r.end_thread),
            "allocated_ns": r.begin_ns,
            "freed_ns": r.end_ns,
            "lifetime_ns": lived(r.end_ns, r.begin_ns),
            "ended": ended(r),
            "temporary": r.temporary,
            "chain": {
                "position": r.position,
                "length": chain.map_or(1, |c| c.length),
                "lifetime_ns": lived(last.end_ns, began),
            },
            "mmapped": r.mapped,
            "arena": r.main_arena.map(|main| if main { "main" } else { "non-main" }),
            "stack": r.stack,
            "free_stack": r.end_stack,
        })
    }

    fn stacks(&self, ask: &Ask) -> Value {
        let names = ask.open.names();
        let all: Map<String, Value> = self
            .stacks
            .iter()
            .map(|node| (node.to_string(), stack(names, self.index, *node)))
            .collect();
        all.into()
    }
}

fn ended(r: &BlockRow) -> &'static str {
    match () {
        () if r.end_ns.is_none() => "live",
        () if r.continued => "reallocated",
        () if r.implied => "implied",
        () => "freed",
    }
}

/// A page of blocks.
pub(crate) fn blocks(ask: &mut Ask) -> Result<Answer, Failure> {
    let sort = ask.params.one_of("sort", &ORDERS)?.unwrap_or_default();
    let descending = ask.params.switch("reverse")?.unwrap_or(false);
    let count = ask.params.number("count", MOST)?.unwrap_or(20).max(1) as usize;
    let skip = ask.params.number("skip", MOST_SKIPPED)?.unwrap_or(0);
    let after = ask.params.take("after")?;
    let after = after.map(|text| text.parse::<Cursor>().map_err(|e| Failure::of("after", e)));
    let filter = ask.params.filter()?;
    let query = data::query(ask, &filter)?;
    let index = ask.index();
    let wanted = BlocksAsk { sort, descending, skip, count, after: after.transpose()? };
    let page = query.blocks(&wanted)?;
    let mut writer = Writer::new(index, &page.blocks)?;
    let rows: Vec<Value> = page.blocks.iter().map(|r| writer.row(r)).collect();
    Answer::json(&json!({
        "total_count": page.total,
        "next": page.next,
        "rows": rows,
        "stacks": writer.stacks(ask),
    }))
}

/// Answers with one block, its chain and its neighbours.
pub(crate) fn block(ask: &mut Ask) -> Result<Answer, Failure> {
    let missing = || Failure::missing("there is no such block in this recording");
    let number: u64 = ask.variable("n").parse().map_err(|_| missing())?;
    let index = ask.index();
    let found = index.block_details(number)?.ok_or_else(missing)?;
    let row = found.block;
    let mut chain = if found.chain.is_empty() { vec![row] } else { found.chain };
    chain.truncate(MOST as usize);
    // In the order of addresses, itself among them.
    let below = found.below.iter().take(BESIDE).rev();
    let beside = below.chain([&row]).chain(found.above.iter().take(BESIDE));
    let neighbours: Vec<BlockRow> = beside.copied().collect();
    let all: Vec<BlockRow> = chain.iter().chain(&neighbours).copied().collect();
    let mut writer = Writer::new(index, &all)?;
    let block = writer.row(&row);
    let chain: Vec<Value> = chain.iter().map(|r| writer.row(r)).collect();
    let neighbours: Vec<Value> = neighbours.iter().map(|r| writer.row(r)).collect();
    Answer::json(&json!({
        "block": block,
        "chain": chain,
        "neighbours": neighbours,
        "stacks": writer.stacks(ask),
    }))
}

/// Returns the report of a view, as JSON.
fn view<T: serde::Serialize>(
    index: &Index,
    query: &Query<'_>,
    make: impl FnOnce(&Asked<'_>) -> Result<T, prof_analyze::index::ScanError>,
) -> Result<Value, Failure> {
    let asked = Asked::new(index, query, ViewOptions { top: 0, ..ViewOptions::default() })?;
    serde_json::to_value(make(&asked)?).map_err(|e| Failure::internal(e.to_string()))
}

/// Answers with one stack and all that is known of it.
pub(crate) fn one_stack(ask: &mut Ask) -> Result<Answer, Failure> {
    let missing = || Failure::missing("there is no such stack in this recording");
    let node: u32 = ask.variable("n").parse().map_err(|_| missing())?;
    let index = ask.index();
    let group = index.analysis().groups().iter().find(|g| g.node == node).copied();
    let group = group.ok_or_else(missing)?;
    let mut filter = ask.params.clone().filter()?;
    let set = |f: &mut Filter| {
        f.set("stacks", &node.to_string()).map_err(|e| Failure::internal(e.to_string()))
    };
    let mut own = Filter::default();
    set(&mut own)?;
    set(&mut filter)?;
    let (all, matched) = (data::query(ask, &own)?, data::query(ask, &filter)?);
    let mut reply = groups::row(&all)?.ok_or_else(missing)?;
    let span = Span::whole(index, COLUMNS);
    let timeline = matched.timeline(&span, false)?;
    let of_matched = matched.analysis(None)?;
    let figures = of_matched.groups().first().map(|g| BlockStatsOf::from(&g.figures));
    reply["all"] = groups::all(ask, &group);
    reply["matched"] = json!(figures.unwrap_or_default());
    reply["timeline"] = json!({
        "from_ns": span.from_ns,
        "to_ns": span.to_ns,
        "step_ns": (span.to_ns - span.from_ns) as f64 / COLUMNS as f64,
        "min": timeline.live_bytes.min,
        "max": timeline.live_bytes.max,
        "last": timeline.live_bytes.last,
    });
    reply["sizes"] = view(index, &matched, Histogram::new)?["sizes"].take();
    reply["lifetimes"] = view(index, &matched, Stats::new)?["lifetimes"].take();
    let options = LeakOptions { top: 1, classes: Class::ALL.to_vec(), ..LeakOptions::default() };
    let leaks = Leaks::new(index, &all, &options)?;
    reply["leak"] = json!(leaks.stacks.first());
    reply["freed_at"] = freed_at(ask, &matched)?;
    Answer::json(&reply)
}

/// Returns where the blocks were freed; null if that is not recorded.
fn freed_at(ask: &Ask, query: &Query<'_>) -> Result<Value, Failure> {
    let index = ask.index();
    let mut found: Vec<_> = query.freed_at()?.into_iter().collect();
    if found.is_empty() {
        return Ok(Value::Null);
    }
    found.sort_by_key(|(node, f)| (Reverse(f.bytes), Reverse(f.count), *node));
    found.truncate(20);
    let row = |(node, f): &(u32, FreedAt)| {
        let frames = symbolised(index, *node);
        json!({ "stack": node, "count": f.count, "bytes": f.bytes, "frames": frames })
    };
    Ok(found.iter().map(row).collect())
}
