//! The parameters of bytehound's filters, as prof's.

use crate::ask::Ask;
use crate::params::Params;
use crate::reply::Failure;
use prof_analyze::Analysis;
use prof_analyze::maps::{self, MapFilter};
use prof_analyze::query::{self, Filter, FilterError, RowSet};
use std::sync::Arc;

/// The meaning of a filter's time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Milliseconds of Unix time, or a part of the runtime: the beginning of the millisecond, or its end.
    Begin,
    End,
    /// A duration; without a unit, seconds.
    Interval,
    /// Anything else, which is the same for prof.
    Plain,
}

fn kind(name: &str) -> Kind {
    match name {
        "from" | "alive_at" | "alive_at_2" | "group_max_total_usage_first_seen_min" => Kind::Begin,
        "to" | "group_max_total_usage_first_seen_max" => Kind::End,
        "lifetime_min" | "lifetime_max" | "chain_lifetime_min" | "chain_lifetime_max"
        | "group_interval_min" | "group_interval_max" => Kind::Interval,
        _ => Kind::Plain,
    }
}

/// The times of a recording, for filters.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    /// Unix time of the start, in nanoseconds.
    pub start: u64,
    /// Nanoseconds.
    pub duration: u64,
}

/// Sets a field of a filter of blocks or of mappings.
type Set<'a> = dyn FnMut(&str, &str) -> Result<(), FilterError> + 'a;

/// A filter that is being made, and whether it selects nothing at all.
struct Making<'a> {
    set: &'a mut Set<'a>,
    nothing: bool,
}

impl Making<'_> {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        (self.set)(name, value)
            .map_err(|e| Failure { name: Some(name.to_owned()), ..Failure::bad(e.to_string()) })
    }

    /// Sets a moment that is given in milliseconds of Unix time.
    fn moment(&mut self, name: &str, ms: u64, end: bool, time: Time) -> Result<(), Failure> {
        let ns = u128::from(ms) * 1_000_000 + if end { 999_999 } else { 0 };
        let since = i128::try_from(ns).unwrap_or(i128::MAX) - i128::from(time.start);
        // Blocks lie between the start and the end of the recording.
        let (before, behind) = (since < 0, since > i128::from(time.duration));
        match name {
            "from" | "group_max_total_usage_first_seen_min" if before => return Ok(()),
            "to" | "group_max_total_usage_first_seen_max" if behind => return Ok(()),
            _ if before || behind => {
                self.nothing = true;
                return Ok(());
            }
            _ => {}
        }
        self.set(name, &format!("{since}ns"))
    }
}

/// Takes the fields of a filter from the parameters, and sets them.
fn each(
    params: &mut Params,
    time: Time,
    is_field: impl Fn(&str) -> bool,
    set: &mut Set<'_>,
) -> Result<(), Failure> {
    let mut set = |name: &str, value: &str| set(name, value);
    let mut making = Making { set: &mut set, nothing: false };
    for (name, value) in params.take_fields(is_field) {
        // An empty value is that of a field that the page has left empty.
        if value.is_empty() {
            continue;
        }
        let digits = value.bytes().all(|b| b.is_ascii_digit());
        match kind(&name) {
            kind @ (Kind::Begin | Kind::End) if digits => {
                let ms = value.parse().map_err(|_| Failure::of(&name, "is too large"))?;
                making.moment(&name, ms, kind == Kind::End, time)?;
            }
            Kind::Interval if digits => making.set(&name, &format!("{value}s"))?,
            _ if name == "arena" => making.set(&name, &value.replace('_', "-"))?,
            _ => making.set(&name, &value)?,
        }
    }
    if making.nothing {
        making.set("min-size", "1")?;
        making.set("max-size", "0")?;
    }
    Ok(())
}

fn time(analysis: &Analysis) -> Time {
    Time { start: analysis.meta().target.wall_ns, duration: analysis.duration_ns() }
}

/// Takes bytehound's filter of blocks.
///
/// # Errors
/// If a value is wrong, or prof can't apply the field: the reason.
pub(super) fn take(ask: &mut Ask) -> Result<Filter, Failure> {
    let code = custom(&mut ask.params)?;
    let mut filter = take_at(&mut ask.params, time(ask.open.index.analysis()))?;
    if let Some(code) = code {
        filter.within(rows(ask, &code)?, "a script");
    }
    Ok(filter)
}

/// Takes the script of a filter.
fn custom(params: &mut Params) -> Result<Option<String>, Failure> {
    Ok(params.take("custom_filter")?.filter(|code| !code.trim().is_empty()))
}

/// Runs the script of a filter, whose value is a list of blocks.
#[cfg(feature = "script")]
fn rows(ask: &Ask, code: &str) -> Result<Arc<RowSet>, Failure> {
    let rows = crate::api::script::rows(&ask.open, &ask.cancel, code);
    rows.map_err(|e| Failure::of("custom_filter", e))
}

#[cfg(not(feature = "script"))]
fn rows(_: &Ask, _: &str) -> Result<Arc<RowSet>, Failure> {
    Err(Failure::of("custom_filter", NO_SCRIPTS))
}

#[cfg(not(feature = "script"))]
const NO_SCRIPTS: &str = "this prof was built without scripts";

/// Does the same as [`take`] for a recording of that time.
pub(crate) fn take_at(params: &mut Params, time: Time) -> Result<Filter, Failure> {
    let mut filter = Filter::default();
    let is_field = |name: &str| query::find(name).is_some();
    each(params, time, is_field, &mut |name, value| filter.set(name, value))?;
    Ok(filter)
}

/// Takes bytehound's filter of mappings.
///
/// # Errors
/// As [`take`].
pub(super) fn of_maps(params: &mut Params, analysis: &Analysis) -> Result<MapFilter, Failure> {
    if custom(params)?.is_some() {
        return Err(Failure::of(
            "custom_filter",
            "of mappings is not supported; run the script in the console",
        ));
    }
    let mut filter = MapFilter::default();
    let is_field = |name: &str| maps::find(name).is_some();
    each(params, time(analysis), is_field, &mut |name, value| filter.set(name, value))?;
    filter.check(analysis.meta()).map_err(|e| Failure::of("since, between", e))?;
    Ok(filter)
}
