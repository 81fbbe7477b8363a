//! Figures over time.

use crate::ask::Ask;
use crate::data;
use crate::names::Names;
use crate::reply::{Answer, Failure};
use prof_analyze::Analysis;
use prof_analyze::maps::{MapsTimeline, Totals};
use prof_analyze::query::value;
use prof_analyze::query::{Band, By, Query, Span, Timeline};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Greatest number of columns.
const WIDEST: u64 = 4096;
/// Greatest number of parts of a stacked timeline.
const MOST_PARTS: u64 = 32;

/// Takes a moment, in nanoseconds; a plain number is nanoseconds here.
fn ns(ask: &mut Ask, name: &str) -> Result<Option<u64>, Failure> {
    let Some(text) = ask.params.take(name)? else { return Ok(None) };
    if let Ok(ns) = text.parse() {
        return Ok(Some(ns));
    }
    let time = value::time(&text).map_err(|e| Failure::of(name, e))?;
    Ok(Some(time.ns(ask.index().analysis().duration_ns())))
}

/// Takes the window of a timeline.
pub(super) fn span(ask: &mut Ask, width: usize) -> Result<Span, Failure> {
    let opened = ask.index().analysis().duration_ns();
    let now = if ask.in_place { ask.now(|f, _| f.follower.duration_ns()) } else { None };
    let whole = now.unwrap_or(opened);
    let from_ns = ns(ask, "start")?.unwrap_or(0);
    let to_ns = ns(ask, "end")?.unwrap_or(whole).min(whole.max(1));
    if from_ns >= to_ns && whole > 0 {
        return Err(Failure::of("start", "is not before the end of the window"));
    }
    Ok(Span { from_ns, to_ns, width })
}

fn band(b: &Band) -> Value {
    json!({ "min": b.min, "max": b.max, "last": b.last })
}

/// Returns the memory that the process holds beyond the live blocks, where both are known.
fn beyond(rss: &Band, live: &Band) -> Value {
    let less = |a: &[u64], b: &[u64]| -> Vec<u64> {
        a.iter().zip(b).map(|(a, b)| a.saturating_sub(*b)).collect()
    };
    json!({
        "min": less(&rss.min, &live.max),
        "max": less(&rss.max, &live.min),
        "last": less(&rss.last, &live.last),
    })
}

/// Returns the running sum of what was allocated and is never freed.
fn running(before: u64, added: &[u64]) -> Value {
    let mut sum = before;
    let last: Vec<u64> = added
        .iter()
        .map(|n| {
            sum = sum.saturating_add(*n);
            sum
        })
        .collect();
    let min: Vec<u64> =
        std::iter::once(before).chain(last.iter().copied()).take(last.len()).collect();
    json!({ "min": min, "max": last, "last": last, "sum": added })
}

/// Returns the series of a timeline, those that are asked for.
pub(super) fn series(t: &Timeline, wanted: &[String]) -> Result<Value, Failure> {
    let sum = |v: &[u64]| json!({ "sum": v });
    let mut all = Map::new();
    let mut put = |name: &str, value: &dyn Fn() -> Value| {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            all.insert(name.to_owned(), value());
        }
    };
    put("live_bytes", &|| band(&t.live_bytes));
    put("live_blocks", &|| band(&t.live_blocks));
    put("allocations", &|| sum(&t.allocations));
    put("reallocations", &|| sum(&t.reallocations));
    put("frees", &|| sum(&t.frees));
    put("ends", &|| sum(&t.ends));
    put("allocated_bytes", &|| sum(&t.allocated_bytes));
    put("freed_bytes", &|| sum(&t.freed_bytes));
    put("temporary", &|| sum(&t.temporary));
    put("leaked_bytes", &|| running(t.leaked_before.0, &t.leaked_bytes));
    put("leaked_blocks", &|| running(t.leaked_before.1, &t.leaked_blocks));
    put("rss", &|| t.rss.as_ref().map_or(Value::Null, band));
    put("vss", &|| t.vss.as_ref().map_or(Value::Null, band));
    put("fragmentation", &|| t.rss.as_ref().map_or(Value::Null, |r| beyond(r, &t.live_bytes)));
    if let Some(unknown) = wanted.iter().find(|w| !all.contains_key(*w)) {
        return Err(Failure::of("series", format!("there is no {unknown:?}")));
    }
    Ok(all.into())
}

/// A sum over all mappings.
type Sum = fn(&Totals) -> u64;

/// The series that come from the collector's looks at the mappings of the process.
const OF_MAPPINGS: [(&str, Sum); 4] = [
    ("anonymous", |t| t.anonymous),
    ("dirty", |t| t.dirty),
    ("clean", |t| t.clean),
    ("swap", |t| t.swap),
];

/// Returns a sum over all mappings for each column: null before the first look, and if the recording has no mappings.
/// `looks`: the time of each look, in nanoseconds, and what it found.
fn of_mappings(looks: &[(u64, &Totals)], edges_ns: &[u64], sum: Sum) -> Value {
    if looks.is_empty() {
        return Value::Null;
    }
    let (mut min, mut max, mut last) = (Vec::new(), Vec::new(), Vec::new());
    let start = edges_ns.first().copied().unwrap_or(0);
    let mut next = looks.partition_point(|(at, _)| *at < start);
    let mut now = next.checked_sub(1).map(|i| sum(looks[i].1));
    for edges in edges_ns.windows(2) {
        let (mut least, mut most) = (now, now);
        while let Some((_, totals)) = looks.get(next).filter(|(at, _)| *at <= edges[1]) {
            let value = sum(totals);
            least = Some(least.map_or(value, |l| value.min(l)));
            most = Some(most.map_or(value, |m| value.max(m)));
            now = Some(value);
            next += 1;
        }
        min.push(least);
        max.push(most);
        last.push(now);
    }
    json!({ "min": min, "max": max, "last": last })
}

/// Returns the series that are asked for: those of the timeline, and those of the mappings.
fn all_series(
    ask: &Ask,
    span: &Span,
    timeline: &Timeline,
    wanted: &[String],
) -> Result<Value, Failure> {
    let is_of_mappings =
        |name: &String| OF_MAPPINGS.iter().any(|(n, _)| n == name) || MapsTimeline::has_name(name);
    let of_blocks: Vec<String> = wanted.iter().filter(|w| !is_of_mappings(w)).cloned().collect();
    let is_any = wanted.is_empty() || !of_blocks.is_empty();
    let mut all = if is_any { series(timeline, &of_blocks)? } else { json!({}) };
    add_mappings(ask, span, &timeline.edges_ns, wanted, &mut all)?;
    Ok(all)
}

/// Adds the sums over mappings by kind and their like (`maps_kind_code`, `maps_rss`), which are there only by name. A kind
/// of which nothing ever was resident is 0.
fn add_kinds(ask: &Ask, span: &Span, wanted: &[String], all: &mut Value) -> Result<(), Failure> {
    let mut names = wanted.iter().filter(|w| MapsTimeline::has_name(w)).peekable();
    if names.peek().is_none() {
        return Ok(());
    }
    let analysis = ask.index().analysis();
    let timeline = ask.open.maps()?.timeline(span, &analysis.meta().clock, analysis.end_ticks());
    let bands = timeline.as_ref().map_or(Vec::new(), MapsTimeline::bands);
    for name in names {
        let found = bands.iter().find(|b| b.0 == *name).map(|b| band(b.1));
        let none = || vec![0u64; span.width];
        let still = || json!({ "min": none(), "max": none(), "last": none() });
        let unknown = || if timeline.is_some() { still() } else { Value::Null };
        all[name] = found.unwrap_or_else(unknown);
    }
    Ok(())
}

/// Adds the series that come from the mappings, those that are asked for.
fn add_mappings(
    ask: &Ask,
    span: &Span,
    edges_ns: &[u64],
    wanted: &[String],
    all: &mut Value,
) -> Result<(), Failure> {
    add_kinds(ask, span, wanted, all)?;
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    if !OF_MAPPINGS.iter().any(|(name, _)| is_wanted(name)) {
        return Ok(());
    }
    let clock = &ask.index().analysis().meta().clock;
    let totals = ask.open.maps()?.totals();
    let looks: Vec<(u64, &Totals)> = totals.iter().map(|t| (clock.ns(t.ticks), t)).collect();
    for (name, sum) in OF_MAPPINGS.into_iter().filter(|(name, _)| is_wanted(name)) {
        all[name] = of_mappings(&looks, edges_ns, sum);
    }
    Ok(())
}

/// Returns the middle of the first column with the most live bytes. The exact time of a filter's peak would need all
/// events in their order.
fn highest(t: &Timeline) -> Option<u64> {
    let most = t.live_bytes.max.iter().max().filter(|most| **most > 0)?;
    let at = t.live_bytes.max.iter().position(|bytes| bytes == most)?;
    let (from, to) = (*t.edges_ns.get(at)?, *t.edges_ns.get(at + 1)?);
    Some(from + to.saturating_sub(from) / 2)
}

/// Returns the pauses between the parts of a recording, and what else happened at a moment.
fn marks(analysis: &Analysis, peak_ns: Option<u64>) -> (Vec<Value>, Vec<Value>) {
    let clock = &analysis.meta().clock;
    let parts = analysis.parts();
    let pauses = parts
        .windows(2)
        .map(|two| json!({ "start_ns": clock.ns(two[0].end), "end_ns": clock.ns(two[1].start) }));
    let peak = |at_ns| json!({ "kind": "peak", "at_ns": at_ns, "label": "peak of live bytes" });
    let mut marks: Vec<Value> = peak_ns.into_iter().map(peak).collect();
    marks.extend(parts.iter().enumerate().skip(1).map(|(i, p)| {
        json!({ "kind": "part", "at_ns": clock.ns(p.start), "label": format!("part {}", i + 1) })
    }));
    (pauses.collect(), marks)
}

/// The classes that a stacked timeline is divided into.
#[derive(Clone, Copy)]
enum Parts {
    Stack,
    Function,
    Module,
    Thread,
}

const PARTS: [(&str, Parts); 4] = [
    ("stack", Parts::Stack),
    ("function", Parts::Function),
    ("module", Parts::Module),
    ("thread", Parts::Thread),
];

/// The figures of the selected blocks over time.
pub(crate) fn timeline(ask: &mut Ask) -> Result<Answer, Failure> {
    let width = ask.params.number("width", WIDEST)?.unwrap_or(1000).max(1) as usize;
    let span = span(ask, width)?;
    let exact = ask.params.switch("exact")?.unwrap_or(false);
    let wanted: Vec<String> = ask.params.take("series")?.map_or(Vec::new(), |text| {
        text.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect()
    });
    if ask.in_place
        && let Some(now) = ask.now(|f, like| (f.analysis(like), f.follower.timeline(&span)))
    {
        let (analysis, timeline) = (now.0?, now.1);
        let series = all_series(ask, &span, &timeline, &wanted)?;
        let peak = Some(analysis.peak_at_ns());
        return reply(&analysis, peak, &span, &timeline, series, None);
    }
    let by = ask.params.one_of("by", &PARTS)?;
    let top = ask.params.number("top", MOST_PARTS)?.unwrap_or(8) as usize;
    let filter = ask.params.filter()?;
    let query = data::query(ask, &filter)?;
    let timeline = query.timeline(&span, exact)?;
    let stacked = by.map(|by| stacked(ask, &query, &span, by, top)).transpose()?;
    let whole = ask.index().analysis();
    let peak = if query.is_all() { Some(whole.peak_at_ns()) } else { highest(&timeline) };
    let series = all_series(ask, &span, &timeline, &wanted)?;
    reply(whole, peak, &span, &timeline, series, stacked)
}

/// Returns the figures over time of a recording's selected blocks, with a mark at their peak.
fn reply(
    whole: &Analysis,
    peak_ns: Option<u64>,
    span: &Span,
    timeline: &Timeline,
    series: Value,
    stacked: Option<Value>,
) -> Result<Answer, Failure> {
    let (pauses, marks) = marks(whole, peak_ns);
    Answer::json(&json!({
        "from_ns": span.from_ns,
        "to_ns": span.to_ns,
        "step_ns": (span.to_ns - span.from_ns) as f64 / span.width as f64,
        "count": span.width,
        "duration_ns": whole.duration_ns(),
        "within_ns": timeline.within_ns,
        "series": series,
        "stacked": stacked,
        "pauses": pauses,
        "marks": marks,
    }))
}

/// Returns for each group of the recording the name of its part, and the number of its stack.
fn name(by: Parts, names: &Names, node: u32) -> (String, Option<u32>) {
    let asked = names.stack(node).and_then(|s| s.places.get(s.asker));
    let place = asked.map(|p| &names.places[*p as usize]);
    let function = || place.map_or("(no stack)".to_owned(), |p| p.name.to_string());
    match by {
        Parts::Stack => (function(), Some(node)),
        Parts::Module => {
            let module = place.and_then(|p| p.module.as_deref());
            (module.unwrap_or("(no module)").to_owned(), None)
        }
        _ => (function(), None),
    }
}

/// Returns the live bytes of the largest parts over time, and those of all others.
fn stacked(
    ask: &Ask,
    query: &Query<'_>,
    span: &Span,
    by: Parts,
    top: usize,
) -> Result<Value, Failure> {
    let index = ask.index();
    if let Parts::Thread = by {
        return threads(ask, query, span, top);
    }
    let names = ask.open.names();
    let groups = index.analysis().groups();
    // The largest at their peaks or, where these need all events in their order, of all that was allocated.
    let (found, has_peaks) = query.sums(By::Stacks, groups.len(), None)?;
    let mut sums: HashMap<(String, Option<u32>), u64> = HashMap::new();
    for g in &found {
        let (node, f) = (groups.get(g.node as usize).map_or(0, |g| g.node), &g.figures);
        let weight = if has_peaks { f.peak_bytes } else { f.allocated_bytes };
        let sum = sums.entry(name(by, names, node)).or_default();
        *sum = sum.saturating_add(weight);
    }
    let mut largest: Vec<_> = sums.into_iter().collect();
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(top);
    let class_of: HashMap<&(String, Option<u32>), usize> =
        largest.iter().enumerate().map(|(i, (k, _))| (k, i)).collect();
    let others = largest.len();
    let class = |node: u32| class_of.get(&name(by, names, node)).map_or(others, |i| *i) as u32;
    let of: Vec<u32> = index.analysis().groups().iter().map(|g| class(g.node)).collect();
    let lines = query.timelines(span, By::Classes(&of), others + 1)?;
    let label = |i: usize| largest.get(i).map_or(("others", None), |((name, id), _)| (name, *id));
    Ok(lines
        .iter()
        .enumerate()
        .map(|(i, line)| {
            let (name, id) = label(i);
            json!({ "name": name, "id": id, "max": line })
        })
        .collect())
}

fn threads(ask: &Ask, query: &Query<'_>, span: &Span, top: usize) -> Result<Value, Failure> {
    let index = ask.index();
    let numbers = index.thread_numbers();
    let lines = query.timelines(span, By::Threads, numbers.len())?;
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(lines[*i].iter().max().copied()));
    let mut others = vec![0u64; span.width];
    let mut shown = Vec::new();
    for (n, i) in order.into_iter().enumerate() {
        if n >= top {
            others.iter_mut().zip(&lines[i]).for_each(|(o, v)| *o = o.saturating_add(*v));
            continue;
        }
        let thread = index.analysis().meta().threads.get(&numbers[i]);
        let name = thread.map_or("?".to_owned(), |t| format!("{} ({})", t.name, t.tid));
        shown.push(json!({ "name": name, "id": thread.map(|t| t.tid), "max": lines[i] }));
    }
    shown.push(json!({ "name": "others", "id": null, "max": others }));
    Ok(shown.into())
}
