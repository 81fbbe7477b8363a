//! Filters of the command line as code.

use crate::only::{ALL, Arg, On, Only};
use prof_analyze::query::value::{self, Amount, Time};
use std::fmt::Write;

/// Returns a text as code: everything that would end it, or begin an escape, is escaped.
pub fn quoted(text: &str) -> String {
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

/// Returns a duration as code: `s(2) + ms(5)`.
fn duration(ns: u64) -> Option<String> {
    i64::try_from(ns).ok()?;
    let units = [
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1000),
        ("ns", 1),
    ];
    let (mut parts, mut rest) = (Vec::new(), ns);
    for (unit, length) in units {
        if rest >= length {
            parts.push(format!("{unit}({})", rest / length));
            rest %= length;
        }
    }
    Some(if parts.is_empty() { "s(0)".into() } else { parts.join(" + ") })
}

fn number(n: u64) -> Option<String> {
    i64::try_from(n).ok().map(|n| n.to_string())
}

fn list(text: &str) -> Option<String> {
    let ids: Option<Vec<String>> =
        text.split(',').map(|id| id.trim().parse::<u32>().ok().map(|n| n.to_string())).collect();
    Some(format!("[{}]", ids?.join(", ")))
}

impl Only {
    /// Returns the argument that stands for the text of a field; `None` if there is none.
    fn argument(&self, text: &str) -> Option<String> {
        match self.arg {
            Arg::Text => Some(quoted(text)),
            Arg::Number(0) if self.field.ends_with("-size") || self.field.ends_with("-rss") => {
                value::size(text).ok().and_then(number)
            }
            Arg::Number(0) => value::number(text).ok().and_then(number),
            Arg::Address => value::address(text).ok().and_then(number),
            Arg::Time | Arg::Times => {
                let Ok(Time::Ns(ns)) = value::time(text) else { return None };
                let code = duration(ns)?;
                Some(if self.arg == Arg::Times { format!("[{code}]") } else { code })
            }
            Arg::Amount => match value::amount(text).ok()? {
                Amount::Count(n) => number(n),
                Amount::Part(p) => Some(format!("{p:?}")).filter(|t| !t.contains('e')),
            },
            Arg::Stacks | Arg::Maps => list(text),
            Arg::Flag(word) => (normal(self.field, text) == word).then(String::new),
            Arg::Number(_) => None,
        }
    }
}

/// Returns a word of a field in the spelling of the table.
fn normal(field: &str, text: &str) -> String {
    let text = text.replace('_', "-");
    match (field, text.as_str()) {
        ("lifetime", "live" | "only-live") => "leaked".into(),
        ("lifetime", "only-temporary") => "freed".into(),
        ("lifetime", other) => other.strip_prefix("only-").unwrap_or(other).to_owned(),
        _ => text,
    }
}

/// Returns the calls that select what a filter selects, a line each: `.only_larger_or_equal(1024)`. `given`: names and
/// texts of its fields.
///
/// # Errors
/// If a condition can't be written as code: a list of suppressions.
pub fn code_of(given: &[(&'static str, String)]) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for (name, text) in given {
        if ["ignore", "suppressions", "embedded-suppressions"].contains(name) {
            return Err(format!(
                "--{name} can't be written as a script: scripts have no suppressions"
            ));
        }
        if *name == "lifetime" && normal(name, text) == "all" {
            continue;
        }
        let field = if *name == "alive-at-2" { "alive-at" } else { name };
        let of = ALL.iter().filter(|o| o.field == field && !o.not && o.on != On::Maps);
        let call = of.filter_map(|o| Some(format!(".{}({})", o.name, o.argument(text)?))).next();
        // A part of the runtime is computed by the filter, so that it is the same moment to the nanosecond.
        lines.push(call.unwrap_or_else(|| format!(".only({}, {})", quoted(field), quoted(text))));
    }
    Ok(lines)
}

/// Returns the script that prints the report on the blocks that a filter selects. `top`: number of stacks, if it was
/// given; `sort`: the key that stacks are sorted by.
///
/// # Errors
/// As [`code_of`].
pub fn report_script(
    given: &[(&'static str, String)],
    top: Option<usize>,
    sort: &str,
) -> Result<String, String> {
    let mut out =
        String::from("// Run it with: prof script FILE --data RECORDING\nlet list = allocations()");
    for line in code_of(given)? {
        let _ = write!(out, "\n    {line}");
    }
    let args = match (top, sort) {
        (None, "size") => String::new(),
        (None, sort) => quoted(sort),
        (Some(top), "size") => top.to_string(),
        (Some(top), sort) => format!("{top}, {}", quoted(sort)),
    };
    let _ = write!(out, ";\nprintln(list.report({args}));\n");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_analyze::query::FIELDS;

    #[test]
    fn filters_become_code() {
        let code = |name, text: &str| code_of(&[(name, text.to_owned())]).expect("code").join("");
        for (name, text, line) in [
            ("min-size", "1KiB", ".only_larger_or_equal(1024)"),
            ("function", "a\"\\)x\n", ".only_passing_through_function(\"a\\\"\\\\)x\\n\")"),
            ("from", "2.005", ".only_allocated_after_at_least(s(2) + ms(5))"),
            ("from", "50%", ".only(\"from\", \"50%\")"),
            ("alive-at-2", "7ns", ".only_alive_at([ns(7)])"),
            ("lifetime", "leaked", ".only_leaked()"),
            ("lifetime", "only_temporary", ".only_temporary()"),
            ("lifetime", "temporary", ".only_temporary_of_thread()"),
            ("lifetime", "all", ""),
            ("stacks", "3, 1", ".only_matching_backtraces([3, 1])"),
            ("min-group-leaked", "50%", ".only_group_leaked_allocations_at_least(0.5)"),
            ("max-address", "0xffffffffffffffff", ".only(\"max-address\", \"0xffffffffffffffff\")"),
            ("mmapped", "no", ".only_ptmalloc_not_mmaped()"),
            ("part", "2", ".only_part(2)"),
        ] {
            assert_eq!(code(name, text), line, "{name} {text}");
        }
        assert!(code_of(&[("ignore", "list".into())]).is_err());
    }

    #[test]
    fn every_field_that_blocks_have_has_a_method() {
        for f in FIELDS.iter().filter(|f| f.refused.is_none()) {
            let field = if f.name == "alive-at-2" { "alive-at" } else { f.name };
            let found = ALL.iter().any(|o| o.field == field && o.on != On::Maps);
            assert!(found, "--{} has no method", f.name);
        }
        for o in ALL {
            let known = match o.on {
                On::Maps => prof_analyze::maps::find(o.field).is_some(),
                _ => prof_analyze::query::find(o.field).is_some_and(|f| f.refused.is_none()),
            };
            assert!(known, "{} is of no field", o.name);
            let both = o.on != On::Both || prof_analyze::maps::find(o.field).is_some();
            assert!(both, "{} is of no field of mappings", o.name);
        }
    }
}
