//! `prof maps` on programs whose mappings no hook sees: they are found by looks.

use common::build::program_with;
use common::{Scene, Target, until};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Longer than the time between two looks where nothing changes.
const LOOKED: Duration = Duration::from_millis(2500);

fn looked() -> Target {
    Target::start(&program_with("looked.c", &["-O1", "-pthread"]), &[])
}

/// Has the program do something; returns the addresses of its private and its shared mapping.
fn ask(target: &mut Target, command: &str) -> (u64, u64) {
    let line = target.ask(command);
    let words: Vec<u64> = line.split(' ').skip(1).map(|w| w.parse().expect("a number")).collect();
    (words[0], words[1])
}

fn maps(scene: &Scene, recording: &Path, options: &[&str]) -> Value {
    let file = recording.to_str().expect("a path");
    let out = scene.prof(&[&["maps", file, "-n", "0", "--format", "json"], options].concat());
    serde_json::from_str(&out.ok("prof maps").stdout).expect("JSON")
}

fn find(all: &Value, address: u64) -> &Value {
    let maps = all["maps"].as_array().expect("mappings");
    maps.iter().find(|m| m["address"] == address).unwrap_or_else(|| panic!("{address:#x}: {all:#}"))
}

#[test]
fn what_raw_system_calls_map_is_seen() {
    let scene = Scene::new("maps");
    let mut target = looked();
    let recording = scene.attach(&target);
    let (private, shared) = ask(&mut target, "map");
    std::thread::sleep(LOOKED);
    ask(&mut target, "cut");
    std::thread::sleep(LOOKED);
    ask(&mut target, "replace");
    std::thread::sleep(LOOKED);
    scene.detach(&target);
    target.quit();
    scene.finished(&recording);
    let all = maps(&scene, &recording, &[]);
    assert_eq!(all["maps_recorded"], true);
    let m = find(&all, private);
    let page = 4096;
    assert_eq!((&m["caught"], &m["before"]), (&false.into(), &false.into()), "{m:#}");
    assert_eq!(m["size"].as_u64(), Some(3 * MIB - page), "cut by 1 MiB and a page: {m:#}");
    assert_eq!(m["rss"].as_u64(), Some(MIB), "{m:#}");
    assert_eq!(m["usage"]["private_dirty"].as_u64(), Some(MIB), "{m:#}");
    let s = find(&all, shared);
    assert_eq!((s["size"].as_u64(), s["rss"].as_u64()), (Some(MIB), Some(MIB / 2)), "{s:#}");
    assert_eq!((&s["is_shared"], &s["kind"]), (&true.into(), &"shared".into()), "{s:#}");
    let file = find(&all, private + MIB);
    assert_eq!((file["size"].as_u64(), &file["is_writable"]), (Some(page), &false.into()));
    // Its regions and its history.
    let id = m["id"].to_string();
    let one = maps(&scene, &recording, &["--map", &id]);
    let m = find(&one, private);
    let regions = m["regions"].as_array().expect("regions");
    let ends = |r: &Value| r["deallocation"].is_null();
    let live: Vec<u64> =
        regions.iter().filter(|r| ends(r)).filter_map(|r| r["size"].as_u64()).collect();
    assert_eq!(live.iter().sum::<u64>(), 3 * MIB - page, "{m:#}");
    assert_eq!(regions[0]["size"].as_u64(), Some(4 * MIB), "{m:#}");
    let cut = &regions[0]["deallocation"]["sources"][0];
    assert_eq!(
        (cut["address"].as_u64(), cut["length"].as_u64()),
        (Some(private + 2 * MIB), Some(MIB))
    );
    let history = m["usage_history"].as_array().expect("history");
    assert!(history.iter().any(|u| u["rss"].as_u64() == Some(MIB)), "{m:#}");
    // prof's own code was there until the detach; the program has no code but that of files.
    let code_before = |ours: &str| {
        let all = maps(&scene, &recording, &["--lifetime", "all", "--bytehound", ours]);
        let all = all["maps"].as_array().cloned().expect("mappings");
        let file = |m: &Value| m["kind"] == "code" || m["kind"] == "kernel";
        all.iter().filter(|m| m["is_executable"] == true && m["before"] == true && !file(m)).count()
    };
    assert!(code_before("yes") > 0);
    assert_eq!(code_before("no"), 0);
    // Filters and groups.
    let kinds = maps(&scene, &recording, &["--group-by", "kind", "--kind", "shared"]);
    assert_eq!(kinds["groups"][0]["count"], 1, "{kinds:#}");
    let over_time = maps(&scene, &recording, &["--over-time"]);
    let last = over_time["over_time"].as_array().and_then(|t| t.last()).expect("sums");
    assert!(last["rss"].as_u64() > Some(MIB) && last["address_space"].as_u64() > Some(5 * MIB));
    let text = scene.prof(&["maps", recording.to_str().expect("a path")]).ok("maps").stdout;
    assert!(text.contains("/dev/zero (deleted)") && !text.contains("prof-ring"), "{text}");
    let text = scene.prof(&["report", recording.to_str().expect("a path"), "--what", "all"]);
    assert!(text.ok("report").stdout.contains("/dev/zero (deleted)"));
}

#[test]
fn many_mappings_and_threads_that_map_all_the_time_do_no_harm() {
    let scene = Scene::new("many-maps");
    let mut target = looked();
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    let n = most.trim().parse::<u64>().expect("a number").saturating_sub(2000).min(100_000);
    ask(&mut target, &format!("many {n}"));
    let recording = scene.attach(&target);
    ask(&mut target, "churn 300");
    scene.detach(&target);
    assert!(target.alive());
    target.quit();
    scene.finished(&recording);
    let all = maps(&scene, &recording, &["--kind", "anonymous"]);
    let selected = all["selected"]["count"].as_u64().expect("a count");
    assert!((n..n + 500).contains(&selected), "{selected} of {n}");
}

/// Bytes of a group of mappings, or of their sum.
fn sum(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("no {field}: {of:#}"))
}

#[test]
fn a_byte_of_the_heap_counts_once_beside_the_mappings() {
    let scene = Scene::new("once");
    let mut target = looked();
    let recording = scene.attach(&target);
    ask(&mut target, "heap");
    std::thread::sleep(LOOKED);
    scene.detach(&target);
    target.quit();
    scene.finished(&recording);
    let report = |what: &str| -> Value {
        let file = recording.to_str().expect("a path");
        let options = ["report", file, "--format", "json", "--top", "0", "--what", what];
        serde_json::from_str(&scene.prof(&options).ok("prof report").stdout).expect("JSON")
    };
    let (all, only) = (report("all"), report("maps"));
    let blocks = sum(&all["totals"], "live_bytes");
    let asked = 8 * MIB + 64 * 50_000;
    // pthread_create asks for some bytes, too.
    assert!((asked..asked + 4096).contains(&blocks), "{:#}", all["totals"]);
    let (all, only) = (&all["maps"], &only["maps"]);
    // What is malloc's is either there or not: the block that it has mapped, the thread's arena, the heap of brk.
    let (rss, others, theirs) =
        (sum(&only["total"], "rss"), sum(&all["total"], "rss"), sum(&all["allocator"], "rss"));
    assert_eq!(rss, others + theirs, "{all:#}");
    assert!(theirs >= blocks && theirs < blocks + 2 * MIB, "{theirs} of {blocks}: {all:#}");
    assert!(others < 8 * MIB, "{all:#}");
    // The thread's stack is no block, and is there.
    let frames = |g: &Value, name: &str| {
        let of = g["frames"].as_array();
        of.is_some_and(|f| {
            f.iter().any(|f| f["function"].as_str().is_some_and(|t| t.contains(name)))
        })
    };
    let groups = |of: &Value| of["groups"].as_array().expect("groups").clone();
    let stack = groups(all).into_iter().find(|g| frames(g, "pthread_create"));
    let stack = stack.unwrap_or_else(|| panic!("no stack: {all:#}"));
    assert!(sum(&stack, "rss") >= 256 << 10 && sum(&stack, "rss") < MIB, "{stack:#}");
    assert!(!groups(all).iter().any(|g| frames(g, "malloc")), "{all:#}");
    assert!(groups(only).iter().any(|g| frames(g, "malloc")), "{only:#}");
    // The same in an export, and no difference to itself.
    let file = recording.to_str().expect("a path");
    let folded = scene.prof(&["export", "folded", file, "--what", "all"]).ok("export").stdout;
    let lines = folded.lines().filter_map(|l| l.rsplit_once(' ')?.1.parse::<u64>().ok());
    assert_eq!(lines.sum::<u64>(), blocks + others, "{folded}");
    let diff = scene.prof(&["diff", file, file, "--what", "all"]).ok("diff").stdout;
    assert!(
        diff.contains("mappings   +0 B resident, +0 B of address space in +0 mappings"),
        "{diff}"
    );
    let time = scene.prof(&["report", file, "--over-time", "-n", "4"]).ok("report").stdout;
    assert!(time.contains("[HEAP]") && time.contains("DIRTY"), "{time}");
}

#[test]
fn a_mapping_that_only_grows_is_a_leak() {
    let scene = Scene::new("grows");
    let mut target = looked();
    let recording = scene.attach(&target);
    let mut at = 0;
    for step in 1..=8 {
        at = ask(&mut target, "grow 16").0;
        // Four looks see it grow. On a loaded machine one may come after ten seconds, as each rests for 200 times what
        // the one before took.
        let seen = || {
            let all = maps(&scene, &recording, &[]);
            let all = all["maps"].as_array().cloned().unwrap_or_default();
            all.iter().any(|m| m["address"] == at && m["rss"].as_u64() >= Some(step * 16 * MIB))
        };
        if step <= 4 {
            until("a look at the mapping", seen);
        }
    }
    // One that does not grow.
    ask(&mut target, "map");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording);
    let file = recording.to_str().expect("a path");
    let leaks = scene.prof(&["leaks", file, "--format", "json"]).ok("leaks").stdout;
    let leaks: Value = serde_json::from_str(&leaks).expect("JSON");
    let growing = leaks["growing_mappings"].as_array().expect("mappings");
    assert_eq!(growing.len(), 1, "{growing:#?}");
    let m = &growing[0];
    assert_eq!((sum(m, "size"), sum(m, "rss")), (256 * MIB, 128 * MIB), "{m:#}");
    assert!(sum(m, "grown_bytes") >= 32 * MIB && sum(m, "grown_bytes") <= 112 * MIB, "{m:#}");
    let of = maps(&scene, &recording, &["--id", &m["id"].to_string()]);
    assert_eq!(find(&of, at)["caught"], true);
    // Filters on its stack and its size, each with the one that leaves it out.
    let has = |option: &str, value: &str| {
        let some = maps(&scene, &recording, &[option, value]);
        some["maps"].as_array().is_some_and(|all| all.iter().any(|x| x["id"] == m["id"]))
    };
    for (fits, value, not, other) in [
        ("--function", "^main$", "--not-function", "^main$"),
        ("--source", "looked", "--not-source", "looked"),
        ("--min-depth", "2", "--max-depth", "1"),
        ("--jemalloc", "no", "--jemalloc", "yes"),
        ("--min-size", "256MiB", "--max-size", "255MiB"),
        ("--min-peak-rss", "128MiB", "--max-peak-rss", "127MiB"),
    ] {
        assert!(has(fits, value), "{fits} {value}");
        assert!(!has(not, other), "{not} {other}");
    }
    assert!(scene.prof(&["leaks", file]).ok("leaks").stdout.contains("only grows"));
}
