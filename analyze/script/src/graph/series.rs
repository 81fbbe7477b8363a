//! Computes the values of a graph's series over time.

use super::draw::{Line, Plot, Unit};
use super::{Graph, Of, Series, Show};
use crate::error::{Fault, fault, of_scan};
use crate::list::AllocationList;
use crate::maplist::MapList;
use prof_analyze::maps::Map;
use prof_analyze::query::Span;
use prof_trace::ticks::Ticks;
use std::collections::HashSet;

/// Number of columns of a graph.
const COLUMNS: usize = 1000;

/// Up to so many blocks, the greatest values of columns are computed in the order of time; of more, what lasts for less
/// than a small part of a column may be missing from them.
const EXACT: u64 = 4 << 20;

/// Returns for each series the blocks that no series before it has.
pub(super) fn own_lists(graph: &Graph) -> Result<Vec<AllocationList>, Fault> {
    let mut own = Vec::new();
    let mut seen: Option<AllocationList> = None;
    for s in graph.series.iter() {
        let Of::Blocks(list) = &s.of else {
            return Err(fault("flame graphs are of allocations, and this graph shows mappings"));
        };
        let (now, all) = match &seen {
            None => (list.clone(), list.clone()),
            Some(seen) => (list.clone().minus(seen.clone())?, seen.clone().plus(list.clone())?),
        };
        own.push(now);
        seen = Some(all);
    }
    Ok(own)
}

/// Returns for each series the mappings that no series before it has.
fn own_maps(series: &[Series]) -> Result<Vec<MapList>, Fault> {
    let mut seen = HashSet::new();
    series
        .iter()
        .map(|s| match &s.of {
            Of::Maps(list) => {
                let ids = list.ids.iter().copied().filter(|id| seen.insert(*id)).collect();
                Ok(MapList { ids: std::rc::Rc::new(ids), ..list.clone() })
            }
            Of::Blocks(_) => Err(fault("a graph shows either allocations or mappings")),
        })
        .collect()
}

/// The sources of a graph's values.
enum Source {
    Blocks(Vec<AllocationList>, Show),
    Maps(Vec<MapList>, Show),
}

impl Source {
    fn of(graph: &Graph) -> Result<Self, Fault> {
        let of_maps = matches!(graph.series.first(), Some(Series { of: Of::Maps(_), .. }));
        let default = if of_maps { Show::Rss } else { Show::Memory };
        let show = graph.show.unwrap_or(default);
        match (of_maps, matches!(show, Show::Rss | Show::AddressSpace)) {
            (false, false) => Ok(Source::Blocks(own_lists(graph)?, show)),
            (true, true) => Ok(Source::Maps(own_maps(&graph.series)?, show)),
            (false, true) => {
                Err(fault("show_rss and show_address_space are for mappings: add(maps())"))
            }
            (true, false) => Err(fault(
                "mappings have show_rss and show_address_space; the other figures are of allocations",
            )),
        }
    }

    /// Computes the values of all series.
    fn values(&self, span: &Span) -> Result<Vec<Vec<u64>>, Fault> {
        match self {
            Source::Blocks(lists, show) => {
                lists.iter().map(|l| of_blocks(l, *show, span)).collect()
            }
            Source::Maps(lists, show) => lists.iter().map(|l| of_maps(l, *show, span)).collect(),
        }
    }
}

fn of_blocks(list: &AllocationList, show: Show, span: &Span) -> Result<Vec<u64>, Fault> {
    let exact = list.count()? <= EXACT;
    let t = list.query()?.timeline(span, exact).map_err(of_scan)?;
    Ok(match show {
        Show::Live => t.live_blocks.max,
        Show::New => t.allocations.iter().zip(&t.reallocations).map(|(a, r)| a + r).collect(),
        Show::Ended => t.ends,
        Show::Memory | Show::Rss | Show::AddressSpace => t.live_bytes.max,
    })
}

/// Returns the changes of a mapping's memory: moments in nanoseconds, and the value from then on.
fn changes(map: &Map, show: Show, ns: impl Fn(Ticks) -> u64) -> Vec<(u64, u64)> {
    let address_space = show == Show::AddressSpace;
    let mut out: Vec<(u64, u64)> = Vec::new();
    if address_space {
        let size = map.usage.first().map_or(map.size, |u| u.address_space);
        out.push((ns(map.begun), size));
    }
    let value = |u: &prof_analyze::maps::Usage| if address_space { u.address_space } else { u.rss };
    out.extend(map.usage.iter().map(|u| (ns(u.ticks), value(u))));
    out.extend(map.end.map(|e| (ns(e.ticks), 0)));
    out
}

/// Computes the greatest sum of all mappings in each column.
fn of_maps(list: &MapList, show: Show, span: &Span) -> Result<Vec<u64>, Fault> {
    let clock = &list.of.analysis().meta().clock;
    let mut steps: Vec<(u64, i128)> = Vec::new();
    for map in list.maps()? {
        let mut before = 0;
        for (at, value) in changes(&map, show, |ticks| clock.ns(ticks)) {
            steps.push((at, i128::from(value) - i128::from(before)));
            before = value;
        }
    }
    steps.sort_unstable();
    let (mut now, mut at) = (0i128, 0);
    let mut out = Vec::with_capacity(span.width);
    for column in 0..span.width {
        let (from, to) = (span.edge_ns(column), span.edge_ns(column + 1));
        let last = column + 1 == span.width;
        while let Some((_, change)) = steps.get(at).filter(|s| s.0 <= from) {
            (now, at) = (now + change, at + 1);
        }
        let mut most = now;
        while let Some(&(time, _)) = steps.get(at).filter(|s| s.0 < to || last && s.0 <= to) {
            // Changes of one moment belong together: a look sees all mappings at once.
            while let Some((_, change)) = steps.get(at).filter(|s| s.0 == time) {
                (now, at) = (now + change, at + 1);
            }
            most = most.max(now);
        }
        out.push(u64::try_from(most).unwrap_or(0));
    }
    Ok(out)
}

/// Returns the first column with anything, and the one behind the last.
fn used(values: &[Vec<u64>]) -> Option<(usize, usize)> {
    let any = |column: &usize| values.iter().any(|v| v.get(*column).is_some_and(|v| *v > 0));
    let width = values.first()?.len();
    let first = (0..width).find(any)?;
    let last = (0..width).rev().find(any)?;
    Some((first, last + 1))
}

/// Computes a graph.
pub(super) fn plot(graph: &Graph) -> Result<Plot, Fault> {
    let first = graph.series.first();
    let first = first.ok_or_else(|| fault("the graph has no series: add(list) adds one"))?;
    let of = match &first.of {
        Of::Blocks(l) => l.of.clone(),
        Of::Maps(l) => l.of.clone(),
    };
    let runtime = of.runtime_ns();
    let source = Source::of(graph)?;
    let mut span = Span {
        from_ns: graph.start.map_or(0, |d| d.ns()),
        to_ns: graph.end.map_or(runtime, |d| d.ns()),
        width: COLUMNS,
    };
    if span.from_ns >= span.to_ns {
        span.to_ns = span.from_ns + 1;
    }
    let mut values = source.values(&span)?;
    if graph.trim != (false, false)
        && let Some((from, to)) = used(&values)
    {
        let whole = span;
        if graph.trim.0 {
            span.from_ns = whole.edge_ns(from);
        }
        if graph.trim.1 {
            span.to_ns = whole.edge_ns(to).max(span.from_ns + 1);
        }
        values = source.values(&span)?;
    }
    let (unit, show) = match &source {
        Source::Blocks(_, show @ (Show::Live | Show::New | Show::Ended)) => (Unit::Count, *show),
        Source::Blocks(_, show) | Source::Maps(_, show) => (Unit::Bytes, *show),
    };
    let lines = graph.series.iter().zip(values).enumerate().map(|(i, (s, values))| Line {
        number: i,
        label: s.label.clone().or_else(|| s.caption.clone()),
        given: match &s.of {
            Of::Blocks(list) => list.given().to_vec(),
            Of::Maps(_) => Vec::new(),
        },
        values,
    });
    let lines: Vec<Line> = lines.collect();
    // A legend of a great many groups would hide the graph.
    let few = lines.len() <= 16 || graph.series.iter().any(|s| s.label.is_some());
    Ok(Plot {
        span,
        wall_ns: of.analysis().meta().target.wall_ns,
        unit,
        show,
        all: lines.len(),
        legend: few && lines.iter().any(|l| l.label.is_some()),
        lines,
    })
}
