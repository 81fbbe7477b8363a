//! The mappings of the process, as far as recordings have them.

use super::reports::MOST_ROWS;
use crate::ask::Ask;
use crate::reply::{Answer, Failure};
use prof_analyze::maps::{Map, MapData, MapFilter, MapSort, Maps, PageAsk, Shower};
use serde_json::{Value, json};

/// The header that says what a recording lacks.
pub(crate) const NOT_RECORDED: &str = "x-prof-not-recorded";
/// Greatest number of mappings that can be passed over.
const MOST_SKIPPED: u64 = 1_000_000;
const SORTS: [(&str, MapSort); 6] = [
    ("size", MapSort::Size),
    ("rss", MapSort::Rss),
    ("peak-rss", MapSort::PeakRss),
    ("time", MapSort::Time),
    ("address", MapSort::Address),
    ("mapped", MapSort::Time),
];

/// Says in a header that the recording has no mappings, if so.
pub(crate) fn with_header(answer: Answer, maps: &Maps) -> Answer {
    if maps.is_recorded() { answer } else { answer.with(NOT_RECORDED, "maps") }
}

fn row(m: &Map, data: &MapData) -> Value {
    let bit = |is: bool, letter| if is { letter } else { '-' };
    let perms: String = [
        bit(data.is_readable, 'r'),
        bit(data.is_writable, 'w'),
        bit(data.is_executable, 'x'),
        if data.is_shared { 's' } else { 'p' },
    ]
    .iter()
    .collect();
    json!({
        "id": m.id,
        "address": format!("{:#x}", m.address),
        "end": format!("{:#x}", m.address.saturating_add(m.size)),
        "size": m.size,
        "peak_size": m.peak_size,
        "perms": perms,
        "name": data.name,
        "kind": data.kind,
        "mapped_ns": data.begun.ns(),
        "before": m.before,
        "caught": data.caught,
        "unmapped_ns": data.deallocation.as_ref().map(|d| d.ns),
        "rss": data.rss,
        "peak_rss": m.peak_rss,
        "usage": data.usage,
        "thread": data.source.as_ref().map(|s| s.thread),
        "stack": data.source.as_ref().map(|s| s.backtrace_id),
    })
}

/// A page of the mappings.
pub(crate) fn maps(ask: &mut Ask) -> Result<Answer, Failure> {
    let sort = ask.params.one_of("sort", &SORTS)?.unwrap_or_default();
    let reverse = ask.params.switch("reverse")?.unwrap_or(false);
    let skip = ask.params.number("skip", MOST_SKIPPED)?.unwrap_or(0) as usize;
    let count = ask.params.number("count", MOST_ROWS)?.unwrap_or(20).max(1) as usize;
    let mut filter = MapFilter::default();
    for (name, value) in ask.params.take_fields(|n| prof_analyze::maps::find(n).is_some()) {
        filter.set(&name, &value).map_err(|e| Failure::of(&name, e))?;
    }
    let maps = ask.open.maps()?;
    let analysis = ask.index().analysis();
    filter.check(analysis.meta()).map_err(|e| Failure::of("filter", e))?;
    let page = PageAsk { sort, reverse, skip, count, ..PageAsk::default() };
    let page = maps.page(analysis, &filter, &page, |_| {});
    let mut shower = Shower::new(analysis);
    let mut stacks = serde_json::Map::new();
    let rows: Vec<Value> = page
        .maps
        .iter()
        .map(|m| {
            let data = shower.map(m, false, false);
            put_stack(ask, &data, &mut stacks);
            row(m, &data)
        })
        .collect();
    let answer = Answer::json(&json!({
        "recorded": maps.is_recorded(),
        "why": (!maps.is_recorded()).then(|| {
            let why = prof_analyze::maps::why_unrecorded(analysis.meta());
            format!("this recording holds no mappings: {why}")
        }),
        "total_count": page.total,
        "rows": rows,
        "stacks": stacks,
    }))?;
    Ok(with_header(answer, maps))
}

fn put_stack(ask: &Ask, data: &MapData, stacks: &mut serde_json::Map<String, Value>) {
    if let Some(source) = &data.source {
        let stack = super::blocks::stack(ask.open.names(), ask.index(), source.backtrace_id);
        stacks.insert(source.backtrace_id.to_string(), stack);
    }
}

/// Answers with one mapping, its regions and its use over time.
pub(crate) fn map(ask: &mut Ask) -> Result<Answer, Failure> {
    let missing = || Failure::missing("there is no such mapping in this recording");
    let id: u32 = ask.variable("n").parse().map_err(|_| missing())?;
    let maps = ask.open.maps()?;
    let m = maps.get(id).ok_or_else(missing)?;
    let data = Shower::new(ask.index().analysis()).map(&m, true, true);
    let mut stacks = serde_json::Map::new();
    put_stack(ask, &data, &mut stacks);
    let regions: Vec<Value> = data
        .regions
        .iter()
        .flatten()
        .map(|r| {
            let mut v = json!(r);
            v["address"] = format!("{:#x}", r.address).into();
            v["from_ns"] = r.begun.ns().into();
            v["to_ns"] = r.deallocation.as_ref().map(|d| d.ns).into();
            v
        })
        .collect();
    let usage: Vec<Value> = data
        .usage_history
        .iter()
        .flatten()
        .map(|u| {
            json!({
                "at_ns": u.at.ns(),
                "size": u.address_space,
                "rss": u.rss,
                "anonymous": u.anonymous,
                "dirty": u.shared_dirty.saturating_add(u.private_dirty),
                "clean": u.shared_clean.saturating_add(u.private_clean),
                "swap": u.swap,
                "huge": u.huge,
            })
        })
        .collect();
    Answer::json(
        &json!({ "map": row(&m, &data), "regions": regions, "usage": usage, "stacks": stacks }),
    )
}
