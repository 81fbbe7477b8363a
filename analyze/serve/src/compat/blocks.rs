//! Single blocks, groups of them, and stacks.

use super::shape::{Clock, Frames, timeval};
use super::{filter, graph};
use crate::api::chains_of;
use crate::ask::Ask;
use crate::reply::{Answer, Failure, JSON, Writer};
use prof_analyze::Index;
use prof_analyze::answers::{BlockRow, BlockSort, BlocksAsk, ChainRow, MOST_BLOCKS, MOST_SKIPPED};
use prof_analyze::heap::Group;
use prof_analyze::index::Column;
use prof_analyze::query::{By, Filter, Query, Selection};
use prof_trace::ticks::Ticks;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Greatest number of groups of a reply.
const MOST: u64 = 100_000;

const ORDER: [(&str, bool); 2] = [("asc", false), ("dsc", true)];

/// Returns the deallocation of a block that has ended.
fn ended(clock: &Clock<'_>, frames: &Frames<'_>, index: &Index, r: &BlockRow, at_ns: u64) -> Value {
    let mut v = Map::new();
    clock.put(&mut v, "timestamp", at_ns);
    v.insert("thread".into(), tid(index, r.end_thread.unwrap_or(0)));
    if let Some(node) = r.end_stack {
        v.insert("backtrace_id".into(), node.into());
        v.insert("backtrace".into(), frames.stack(node));
    }
    v.into()
}

fn tid(index: &Index, number: u32) -> Value {
    index.analysis().meta().threads.get(&number).map_or(0, |t| t.tid).into()
}

fn block(
    index: &Index,
    frames: &Frames<'_>,
    r: &BlockRow,
    chains: &HashMap<u32, ChainRow>,
) -> Value {
    let clock = Clock::of(index);
    let chain = chains.get(&r.chain);
    let (last, began) = chain.map_or((*r, r.begin_ns), |c| (c.last, c.begin_ns));
    let mapped = r.mapped == Some(true);
    let mut v = Map::new();
    clock.put(&mut v, "timestamp", r.begin_ns);
    let mut put = |name: &str, value: Value| v.insert(name.to_owned(), value);
    put("id", r.row.into());
    put("address", r.address.into());
    put("address_s", format!("{:016X}", r.address).into());
    put("thread", tid(index, r.thread));
    put("size", r.size.into());
    put("backtrace_id", r.stack.into());
    put("backtrace", frames.stack(r.stack));
    if let Some(at) = r.end_ns {
        put("deallocation", ended(&clock, frames, index, r, at));
    }
    if let Some(at) = last.end_ns {
        if last.row != r.row {
            put("chain_deallocation", ended(&clock, frames, index, &last, at));
        }
        put("chain_lifetime", timeval(at.saturating_sub(began)));
    }
    put("position_in_chain", r.position.into());
    put("chain_length", chain.map_or(1, |c| c.length).into());
    put("is_mmaped", mapped.into());
    put("is_jemalloc", false.into());
    put("in_main_arena", (r.main_arena != Some(false) && !mapped).into());
    put("extra_space", r.usable.map_or(0, |u| u.saturating_sub(r.size)).into());
    v.into()
}

fn written(e: std::io::Error) -> String {
    e.to_string()
}

/// Blocks, in an order.
pub(super) fn allocations(mut ask: Ask) -> Result<(Answer, Writer), Failure> {
    let words = [
        ("timestamp", BlockSort::Time),
        ("address", BlockSort::Address),
        ("size", BlockSort::Size),
    ];
    let sort = ask.params.one_of("sort_by", &words)?.unwrap_or_default();
    let descending = ask.params.one_of("order", &ORDER)?.unwrap_or(false);
    let skip = ask.params.number("skip", MOST_SKIPPED)?.unwrap_or(0);
    let count = ask.params.number("count", MOST_BLOCKS as u64)?;
    let strip = ask.params.switch("strip_template_args")?.unwrap_or(false);
    let filter = filter::take(&mut ask)?;
    let open = ask.open.clone();
    let index = &open.index;
    let query = Query::new(index, &filter)?;
    let most = count.map_or(MOST_BLOCKS, |n| n as usize);
    let wanted = BlocksAsk { sort, descending, skip, count: most, after: None };
    let page = query.blocks(&wanted)?;
    if count.is_none() && page.next.is_some() {
        let why =
            format!("{} blocks are selected: give a count of at most {MOST_BLOCKS}", page.total);
        return Err(Failure::of("count", why));
    }
    let (rows, total) = (page.blocks, page.total);
    let chains = chains_of(index, &rows)?;
    drop(query);
    let own = open.clone();
    let writer: Writer = Box::new(move |out| {
        let frames = Frames::new(own.names(), &own.index, strip);
        out.write_all(b"{\"allocations\":[").map_err(written)?;
        for (i, r) in rows.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(out, "{comma}{}", block(&own.index, &frames, r, &chains)).map_err(written)?;
        }
        write!(out, "],\"total_count\":{}}}", total).map_err(written)
    });
    Ok((Answer::new(JSON, ""), writer))
}

/// Smallest and largest size of each group's selected blocks.
fn sizes(query: &Query<'_>, index: &Index) -> Result<Vec<(u64, u64)>, Failure> {
    let n = index.analysis().groups().len();
    let state = || (Selection::default(), Vec::new(), Vec::new(), vec![(u64::MAX, 0u64); n]);
    let states = index.scan(state, |(selection, groups, sizes, found), block| {
        query.select(block, selection)?;
        if !selection.rows.is_empty() {
            block.read(Column::Group, groups)?;
            block.read(Column::Size, sizes)?;
            for &i in &selection.rows {
                let (group, size) = (groups[i as usize], sizes[i as usize]);
                if let Some(f) = found.get_mut(group as usize) {
                    *f = (f.0.min(size), f.1.max(size));
                }
            }
        }
        Some(())
    })?;
    let mut all = vec![(u64::MAX, 0); n];
    for (_, _, _, found) in states {
        all.iter_mut().zip(found).for_each(|(a, f)| *a = (a.0.min(f.0), a.1.max(f.1)));
    }
    Ok(all)
}

/// The figures of a group.
fn figures(
    clock: &Clock<'_>,
    g: &Group,
    (min, max): (u64, u64),
    peak: bool,
    graphs: Option<[String; 2]>,
) -> Value {
    let [graph, preview] = graphs.map_or([None, None], |urls| urls.map(Some));
    let f = &g.figures;
    let mut v = Map::new();
    clock.put(&mut v, "min_timestamp", clock.ns(g.first));
    clock.put(&mut v, "max_timestamp", clock.ns(g.last));
    let mut put = |name: &str, value: Value| v.insert(name.to_owned(), value);
    put("size", f.allocated_bytes.into());
    put("min_size", if min == u64::MAX { 0 } else { min }.into());
    put("max_size", max.into());
    put("interval", timeval(clock.between(g.first, g.last)));
    put("leaked_count", f.live_count.into());
    put("allocated_count", (f.allocations + f.reallocations).into());
    put("graph_url", graph.into());
    put("graph_preview_url", preview.into());
    if peak {
        clock.put(&mut v, "max_total_usage_first_seen_at", clock.ns(g.peak_ticks));
    } else {
        v.insert("max_total_usage_first_seen_at".into(), Value::Null);
    }
    v.into()
}

/// The value that groups are sorted by.
type Key = fn(&Clock<'_>, &Group) -> u64;

const KEYS: [(&str, Key); 7] = [
    ("min_timestamp", |c, g| c.ns(g.first)),
    ("max_timestamp", |c, g| c.ns(g.last)),
    ("interval", |c, g| c.between(g.first, g.last)),
    ("allocated_count", |_, g| g.figures.allocations + g.figures.reallocations),
    ("leaked_count", |_, g| g.figures.live_count),
    ("size", |_, g| g.figures.allocated_bytes),
    ("max_total_usage_first_seen_at", |c, g| c.ns(g.peak_ticks)),
];

/// Takes the sort key of groups, and whether it is of all blocks of the group.
fn key(ask: &mut Ask) -> Result<(bool, Key), Failure> {
    let text = ask.params.take("sort_by")?.unwrap_or("only_matched.min_timestamp".into());
    let wrong = || Failure::of("sort_by", format!("{text:?} is no sort key of groups"));
    let (of, name) = text.split_once('.').ok_or_else(wrong)?;
    let all = match of {
        "all" => true,
        "only_matched" => false,
        _ => return Err(wrong()),
    };
    let found = KEYS.iter().find(|k| k.0 == name).filter(|k| all || !k.0.starts_with("max_total"));
    found.map(|k| (all, k.1)).ok_or_else(wrong)
}

/// Groups of blocks by their stack.
pub(super) fn allocation_groups(ask: &mut Ask) -> Result<Answer, Failure> {
    let (of_all, key) = key(ask)?;
    let reverse = ask.params.one_of("order", &ORDER)?.unwrap_or(false);
    let skip = ask.params.number("skip", MOST_SKIPPED)?.unwrap_or(0) as usize;
    let count = ask.params.number("count", MOST)?.unwrap_or(MOST) as usize;
    let strip = ask.params.switch("strip_template_args")?.unwrap_or(false);
    let graphs = ask.params.switch("generate_graphs")?.unwrap_or(false);
    let given = graph::filter_of(&ask.params);
    let filter = filter::take(ask)?;
    let index = ask.index();
    let query = Query::new(index, &filter)?;
    let whole = index.analysis();
    let at: HashMap<u32, usize> =
        whole.groups().iter().enumerate().map(|(i, g)| (g.node, i)).collect();
    let (matched, _) = query.sums(By::Stacks, whole.groups().len(), None)?;
    let matched: Vec<Group> = matched
        .into_iter()
        .filter_map(|g| Some(Group { node: whole.groups().get(g.node as usize)?.node, ..g }))
        .collect();
    let clock = Clock::of(index);
    let all =
        |g: &Group| at.get(&g.node).and_then(|i| whole.groups().get(*i)).copied().unwrap_or(*g);
    let mut rows: Vec<(u64, Group)> =
        matched.iter().map(|g| (key(&clock, &if of_all { all(g) } else { *g }), *g)).collect();
    rows.sort_by_key(|(k, g)| (if reverse { !*k } else { *k }, g.node));
    let own = sizes(&query, index)?;
    let every = match query.is_all() {
        true => own.clone(),
        false => sizes(&Query::new(index, &Filter::default())?, index)?,
    };
    let frames = Frames::new(ask.open.names(), index, strip);
    let none = (u64::MAX, 0);
    let id = &ask.recording.id;
    let page: Vec<Value> = rows
        .iter()
        .skip(skip)
        .take(count)
        .map(|(_, g)| {
            let i = at.get(&g.node).copied().unwrap_or(usize::MAX);
            let urls = |filter: &str| graphs.then(|| graph::urls(id, g.node, filter));
            let (of_all, of_own) = (urls(""), urls(&given));
            let range = |sizes: &[(u64, u64)]| sizes.get(i).copied().unwrap_or(none);
            json!({
                "all": figures(&clock, &all(g), range(&every), true, of_all),
                "only_matched": figures(&clock, g, range(&own), false, of_own),
                "backtrace_id": g.node,
                "backtrace": frames.stack(g.node),
            })
        })
        .collect();
    Answer::json(&json!({ "allocations": page, "total_count": rows.len() }))
}

/// Stacks.
pub(super) fn backtraces(mut ask: Ask) -> Result<(Answer, Writer), Failure> {
    let strip = ask.params.switch("strip_template_args")?.unwrap_or(false);
    let filter = filter::take(&mut ask)?;
    let open = ask.open.clone();
    let matched = Query::new(&open.index, &filter)?.analysis(None)?;
    let nodes: Vec<u32> = matched.groups().iter().map(|g| g.node).collect();
    let own = open.clone();
    let writer: Writer = Box::new(move |out| {
        let frames = Frames::new(own.names(), &own.index, strip);
        out.write_all(b"{\"backtraces\":[").map_err(written)?;
        for (i, node) in nodes.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(out, "{comma}{}", frames.stack(*node)).map_err(written)?;
        }
        write!(out, "],\"total_count\":{}}}", nodes.len()).map_err(written)
    });
    Ok((Answer::new(JSON, ""), writer))
}

/// Answers with one stack.
pub(super) fn backtrace(ask: &mut Ask) -> Result<Answer, Failure> {
    let strip = ask.params.switch("strip_template_args")?.unwrap_or(false);
    let missing = || Failure::missing("there is no such backtrace");
    let node: u32 = ask.variable("backtrace_id").parse().map_err(|_| missing())?;
    let index = ask.index();
    if node != 0 && index.analysis().meta().stack(node).is_empty() {
        return Err(missing());
    }
    if node == 0 && !index.analysis().groups().iter().any(|g| g.node == 0) {
        return Err(missing());
    }
    let frames = Frames::new(ask.open.names(), index, strip);
    Answer::json(&json!({ "frames": frames.stack(node) }))
}

/// The addresses of every block's stack, by time. Blocks come in windows, so that their number does not matter.
pub(super) fn raw_allocations(ask: Ask) -> Result<(Answer, Writer), Failure> {
    let open = ask.open;
    let writer: Writer = Box::new(move |out| {
        let index = &open.index;
        let query = Query::new(index, &Filter::default()).map_err(|e| e.to_string())?;
        let meta = index.analysis().meta();
        let text = |node: u32| {
            let pcs =
                meta.stack(node).into_iter().rev().map(|pc| format!("\"{:016X}\"", pc.address));
            format!("{{\"backtrace\":[{}]}}", pcs.collect::<Vec<_>>().join(","))
        };
        let stacks: Vec<String> = index.analysis().groups().iter().map(|g| text(g.node)).collect();
        let (mut failed, mut first) = (None, true);
        out.write_all(b"[").map_err(written)?;
        query
            .in_order(Ticks::MAX, |e| {
                if !e.begins() || failed.is_some() {
                    return;
                }
                let stack = stacks.get(e.group as usize).map_or("{\"backtrace\":[]}", |s| s);
                let comma = if std::mem::take(&mut first) { "" } else { "," };
                failed = write!(out, "{comma}{stack}").err();
            })
            .map_err(|e| e.to_string())?;
        match failed {
            Some(e) => Err(written(e)),
            None => out.write_all(b"]").map_err(written),
        }
    });
    Ok((Answer::new(JSON, ""), writer))
}

/// Stretches of addresses that are kept while they are put together.
const MOST_STRETCHES: usize = 4 << 20;

/// The addresses that the selected blocks took.
pub(super) fn regions(ask: &mut Ask) -> Result<Answer, Failure> {
    let filter = filter::take(ask)?;
    let index = ask.index();
    let query = Query::new(index, &filter)?;
    let (mut selection, mut addrs, mut sizes) = (Selection::default(), Vec::new(), Vec::new());
    let (mut all, mut too_many): (Vec<(u64, u64)>, bool) = (Vec::new(), false);
    index.each(|block| {
        query.select(block, &mut selection)?;
        if selection.rows.is_empty() || too_many {
            return Some(());
        }
        block.read(Column::Addr, &mut addrs)?;
        block.read(Column::Size, &mut sizes)?;
        all.extend(selection.rows.iter().map(|&i| {
            let (addr, size) = (addrs[i as usize], sizes[i as usize]);
            (addr, addr.saturating_add(size))
        }));
        if all.len() > MOST_STRETCHES {
            merge(&mut all);
            too_many = all.len() > MOST_STRETCHES / 2;
        }
        Some(())
    })?;
    if too_many {
        return Err(Failure::bad("the selected blocks lie in too many places; narrow the filter"));
    }
    merge(&mut all);
    let (start, end) = (all.first().map_or(0, |r| r.0), all.last().map_or(0, |r| r.1));
    let heap = main_heap(index).unwrap_or((start, end));
    let regions: Vec<[u64; 2]> = all.iter().map(|r| [r.0, r.1]).collect();
    Answer::json(&json!({
        "main_heap_start": heap.0,
        "main_heap_end": heap.1,
        "main_heap_start_s": format!("{:016X}", heap.0),
        "main_heap_end_s": format!("{:016X}", heap.1),
        "regions": regions,
    }))
}

/// Returns where the blocks of glibc's main arena lie.
fn main_heap(index: &Index) -> Option<(u64, u64)> {
    let mut filter = Filter::default();
    filter.set("arena", "main").ok()?;
    let query = Query::new(index, &filter).ok()?;
    let (mut selection, mut addrs, mut sizes) = (Selection::default(), Vec::new(), Vec::new());
    let mut heap: Option<(u64, u64)> = None;
    index
        .each(|block| {
            query.select(block, &mut selection)?;
            if !selection.rows.is_empty() {
                block.read(Column::Addr, &mut addrs)?;
                block.read(Column::Size, &mut sizes)?;
            }
            for &i in &selection.rows {
                let addr = addrs[i as usize];
                let end = addr.saturating_add(sizes[i as usize]);
                heap = Some(heap.map_or((addr, end), |(a, b)| (a.min(addr), b.max(end))));
            }
            Some(())
        })
        .ok()?;
    heap
}

/// Sorts stretches, and joins those that adjoin or overlap.
fn merge(all: &mut Vec<(u64, u64)>) {
    all.sort_unstable();
    let mut kept: Vec<(u64, u64)> = Vec::new();
    for &(from, to) in all.iter() {
        match kept.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => kept.push((from, to)),
        }
    }
    *all = kept;
}
