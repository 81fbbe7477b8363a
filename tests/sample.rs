//! Recordings of a part of all blocks: estimates lie within five of their standard errors of the truth, frees of all
//! recorded blocks and of no others are recorded, and limits of size leave exact figures.

use common::build::{program, program_with};
use common::report::Group;
use common::{Report, Scene, Target, skip, snapshot::Snapshot};
use nix::sys::signal::Signal;

/// Returns the probability with which a block of a size is picked.
type Picked = fn(u64) -> f64;

/// For `--sample=4KiB`.
fn by_bytes(size: u64) -> f64 {
    1.0 - (-(size as f64) / 4096.0).exp()
}

/// For `--sample-rate=50`.
fn by_number(_size: u64) -> f64 {
    0.02
}

/// The exact figures of the blocks of one line: number, size, and number of live ones.
struct Truth {
    marker: &'static str,
    size: u64,
    count: u64,
    live: u64,
    again: bool,
}

const fn truth(marker: &'static str, size: u64, count: u64, live: u64) -> Truth {
    Truth { marker, size, count, live, again: false }
}

const fn again(marker: &'static str, size: u64, count: u64, live: u64) -> Truth {
    Truth { marker, size, count, live, again: true }
}

/// Asserts that an estimate is within its error, and that the error is right: for figures that are `value` for each of
/// `n` blocks that were picked with the probability `p`.
#[track_caller]
fn assert_near(what: &str, got: u64, stderr: u64, n: u64, value: u64, p: f64) {
    let (wanted, error) =
        (n as f64 * value as f64, (n as f64 * (1.0 - p) / p).sqrt() * value as f64);
    let off = (got as f64 - wanted).abs() / error.max(1e-9);
    assert!(
        got as f64 == wanted || off < 5.0,
        "{what}: {got} for {wanted}, which is {off:.1} standard errors of {error:.0} off"
    );
    // With 500 picked blocks, the error of the error is some 3 percent.
    let ratio = stderr as f64 / error;
    assert!(
        n == 0 || (0.7..1.4).contains(&ratio),
        "{what}: ± {stderr}, which should be {error:.0}"
    );
}

#[track_caller]
fn check(g: &Group<'_>, t: &Truth, picked: Picked) {
    let p = picked(t.size);
    let name = |f: &str| format!("{f} at @{}: {}", t.marker, g.numbers());
    let near = |field: &str, n, value| {
        let stderr = g.number(&format!("{field}_stderr"));
        assert_near(&name(field), g.number(field), stderr, n, value, p);
    };
    let (calls, others) = match t.again {
        true => ("reallocations", "allocations"),
        false => ("allocations", "reallocations"),
    };
    near(calls, t.count, 1);
    assert_eq!(g.number(others), 0, "{}", name(others));
    near("allocated_bytes", t.count, t.size);
    if t.live > 0 {
        near("live_count", t.live, 1);
        near("live_bytes", t.live, t.size);
    } else {
        assert_eq!(g.number("live_count"), 0, "{}", name("live_count"));
    }
}

/// Asserts that the totals are within their errors, too.
#[track_caller]
fn check_totals(r: &Report, all: &[Truth], picked: Picked) {
    let sum = |field: &str, of: &dyn Fn(&Truth) -> (u64, u64)| {
        let (mut wanted, mut variance) = (0.0, 0.0);
        for t in all {
            let ((n, value), p) = (of(t), picked(t.size));
            wanted += n as f64 * value as f64;
            variance += n as f64 * (1.0 - p) / p * (value * value) as f64;
        }
        let (got, stderr) = (r.total(field) as f64, r.total(&format!("{field}_stderr")) as f64);
        let error = f64::sqrt(variance);
        assert!((got - wanted).abs() < 5.0 * error, "{field}: {got} ± {stderr}, not {wanted}");
        assert!((0.8..1.25).contains(&(stderr / error)), "{field}: ± {stderr}, not {error:.0}");
    };
    sum("live_bytes", &|t| (t.live, t.size));
    sum("live_count", &|t| (t.live, 1));
    sum("allocated_bytes", &|t| (t.count, t.size));
    sum("allocations", &|t| (t.count * u64::from(!t.again), 1));
}

/// Asserts that nothing was lost, and that no free of a block that was not picked was recorded.
#[track_caller]
fn assert_clean(r: &Report) {
    for name in ["lost_events", "unknown_frees", "implied_frees", "reentered"] {
        assert_eq!(r.number(&format!("/recording/{name}")), 0, "{name}: {:#}", r.brief());
    }
}

#[track_caller]
fn check_all(r: &Report, all: &[Truth], picked: Picked) {
    assert_clean(r);
    for t in all {
        check(&r.marked("sampled.c", t.marker), t, picked);
    }
    check_totals(r, all, picked);
}

const N: u64 = 60_000;
const WORK: [&str; 8] =
    ["plain", "zeroed", "grown", "shrunk", "aligned", "by_turns", "handed", "threaded"];
const TRUTHS: [Truth; 13] = [
    again("old", 300, 5_000, 0),
    truth("plain", 64, N, N / 2),
    truth("zeroed", 320, N, N),
    truth("grown_first", 40, N, 0),
    again("grown", 400, N, N),
    truth("shrunk_first", 900, N, 0),
    again("shrunk", 100, N, N),
    truth("aligned", 192, N, N),
    truth("turn_a", 48, N, N),
    truth("turn_b", 80, N, N),
    truth("handed", 128, N, 0),
    again("moved", 3000, N / 2, 0),
    truth("threaded", 96, N, N),
];

/// Runs commands of a program between attach and detach, and returns the report.
#[track_caller]
fn recorded<S: AsRef<str>>(target: &mut Target, options: &[&str], commands: &[S]) -> Report {
    let scene = Scene::new("sample");
    let recording = scene.attach_with(target, options);
    for c in commands {
        target.ask(c.as_ref());
    }
    scene.detach(target);
    let text = scene.prof(&["report", recording.to_str().unwrap()]).ok("report").stdout;
    let r = scene.finished(&recording);
    assert!(r.bool("/recording/complete") && !r.at("/recording/capture").is_null(), "{text}");
    let sampled = options.iter().any(|o| o.starts_with("--sample") || o.starts_with("--max-cpu"));
    assert_eq!(sampled, text.contains("\nsampled "), "{text}");
    assert_clean(&r);
    r
}

#[track_caller]
fn estimates(option: &str, picked: Picked) {
    let option = [option];
    let mut commands = WORK.map(|w| format!("{w} {N}")).to_vec();
    // Blocks from before the attach must not matter.
    commands.insert(3, "old".into());
    let mut target = Target::start(&program("sampled.c"), &[]);
    let r = recorded(&mut target, &option, &commands);
    check_all(&r, &TRUTHS, picked);
    target.quit();
    commands.push("free".into());
    let mut target = Target::start(&program("sampled.c"), &[]);
    let r = recorded(&mut target, &option, &commands);
    target.quit();
    for t in &TRUTHS {
        r.marked("sampled.c", t.marker).assert_live(0, 0);
    }
}

#[test]
fn estimates_by_bytes() {
    estimates("--sample=4KiB", by_bytes);
}

#[test]
fn estimates_by_number() {
    estimates("--sample-rate=50", by_number);
}

#[test]
fn a_command_that_is_run_is_sampled_too() {
    let scene = Scene::new("sample-run");
    let mut c = std::process::Command::new(Scene::binary());
    c.current_dir(&scene.dir).args(["run", "-o", "r.prof", "--sample=4KiB", "--"]);
    c.arg(program("sampled.c"));
    let mut target = Target::spawn(c);
    target.expect("ready");
    target.ask(&format!("threaded {N}"));
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    assert_clean(&r);
    check(&r.marked("sampled.c", "threaded"), &truth("threaded", 96, N, N), by_bytes);
}

#[test]
fn large_blocks_are_exact() {
    let mut target = Target::start(&program("sampled.c"), &[]);
    // One block per 16 bytes: blocks of 900 bytes and more can't be missed.
    let r = recorded(&mut target, &["--sample=16"], &["shrunk 500", "handed 500"]);
    target.quit();
    let g = r.marked("sampled.c", "shrunk_first");
    assert_eq!((g.number("allocations"), g.number("allocations_stderr")), (500, 0));
    let g = r.marked("sampled.c", "moved");
    assert_eq!((g.number("reallocations"), g.number("allocated_bytes")), (250, 750_000));
}

#[test]
fn limits_of_size_are_exact() {
    for (options, sizes) in [
        (&["--min-size", "10"][..], 10..=64),
        (&["--max-size", "20"], 1..=20),
        (&["--min-size", "7", "--max-size", "7"], 7..=7),
        (&["--min-size", "64", "--max-size", "150"], 64..=64),
    ] {
        let mut target = Target::start(&program("sampled.c"), &[]);
        let r = recorded(&mut target, options, &["sizes 100"]);
        let (count, bytes) = (sizes.clone().count() as u64 * 100, sizes.sum::<u64>() * 100);
        r.marked("sampled.c", "sizes").assert_live(count, bytes);
        assert_eq!((r.total("allocations"), r.total("allocated_bytes")), (count, bytes));
        assert!(r.at("/totals")["live_bytes_stderr"].is_null(), "exact figures: {:#}", r.brief());
        let r = recorded(&mut target, options, &["free", "sizes 100", "free"]);
        target.quit();
        let g = r.marked("sampled.c", "sizes");
        assert_eq!((g.number("live_count"), g.number("allocations")), (0, count));
        assert_eq!(r.total("frees"), count, "frees of other blocks are not recorded");
    }
}

#[test]
fn reallocations_cross_limits_of_size() {
    let options = ["--min-size", "100", "--max-size", "1000"];
    let mut target = Target::start(&program("sampled.c"), &[]);
    let r = recorded(&mut target, &options, &["across 1000"]);
    assert_eq!(r.total("live_count"), 1000);
    r.marked("sampled.c", "across_in").assert_live(0, 0);
    r.marked("sampled.c", "across_back").assert_live(1000, 600_000);
    assert_eq!((r.total("allocated_bytes"), r.total("peak_bytes")), (1_100_000, 600_000));
    assert_eq!(r.total("reallocations"), 2000, "those that ended in a recorded block");
    assert!(r.asked_by("across").len() == 2, "{}", r.askers());
    let r = recorded(&mut target, &options, &["free", "across 1000", "free"]);
    assert_eq!((r.total("live_count"), r.total("allocated_bytes")), (0, 1_100_000));
    target.quit();
}

#[test]
fn limits_and_a_sample_together() {
    let options = ["--sample=4KiB", "--min-size", "100", "--max-size", "350"];
    let commands = ["plain", "zeroed", "shrunk"].map(|w| format!("{w} {N}"));
    let mut target = Target::start(&program("sampled.c"), &[]);
    let r = recorded(&mut target, &options, &commands);
    target.quit();
    check(&r.marked("sampled.c", "zeroed"), &truth("zeroed", 320, N, N), by_bytes);
    check(&r.marked("sampled.c", "shrunk"), &again("shrunk", 100, N, N), by_bytes);
    assert!(r.asked_by("plain").is_empty(), "{}", r.askers());
    assert!(r.asked_by("shrunk").len() == 1, "{}", r.askers());
}

#[test]
fn off_and_on_again() {
    let scene = Scene::new("sample-off");
    let mut target = Target::start(&program("sampled.c"), &[]);
    let recording = scene.attach_with(&target, &["--sample=4KiB"]);
    for _ in 0..4 {
        target.ask(&format!("threaded {}", N / 4));
        target.signal(Signal::SIGUSR1);
        target.ask("zeroed 1000");
        target.ask("grown 1000");
        target.signal(Signal::SIGUSR1);
    }
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_clean(&r);
    check(&r.marked("sampled.c", "threaded"), &truth("threaded", 96, N, N), by_bytes);
    assert!(r.asked_by("zeroed").is_empty() && r.asked_by("grown").is_empty(), "{}", r.askers());
}

#[test]
fn the_process_is_as_it_was_before() {
    let scene = Scene::new("sample-detach");
    let mut target = Target::start(&program("sampled.c"), &[]);
    // A thread that has been joined may still be ending.
    common::until("one thread is left", || target.status("Threads") == "1");
    let before = Snapshot::of(&target);
    for i in 0..5 {
        scene.attach_with(&target, &["--sample", "-o", &format!("{i}.prof")]);
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
    }
    target.ask("plain 1000");
    target.quit();
}

/// Checks that blocks by operator new and by malloc count once each.
#[track_caller]
fn counts_once(preload: Option<&std::path::Path>, flags: &[&str]) {
    for (option, picked) in [("--sample=4KiB", by_bytes as Picked), ("--sample-rate=50", by_number)]
    {
        let mut command = std::process::Command::new(program_with("sampled_new.cpp", flags));
        command.envs(preload.map(|p| ("LD_PRELOAD", p)));
        let mut target = Target::spawn(command);
        target.expect("ready");
        let r = recorded(&mut target, &[option], &["go"]);
        for marker in ["one", "quiet", "plain"] {
            let groups = r.asked_by(marker);
            assert!(groups.len() == 1, "{} groups of {marker}\n{}", groups.len(), r.askers());
            check(&groups[0], &truth(marker, 64, 40_000, 40_000), picked);
        }
        let r = recorded(&mut target, &[option], &["free", "go", "free"]);
        target.quit();
        assert_eq!(r.total("live_count"), 0, "a freed block stays live: {}", r.askers());
    }
}

#[test]
fn operator_new_counts_once() {
    counts_once(None, &["-O1"]);
}

#[test]
fn operator_new_of_a_static_program_counts_once() {
    if common::is_refused_by_dlopen("sampled_new", "a static program has no linker") {
        return;
    }
    counts_once(None, &["-O1", "-static"]);
}

#[test]
fn a_malloc_that_ends_in_libcs_counts_once() {
    let wraps = program_with("wraps.c", &["-O1", "-shared", "-fPIC"]);
    counts_once(Some(&wraps), &["-O1"]);
}

#[test]
fn operator_new_of_other_allocators_counts_once() {
    for name in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        let path = std::path::Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        if !path.exists() {
            skip(&format!("sampling under {name}"), "not installed");
            continue;
        }
        counts_once(Some(&path), &["-O1"]);
    }
}

/// Of a recording whose distance changed: the figure is within five of the errors that it says, which are no larger than
/// a part of it.
#[track_caller]
fn near(g: &Group<'_>, field: &str, wanted: u64, part: f64) -> f64 {
    let (got, stderr) = (g.number(field) as f64, g.number(&format!("{field}_stderr")) as f64);
    let off = (got - wanted as f64).abs();
    assert!(off <= 5.0 * stderr, "{field}: {got} ± {stderr}, not {wanted}: {}", g.numbers());
    assert!(stderr <= part * wanted as f64, "{field}: {got} ± {stderr} of {wanted}");
    stderr
}

#[test]
fn a_distance_that_follows_the_program_leaves_estimates_true() {
    const KEPT: u64 = 400_000;
    let scene = Scene::new("adapts");
    let mut target = Target::start(&program("turns.c"), &[]);
    let recording = scene.attach_with(&target, &["--sample"]);
    let pid = target.pid.to_string();
    let distance = || {
        let out = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
        let v: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(v["sample_adapts"], true, "{v}");
        v["sample_bytes"].as_u64().expect("a distance")
    };
    let first = distance();
    target.ask(&format!("early {KEPT}"));
    // Eight gigabytes a second; a machine that is too slow for that does the same in more time.
    let mut slices = 0;
    common::until("the distance grows", || {
        target.ask("turn 8000 0 50");
        slices += 50;
        distance() > first
    });
    target.ask(&format!("late {KEPT}"));
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_clean(&r);
    let range = r.at("/recording/capture/sample_bytes_range");
    assert!(range[1].as_u64() > Some(first) && range[0].as_u64() <= Some(first), "{range}");
    let of = |marker: &str| r.marked("turns.c", marker);
    let early = near(&of("early"), "live_count", KEPT, 0.1);
    let late = near(&of("late"), "live_count", KEPT, 0.3);
    assert!(late > 1.2 * early, "a block counts as its own distance says: ± {early}, ± {late}");
    near(&of("turn"), "allocations", slices * (8_000_000_000 / 16384 / 100), 0.05);
    // The same from what `prof strip` makes of the recording, and from its rows.
    let file = recording.to_str().expect("UTF-8");
    scene.prof(&["strip", file, "-o", "stripped.prof", "--threshold", "1ns"]).ok("strip");
    let late = |r: &Report| r.marked("turns.c", "late").number("live_count");
    assert_eq!(late(&scene.report(&scene.path("stripped.prof"))), late(&r));
    scene.prof(&["export", "csv", file, "-o", "rows.csv"]).ok("csv");
    let rows = std::fs::read_to_string(scene.path("rows.csv")).expect("rows");
    let names: Vec<&str> = rows.lines().next().expect("names").split(',').collect();
    let column = |n: &str| names.iter().position(|name| *name == n).expect("a column");
    let (size, end, weight) = (column("size"), column("freed_at_ns"), column("weight"));
    let cells = rows.lines().skip(1).map(|l| l.split(',').collect::<Vec<_>>());
    let live = cells.filter(|c| c[size] == "64" && c[end].is_empty());
    let sum: f64 = live.map(|c| c[weight].parse::<f64>().expect("a weight")).sum();
    let kept = of("early").number("live_count") + of("late").number("live_count");
    assert!((sum - kept as f64).abs() < kept as f64 * 0.001, "{sum} in rows, {kept} reported");
}

#[test]
fn a_leak_behind_a_gigabyte_a_second_is_found_in_a_sample() {
    let scene = Scene::new("leak-in-sample");
    let mut target = Target::start(&program("turns.c"), &[]);
    let recording = scene.attach_with(&target, &["--sample"]);
    // 1.3 times what 100 MiB an hour leak in two minutes: so many samples are in it.
    target.ask("turn 1000 1500 300");
    scene.detach(&target);
    target.quit();
    let file = recording.to_str().expect("UTF-8");
    let out = scene.prof(&["leaks", file, "--format", "json", "--all", "--top", "0"]).ok("leaks");
    let found: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
    let stacks = found["stacks"].as_array().expect("stacks");
    let asked = |s: &serde_json::Value| s["asked_by"]["function"].as_str().map(str::to_owned);
    let classes: Vec<_> = stacks.iter().map(|s| (asked(s), s["class"].clone())).collect();
    let first = stacks.first().expect("a stack");
    assert_eq!((asked(first).as_deref(), &first["class"]), (Some("leak"), &"growing".into()));
    assert!(first["confidence"] != "low", "{first:#}");
    let others = classes.iter().skip(1).filter(|c| c.1 == "growing").count();
    assert_eq!(others, 0, "{classes:?}");
    let r = scene.finished(&recording);
    assert_clean(&r);
    // No more than may be in three seconds, and before that was known.
    assert!(r.number("/recording/events") < 400_000, "{:#}", r.brief());
}

/// Checks that the periods of a report follow each other from the start to the end; returns their distances.
#[track_caller]
fn distances(r: &Report) -> Vec<u64> {
    let all = r.at("/recording/distances").as_array().expect("periods").clone();
    let number = |d: &serde_json::Value, name: &str| d[name].as_u64().expect("a number");
    let mut at = 0;
    for d in &all {
        assert_eq!(number(d, "start_ns"), at, "{all:?}");
        at = number(d, "end_ns");
    }
    assert_eq!(at, r.number("/recording/duration_ns"), "{all:?}");
    all.iter().map(|d| number(d, "bytes")).collect()
}

/// Work that a budget of this part of the time can't record whole, and the figures of it.
#[track_caller]
fn a_budget_makes_it_coarser(option: &str) {
    let mut target = Target::start(&program("sampled.c"), &[]);
    let scene = Scene::new("budget");
    let recording = scene.attach_with(&target, &[option]);
    let (mut rounds, mut now) = (0, String::new());
    // How soon depends on the machine.
    common::until("the distance has grown to 64 B", || {
        target.ask(&format!("handed {N}"));
        rounds += 1;
        now = scene
            .prof(&["status", "--format", "json", &target.pid.to_string()])
            .ok("status")
            .stdout;
        let v: serde_json::Value = serde_json::from_str(&now).expect("JSON");
        v["sample_bytes"].as_u64().is_some_and(|n| n >= 64)
    });
    let now: serde_json::Value = serde_json::from_str(&now).expect("JSON");
    let given = if option.contains("cpu") { "max_cpu_percent" } else { "max_overhead_percent" };
    assert_eq!(now[given].as_f64(), Some(0.1), "{now:#}");
    // Each recorded event has taken the hook some time.
    let events = now["events"].as_u64().expect("a number");
    let spent = now["hook_cpu_ns"].as_u64().expect("a number");
    assert!(spent > 10 * events && now["collector_cpu_ns"].as_u64().is_some(), "{now:#}");
    let text = scene.prof(&["status", &target.pid.to_string()]).ok("status").stdout;
    let cost = text.lines().find(|l| l.trim_start().starts_with("cost")).expect("the cost");
    assert!(cost.contains("hook ") && cost.contains(", collector "), "{cost}");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_clean(&r);
    let all = distances(&r);
    assert!(all[0] == 2 && *all.last().expect("one") >= 64, "{all:?}");
    let text = scene.prof(&["report", recording.to_str().unwrap()]).ok("report").stdout;
    assert!(
        text.contains("as the cost of recording allows") && text.contains("one for each 2 B"),
        "{text}"
    );
    // Each block states the distance that it was picked at, so the estimate holds over all of them.
    for (field, each) in [("allocations", 1.0), ("allocated_bytes", 128.0)] {
        let (got, stderr) = (
            r.marked("sampled.c", "handed").number(field),
            r.marked("sampled.c", "handed").number(&format!("{field}_stderr")),
        );
        let truth = (rounds * N) as f64 * each;
        assert!(
            (got as f64 - truth).abs() <= 5.0 * stderr as f64,
            "{field}: {got} ± {stderr}, not {truth}"
        );
    }
}

#[test]
fn a_budget_of_a_processor_makes_the_sample_coarser() {
    a_budget_makes_it_coarser("--max-cpu=0.1%");
}

#[test]
fn a_budget_of_the_programs_time_makes_the_sample_coarser() {
    a_budget_makes_it_coarser("--max-overhead=0.1%");
}

#[test]
fn a_budget_that_is_not_used_up_leaves_the_figures_all_but_exact() {
    let mut target = Target::start(&program("sampled.c"), &[]);
    let r = recorded(
        &mut target,
        &["--max-cpu", "10000%", "--max-overhead", "10000%"],
        &["shrunk 1000"],
    );
    target.quit();
    assert_eq!(distances(&r), [2]);
    let g = r.marked("sampled.c", "shrunk_first");
    assert_eq!((g.number("allocations"), g.number("allocated_bytes")), (1000, 900_000));
    assert_eq!(g.number("allocations_stderr"), 0);
}
