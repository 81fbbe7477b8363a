//! The recordings, and what can be asked of them.

use crate::ask::Ask;
use crate::data;
use crate::listing;
use crate::params::Params;
use crate::reply::{Answer, Failure};
use crate::state::Shared;
use prof_analyze::Analysis;
use prof_analyze::export::Format;
use prof_analyze::query::{FIELDS, Field};
use prof_analyze::report::{FilterData, Head, SortKey};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Lists the recordings. Those that nobody has asked for are opened meanwhile, one after the other.
pub(crate) fn list(shared: &Arc<Shared>, _: &mut Params) -> Result<Answer, Failure> {
    for recording in shared.recordings() {
        shared.open(recording);
    }
    Answer::json(&listing::all(shared))
}

/// Lists the jobs.
pub(crate) fn jobs(shared: &Arc<Shared>, _: &mut Params) -> Result<Answer, Failure> {
    Answer::json(&json!({ "jobs": shared.jobs.list() }))
}

/// Lists the fields of filters, and the names of everything else that a parameter can be.
pub(crate) fn fields(_: &Arc<Shared>, _: &mut Params) -> Result<Answer, Failure> {
    let field = |f: &Field| {
        json!({
            "name": f.name,
            "aliases": f.aliases,
            "value": f.value,
            "help": f.help,
            "refused": f.refused,
        })
    };
    let filters: Vec<Value> = FIELDS.iter().map(field).collect();
    let map_filters: Vec<Value> = prof_analyze::maps::FIELDS.iter().map(field).collect();
    let metrics: Vec<Value> = data::METRICS
        .iter()
        .map(|(name, title, unit, ..)| json!({ "name": name, "title": title, "unit": unit }))
        .collect();
    let sorts: Vec<Value> = SortKey::ALL
        .iter()
        .map(|(_, name)| json!({ "name": name, "help": data::sort_help(name) }))
        .collect();
    let exports: Vec<Value> = Format::ALL
        .into_iter()
        .filter(|f| f.is_built())
        .map(|f| json!({ "name": f.name(), "extension": f.ending(), "mime": data::mime(f) }))
        .collect();
    Answer::json(&json!({
        "fields": filters,
        "map_fields": map_filters,
        "metrics": metrics,
        "sort": sorts,
        "group_by": ["stack", "function", "file", "module", "thread", "size"],
        "exports": exports,
    }))
}

/// A report without rows.
#[derive(Serialize)]
struct Headed {
    version: u32,
    #[serde(flatten)]
    head: Head,
    kernel: Option<Value>,
    /// Greatest number of return addresses of a stack.
    max_depth: usize,
}

/// Returns the head of a report.
pub(crate) fn head(ask: &mut Ask) -> Result<Answer, Failure> {
    if ask.in_place
        && let Some(now) = ask.now(|f, like| f.analysis(like))
    {
        let now = now?;
        return headed(&now, &[]);
    }
    let filter = ask.params.filter()?;
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let query = data::query(ask, &filter)?;
    headed(&query.analysis(at)?, &data::given(&filter))
}

fn headed(analysis: &Analysis, filter: &[FilterData]) -> Result<Answer, Failure> {
    let kernel = analysis.meta().kernel.map(|k| {
        let at_ns = analysis.meta().clock.ns(k.ticks);
        json!({ "vss_bytes": k.vss_bytes, "rss_bytes": k.rss_bytes, "at_ns": at_ns })
    });
    let head = Head::new(analysis, filter);
    let depths = analysis.groups().iter().map(|g| analysis.meta().stack(g.node).len());
    let max_depth = depths.max().unwrap_or(0);
    Answer::json(&Headed { version: 1, head, kernel, max_depth })
}
