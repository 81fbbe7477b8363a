//! The commands on recordings, end to end: verdicts on leaks, limits, comparisons, exports read by the tools they are
//! for, and figures compared with heaptrack's.

use common::build::{line_of, program};
use common::{Output, Scene, installed, skip};
use serde_json::Value;
use std::process::Command;

/// Records a program of `tests/programs` from start to end.
fn record(scene: &Scene, source: &str, args: &[&str]) -> String {
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof", "--"]).arg(program(source)).args(args);
    scene.run(c).ok("prof run");
    "r.prof".into()
}

/// Runs a command of prof on the recording, and returns its JSON.
#[track_caller]
fn json(scene: &Scene, args: &[&str]) -> Value {
    let out = scene.prof(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{out:#?}"))
}

/// Runs another tool on a file of the scene.
#[track_caller]
fn tool(scene: &Scene, name: &str, args: &[&str]) -> Output {
    let mut c = Command::new(name);
    c.args(args);
    scene.run(c).ok(name)
}

/// Returns the line of the first frame in a source.
fn line(stack: &Value, source: &str) -> u64 {
    let frames = stack["frames"].as_array().expect("frames");
    let here = |f: &&Value| f["file"].as_str().is_some_and(|p| p.ends_with(source));
    frames.iter().find(here).and_then(|f| f["line"].as_u64()).unwrap_or(0)
}

#[test]
fn every_kind_of_leak_gets_its_verdict() {
    let scene = Scene::new("leaks");
    let file = record(&scene, "leaks.c", &["6000"]);
    let found = json(&scene, &["leaks", &file, "--all", "--top", "0"]);
    let stacks = found["stacks"].as_array().expect("stacks");
    let verdict = |marker: &str| {
        let at = line_of("leaks.c", marker);
        let s = stacks.iter().find(|s| line(s, "leaks.c") == at);
        s.map(|s| s["class"].as_str().expect("a class").to_owned())
    };
    for (marker, class) in [
        ("linear", Some("growing")),
        ("freed_at_the_end", Some("freed-at-the-end")),
        ("bounded", Some("saturating")),
        ("both", Some("growing")),
        ("temporary", None),
        ("fixed", Some("static")),
    ] {
        assert_eq!(verdict(marker).as_deref(), class, "@{marker} in {found:#}");
    }
    let growing = &found["classes"][0];
    assert_eq!((growing["class"].as_str(), growing["stacks"].as_u64()), (Some("growing"), Some(2)));
    // 700 bytes, and a third of 300, every 4 ms; the weakest interval is below the mean.
    let mean = growing["mean_growth_per_hour"].as_u64().expect("a number");
    let true_rate = 800 * 250 * 3600;
    assert!((true_rate * 8 / 10..true_rate * 12 / 10).contains(&mean), "{mean} of {true_rate}");
    assert!(growing["growth_per_hour"].as_u64().expect("a number") <= mean * 11 / 10);

    let text = scene.prof(&["leaks", &file]).ok("prof leaks").stdout;
    assert!(text.contains("=== growing #1 ===") && text.contains('█'), "{text}");
    for (limit, code) in [("growing > 1MiB/h", 1), ("growing > 1TiB/h", 0), ("growing", 1)] {
        let out = scene.prof(&["leaks", &file, "--fail-if", limit]);
        assert_eq!(out.code, code, "{limit}: {out:#?}");
    }
    let out = scene.prof(&["leaks", &file, "--fail-if", "nonsense"]);
    assert!(out.code == 2 && out.stderr.contains("growing > 1MiB/h"), "{out:#?}");
    // Filters apply here as well.
    let found = json(&scene, &["leaks", &file, "--function", "^bounded$"]);
    assert_eq!(found["stacks"].as_array().map(Vec::len), Some(1), "{found:#}");
}

#[test]
fn filters_and_moments_have_the_programs_figures() {
    let scene = Scene::new("filters");
    let file = record(&scene, "figures.c", &[]);
    let total = |args: &[&str], name: &str| -> u64 {
        let r = json(&scene, &[&["report", &file], args].concat());
        r["totals"][name].as_u64().unwrap_or_else(|| panic!("{name} in {r:#}"))
    };
    let f = ["--function", "^(small|large|moved|brief)$"];
    let with = |more: &[&'static str]| [&f[..], more].concat();
    assert_eq!(total(&f, "allocations"), 100 + 10 + 1 + 50);
    assert_eq!(total(&f, "reallocations"), 5);
    assert_eq!(total(&f, "live_count"), 54 + 10 + 1);
    assert_eq!(total(&f, "live_bytes"), 54 * 24 + 10 * 5000 + 640);
    assert_eq!(total(&f, "temporary"), 50);
    assert_eq!(total(&with(&["--min-size", "1KiB"]), "allocations"), 10);
    assert_eq!(total(&with(&["--lifetime", "leaked"]), "allocations"), 64);
    assert_eq!(total(&with(&["--lifetime", "temporary"]), "allocations"), 50);
    assert_eq!(total(&with(&["--min-chain-length", "6"]), "reallocations"), 5);
    assert_eq!(
        total(&with(&["--min-first-size", "20", "--max-first-size", "20"]), "live_bytes"),
        640
    );
    let all = scene
        .prof(&["export", "json", "--json-version", "1", &file, "--function", "^large$"])
        .ok("prof export");
    let all: Value = serde_json::from_str(&all.stdout).expect("JSON");
    let tid = all["allocations"][0]["thread"].as_u64().expect("a thread").to_string();
    let by_thread = [&f[..], &["--thread", &tid]].concat();
    assert_eq!(total(&by_thread, "allocations"), 10, "thread {tid}");
    assert_eq!(total(&with(&["--not-function", "^small$"]), "allocations"), 61);
    assert_eq!(total(&with(&["--source", "figures.c$", "--to", "100%"]), "live_count"), 65);
    assert_eq!(total(&with(&["--from", "100%", "--older", "1h"]), "allocations"), 0);
    assert_eq!(total(&with(&["--at", "0"]), "allocations"), 0);
    for index in ["--index", "--index", "--no-index"] {
        assert_eq!(total(&with(&[index]), "live_count"), 65);
    }
    assert!(scene.path("r.prof.idx").is_file());
    let refused = scene.prof(&["report", &file, "--marker", "7"]);
    assert!(refused.code == 2 && refused.stderr.contains("prof mark PID NAME"), "{refused:#?}");
    let nobody = scene.prof(&["report", &file, "--thread", "nobody"]);
    assert!(nobody.code == 2 && nobody.stderr.contains("nobody"), "{nobody:#?}");
}

#[test]
fn limits_and_baselines_decide_the_exit_code() {
    let scene = Scene::new("check");
    let file = record(&scene, "figures.c", &[]);
    let only = ["--function", "^(small|large)$"];
    let check = |args: &[&str]| scene.prof(&[&["check", &file], &only[..], args].concat());
    assert_eq!(check(&["--max-leaked-count", "64"]).code, 0);
    let out = check(&["--max-leaked-count", "63", "--max-peak", "1GiB"]);
    assert!(out.code == 1 && out.stdout.contains("EXCEEDED  leaked_count"), "{out:#?}");
    // A figure and a limit that have the same short form.
    let out = check(&["--max-allocated", "1GiB", "--format", "json"]).ok("prof check").stdout;
    let outcome: Value = serde_json::from_str(&out).expect("JSON");
    let allocated = outcome["checks"][0]["value"].as_u64().expect("a figure");
    let out = check(&["--max-allocated", &(allocated - 1).to_string()]);
    let text = out.stdout.replace(',', "");
    let says = format!("{allocated} bytes at most {} bytes", allocated - 1);
    assert!(out.code == 1 && text.contains(&says), "{out:#?}");
    assert_eq!(check(&[]).code, 2);
    assert_eq!(check(&["--baseline", "none.json"]).code, 2);
    check(&["--write-baseline", "base.json"]).ok("prof check");
    assert_eq!(check(&["--baseline", "base.json"]).code, 0);
    let base = std::fs::read_to_string(scene.path("base.json")).expect("a baseline");
    std::fs::write(scene.path("less.json"), base.replace("110", "100")).expect("written");
    assert_eq!(check(&["--baseline", "less.json"]).code, 1);
    assert_eq!(check(&["--baseline", "less.json", "--tolerance", "10%"]).code, 0);
}

#[test]
fn recordings_of_two_runs_are_compared_by_stack() {
    let scene = Scene::new("diff");
    for (name, more) in [("a.prof", "0"), ("b.prof", "7")] {
        let mut c = Command::new(Scene::binary());
        c.args(["run", "-o", name, "--"]).arg(program("figures.c")).arg(more);
        scene.run(c).ok("prof run");
    }
    let d = json(&scene, &["diff", "a.prof", "b.prof"]);
    assert_eq!(d["total"]["live_bytes"].as_i64(), Some(7 * 5000), "{d:#}");
    let stacks = d["stacks"].as_array().expect("stacks");
    assert_eq!(stacks.len(), 1, "{d:#}");
    assert_eq!(line(&stacks[0], "figures.c"), line_of("figures.c", "large"));
    assert_eq!(stacks[0]["change"]["live_count"].as_i64(), Some(7));
    assert!(d["same_stacks"].as_u64().is_some_and(|n| n >= 3), "{d:#}");
    let d = json(&scene, &["diff", "b.prof", "a.prof", "--function", "^small$"]);
    assert_eq!(d["stacks"].as_array().map(Vec::len), Some(0), "{d:#}");
    let d = json(&scene, &["report", "b.prof", "--base", "0", "--top", "0"]);
    assert_eq!(d["total"]["live_bytes"], d["after"]["totals"]["live_bytes"], "{d:#}");
}

/// Returns the number in the line of a tool's output that begins with `name`.
#[track_caller]
fn figure(out: &Output, name: &str) -> f64 {
    let line = out.stdout.lines().find(|l| l.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {out:#?}"));
    let text = line.rsplit(':').next().unwrap_or_default().trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match text[digits..].chars().next() {
        Some('K') => 1e3,
        Some('M') => 1e6,
        _ => 1.0,
    };
    text[..digits].parse::<f64>().unwrap_or_else(|e| panic!("{line}: {e}")) * unit
}

/// Compares numbers up to heaptrack's precision of three digits.
#[track_caller]
fn close(got: f64, want: u64) {
    assert!((got - want as f64).abs() <= want as f64 * 0.006 + 10.0, "{got} is not {want}");
}

#[test]
fn heaptrack_reads_the_export_and_counts_the_same_itself() {
    const NAME: &str = "heaptrack_reads_the_export_and_counts_the_same_itself";
    let scene = Scene::new("heaptrack");
    let file = record(&scene, "figures.c", &[]);
    let totals = json(&scene, &["report", &file])["totals"].clone();
    let number = |n: &str| totals[n].as_u64().expect("a number");
    scene.prof(&["export", "heaptrack", &file, "-o", "out.txt"]).ok("prof export");
    if !installed("heaptrack_print") || !installed("heaptrack") {
        return skip(NAME, "heaptrack is not installed");
    }
    let ours = tool(&scene, "heaptrack_print", &["-f", "out.txt"]);
    let calls = number("allocations") + number("reallocations");
    close(figure(&ours, "calls to allocation functions"), calls);
    close(figure(&ours, "temporary memory allocations"), number("temporary"));
    close(figure(&ours, "peak heap memory consumption"), number("peak_bytes"));
    close(figure(&ours, "total memory leaked"), number("live_bytes"));
    assert!(ours.stdout.contains("large") && ours.stdout.contains("figures.c"), "{ours:#?}");
    // Compare with heaptrack's own recording of the program.
    let mut c = Command::new("heaptrack");
    c.args(["-o", "own"]).arg(program("figures.c"));
    scene.run(c).ok("heaptrack");
    let own = std::fs::read_dir(&scene.dir).expect("a folder").flatten().map(|e| e.path());
    let own = own.filter(|p| p.to_string_lossy().contains("/own.")).max().expect("a recording");
    let theirs = tool(&scene, "heaptrack_print", &["-f", own.to_str().expect("UTF-8")]);
    // heaptrack's library loads libstdc++, which allocates this much at its start.
    const POOL: f64 = 72_704.0;
    for (name, most, pool) in [
        ("calls to allocation functions", 2.0, 0.0),
        // heaptrack does not distinguish blocks of one stack and size, and takes some for temporary.
        ("temporary memory allocations", 4.0, 0.0),
        ("peak heap memory consumption", 1100.0, POOL),
        ("total memory leaked", 1100.0, 0.0),
    ] {
        let (a, b) = (figure(&ours, name), figure(&theirs, name));
        let off = (a - b).abs().min((a + pool - b).abs());
        assert!(off <= most, "{name}: {a} here, {b} there");
    }
}

#[test]
fn other_tools_read_their_exports() {
    let scene = Scene::new("export");
    let file = record(&scene, "figures.c", &[]);
    let only = ["--function", "^(small|large|moved|brief)$"];
    let export = |format: &str, more: &[&str]| {
        let name = format!("out.{format}");
        let args = [&["export", format, &file, "-o", &name], &only[..], more].concat();
        scene.prof(&args).ok("prof export");
        std::fs::read(scene.path(&name)).expect("an export")
    };
    let live = 54 * 24 + 10 * 5000 + 640;
    let folded = String::from_utf8(export("folded", &[])).expect("UTF-8");
    let sum: u64 =
        folded.lines().map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, live, "{folded}");
    assert!(folded.contains(";main [") && folded.contains(";large ["), "{folded}");
    let again = scene.prof(&["export", "folded", &file, "-o", "out.folded"]);
    assert!(again.code == 2 && again.stderr.contains("out.folded exists already"), "{again:#?}");
    let svg = String::from_utf8(export("flamegraph", &["--cost", "allocations"])).expect("UTF-8");
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"), "{svg:.200}");

    let s: Value = serde_json::from_slice(&export("speedscope", &[])).expect("JSON");
    let p = &s["profiles"][0];
    let weights = p["weights"].as_array().expect("weights");
    assert_eq!(weights.iter().filter_map(Value::as_u64).sum::<u64>(), live);
    assert_eq!((p["endValue"].as_u64(), p["unit"].as_str()), (Some(live), Some("bytes")));
    let frames = s["shared"]["frames"].as_array().expect("frames").len() as u64;
    let samples = p["samples"].as_array().expect("samples").iter();
    let samples: Vec<_> = samples.filter_map(Value::as_array).flatten().collect();
    assert!(samples.iter().all(|f| f.as_u64().is_some_and(|f| f < frames)), "{s:#}");

    let d: Value = serde_json::from_slice(&export("dhat", &[])).expect("JSON");
    let points = d["pps"].as_array().expect("points");
    let sum = |key: &str| points.iter().filter_map(|p| p[key].as_u64()).sum::<u64>();
    assert_eq!((sum("eb"), sum("tbk")), (live, 100 + 10 + 1 + 50 + 5));
    assert!(points.iter().all(|p| p["mb"].as_u64() >= p["gb"].as_u64()), "{d:#}");

    let csv = String::from_utf8(export("csv", &[])).expect("UTF-8");
    assert_eq!(csv.lines().count(), 1 + 100 + 10 + 1 + 50 + 5);
    let all: Value =
        serde_json::from_slice(&export("json", &["--json-version", "1"])).expect("JSON");
    let rows = all["allocations"].as_array().expect("allocations");
    let held = rows.iter().filter(|r| r["freed_at_ns"].is_null());
    assert_eq!(held.filter_map(|r| r["size"].as_u64()).sum::<u64>(), live);
    export("massif", &[]);
    export("pprof", &[]);
    if installed("ms_print") {
        let out = tool(&scene, "ms_print", &["out.massif"]);
        assert!(
            out.stdout.contains("(peak)") && out.stdout.contains("large (figures.c:"),
            "{out:#?}"
        );
    } else {
        skip("other_tools_read_their_exports", "ms_print is not installed");
    }
    if installed("go") {
        for (index, want) in [("inuse_space", "51936B"), ("alloc_objects", "166B")] {
            let args = ["tool", "pprof", "-top", "-unit=B", "-sample_index", index, "out.pprof"];
            let out = tool(&scene, "go", &args);
            let total = format!(" of {want} total");
            assert!(out.stdout.contains(&total) && out.stdout.contains(" main"), "{out:#?}");
        }
    } else {
        skip("other_tools_read_their_exports", "go is not installed");
    }
}
