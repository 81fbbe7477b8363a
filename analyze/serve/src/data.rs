//! Asks the analysis for the routes.

use crate::ask::Ask;
use crate::params::Params;
use crate::reply::Failure;
use prof_analyze::Analysis;
use prof_analyze::answers::Metric;
use prof_analyze::export::{Cost, Format};
use prof_analyze::query::value;
use prof_analyze::query::{Filter, Query};
use prof_analyze::report::{FilterData, SortKey};
use prof_trace::ticks::Ticks;

/// The figures that a stack can be shown by: name, title, unit, and the figure in exports and in graphs. What is never
/// freed is live at the end.
pub(crate) const METRICS: [(&str, &str, &str, Cost, Metric); 6] = [
    ("live", "Live bytes", "bytes", Cost::Live, Metric::Live),
    ("leaked", "Bytes that were never freed", "bytes", Cost::Leaked, Metric::Live),
    ("peak", "Live bytes at the peak", "bytes", Cost::Peak, Metric::Peak),
    ("allocated", "Bytes allocated", "bytes", Cost::Allocated, Metric::Allocated),
    ("allocations", "Allocations", "count", Cost::Allocations, Metric::Allocations),
    ("temporary", "Temporary allocations", "count", Cost::Temporary, Metric::Temporary),
];

/// Returns the description of a sort key.
pub(crate) fn sort_help(name: &str) -> &'static str {
    match name {
        "size" => "live bytes",
        "count" => "live blocks",
        "peak-size" => "greatest number of bytes live at any time",
        "peak-count" => "greatest number of blocks live at any time",
        "allocated" => "bytes ever allocated",
        "allocations" => "number of allocations",
        "age" => "age of the oldest live block",
        "temporary" => "blocks freed by the next event of their thread",
        "first" => "time of the first allocation",
        "last" => "time of the last allocation",
        "interval" => "time from the first allocation to the last",
        "peak-at" => "time of the peak",
        "total" => "live bytes including those of called functions",
        _ => "",
    }
}

/// Takes a sort key.
pub(crate) fn sort(params: &mut Params) -> Result<SortKey, Failure> {
    let words: Vec<(&str, SortKey)> =
        SortKey::ALL.iter().map(|(key, name)| (*name, *key)).collect();
    Ok(params.one_of("sort", &words)?.unwrap_or_default())
}

/// Returns the MIME type of an export.
pub(crate) fn mime(format: Format) -> &'static str {
    match format {
        Format::Folded | Format::Massif => crate::reply::TEXT,
        Format::Flamegraph => "image/svg+xml",
        Format::Csv => "text/csv; charset=utf-8",
        Format::Speedscope | Format::Dhat | Format::Json | Format::Firefox => crate::reply::JSON,
        _ => "application/octet-stream",
    }
}

/// Takes a moment, in ticks.
pub(crate) fn moment(
    analysis: &Analysis,
    params: &mut Params,
    name: &str,
) -> Result<Option<Ticks>, Failure> {
    let Some(text) = params.take(name)? else { return Ok(None) };
    let time = value::time(&text).map_err(|e| Failure::of(name, e))?;
    let ns = time
        .within(analysis.duration_ns(), name)
        .map_err(|e| Failure { name: Some(name.to_owned()), ..Failure::bad(e) })?;
    Ok(Some(analysis.ticks_at(ns)))
}

/// Compiles a filter for the recording of a request.
pub(crate) fn query<'a>(ask: &'a Ask, filter: &Filter) -> Result<Query<'a>, Failure> {
    Ok(Query::new(ask.index(), filter)?)
}

/// Returns a filter in the form that reports have.
pub(crate) fn given(filter: &Filter) -> Vec<FilterData> {
    let data = |(name, value): &(&str, String)| FilterData {
        name: (*name).to_owned(),
        value: value.clone(),
    };
    filter.given().iter().map(data).collect()
}
