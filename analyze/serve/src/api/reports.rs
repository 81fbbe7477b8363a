//! The reports of the command line, as the JSON that it prints.

use crate::ask::Ask;
use crate::data;
use crate::reply::{Answer, Failure, JSON};
use prof_analyze::Analysis;
use prof_analyze::diff::{Diff, DiffOptions};
use prof_analyze::fragmentation::{Fragmentation, FragmentationError, FragmentationOptions};
use prof_analyze::info::{Info, InfoError};
use prof_analyze::leaks::{Class, LeakOptions, Leaks};
use prof_analyze::query::Query;
use prof_analyze::query::value;
use prof_analyze::report::{Ask as Asked, GroupBy, Grouped, Histogram, Stats, ViewOptions};
use serde_json::json;

/// Greatest number of rows of a reply.
pub(crate) const MOST_ROWS: u64 = 10_000;

/// Takes the number of rows to show.
fn top(ask: &mut Ask, default: usize) -> Result<usize, Failure> {
    let top = ask.params.number("top", MOST_ROWS)?;
    Ok(top.map_or(default, |n| n as usize))
}

/// Computes a report of the rows that a filter selects.
fn view<T>(
    ask: &mut Ask,
    default_top: usize,
    make: impl FnOnce(&Asked<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let filter = ask.params.filter()?;
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let sort = data::sort(&mut ask.params)?;
    let reverse = ask.params.switch("reverse")?.unwrap_or(false);
    let top = top(ask, default_top)?;
    let filter_data = data::given(&filter);
    let options = ViewOptions {
        top,
        sort,
        reverse,
        at,
        empty: top == 0,
        filter: filter_data,
        ..ViewOptions::default()
    };
    let query = data::query(ask, &filter)?;
    let asked = Asked::new(ask.index(), &query, options)?;
    make(&asked)
}

fn text(json: String) -> Answer {
    Answer::new(JSON, json)
}

/// `prof report --threads`.
pub(crate) fn threads(ask: &mut Ask) -> Result<Answer, Failure> {
    view(ask, 0, |a| Ok(text(Grouped::new(a, GroupBy::Thread)?.json())))
}

/// `prof report --histogram`.
pub(crate) fn histogram(ask: &mut Ask) -> Result<Answer, Failure> {
    view(ask, 10, |a| Ok(text(Histogram::new(a)?.json())))
}

/// `prof report --stats`.
pub(crate) fn stats(ask: &mut Ask) -> Result<Answer, Failure> {
    view(ask, 5, |a| Ok(text(Stats::new(a)?.json())))
}

/// The part of `prof report --stats` on how long blocks lived.
pub(crate) fn lifetimes(ask: &mut Ask) -> Result<Answer, Failure> {
    view(ask, 5, |a| {
        let stats = serde_json::to_value(Stats::new(a)?);
        let mut stats = stats.map_err(|e| Failure::internal(e.to_string()))?;
        let mut part = |name: &str| stats[name].take();
        let (version, filter, totals) = (part("version"), part("filter"), part("totals"));
        let lifetimes = part("lifetimes");
        Answer::json(&json!({
            "version": version,
            "filter": filter,
            "totals": totals,
            "lifetimes": lifetimes,
        }))
    })
}

/// `prof leaks --all`.
pub(crate) fn leaks(ask: &mut Ask) -> Result<Answer, Failure> {
    let filter = ask.params.filter()?;
    let top = top(ask, 20)?;
    let defaults = LeakOptions::default();
    let young = match ask.params.take("young")? {
        Some(text) => value::time(&text).map_err(|e| Failure::of("young", e))?,
        None => defaults.young,
    };
    if matches!(young, value::Time::Part(p) if p >= 0.9) {
        return Err(Failure::of("young", "nothing would be old enough to count"));
    }
    let options = LeakOptions {
        young,
        top,
        classes: Class::ALL.to_vec(),
        filter: data::given(&filter),
        ..defaults
    };
    let query = data::query(ask, &filter)?;
    Ok(text(Leaks::new(ask.index(), &query, &options)?.json()))
}

/// `prof fragmentation`.
pub(crate) fn fragmentation(ask: &mut Ask) -> Result<Answer, Failure> {
    let filter = ask.params.filter()?;
    let top = top(ask, 10)?;
    let at = data::moment(ask.open.index.analysis(), &mut ask.params, "at")?;
    let options = FragmentationOptions { top, at, sparse: 0.25, filter: data::given(&filter) };
    let query = data::query(ask, &filter)?;
    let found = Fragmentation::new(ask.index(), &query, &options).map_err(|e| match e {
        FragmentationError::Sampled => Failure::bad(e.to_string()),
        FragmentationError::Scan(e) => e.into(),
    })?;
    Ok(text(found.json()))
}

/// `prof info`.
pub(crate) fn info(ask: &mut Ask) -> Result<Answer, Failure> {
    let info = Info::new(ask.index()).map_err(|e| match e {
        InfoError::Recording(e) => Failure::new(422, e.to_string()),
        InfoError::Scan(e) => e.into(),
    })?;
    Ok(text(info.json()))
}

/// `prof diff` of two recordings, or of two moments.
pub(crate) fn diff(ask: &mut Ask) -> Result<Answer, Failure> {
    let filter = ask.params.filter()?;
    let top = top(ask, 100)?;
    let options = DiffOptions { top, filter: data::given(&filter) };
    let other =
        ask.other.clone().ok_or_else(|| Failure::internal("no recording to compare with"))?;
    let side = |index: &prof_analyze::Index, name: &str| -> Result<Analysis, Failure> {
        let mut params = crate::params::Params::default();
        let time = ask.variable(name);
        if !time.is_empty() {
            params.push("at", time);
        }
        let at = data::moment(index.analysis(), &mut params, "at")?;
        Ok(Query::new(index, &filter)?.analysis(at)?)
    };
    let (before, after) = (side(&other.index, "before")?, side(ask.index(), "after")?);
    Ok(text(Diff::new(&before, &after, &options).json()))
}

/// The comparison of the blocks that were allocated in two ranges of time.
pub(crate) fn diff_ranges(ask: &mut Ask) -> Result<Answer, Failure> {
    let mut bounds = Vec::new();
    for name in ["before-from", "before-to", "after-from", "after-to"] {
        bounds.push(ask.params.take(name)?);
    }
    let filter = ask.params.filter()?;
    let top = top(ask, 100)?;
    let mut sides = Vec::new();
    for range in bounds.chunks(2) {
        let mut own = filter.clone();
        for (name, bound) in ["from", "to"].into_iter().zip(range) {
            if let Some(text) = bound {
                own.set(name, text).map_err(|e| Failure::bad(e.to_string()))?;
            }
        }
        sides.push(data::query(ask, &own)?.analysis(None)?);
    }
    let options = DiffOptions { top, filter: data::given(&filter) };
    match &sides[..] {
        [before, after] => Ok(text(Diff::new(before, after, &options).json())),
        _ => Err(Failure::internal("no two ranges")),
    }
}
