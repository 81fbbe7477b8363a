//! Single blocks, and stacks with what belongs to them.

use super::groups;
use crate::data;
use crate::names::{FiguresOf, Names};
use crate::reply::{Answer, Failure};
use crate::route::Ask;
use crate::rows::{self, Chain, Row};
use prof_analyze::Index;
use prof_analyze::answers::{BlockSort, BlocksAsk, Cursor, MOST_SKIPPED};
use prof_analyze::leaks::{Class, LeakOptions, Leaks};
use prof_analyze::query::{Filter, Query, Span};
use prof_analyze::report::{Ask as Asked, FrameData, Histogram, Stats, ViewOptions};
use prof_analyze::symbols::Frame;
use prof_trace::size::{Chunks, Header};
use serde_json::{Map, Value, json};
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

/// Writes blocks with what is known of their chains.
struct Writer<'a> {
    index: &'a Index,
    chains: HashMap<u64, Chain>,
    stacks: HashSet<u32>,
}

impl<'a> Writer<'a> {
    fn new(index: &'a Index, rows: &[Row]) -> Result<Self, Failure> {
        let ids = rows.iter().map(|r| r.chain).filter(|c| *c != 0).collect();
        let chains = rows::chains(index, &ids)?;
        Ok(Self { index, chains, stacks: HashSet::new() })
    }

    fn thread(&self, lane: u64) -> Value {
        let number = self.index.lanes().get(lane as usize);
        let thread = number.and_then(|n| self.index.analysis().meta().threads.get(n));
        thread.map_or(Value::Null, |t| json!({ "tid": t.tid, "name": t.name }))
    }

    fn row(&mut self, r: &Row) -> Value {
        let analysis = self.index.analysis();
        let (meta, clock) = (analysis.meta(), &analysis.meta().clock);
        let live = r.end == u64::MAX;
        let node = analysis.groups().get(r.group as usize).map_or(0, |g| g.node);
        self.stacks.insert(node);
        let free_stack = u32::try_from(r.end_node).ok().filter(|n| *n != 0);
        self.stacks.extend(free_stack);
        let header = Header::from_code(r.header as u16);
        let known = header.is_known();
        let chain = self.chains.get(&r.chain);
        let last = chain.map_or(*r, |c| c.last);
        let began = chain.map_or(r.begin, |c| c.begin);
        let lived = |end: u64, begin: u64| (end != u64::MAX).then(|| clock.between(begin, end));
        json!({
            "id": r.number,
            "address": format!("{:#x}", r.addr),
            "size": r.size,
            "usable": Chunks::of(meta.target.pointer_size).usable(r.size, header),
            "thread": self.thread(r.lane),
            "free_thread": if live { Value::Null } else { self.thread(r.end_lane) },
            "allocated_ns": clock.ns(r.begin),
            "freed_ns": (!live).then(|| clock.ns(r.end)),
            "lifetime_ns": lived(r.end, r.begin),
            "ended": self.ended(r),
            "temporary": r.flags & prof_analyze::index::flags::TEMPORARY != 0,
            "chain": {
                "position": r.position,
                "length": chain.map_or(1, |c| c.length),
                "lifetime_ns": lived(last.end, began),
            },
            "mmapped": known.then_some(header.mapped),
            "arena": match header.arena {
                1 => Some("main"),
                2 => Some("non-main"),
                _ => None,
            },
            "stack": node,
            "free_stack": free_stack,
        })
    }

    fn ended(&self, r: &Row) -> &'static str {
        use prof_analyze::index::flags;
        match () {
            () if r.end == u64::MAX => "live",
            () if r.is_continued() => "reallocated",
            () if r.flags & flags::IMPLIED != 0 => "implied",
            () => "freed",
        }
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
    let plain = rows::of_page(index, &page)?;
    let mut writer = Writer::new(index, &plain)?;
    let rows: Vec<Value> = plain.iter().map(|r| writer.row(r)).collect();
    Answer::json(&json!({
        "total_count": page.total,
        "next": page.next,
        "rows": rows,
        "stacks": writer.stacks(ask),
    }))
}

/// One block, with its chain and its neighbours.
pub(crate) fn block(ask: &mut Ask) -> Result<Answer, Failure> {
    let missing = || Failure::missing("there is no such block in this recording");
    let number: u64 = ask.variable("n").parse().map_err(|_| missing())?;
    let index = ask.index();
    let row =
        rows::numbered(index, &HashSet::from([number]))?.remove(&number).ok_or_else(missing)?;
    let mut chain = Vec::new();
    if row.chain != 0 {
        rows::each_of_chains(index, &HashSet::from([row.chain]), |r| chain.push(r))?;
        chain.sort_by_key(|r| r.position);
    } else {
        chain.push(row);
    }
    chain.truncate(MOST as usize);
    let neighbours = rows::neighbours(index, row.addr, row.begin, BESIDE)?;
    let all: Vec<Row> = chain.iter().chain(&neighbours).copied().collect();
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

/// One stack, with all that is known of it.
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
    let figures = of_matched.groups().first().map(|g| FiguresOf::from(&g.figures));
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
    let mut found: Vec<_> = rows::freed_at(query, index)?.into_iter().collect();
    if found.is_empty() {
        return Ok(Value::Null);
    }
    found.sort_by_key(|(node, (count, bytes))| {
        (std::cmp::Reverse(*bytes), std::cmp::Reverse(*count), *node)
    });
    found.truncate(20);
    let row = |(node, (count, bytes)): &(u64, (u64, u64))| {
        let frames = symbolised(index, *node as u32);
        json!({ "stack": node, "count": count, "bytes": bytes, "frames": frames })
    };
    Ok(found.iter().map(row).collect())
}
