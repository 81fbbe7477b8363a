//! The views of `prof report`, end to end: on a program whose figures are known.

use common::Scene;
use common::build::{line_of, program, program_with};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Records a program of `tests/programs` from start to end.
fn record(scene: &Scene, source: &str, args: &[&str]) -> String {
    record_program(scene, &program(source), args)
}

/// Records any program from start to end.
fn record_program(scene: &Scene, program: &Path, args: &[&str]) -> String {
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--"]).arg(program).args(args);
    scene.run(c).ok("prof run");
    "r.prof".into()
}

/// Returns the JSON of a report.
#[track_caller]
fn report(scene: &Scene, args: &[&str]) -> Value {
    let out = scene.prof(&[&["report", "r.prof", "--format", "json"], args].concat());
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{out:#?}"))
}

/// Returns the text of a report.
#[track_caller]
fn text(scene: &Scene, args: &[&str]) -> String {
    scene.prof(&[&["report", "r.prof"], args].concat()).ok("prof report").stdout
}

/// Returns the row with that name.
#[track_caller]
fn row<'a>(report: &'a Value, list: &str, name: &str) -> &'a Value {
    let rows = report[list].as_array().unwrap_or_else(|| panic!("no {list} in {report:#}"));
    let named = |r: &&Value| r["name"] == name || r["place"]["function"] == name;
    rows.iter().find(named).unwrap_or_else(|| panic!("no {name} in {rows:#?}"))
}

#[track_caller]
fn numbers<const N: usize>(row: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|n| row[n].as_u64().unwrap_or_else(|| panic!("no {n} in {row:#}")))
}

/// Returns the sum of a figure over rows and the rest.
fn sum(report: &Value, list: &str, name: &str) -> u64 {
    let rows = report[list].as_array().into_iter().flatten();
    let rest = report["rest"][name].as_u64().unwrap_or(0);
    rows.map(|r| r[name].as_u64().unwrap_or(0)).sum::<u64>() + rest
}

const FIGURES: [&str; 5] =
    ["live_count", "live_bytes", "allocations", "reallocations", "temporary"];

#[test]
fn every_grouping_has_the_programs_figures_and_adds_up() {
    let scene = Scene::new("views");
    record(&scene, "figures.c", &[]);
    let by = report(&scene, &["--group-by", "function"]);
    for (name, figures) in [
        ("small", [54, 54 * 24, 100, 0, 0]),
        ("large", [10, 50_000, 10, 0, 0]),
        ("moved", [1, 640, 1, 5, 0]),
    ] {
        assert_eq!(numbers(row(&by, "rows", name), FIGURES), figures, "{name}");
    }
    let by = report(&scene, &["--group-by", "function", "--sort", "total", "--top", "0"]);
    let main = row(&by, "rows", "main");
    assert_eq!(main["live_bytes"], 0);
    assert!(main["total"]["live_bytes"].as_u64() >= Some(54 * 24 + 640), "{main:#}");

    let merged = report(&scene, &["--merge", "--temporary"]);
    let brief = &merged["locations"][0];
    assert_eq!(numbers(brief, FIGURES), [0, 0, 50, 0, 50]);
    assert_eq!(brief["stacks"][0]["frames"][0]["function"], "brief");

    let threads = report(&scene, &["--threads"]);
    let large = threads["rows"].as_array().expect("rows").iter();
    let large: Vec<_> = large.filter(|r| r["live_bytes"] == 50_000).collect();
    assert_eq!((large.len(), large[0]["frees"].as_u64()), (1, Some(0)), "{threads:#}");
    let frees =
        sum(&threads, "rows", "frees") + numbers(&threads["recording"], ["unknown_frees"])[0];
    assert_eq!(Some(frees), threads["totals"]["frees"].as_u64());

    let sizes = report(&scene, &["--histogram", "--function", "^(small|large|brief)$"]);
    let counts: Vec<_> = sizes["sizes"]
        .as_array()
        .expect("sizes")
        .iter()
        .map(|s| s["allocations"].clone())
        .collect();
    assert_eq!(
        counts.iter().filter_map(Value::as_u64).filter(|n| *n > 0).collect::<Vec<_>>(),
        [100, 50, 10]
    );
    for (args, list) in [
        (&["--group-by", "function"][..], "rows"),
        (&["--group-by", "file", "--top", "1"], "rows"),
        (&["--group-by", "module", "--at", "50%"], "rows"),
        (&["--group-by", "thread", "--peak"], "rows"),
        (&["--merge", "--top", "2", "--from", "1%"], "locations"),
        (&["--histogram"], "sizes"),
    ] {
        let r = report(&scene, args);
        for name in FIGURES {
            assert_eq!(Some(sum(&r, list, name)), r["totals"][name].as_u64(), "{args:?}: {name}");
        }
    }
}

#[test]
fn trees_and_changes_are_shown() {
    let scene = Scene::new("tree");
    record(&scene, "figures.c", &[]);
    let t = text(&scene, &["--tree"]);
    let line = |part: &str| t.lines().find(|l| l.contains(part)).unwrap_or_else(|| panic!("{t}"));
    assert!(line("SOURCE").trim_start().starts_with("SIZE  COUNT"), "{t}");
    assert!(line("large ").contains("48.8 KiB     10"), "{t}");
    let up = report(&scene, &["--bottom-up", "--depth", "1"]);
    let top = &up["tree"]["children"];
    let large = top
        .as_array()
        .expect("nodes")
        .iter()
        .find(|c| c["place"]["function"] == "large")
        .expect("large");
    assert_eq!(
        (large["live_bytes"].as_u64(), large["deeper"].as_bool()),
        (Some(50_000), Some(true))
    );
    let r = report(&scene, &["--group-by", "function", "--base", "0"]);
    assert_eq!(row(&r, "rows", "small")["change"]["live_count"], 54);
    assert!(text(&scene, &["--tree", "--base", "0"]).contains("+48.8 KiB"));
    assert!(text(&scene, &["--top", "1", "--depth", "1"]).contains("more frame"));
    for wrong in [
        &["--tree", "--sort", "peak-size"][..],
        &["--bottom-up", "--merge"],
        &["--tree", "--merge"],
        &["--stats", "--base", "1"],
        &["--merge", "--at", "0", "--base", "50%"],
        &["--temporary", "--sort", "size"],
    ] {
        let out = scene.prof(&[&["report", "r.prof"], wrong].concat());
        assert_eq!(out.code, 2, "{wrong:?}: {out:#?}");
    }
}

#[test]
fn statistics_have_the_programs_figures() {
    let scene = Scene::new("stats");
    record(&scene, "figures.c", &[]);
    let f = ["--function", "^(small|large|moved|brief)$"];
    let s = report(&scene, &[&["--stats"], &f[..]].concat());
    assert_eq!(s["top_sizes_by_count"][0]["size"], 24);
    assert_eq!(
        numbers(&s["top_sizes_by_bytes"][0], ["size", "count", "bytes"]),
        [5000, 10, 50_000]
    );
    assert_eq!(s["top_places_by_count"][0]["place"]["function"], "small");
    let lifetimes = s["lifetimes"].as_array().expect("lifetimes");
    let all: u64 = lifetimes.iter().filter_map(|l| l["count"].as_u64()).sum();
    assert_eq!(all, 100 + 10 + 6 + 50);
    assert_eq!(lifetimes.last().map(|l| l["count"].as_u64()), Some(Some(54 + 10 + 1)));
    let bytes = 100 * 24 + 50_000 + 20 + 40 + 80 + 160 + 320 + 640 + 50 * 333;
    let mean = s["mean_size"].as_f64().expect("a number");
    assert!((mean - f64::from(bytes) / 166.0).abs() < 1e-6, "{mean}");
    assert!(s["allocations_per_second"].as_f64().is_some_and(|n| n > 0.0));
    let t = text(&scene, &["--stats"]);
    for part in ["rates", "calls", "by size", "by lifetime", "top places by bytes"] {
        assert!(t.contains(part), "{part} in {t}");
    }
}

#[test]
fn lists_leave_stacks_out_and_say_so() {
    let scene = Scene::new("suppressed");
    record(&scene, "suppressed.c", &[]);
    let live = |args: &[&str]| {
        let r = report(&scene, &[args, &["--module", "suppressed"]].concat());
        (numbers(&r["totals"], ["live_bytes"])[0], r["suppressed"].clone())
    };
    let (all, none) = live(&[]);
    assert!(all == 7 * 1000 + 500 + 3 * 200 && none.is_null(), "{all}: {none:#}");
    std::fs::write(scene.path("list.txt"), "# mine\n^known$\n").expect("written");
    let (rest, left_out) = live(&["--ignore", "list.txt"]);
    assert_eq!((rest, left_out["live_bytes"].as_u64()), (1100, Some(7000)));
    std::fs::write(scene.path("a.supp"), "leak:known\nleak:nobody\n").expect("written");
    let (rest, left_out) = live(&["--suppressions", "a.supp"]);
    assert_eq!((rest, left_out["unused_rules"].as_u64()), (600, Some(1)), "{left_out:#}");
    // The program's own suppressions, but not the other text in it.
    let (rest, left_out) = live(&["--embedded-suppressions"]);
    assert_eq!((rest, left_out["stacks"].as_u64()), (600, Some(2)), "{left_out:#}");
    assert_eq!(left_out["rules"][0]["rule"], "leak:^known$");
    let t = text(&scene, &["--embedded-suppressions"]);
    assert!(t.contains("suppressed 7.3 KiB in 8 blocks, of 2 stacks: left out"), "{t}");
    std::fs::write(scene.path("bad.supp"), "leak:a\nnonsense\n").expect("written");
    let out = scene.prof(&["report", "r.prof", "--suppressions", "bad.supp"]);
    assert!(out.code == 2 && out.stderr.contains("bad.supp, line 2"), "{out:#?}");
    let out = scene.prof(&["leaks", "r.prof", "--ignore", "no-such-file"]);
    assert!(out.code == 2 && out.stderr.contains("no-such-file"), "{out:#?}");
}

#[test]
fn who_asked_is_named_through_wrappers_and_libraries() {
    let scene = Scene::new("wrappers");
    record_program(&scene, &program_with("wrappers.cpp", &["-O0"]), &[]);
    let functions = report(&scene, &["--group-by", "function", "--top", "0"]);
    for (name, bytes) in [
        ("open_session", 10 * 1001),
        ("parse_header", 10 * 201),
        ("read_body", 10 * 5001),
        ("make_entry", 10 * 64),
    ] {
        let [live] = numbers(row(&functions, "rows", name), ["live_bytes"]);
        assert_eq!(live, bytes, "{name} of {functions:#}");
    }
    // The reference counts of a shared pointer are allocated with its object.
    let [nodes] = numbers(row(&functions, "rows", "link_node"), ["live_count"]);
    assert_eq!(nodes, 10);
    let [table] = numbers(row(&functions, "rows", "grow_table"), ["live_bytes"]);
    assert_eq!(table, 4000);
    // The text names the place in a line of each heading, and of each verdict.
    let text_of = text(&scene, &["--top", "0"]);
    let line = line_of("wrappers.cpp", "open_session");
    let of = |l: &str| {
        l.starts_with("open_session ") && l.ends_with(&format!("wrappers.cpp:{line}, by text_of"))
    };
    assert!(text_of.lines().any(of), "{text_of}");
    let line = line_of("wrappers.cpp", "grow_table");
    let of = |l: &str| {
        l.starts_with("grow_table ")
            && l.ends_with(&format!("wrappers.cpp:{line}, by std::vector::resize"))
    };
    assert!(text_of.lines().any(of), "{text_of}");
    let leaks = scene.prof(&["leaks", "r.prof", "--all", "--top", "0"]).ok("prof leaks").stdout;
    assert!(leaks.lines().any(|l| l.starts_with("open_session ")), "{leaks}");
    // The options change which function counts as the asker.
    let shown = report(&scene, &["--group-by", "function", "--top", "0", "--show-wrappers"]);
    let [live] = numbers(row(&shown, "rows", "xmalloc"), ["live_bytes"]);
    assert_eq!(live, 10 * (1001 + 201 + 5001 + 64));
    let skipped = report(&scene, &["--group-by", "function", "--top", "0", "--skip", "^open_"]);
    let [main] = numbers(row(&skipped, "rows", "main"), ["live_bytes"]);
    let [before] = numbers(row(&functions, "rows", "main"), ["live_bytes"]);
    assert_eq!(main, before + 10 * 1001);
    let out = scene.prof(&["report", "r.prof", "--skip", "("]);
    assert!(out.code == 2 && out.stderr.contains("--skip"), "{out:#?}");
}
