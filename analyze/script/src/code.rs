//! Filters of the command line as code.

use crate::only::{ALL, Arg, On, Only};
use prof_analyze::maps::{MapFilter, MapSort};
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
    fn argument(&self, on: On, text: &str) -> Option<String> {
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
            Arg::Flag(word) => (normal(on, self.field, text) == word).then(String::new),
            Arg::Number(_) => None,
        }
    }
}

/// Returns a word of a field in the spelling of the table.
fn normal(on: On, field: &str, text: &str) -> String {
    let text = text.replace('_', "-");
    match (field, text.as_str()) {
        ("lifetime", "live" | "only-live") => "leaked".into(),
        ("lifetime", "only-temporary") => "freed".into(),
        // Mappings have no threads whose next event could end them.
        ("lifetime", "temporary") if on == On::Maps => "freed".into(),
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
        lines.extend(call(On::Blocks, name, text));
    }
    Ok(lines)
}

/// Returns the call for a field; `None` if the field selects all.
fn call(on: On, name: &str, text: &str) -> Option<String> {
    if name == "lifetime" && normal(on, name, text) == "all" {
        return None;
    }
    let other = if on == On::Maps { On::Blocks } else { On::Maps };
    let field = if name == "alive-at-2" { "alive-at" } else { name };
    let of = ALL.iter().filter(|o| o.field == field && !o.not && o.on != other);
    let call = of.filter_map(|o| Some(format!(".{}({})", o.name, o.argument(on, text)?))).next();
    // A part of the runtime is computed by the filter, so that it is the same moment to the nanosecond.
    Some(call.unwrap_or_else(|| format!(".only({}, {})", quoted(field), quoted(text))))
}

/// As [`code_of`], of the mappings that `prof maps` lists: it leaves out what has ended, and prof's own, unless the
/// filter is about them.
fn map_code_of(filter: &MapFilter) -> Vec<String> {
    let of_kind = |g: &&(&str, String)| g.0 == "kind";
    let kinds: Vec<&str> = filter.given().iter().filter(of_kind).map(|g| g.1.as_str()).collect();
    let others = filter.given().iter().filter(|g| !of_kind(g));
    let mut lines: Vec<String> = others.filter_map(|g| call(On::Maps, g.0, &g.1)).collect();
    // A mapping has one of the kinds that were given, and meets all other conditions.
    if !kinds.is_empty() {
        lines.extend(call(On::Maps, "kind", &kinds.join(",")));
    }
    if !filter.is_about_time() {
        lines.push(".only_leaked()".into());
    }
    if !filter.is_about_ours() {
        lines.push(".only_not_bytehound()".into());
    }
    lines
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
    Ok(script("allocations", &code_of(given)?, top, sort))
}

/// Returns the script that prints the table of the mappings that `prof maps` lists with this filter. `top`: number of
/// mappings, if it was given; 0: all.
pub fn maps_script(filter: &MapFilter, top: Option<usize>, sort: MapSort) -> String {
    let sort = MapSort::ALL.iter().find(|s| s.0 == sort).map_or("size", |s| s.1);
    script("maps", &map_code_of(filter), top, sort)
}

/// Returns the script that makes a list by calls, and prints its report.
fn script(list: &str, calls: &[String], top: Option<usize>, sort: &str) -> String {
    let mut out = format!("// Run it with: prof script FILE --data RECORDING\nlet list = {list}()");
    for call in calls {
        let _ = write!(out, "\n    {call}");
    }
    let args = match (top, sort) {
        (None, "size") => String::new(),
        (None, sort) => quoted(sort),
        (Some(top), "size") => top.to_string(),
        (Some(top), sort) => format!("{top}, {}", quoted(sort)),
    };
    let _ = write!(out, ";\nprintln(list.report({args}));\n");
    out
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
    fn filters_of_mappings_become_code() {
        let code = |given: &[(&str, &str)]| {
            let mut filter = MapFilter::default();
            for (name, text) in given {
                filter.set(name, text).expect("valid");
            }
            map_code_of(&filter).join("")
        };
        for (given, lines) in [
            (&[][..], ".only_leaked().only_not_bytehound()"),
            (&[("lifetime", "all")], ".only_not_bytehound()"),
            (&[("lifetime", "temporary")], ".only_temporary().only_not_bytehound()"),
            (&[("bytehound", "yes")], ".only_bytehound().only_leaked()"),
            (&[("id", "7, 9")], ".only(\"id\", \"7, 9\")"),
            (
                &[("kind", "prof"), ("min-rss", "1K"), ("kind", "heap,code")],
                ".only(\"min-rss\", \"1K\").only_kind(\"prof,heap,code\").only_leaked()",
            ),
            (
                &[("name", "a\"\\.so"), ("alive-at-2", "50%")],
                ".only_name(\"a\\\"\\\\.so\").only(\"alive-at\", \"50%\").only_not_bytehound()",
            ),
        ] {
            assert_eq!(code(given), lines, "{given:?}");
        }
        let script = maps_script(&MapFilter::default(), Some(0), MapSort::PeakRss);
        assert!(script.ends_with("println(list.report(0, \"peak-rss\"));\n"), "{script}");
    }

    #[test]
    fn every_field_that_blocks_have_has_a_method() {
        for f in FIELDS.iter().filter(|f| f.refused.is_none()) {
            let field = if f.name == "alive-at-2" { "alive-at" } else { f.name };
            // These two are registered apart from the table.
            let apart = ["jemalloc", "marker"].contains(&field);
            let found = ALL.iter().any(|o| o.field == field && o.on != On::Maps);
            assert!(found || apart, "--{} has no method", f.name);
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
