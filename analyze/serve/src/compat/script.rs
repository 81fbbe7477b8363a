//! Scripts: their output and their files, and filters as code.

use crate::api::files::SANDBOX;
use crate::ask::Ask;
use crate::params::Params;
use crate::reply::{Answer, Failure};
use serde_json::json;
use std::fmt::Write;

/// Answers to a script.
#[cfg(feature = "script")]
pub(super) fn execute(ask: Ask, code: String) -> Result<Answer, Failure> {
    crate::api::script::execute(ask, code)
}

/// Answers to a script.
#[cfg(not(feature = "script"))]
pub(super) fn execute(_: Ask, _: String) -> Result<Answer, Failure> {
    failed("this prof was built without scripts (cargo's feature script, which is on by default)")
}

/// Answers to a script that was not run.
pub(super) fn failed(why: &str) -> Result<Answer, Failure> {
    Answer::json(&json!({
        "status": "error",
        "message": why,
        "line": null,
        "column": null,
        "output": [],
    }))
}

/// A file that a script has made. What is in it runs without our origin.
pub(super) fn files(ask: &mut Ask) -> Result<Answer, Failure> {
    let missing = "there is no such file of a script; old ones are removed when there are many";
    let found = ask.shared.files.get(ask.variable("hash"));
    let (kind, bytes) = found.ok_or_else(|| Failure::missing(missing))?;
    Ok(Answer::new(kind, bytes).with("content-security-policy", SANDBOX))
}

/// The kind of a value in a script.
#[derive(Clone, Copy)]
enum Kind {
    /// A number.
    Number,
    /// A moment in Unix milliseconds, or a part of the runtime.
    Moment,
    /// A duration, or a part of the runtime.
    Interval,
    /// A regular expression.
    Text,
    /// A number, or a part.
    Amount,
}

/// Parameters and their methods, in the order of the code.
const METHODS: &[(&str, &str, Kind)] = &[
    ("from", "only_allocated_after_at_least", Kind::Moment),
    ("to", "only_allocated_until_at_most", Kind::Moment),
    ("address_min", "only_address_at_least", Kind::Number),
    ("address_max", "only_address_at_most", Kind::Number),
    ("size_min", "only_larger_or_equal", Kind::Number),
    ("size_max", "only_smaller_or_equal", Kind::Number),
    ("first_size_min", "only_first_size_larger_or_equal", Kind::Number),
    ("first_size_max", "only_first_size_smaller_or_equal", Kind::Number),
    ("last_size_min", "only_last_size_larger_or_equal", Kind::Number),
    ("last_size_max", "only_last_size_smaller_or_equal", Kind::Number),
    ("lifetime_min", "only_alive_for_at_least", Kind::Interval),
    ("lifetime_max", "only_alive_for_at_most", Kind::Interval),
    ("chain_lifetime_min", "only_chain_alive_for_at_least", Kind::Interval),
    ("chain_lifetime_max", "only_chain_alive_for_at_most", Kind::Interval),
    ("backtrace_depth_min", "only_backtrace_length_at_least", Kind::Number),
    ("backtrace_depth_max", "only_backtrace_length_at_most", Kind::Number),
    ("backtraces", "only_matching_backtraces", Kind::Number),
    ("deallocation_backtraces", "only_matching_deallocation_backtraces", Kind::Number),
    ("function_regex", "only_passing_through_function", Kind::Text),
    ("negative_function_regex", "only_not_passing_through_function", Kind::Text),
    ("source_regex", "only_passing_through_source", Kind::Text),
    ("negative_source_regex", "only_not_passing_through_source", Kind::Text),
    ("group_allocations_min", "only_group_allocations_at_least", Kind::Number),
    ("group_allocations_max", "only_group_allocations_at_most", Kind::Number),
    ("group_leaked_allocations_min", "only_group_leaked_allocations_at_least", Kind::Amount),
    ("group_leaked_allocations_max", "only_group_leaked_allocations_at_most", Kind::Amount),
    ("group_interval_min", "only_group_interval_at_least", Kind::Interval),
    ("group_interval_max", "only_group_interval_at_most", Kind::Interval),
    (
        "group_max_total_usage_first_seen_min",
        "only_group_max_total_usage_first_seen_at_least",
        Kind::Moment,
    ),
    (
        "group_max_total_usage_first_seen_max",
        "only_group_max_total_usage_first_seen_at_most",
        Kind::Moment,
    ),
    ("chain_length_min", "only_chain_length_at_least", Kind::Number),
    ("chain_length_max", "only_chain_length_at_most", Kind::Number),
    ("position_in_chain_min", "only_position_in_chain_at_least", Kind::Number),
    ("position_in_chain_max", "only_position_in_chain_at_most", Kind::Number),
    ("peak_rss_min", "only_peak_rss_at_least", Kind::Number),
    ("peak_rss_max", "only_peak_rss_at_most", Kind::Number),
    ("marker", "only_with_marker", Kind::Number),
    ("from_map", "only_from_maps", Kind::Number),
];

/// Parameters with words as values, and the method of each word.
const WORDS: &[(&str, &str, &str)] = &[
    ("lifetime", "only_leaked", "only_leaked"),
    ("lifetime", "only_chain_leaked", "only_chain_leaked"),
    ("lifetime", "only_temporary", "only_temporary"),
    ("mmaped", "yes", "only_ptmalloc_mmaped"),
    ("mmaped", "no", "only_ptmalloc_not_mmaped"),
    ("arena", "main", "only_ptmalloc_from_main_arena"),
    ("arena", "non_main", "only_ptmalloc_not_from_main_arena"),
    ("jemalloc", "yes", "only_jemalloc"),
    ("jemalloc", "no", "only_not_jemalloc"),
    ("jemalloc", "only_true", "only_jemalloc"),
    ("jemalloc", "only_false", "only_not_jemalloc"),
    ("bytehound", "only_true", "only_bytehound"),
    ("bytehound", "only_false", "only_not_bytehound"),
    ("readable", "only_true", "only_readable"),
    ("readable", "only_false", "only_not_readable"),
    ("writable", "only_true", "only_writable"),
    ("writable", "only_false", "only_not_writable"),
    ("executable", "only_true", "only_executable"),
    ("executable", "only_false", "only_not_executable"),
];

/// Returns a duration as code: `s(2) + ms(5)`.
fn duration(ns: u64) -> String {
    let mut parts = Vec::new();
    let mut rest = ns / 1000;
    for (unit, us) in
        [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1)]
    {
        if rest >= us {
            parts.push(format!("{unit}({})", rest / us));
            rest %= us;
        }
    }
    if parts.is_empty() { "s(0)".into() } else { parts.join(" + ") }
}

/// Returns a text as code. Everything that ends a text, or begins an escape, is escaped.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The time of a recording.
pub(crate) struct Time {
    /// Unix milliseconds of its start.
    pub start_ms: u64,
    /// Nanoseconds.
    pub duration: u64,
}

impl Time {
    /// Returns a value as code.
    fn code(&self, name: &str, kind: Kind, text: &str) -> Result<String, Failure> {
        let wrong = |e: String| Failure::of(name, e);
        let part = |text: &str| {
            let part: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
            (part.is_finite() && part >= 0.0).then_some(part / 100.0)
        };
        let number = |t: &str| t.parse::<u64>().map_err(|_| wrong(format!("{t:?} is no number")));
        Ok(match kind {
            Kind::Number => number(text)?.to_string(),
            Kind::Text => {
                regex_is_good(name, text)?;
                quoted(text)
            }
            Kind::Amount => match part(text) {
                Some(part) => format!("{part:?}"),
                None => number(text)?.to_string(),
            },
            Kind::Moment | Kind::Interval if part(text).is_some() => {
                format!("data().runtime() * {:?}", part(text).unwrap_or(0.0))
            }
            Kind::Moment if text.bytes().all(|b| b.is_ascii_digit()) => {
                let ms = number(text)?.saturating_sub(self.start_ms);
                duration(ms.saturating_mul(1_000_000).min(self.duration.max(1)))
            }
            Kind::Moment | Kind::Interval => {
                let text = match text.bytes().all(|b| b.is_ascii_digit()) {
                    true => format!("{text}s"),
                    false => text.to_owned(),
                };
                duration(prof_analyze::query::value::duration(&text).map_err(wrong)?)
            }
        })
    }
}

fn regex_is_good(name: &str, text: &str) -> Result<(), Failure> {
    let mut filter = prof_analyze::query::Filter::default();
    filter.set("function", text).map_err(|e| Failure::of(name, e))
}

/// Returns a filter as code.
pub(crate) fn code(params: &mut Params, list: &str, time: &Time) -> Result<Answer, Failure> {
    let custom = params.take("custom_filter")?.filter(|c| !c.trim().is_empty());
    let prologue = custom.as_ref().map_or(String::new(), |code| {
        format!("fn custom_filter() {{\n{code}\n}}\nlet filtered = custom_filter();\n")
    });
    let mut out = if custom.is_some() { "filtered\n".to_owned() } else { format!("{list}()\n") };
    let mut put = |call: &str| {
        out.push_str("  .");
        out.push_str(call);
        out.push('\n');
    };
    for (name, method, kind) in METHODS {
        for text in params.take_all(name).iter().filter(|t| !t.is_empty()) {
            put(&format!("{method}({})", time.code(name, *kind, text)?));
        }
    }
    let mut moments = Vec::new();
    for name in ["alive_at", "alive_at_2"] {
        for text in params.take_all(name).iter().filter(|t| !t.is_empty()) {
            moments.push(time.code(name, Kind::Moment, text)?);
        }
    }
    if !moments.is_empty() {
        put(&format!("only_alive_at([{}])", moments.join(", ")));
    }
    for name in [
        "lifetime",
        "mmaped",
        "arena",
        "jemalloc",
        "bytehound",
        "readable",
        "writable",
        "executable",
    ] {
        for text in params.take_all(name).iter().filter(|t| !t.is_empty() && *t != "all") {
            match WORDS.iter().find(|w| w.0 == name && w.1 == text.as_str()) {
                Some(found) => put(&format!("{}()", found.2)),
                // A group that leaked whole has as many leaks as allocations.
                None if text == "only_whole_group_leaked" => {
                    put("only_group_leaked_allocations_at_least(1.0)");
                }
                None => return Err(Failure::of(name, format!("{text:?} is not known"))),
            }
        }
    }
    Answer::json(&json!({ "prologue": prologue, "code": out }))
}

fn to_code(ask: &mut Ask, list: &str) -> Result<Answer, Failure> {
    let analysis = ask.open.index.analysis();
    let start_ms = analysis.meta().target.wall_ns / 1_000_000;
    let time = Time { start_ms, duration: analysis.duration_ns() };
    code(&mut ask.params, list, &time)
}

/// A filter of blocks as code.
pub(super) fn of_allocations(ask: &mut Ask) -> Result<Answer, Failure> {
    to_code(ask, "allocations")
}

/// A filter of mappings as code.
pub(super) fn of_maps(ask: &mut Ask) -> Result<Answer, Failure> {
    to_code(ask, "maps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_code() {
        let time = Time { start_ms: 1_700_000_000_000, duration: 60_000_000_000 };
        let made = |query: &str| {
            let answer = code(&mut Params::parse(query).expect("good"), "allocations", &time);
            let text = answer.map(|a| serde_json::from_slice::<serde_json::Value>(&a.body));
            text.map(|v| v.expect("JSON")["code"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(made("").expect("code"), "allocations()\n");
        let all =
            "size_min=10&from=1700000002005&lifetime=only_leaked&lifetime_min=3m2s&alive_at=50%25";
        assert_eq!(
            made(all).expect("code"),
            "allocations()\n  .only_allocated_after_at_least(s(2) + ms(5))\n  .only_larger_or_equal(10)\n  \
             .only_alive_for_at_least(m(3) + s(2))\n  .only_alive_at([data().runtime() * 0.5])\n  .only_leaked()\n"
        );
        assert_eq!(
            made("function_regex=a%22%5C%29%3Bx%5Cd").expect("code"),
            "allocations()\n  .only_passing_through_function(\"a\\\"\\\\);x\\\\d\")\n"
        );
        assert!(made("size_min=x").is_err() && made("function_regex=(").is_err());
    }
}
