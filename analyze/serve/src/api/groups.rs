//! Groups of blocks: by stack, function, file, module, thread or size.

use super::reports::MOST_ROWS;
use crate::data;
use crate::names::FiguresOf;
use crate::reply::{Answer, Failure};
use crate::route::Ask;
use prof_analyze::model::Group;
use prof_analyze::query::{By, Query, Span};
use prof_analyze::report::{
    Ask as Asked, GroupBy, Grouped, Histogram, Report, ReportOptions, SortKey, ViewOptions,
};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Greatest number of groups that can be skipped.
const MOST_SKIPPED: u64 = 1_000_000;
/// Greatest number of points of the line beside a group.
const MOST_POINTS: u64 = 128;

/// What blocks are grouped by.
#[derive(Clone, Copy)]
enum What {
    Stack,
    Size,
    Other(GroupBy),
}

const WORDS: [(&str, What); 6] = [
    ("stack", What::Stack),
    ("function", What::Other(GroupBy::Function)),
    ("file", What::Other(GroupBy::File)),
    ("module", What::Other(GroupBy::Module)),
    ("thread", What::Other(GroupBy::Thread)),
    ("size", What::Size),
];

fn value(v: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(v).map_err(|e| Failure::internal(e.to_string()))
}

/// A page of groups, with the sums of all others.
pub(crate) fn groups(ask: &mut Ask) -> Result<Answer, Failure> {
    let what = ask.params.one_of("group-by", &WORDS)?.unwrap_or(What::Stack);
    let sort = data::sort(&mut ask.params)?;
    let reverse = ask.params.switch("reverse")?.unwrap_or(false);
    let skip = ask.params.number("skip", MOST_SKIPPED)?.unwrap_or(0) as usize;
    let count = ask.params.number("count", MOST_ROWS)?.unwrap_or(20).max(1) as usize;
    let spark = ask.params.number("spark", MOST_POINTS)?.unwrap_or(0) as usize;
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let filter = ask.params.filter()?;
    let query = data::query(ask, &filter)?;
    let top = skip + count;
    let mut reply = match what {
        What::Stack => {
            let analysis = query.analysis(at)?;
            let options = ReportOptions {
                top,
                sort,
                reverse,
                empty: true,
                depth: 0,
                filter: data::given(&filter),
            };
            value(&Report::new(&analysis, &options))?
        }
        What::Size | What::Other(_) => {
            let options = ViewOptions {
                top,
                sort,
                reverse,
                empty: true,
                at,
                filter: data::given(&filter),
                ..ViewOptions::default()
            };
            let asked = Asked::new(ask.index(), &query, options)?;
            match what {
                What::Other(by) => value(&Grouped::new(&asked, by)?)?,
                _ => value(&Histogram::new(&asked)?)?,
            }
        }
    };
    let rows = ["groups", "rows", "sizes"].iter().find_map(|k| match reply[*k].take() {
        Value::Array(rows) => Some(rows),
        _ => None,
    });
    let mut rows = rows.unwrap_or_default();
    let rest = reply["rest"].take();
    let others = ["groups", "rows"].iter().find_map(|k| rest[*k].as_u64()).unwrap_or(0);
    let total = rows.len() as u64 + others;
    let mut page: Vec<Value> = rows.drain(..).skip(skip).collect();
    if let What::Stack = what {
        beside(ask, &query, &mut page, spark)?;
    }
    Answer::json(&json!({
        "version": 1,
        "totals": reply["totals"].take(),
        "filter": reply["filter"].take(),
        "sort": value(&sort)?,
        "rows": page,
        "rest": rest,
        "total_count": total,
        "skip": skip,
        "peaks": "exact",
    }))
}

/// Adds to rows of stacks their figures without the filter, and a line of their live bytes.
fn beside(ask: &Ask, query: &Query<'_>, page: &mut [Value], spark: usize) -> Result<(), Failure> {
    let index = ask.index();
    let whole = index.analysis();
    let ids: HashMap<u32, usize> = page
        .iter()
        .enumerate()
        .filter_map(|(i, row)| Some((u32::try_from(row["id"].as_u64()?).ok()?, i)))
        .collect();
    for g in whole.groups() {
        if let Some(i) = ids.get(&g.node) {
            page[*i]["all"] = all(ask, g);
        }
    }
    if spark > 0 && !page.is_empty() {
        // A group of no row of the page belongs to no class.
        let of: Vec<u32> = whole
            .groups()
            .iter()
            .map(|g| ids.get(&g.node).map_or(u32::MAX, |i| *i as u32))
            .collect();
        let lines = query.timelines(&Span::whole(index, spark), By::Classes(&of), page.len())?;
        for (row, line) in page.iter_mut().zip(lines) {
            row["spark"] = line.into();
        }
    }
    Ok(())
}

/// Returns the figures of a group of the whole recording.
pub(crate) fn all(ask: &Ask, g: &Group) -> Value {
    let clock = &ask.index().analysis().meta().clock;
    let mut all = json!(FiguresOf::from(&g.figures));
    all["first_ns"] = clock.ns(g.first).into();
    all["last_ns"] = clock.ns(g.last).into();
    all["peak_at_ns"] = clock.ns(g.peak_ticks).into();
    all
}

/// Returns the row of a stack in a report, if it has blocks.
pub(crate) fn row(query: &Query<'_>) -> Result<Option<Value>, Failure> {
    let analysis = query.analysis(None)?;
    let options =
        ReportOptions { top: 1, sort: SortKey::Allocated, empty: true, ..ReportOptions::default() };
    let report = Report::new(&analysis, &options);
    report.groups.first().map(value).transpose()
}
