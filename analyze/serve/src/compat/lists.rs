//! The recordings, their timelines, and what recordings don't have.

use super::filter;
use super::shape::{Clock, Frames, timeval};
use crate::api::{NOT_RECORDED, with_header};
use crate::ask::Ask;
use crate::params::Params;
use crate::reply::{Answer, Failure};
use crate::state::{Recording, Shared, State};
use prof_analyze::Index;
use prof_analyze::load::MapEvent;
use prof_analyze::maps::{MapSort, PageAsk, Shower, Totals};
use prof_analyze::query::{Band, Filter, Query, Span, Timeline};
use serde_json::{Value, json};
use std::sync::Arc;

/// Number of points of a timeline.
const POINTS: usize = 1000;
/// Greatest number of mappings of a reply.
const MOST: u64 = 100_000;

/// The recordings that could be read.
pub(super) fn list(shared: &Arc<Shared>, _: &mut Params) -> Result<Answer, Failure> {
    let metadata = |r: &Arc<Recording>| match r.state() {
        State::Ready(open) => Some(metadata(&r.id, &open)),
        _ => None,
    };
    let all: Vec<Value> = shared.recordings().iter().filter_map(metadata).collect();
    Ok(Answer::json(&all)?.with(NOT_RECORDED, "jemalloc"))
}

/// Returns a command line in one text: arguments with blanks in quotes, and without the empty rest that programs leave
/// which set their title.
fn command_line(arguments: &[String]) -> String {
    let last = arguments.iter().rposition(|a| !a.trim_end().is_empty());
    let quote = |(i, a): (usize, &String)| {
        let a = if Some(i) == last { a.trim_end() } else { a };
        if a.contains(' ') { format!("\"{a}\"") } else { a.to_owned() }
    };
    let arguments = arguments.iter().take(last.map_or(0, |i| i + 1));
    arguments.enumerate().map(quote).collect::<Vec<_>>().join(" ")
}

fn metadata(id: &str, open: &crate::state::Open) -> Value {
    let analysis = open.index.analysis();
    let target = &analysis.meta().target;
    let depth = analysis.groups().iter().map(|g| analysis.meta().stack(g.node).len()).max();
    json!({
        "id": id,
        "executable": target.exe,
        "cmdline": command_line(&target.cmdline),
        "architecture": target.arch,
        "final_allocated": analysis.totals().figures.live_bytes,
        "final_allocated_count": analysis.totals().figures.live_count,
        "runtime": timeval(analysis.duration_ns()),
        "unique_backtrace_count": analysis.groups().len(),
        "maximum_backtrace_depth": depth.unwrap_or(0),
        "timestamp": timeval(target.wall_ns),
    })
}

/// Returns the columns' times, and the time of the end.
fn xs(clock: &Clock<'_>, t: &Timeline) -> Vec<u64> {
    t.edges_ns.iter().map(|ns| clock.unix_ms(*ns)).collect()
}

/// Appends the value at the end to the greatest of each column.
fn most(band: &Band) -> Vec<u64> {
    band.max.iter().chain(band.last.last()).copied().collect()
}

fn less(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}

fn of(ask: &Ask, filter: &Filter) -> Result<Answer, Failure> {
    let index = ask.index();
    let query = Query::new(index, filter)?;
    let t = query.timeline(&Span::whole(index, POINTS), false)?;
    let counts = |i: usize| t.allocations[i].saturating_add(t.reallocations[i]);
    let n = t.allocations.len();
    let with_end = |v: Vec<i64>| v.into_iter().chain([0]).collect::<Vec<_>>();
    let size = (0..n).map(|i| less(t.allocated_bytes[i], t.freed_bytes[i])).collect();
    let count = (0..n).map(|i| less(counts(i), t.ends[i])).collect();
    let begun: Vec<u64> = (0..n).map(counts).chain([0]).collect();
    let ended: Vec<u64> = t.ends.iter().copied().chain([0]).collect();
    Answer::json(&json!({
        "xs": xs(&Clock::of(index), &t),
        "size_delta": with_end(size),
        "count_delta": with_end(count),
        "allocated_size": most(&t.live_bytes),
        "allocated_count": most(&t.live_blocks),
        "allocations": begun,
        "deallocations": ended,
    }))
}

/// Figures over time.
pub(super) fn timeline(ask: &mut Ask) -> Result<Answer, Failure> {
    of(ask, &Filter::default())
}

/// Figures over time of the blocks that are never freed.
pub(super) fn timeline_leaked(ask: &mut Ask) -> Result<Answer, Failure> {
    let mut filter = Filter::default();
    filter.set("lifetime", "leaked").map_err(|e| Failure::internal(e.to_string()))?;
    of(ask, &filter)
}

/// The memory of the process over time, at the moments at which prof looked.
pub(super) fn timeline_maps(ask: &mut Ask) -> Result<Answer, Failure> {
    let maps = ask.open.maps()?;
    if !maps.is_recorded() {
        return resident(ask);
    }
    let clock = Clock::of(ask.index());
    let line = |of: fn(&Totals) -> u64| -> Vec<u64> { maps.totals().iter().map(of).collect() };
    Answer::json(&json!({
        "xs": maps.totals().iter().map(|t| clock.unix_ms(clock.ns(t.ticks))).collect::<Vec<_>>(),
        "address_space": line(|t| t.address_space),
        "rss": line(|t| t.rss),
        "anonymous": line(|t| t.anonymous),
        "dirty": line(|t| t.dirty),
        "clean": line(|t| t.clean),
        "swap": line(|t| t.swap),
    }))
}

/// The resident set and the address space over time, of recordings without mappings.
fn resident(ask: &Ask) -> Result<Answer, Failure> {
    let index = ask.index();
    let query = Query::new(index, &Filter::default())?;
    let t = query.timeline(&Span::whole(index, POINTS), false)?;
    let values = |b: &Option<Band>| b.as_ref().map(most).unwrap_or_default();
    let (rss, vss) = (values(&t.rss), values(&t.vss));
    let none = vec![0u64; rss.len()];
    let known = !rss.is_empty();
    let answer = Answer::json(&json!({
        "xs": if known { xs(&Clock::of(index), &t) } else { Vec::new() },
        "address_space": vss,
        "rss": rss,
        "anonymous": none,
        "dirty": none,
        "clean": none,
        "swap": none,
    }))?;
    let lacking = "anonymous, dirty, clean, swap";
    let all = format!("rss, address_space, {lacking}");
    Ok(answer.with(NOT_RECORDED, if known { lacking.to_owned() } else { all }))
}

const SORTS: [(&str, MapSort); 4] = [
    ("timestamp", MapSort::Time),
    ("address", MapSort::Address),
    ("size", MapSort::Size),
    ("peak_rss", MapSort::PeakRss),
];

/// Mappings.
pub(super) fn maps(ask: &mut Ask) -> Result<Answer, Failure> {
    let sort = ask.params.one_of("sort_by", &SORTS)?.unwrap_or(MapSort::Time);
    let descending = ask.params.one_of("order", &[("asc", false), ("dsc", true)])?.unwrap_or(false);
    let skip = ask.params.number("skip", MOST)?.unwrap_or(0) as usize;
    let count = ask.params.number("count", MOST)?.unwrap_or(MOST) as usize;
    let regions = ask.params.switch("with_regions")?.unwrap_or(false);
    let history = ask.params.switch("with_usage_history")?.unwrap_or(false);
    let filter = filter::of_maps(&mut ask.params, ask.open.index.analysis())?;
    let maps = ask.open.maps()?;
    let analysis = ask.index().analysis();
    // Sizes are sorted with the largest first there.
    let falling = matches!(sort, MapSort::Size | MapSort::PeakRss);
    let reverse = descending != falling;
    let page = PageAsk { sort, reverse, skip, count, ..PageAsk::default() };
    let page = maps.page(analysis, &filter, &page, |_| {});
    let frames = Frames::new(ask.open.names(), ask.index(), false);
    let mut shower = Shower::new(analysis);
    let rows: Vec<Value> = page
        .maps
        .iter()
        .map(|m| {
            let mut v = json!(shower.map(m, regions, history));
            in_frames(&mut v, &frames);
            v
        })
        .collect();
    let answer = Answer::json(&json!({ "maps": rows, "total_count": page.total }))?;
    Ok(with_header(answer, maps))
}

/// Gives the stacks of a mapping bytehound's frames.
fn in_frames(v: &mut Value, frames: &Frames<'_>) {
    match v {
        Value::Object(fields) => {
            let node = fields.get("backtrace_id").and_then(Value::as_u64);
            if let Some(node) = node.and_then(|n| u32::try_from(n).ok()) {
                fields.insert("backtrace".into(), frames.stack(node));
            }
            fields.iter_mut().filter(|f| f.0 != "backtrace").for_each(|f| in_frames(f.1, frames));
        }
        Value::Array(all) => all.iter_mut().for_each(|v| in_frames(v, frames)),
        _ => {}
    }
}

/// Names of `mallopt`'s parameters, as glibc's `malloc.h` has them.
const PARAMETERS: [(i32, &str); 12] = [
    (1, "M_MXFAST"),
    (2, "M_NLBLKS"),
    (3, "M_GRAIN"),
    (4, "M_KEEP"),
    (-1, "M_TRIM_THRESHOLD"),
    (-2, "M_TOP_PAD"),
    (-3, "M_MMAP_THRESHOLD"),
    (-4, "M_MMAP_MAX"),
    (-5, "M_CHECK_ACTION"),
    (-6, "M_PERTURB"),
    (-7, "M_ARENA_TEST"),
    (-8, "M_ARENA_MAX"),
];

/// Returns whether calls of `mallopt` are in a recording; an earlier prof did not hook it.
fn has_settings(index: &Index) -> bool {
    index.analysis().meta().hooks.hooked.iter().any(|h| h.function == "mallopt")
}

/// Calls of `mallopt`, in the order of time.
pub(super) fn mallopts(ask: &mut Ask) -> Result<Answer, Failure> {
    let strip = ask.params.switch("strip_template_args")?.unwrap_or(false);
    let index = ask.index();
    let meta = index.analysis().meta();
    let (clock, frames) = (Clock::of(index), Frames::new(ask.open.names(), index, strip));
    let row = |e: &MapEvent| {
        let c = &e.call;
        let mut v = serde_json::Map::new();
        clock.put(&mut v, "timestamp", clock.ns(c.end));
        let raw = c.flags as i32;
        let known = PARAMETERS.iter().find(|p| p.0 == raw);
        v.insert("thread".into(), meta.threads.get(&e.thread).map_or(0, |t| t.tid).into());
        v.insert("backtrace_id".into(), c.node.into());
        v.insert("backtrace".into(), frames.stack(c.node));
        v.insert("raw_param".into(), raw.into());
        if let Some((_, name)) = known {
            v.insert("param".into(), (*name).into());
        }
        v.insert("value".into(), c.value.into());
        v.insert("result".into(), c.result.into());
        Value::from(v)
    };
    let rows: Vec<Value> = ask.open.settings()?.iter().map(row).collect();
    let answer = Answer::json(&rows)?;
    Ok(match has_settings(index) {
        true => answer,
        false => answer.with(NOT_RECORDED, "mallopts"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_end_with_their_last_argument() {
        let line = |a: &[&str]| command_line(&a.iter().map(|a| (*a).into()).collect::<Vec<_>>());
        assert_eq!(line(&["cat", "a b", "c"]), "cat \"a b\" c");
        assert_eq!(line(&["nginx: worker process   ", "", " "]), "\"nginx: worker process\"");
        assert_eq!(line(&["echo", "", "x "]), "echo  x");
        assert_eq!(line(&["", ""]), "");
        assert_eq!(line(&[]), "");
    }
}
