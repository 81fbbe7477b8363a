//! Filters as scripts: random ones of every field, whose script must print the report of the command line.

use super::*;
use prof_analyze::maps::{
    FIELDS as FIELDS_OF_MAPS, MapFilter, MapSort, Maps, MapsOptions, MapsReport,
};
use prof_analyze::query::{FIELDS, Field, Filter, Query};
use prof_analyze::report::{FilterData, Report, ReportOptions, SortKey, Style};
use prof_script::{maps_script, report_script};

/// Texts that end a string, begin an escape or a placeholder, or mean something in a regular expression.
const PIECES: [&str; 24] = [
    "f",
    "^f1",
    "_$",
    "\"",
    "\\\"",
    "\\\\",
    "\\d",
    "[0-9]",
    "(1|2)",
    "{1,3}",
    "{",
    "}",
    "${",
    "`",
    "'",
    "é",
    "日本",
    "\u{1f980}",
    "\n",
    "\t",
    "\r",
    "\u{7}",
    "//",
    ".*",
];

fn regex(r: &mut Random) -> String {
    let text: String = (0..1 + r.below(4)).map(|_| PIECES[r.below(24) as usize]).collect();
    // Half of them select blocks.
    if r.below(2) == 0 { format!("{text}|f[1-9]_") } else { text }
}

fn time(r: &mut Random, runtime: u64) -> String {
    match r.below(6) {
        0 => format!("{}%", r.below(1000) as f64 / 10.0),
        1 => format!("{}ns", r.below(runtime)),
        2 => format!("{}us", r.below(runtime) as f64 / 1000.0),
        3 => format!("0.{:09}", r.below(runtime)),
        4 => "0".into(),
        _ => format!("{}h", r.below(3)),
    }
}

/// Returns a value of a field's kind, which need not be a valid one.
fn value(r: &mut Random, kind: &str, name: &str, runtime: u64) -> String {
    let of = |r: &mut Random, all: &[&str]| all[r.below(all.len() as u64) as usize].to_owned();
    match kind {
        "TIME" => time(r, runtime),
        "REGEX" => regex(r),
        "SIZE" => match r.below(4) {
            0 => format!("{}", r.below(5000)),
            1 => format!("{}KiB", r.below(50) as f64 / 10.0),
            2 => format!("0.{}K", r.below(5)),
            _ => "1,024".into(),
        },
        "ADDR" => match r.below(3) {
            0 => format!("{:#x}", r.below(6400)),
            1 => format!("{}", r.below(6400)),
            _ => "0xffffffffffffffff".into(),
        },
        "KIND" => of(
            r,
            &[
                "leaked",
                "freed",
                "temporary",
                "only_temporary",
                "chain-leaked",
                "chain_leaked",
                "whole-group-leaked",
                "all",
                "live",
            ],
        ),
        "TID|NAME" => of(r, &["even", "odd", "101", "odd-one", "\"", "\\", "7"]),
        "ID,..." => {
            let ids: Vec<String> = (0..1 + r.below(9)).map(|_| r.below(22).to_string()).collect();
            ids.join(if r.below(2) == 0 { "," } else { ", " })
        }
        // These recordings have no marks.
        "MARK" => of(r, &["#1", "one, \"two\""]),
        "MARK,MARK" => of(r, &["one,two", "#1, #2"]),
        "N|N%" => match r.below(2) {
            0 => r.below(9).to_string(),
            _ => format!("{}%", r.below(400) as f64 / 8.0),
        },
        "yes|no" => of(r, &["yes", "no"]),
        "main|non-main" => of(r, &["main", "non-main", "non_main"]),
        "N" if name.contains("group") => r.below(90).to_string(),
        "N" => r.below(4).to_string(),
        other => panic!("--{name} is of the kind {other}, which this test does not make"),
    }
}

#[test]
fn a_filter_as_a_script_prints_the_report_of_the_command_line() {
    let (mut whole, mut some, mut seen) = (0, 0, std::collections::HashSet::new());
    for seed in 1..4 {
        let mut b = bench(40 + seed, 700);
        let (mut r, runtime) = (Random(seed * 1234 + 5), ns(b.end));
        let fields: Vec<_> = FIELDS.iter().filter(|f| f.refused.is_none()).collect();
        for round in 0..160 {
            let mut filter = Filter::default();
            let first = fields[round % fields.len()];
            let more = (0..r.below(3)).map(|_| fields[r.below(fields.len() as u64) as usize]);
            for f in [first].into_iter().chain(more.collect::<Vec<_>>()) {
                let text = value(&mut r, f.value, f.name, runtime);
                if filter.set(f.name, &text).is_ok() {
                    seen.insert(f.name);
                }
            }
            // What the command line refuses it does not print as a script either.
            let Ok(query) = Query::new(b.data.index(), &filter) else { continue };
            let (key, sort) = SortKey::ALL[r.below(4) as usize];
            let top = (r.below(2) == 0).then(|| r.below(5) as usize);
            let data = |g: &(&str, String)| FilterData { name: g.0.into(), value: g.1.clone() };
            let options = ReportOptions {
                top: top.unwrap_or(10),
                sort: key,
                empty: top.is_some(),
                filter: filter.given().iter().map(data).collect(),
                ..ReportOptions::default()
            };
            let code = report_script(filter.given(), top, sort).expect("a script");
            let analysis = query.analysis(None).expect("read");
            let selected = Report::new(&analysis, &options);
            let rows = query.rows().expect("read").len();
            let figures = selected.head.totals.allocated_bytes;
            let printed = b.lines(&code).join("\n");
            // The report names the filter, in the words that the script has for it.
            let plain = |text: &str| -> String {
                let lines = text.trim_end().lines().filter(|l| !l.contains("filter"));
                lines.collect::<Vec<_>>().join("\n")
            };
            assert_eq!(
                plain(&printed),
                plain(&selected.text(Style::of_script())),
                "{:?}\n{code}",
                filter.given()
            );
            let list = code.split_once("println").expect("a script").0;
            assert_eq!(
                b.lines(&format!("{list}println(list.len());")),
                [rows.to_string()],
                "{code}"
            );
            whole += 1;
            some += u64::from(figures > 0);
        }
    }
    let missing: Vec<_> = FIELDS
        .iter()
        .filter(|f| f.refused.is_none() && !seen.contains(f.name))
        .map(|f| f.name)
        .collect();
    assert!(missing.is_empty(), "never set: {missing:?}");
    assert!(whole > 300 && some > 100, "{whole} scripts, {some} of them on blocks");
}

/// Returns a value of a field of mappings, which need not be a valid one.
fn value_of_maps(r: &mut Random, field: &Field) -> String {
    let of = |r: &mut Random, all: &[&str]| all[r.below(all.len() as u64) as usize].to_owned();
    match (field.name, field.value) {
        (_, "SIZE") => format!("{}KiB", r.below(60)),
        (_, "ADDR") => format!("{:#x}", 0x100_0000 * r.below(60)),
        (_, "KIND,...") => {
            of(r, &["anonymous", "heap", "code, file", "reserved,heap", "prof", "x"])
        }
        ("lifetime", _) => {
            of(r, &["leaked", "live", "freed", "temporary", "only_temporary", "all"])
        }
        ("name", _) if r.below(2) == 0 => of(r, &["^/", "bin|data", "[\"\\]", "^$"]),
        ("since" | "between", _) => of(r, &["deployed", "#1", "#1, #3", "\"", "none"]),
        (_, kind) => value(r, kind, field.name, super::maps::RUNTIME),
    }
}

#[test]
fn a_filter_of_mappings_as_a_script_prints_what_the_command_line_does() {
    let (mut whole, mut some, mut seen) = (0, 0, std::collections::HashSet::new());
    for seed in 21..24 {
        let (mut b, _) = super::maps::mapped(seed);
        let mut r = Random(seed * 77 + 1);
        for round in 0..160 {
            let mut filter = MapFilter::default();
            let more = (0..r.below(3)).map(|_| r.below(FIELDS_OF_MAPS.len() as u64) as usize);
            let chosen: Vec<usize> =
                [round % FIELDS_OF_MAPS.len()].into_iter().chain(more).collect();
            for i in chosen {
                let field = &FIELDS_OF_MAPS[i];
                if filter.set(field.name, &value_of_maps(&mut r, field)).is_ok() {
                    seen.insert(field.name);
                }
            }
            let analysis = b.data.index().analysis();
            if filter.check(analysis.meta()).is_err() {
                continue;
            }
            let (sort, _) = MapSort::ALL[r.below(5) as usize];
            let top = (r.below(2) == 0).then(|| r.below(9) as usize);
            let options = MapsOptions {
                top: top.unwrap_or(40),
                sort,
                live: !filter.is_about_time(),
                without_ours: !filter.is_about_ours(),
                ..MapsOptions::default()
            };
            let all = Maps::of(analysis).expect("mappings");
            let selected = MapsReport::new(analysis, &all, &filter, &options);
            let code = maps_script(&filter, top, sort);
            // The list knows nothing of what was left out of it.
            let text = selected.text(Style::of_script());
            let text = text.trim_end().lines().filter(|l| !l.contains("--lifetime all shows"));
            assert_eq!(
                b.lines(&code).join("\n").lines().collect::<Vec<_>>(),
                text.collect::<Vec<_>>(),
                "{:?}\n{code}",
                filter.given()
            );
            whole += 1;
            some += u64::from(selected.total_count > 0);
        }
    }
    let missing = FIELDS_OF_MAPS.iter().map(|f| f.name).filter(|n| !seen.contains(n));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new(), "never set");
    assert!(whole > 300 && some > 100, "{whole} scripts, {some} of them on mappings");
}
