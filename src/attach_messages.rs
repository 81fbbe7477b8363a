//! Formats the messages of an attach: which functions were hooked, which not and why, and how long it took.

use prof_inject::{Installed, StopTimes};
use prof_trace::capture::Capture;
use prof_trace::records::{Hook, NotHooked};
use prof_trace::values::text::{bytes, number, time};
use std::collections::BTreeMap;

/// Returns the lines for standard error.
pub(crate) fn describe(installed: &Installed) -> Vec<String> {
    let mut lines = hooked(&installed.hooked);
    lines.extend(not_hooked(&installed.not_hooked));
    lines.extend(installed.notes.iter().cloned());
    lines.push(stops(&installed.stops));
    lines
}

/// Describes which blocks are recorded, unless all are.
pub(crate) fn captured(c: &Capture) -> String {
    let mut parts = Vec::new();
    match (c.sample_bytes, c.sample_every) {
        (n, _) if c.adapts => {
            let now = bytes(n);
            parts
                .push(format!("a sample, one for each {now} now, as the cost of recording allows"));
        }
        (0, 0..2) => {}
        (0, n) => parts
            .push(format!("one in {} allocations of each thread (--sample-rate {n})", number(n))),
        (n, _) => parts.push(format!("a sample, one for each {} (--sample={n})", bytes(n))),
    }
    if c.min_size > 0 {
        parts.push(format!("no blocks smaller than {}", bytes(c.min_size)));
    }
    if c.max_size < u64::MAX {
        parts.push(format!("no blocks larger than {}", bytes(c.max_size)));
    }
    if parts.is_empty() { "every block".into() } else { parts.join(", ") }
}

/// Describes how long the target was stopped.
pub(crate) fn stops(times: &StopTimes) -> String {
    let (longest, sum) = (time(times.longest), time(times.sum));
    format!(
        "the process was stopped for {longest} at most; {} stops, {sum} in all",
        number(times.count as u64)
    )
}

/// Returns lines with the hooked functions, by module.
fn hooked(hooks: &[Hook]) -> Vec<String> {
    let mut modules: BTreeMap<&str, Vec<(u32, String)>> = BTreeMap::new();
    for h in hooks {
        let name = prof_analyze::symbols::demangle(&h.function);
        let functions = modules.entry(&h.module).or_default();
        // An alias is no function of its own: `prof status` and `prof report` count it neither.
        match functions.iter_mut().find(|f| f.0 == h.index) {
            Some((_, names)) => *names += &format!(" = {name}"),
            None => functions.push((h.index, name)),
        }
    }
    modules
        .into_iter()
        .map(|(module, functions)| {
            let functions = functions.into_iter().map(|f| f.1).collect();
            format!("hooked in {module}: {}", list(functions))
        })
        .collect()
}

/// Functions that are named before others.
const FIRST: [&str; 6] = ["malloc", "free", "calloc", "realloc", "operator new", "operator delete"];
/// Number of names in a line, unless all are asked for (`-v`).
const NAMED: usize = 6;

/// Returns names of functions for one line. All forms of an operator count as one, and functions that change mappings
/// come last; `-v` shows all names.
pub(crate) fn list(mut functions: Vec<String>) -> String {
    functions.sort_by_key(|f| is_call(f));
    if log::log_enabled!(log::Level::Info) || functions.len() <= NAMED {
        return functions.join(", ");
    }
    shortened(&functions)
}

/// Returns whether a function, perhaps with its other names, is one that changes mappings.
fn is_call(function: &str) -> bool {
    let name = function.split('=').next().unwrap_or(function);
    prof_inject::hooked::calls::is_call(name.trim_end())
}

fn shortened(functions: &[String]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for f in functions {
        let name = f.split(['(', '=']).next().unwrap_or(f).trim_end().trim_end_matches("[]");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // The sort is stable: functions that are not in the list keep their order.
    names.sort_by_key(|n| FIRST.iter().position(|f| f == n).unwrap_or(FIRST.len()));
    names.truncate(NAMED);
    let names = names.join(", ");
    let calls = match functions.iter().filter(|f| is_call(f)).count() {
        0 => String::new(),
        n => format!(", {n} of them to see mappings"),
    };
    format!("{names} and others, {} functions in all{calls} (-v names them)", functions.len())
}

fn not_hooked(list: &[NotHooked]) -> Vec<String> {
    let mut reasons: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for n in list {
        let name = prof_analyze::symbols::demangle(&n.function);
        reasons.entry((&n.module, &n.reason)).or_default().push(name);
    }
    reasons
        .into_iter()
        .map(|((module, why), f)| format!("not hooked in {module}: {} ({why})", f.join(", ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn long_lists_are_shortened_to_what_people_know() {
        let all = [
            "xallocx",
            "operator delete[](void*)",
            "operator new(unsigned long)",
            "operator new[](unsigned long)",
            "memalign",
            "free",
            "malloc",
            "calloc",
            "realloc",
        ];
        let all: Vec<String> = all.iter().map(|n| n.to_string()).collect();
        let text = "malloc, free, calloc, realloc, operator new, operator delete and others, \
                    9 functions in all (-v names them)";
        assert_eq!(shortened(&all), text);
        assert_eq!(list(all[5..].to_vec()), "free, malloc, calloc, realloc");
        let with_calls = [&["mmap".to_owned(), "brk".to_owned()], &all[..]].concat();
        assert_eq!(
            list(with_calls),
            "malloc, free, calloc, realloc, operator new, operator delete and others, \
             11 functions in all, 2 of them to see mappings (-v names them)"
        );
    }

    #[test]
    fn functions_are_listed_by_module() {
        let h = |index: u32, function: &str, module: &str| Hook {
            index,
            function: function.into(),
            module: module.into(),
            method: "inline".into(),
        };
        let all = [
            h(0, "malloc", "/libc"),
            h(1, "free", "/libc"),
            h(1, "cfree", "/libc"),
            h(2, "x", "/a"),
        ];
        assert_eq!(hooked(&all), ["hooked in /a: x", "hooked in /libc: malloc, free = cfree"]);
        let n =
            NotHooked { function: "_Znwm".into(), module: "/m".into(), reason: "too short".into() };
        assert_eq!(not_hooked(&[n]), ["not hooked in /m: operator new(unsigned long) (too short)"]);
        let us = Duration::from_micros;
        assert_eq!(
            stops(&StopTimes { longest: us(420), sum: us(1100), count: 3 }),
            "the process was stopped for 420.0 us at most; 3 stops, 1.1 ms in all"
        );
    }
}
