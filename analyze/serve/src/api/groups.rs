//! Groups of blocks: by stack, function, file, module, thread or size.

use super::reports::MOST_ROWS;
use crate::ask::Ask;
use crate::data;
use crate::names::BlockStatsOf;
use crate::reply::{Answer, Failure};
use prof_analyze::answers::{self, GroupKey, GroupsAsk};
use prof_analyze::heap::Group;
use prof_analyze::query::Query;
use prof_analyze::report::{Report, ReportOptions, SortKey};
use serde_json::{Value, json};

/// Greatest number of groups that can be skipped.
const MOST_SKIPPED: u64 = 1_000_000;
/// Greatest number of points of the line beside a group.
const MOST_POINTS: u64 = 128;

const WORDS: [(&str, GroupKey); 6] = [
    ("stack", GroupKey::Stack),
    ("function", GroupKey::Function),
    ("file", GroupKey::File),
    ("module", GroupKey::Module),
    ("thread", GroupKey::Thread),
    ("size", GroupKey::Size),
];

fn value(v: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(v).map_err(|e| Failure::internal(e.to_string()))
}

/// A page of groups, with the sums of all others.
pub(crate) fn groups(ask: &mut Ask) -> Result<Answer, Failure> {
    let by = ask.params.one_of("group-by", &WORDS)?.unwrap_or(GroupKey::Stack);
    let sort = data::sort(&mut ask.params)?;
    let reverse = ask.params.switch("reverse")?.unwrap_or(false);
    let skip = ask.params.number("skip", MOST_SKIPPED)?.unwrap_or(0) as usize;
    let count = ask.params.number("count", MOST_ROWS)?.unwrap_or(20).max(1) as usize;
    let spark = ask.params.number("spark", MOST_POINTS)?.unwrap_or(0) as usize;
    let needs_peaks = matches!(sort, SortKey::PeakSize | SortKey::PeakCount | SortKey::PeakAt);
    let peaks = ask.params.switch("peaks")?.unwrap_or(false) || needs_peaks;
    let analysis = ask.open.index.analysis();
    let at = data::moment(analysis, &mut ask.params, "at")?;
    let at_ns = at.map(|t| analysis.meta().clock.ns(t));
    let filter = ask.params.filter()?;
    let query = data::query(ask, &filter)?;
    let wanted = GroupsAsk { by, sort, reverse, skip, count, at_ns, peaks, spark };
    let groups = answers::groups(ask.index(), &query, &wanted)?;
    let mut rows = value(&groups.rows)?;
    let stacks = rows.as_array_mut().filter(|_| by == GroupKey::Stack);
    for row in stacks.into_iter().flatten() {
        beside(ask, row);
    }
    Answer::json(&json!({
        "version": 1,
        "group_by": value(&by)?,
        "totals": value(&groups.totals)?,
        "filter": data::given(&filter),
        "sort": value(&sort)?,
        "rows": rows,
        "rest": value(&groups.rest)?,
        "total_count": groups.total_rows,
        "skip": skip,
        "peaks": if groups.peaks { "exact" } else { "pending" },
    }))
}

/// Adds to the row of a stack its frames, and its figures without the filter.
fn beside(ask: &Ask, row: &mut Value) {
    let index = ask.index();
    let group = row["id"].as_u64().and_then(|i| index.analysis().groups().get(i as usize));
    let Some(group) = group else { return };
    let stack = super::blocks::stack(ask.open.names(), index, group.node);
    if let Value::Object(fields) = stack {
        for (key, value) in fields {
            row[key] = value;
        }
    }
    row["id"] = group.node.into();
    row["all"] = all(ask, group);
}

/// Returns the figures of a group of the whole recording.
pub(crate) fn all(ask: &Ask, g: &Group) -> Value {
    let clock = &ask.index().analysis().meta().clock;
    let mut all = json!(BlockStatsOf::from(&g.figures));
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
