//! `prof allocator`: allocators and their versions, settings, arenas, what blocks take, and what the allocator has done.

use common::build::{line_of, program};
use common::{Report, Scene, Target, skip};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "allocator.c";
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Returns what `prof allocator` says of a recording or a process.
#[track_caller]
fn allocator(scene: &Scene, input: &str, options: &[&str]) -> Report {
    let args = [&["allocator", input, "--format", "json"], options].concat();
    let report = Report::parse(&scene.prof(&args).ok("prof allocator").stdout);
    let text = scene.prof(&[&["allocator", input], options].concat()).ok("prof allocator").stdout;
    eprintln!("{text}");
    report
}

/// Starts the program under an allocator, with variables.
fn start(library: Option<&str>, variables: &[(&str, &str)]) -> Target {
    let mut command = Command::new(program(SOURCE));
    command.envs(variables.iter().copied());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let mut target = Target::spawn(command);
    target.expect("ready");
    target
}

/// Returns a value that the program has said.
fn answer_of(answer: &str, name: &str) -> u64 {
    let pair = answer.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    pair.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().expect("a number")
}

fn list<'a>(r: &'a Report, pointer: &str) -> &'a [Value] {
    r.at(pointer).as_array().map_or(&[], Vec::as_slice)
}

/// Returns the value of a setting.
#[track_caller]
fn setting<'a>(r: &'a Report, source: &str, name: &str) -> &'a str {
    let found = list(r, "/settings").iter().find(|s| s["source"] == source && s["name"] == name);
    found.and_then(|s| s["value"].as_str()).unwrap_or_else(|| panic!("no {name}: {:#}", r.0))
}

/// Returns the stack that has a line of the program.
#[track_caller]
fn stack<'a>(r: &'a Report, marker: &str) -> &'a Value {
    let line = line_of(SOURCE, marker);
    let has =
        |s: &&Value| s["frames"].as_array().is_some_and(|f| f.iter().any(|f| f["line"] == line));
    list(r, "/overhead/stacks").iter().find(has).unwrap_or_else(|| panic!("no {marker}: {:#}", r.0))
}

/// Checks what the blocks at three places take, given what the program has said of them. A header precedes each block.
#[track_caller]
fn check_blocks(r: &Report, answer: &str, header: u64) {
    for (marker, count) in [("even", 1000), ("odd", 1000), ("large", 10)] {
        let s = &stack(r, marker)["live"];
        let n = |name: &str| s[name].as_u64().expect("a number");
        let usable = answer_of(answer, &format!("{marker}_usable"));
        // Each of the large blocks has a mapping of its own, with a header of two words.
        let header = if marker == "large" { 2 * header } else { header };
        assert_eq!(n("count"), count, "{s:#}");
        assert_eq!(n("requested_bytes"), answer_of(answer, marker), "{s:#}");
        assert_eq!(n("requested_bytes") + n("rounding_bytes"), usable, "{marker}: {s:#}");
        assert_eq!(n("header_bytes"), count * header, "{marker}: {s:#}");
        assert_eq!(n("taken_bytes"), usable + count * header, "{marker}: {s:#}");
        let part = 1.0 - n("requested_bytes") as f64 / n("taken_bytes") as f64;
        assert!((s["overhead_part"].as_f64().expect("a part") - part).abs() < 1e-9, "{s:#}");
    }
}

/// Since 2.35 glibc can take memory in huge pages. The heaps of its arenas are then four of them long.
#[test]
fn arenas_with_heaps_of_huge_pages_are_told() {
    let scene = Scene::new("huge");
    let mut target = start(None, &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")]);
    target.ask("threads");
    let live = allocator(&scene, &target.pid.to_string(), &[]);
    assert!(list(&live, "/arenas").len() >= 2, "{:#}", live.0);
    target.quit();
}

#[test]
fn glibcs_settings_arenas_and_overhead_are_told() {
    let scene = Scene::new("glibc");
    let variables = [
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=3"),
        ("MALLOC_TOP_PAD_", "200000"),
        ("UNRELATED", "secret"),
    ];
    let mut target = start(None, &variables);
    let pid = target.pid.to_string();
    // Without a recording.
    let live = allocator(&scene, &pid, &[]);
    assert_eq!(list(&live, "/arenas").len(), 1, "{:#}", live.0);
    assert_eq!(setting(&live, "environment", "MALLOC_TOP_PAD_"), "200000");
    assert!(!live.0.to_string().contains("secret"), "{:#}", live.0);
    let recording = scene.attach(&target);
    let answer = target.ask("blocks");
    target.ask("threads");
    target.ask("settings");
    scene.detach(&target);
    let now = allocator(&scene, &pid, &[]);
    target.quit();
    scene.finished(&recording);
    let file = recording.to_str().expect("UTF-8");
    let r = allocator(&scene, file, &["--top", "0"]);
    assert_eq!(list(&r, "/allocators").len(), 1, "{:#}", r.0);
    assert_eq!(r.at("/allocators/0/name"), "glibc");
    let version = r.at("/allocators/0/version").as_str().expect("a version");
    assert!(version.starts_with("2."), "{version}");
    assert_eq!(setting(&r, "environment", "GLIBC_TUNABLES"), "glibc.malloc.tcache_count=3");
    check_blocks(&r, &answer, size_of::<usize>() as u64);
    // Four threads have allocated, each with an arena of its own if the machine has the processors for them.
    let arenas = list(&r, "/arenas");
    assert!(arenas.len() >= 2 && arenas.len() <= 4, "{:#}", r.0);
    assert!(arenas[0]["main"] == true && arenas[1]["main"] == false, "{:#}", r.0);
    for a in arenas {
        let n = |name: &str| a[name].as_u64().expect("a number");
        assert_eq!(n("in_use_bytes") + n("free_bytes"), n("mapped_bytes"), "{a:#}");
        assert!(n("dirty_bytes") <= n("free_bytes") && n("top_bytes") <= n("free_bytes"), "{a:#}");
    }
    // In others, at least three blocks of 100,000 bytes are in use.
    let in_others: u64 = arenas[1..].iter().filter_map(|a| a["in_use_bytes"].as_u64()).sum();
    assert!(in_others >= 100_000 * (arenas.len() as u64 - 1), "{:#}", r.0);
    let made = list(&r, "/made");
    let arenas_made = made.iter().filter(|m| m["what"] == "arena").count();
    assert_eq!(arenas_made, arenas.len() - 1, "{made:#?}");
    let in_thread = line_of(SOURCE, "in_thread");
    let frames = made[0]["frames"].as_array().expect("frames");
    assert!(frames.iter().any(|f| f["line"] == in_thread), "{made:#?}");
    let doing = |what: &str| {
        let found = list(&r, "/doings").iter().find(|d| d["what"] == what);
        found.map_or(0, |d| d["count"].as_u64().expect("a number"))
    };
    assert_eq!(doing("heap-made"), made.len() as u64);
    // The ten large blocks have mappings of their own.
    assert_eq!(doing("mapped"), 10, "{:#}", r.at("/doings"));
    assert!(doing("heap-grown") >= made.len() as u64, "{:#}", r.at("/doings"));
    // malloc_trim gives back what is free at the end of the main arena.
    assert_eq!(doing("brk-shrunk"), 1, "{:#}", r.at("/doings"));
    assert_eq!(doing("unmapped"), 0, "{:#}", r.at("/doings"));
    // The settings that the calls have made hold in the allocator's memory.
    let calls: Vec<_> = list(&r, "/calls")
        .iter()
        .map(|c| {
            (c["function"].as_str().unwrap(), c["parameter"].as_str().unwrap(), c["value"].as_i64())
        })
        .collect();
    let wanted = [
        ("mallopt", "M_MMAP_THRESHOLD", Some(512 << 10)),
        ("mallopt", "M_TRIM_THRESHOLD", Some(256 << 10)),
        ("malloc_trim", "pad", Some(4096)),
        ("malloc_info", "options", Some(0)),
    ];
    assert_eq!(calls, wanted);
    assert!(list(&r, "/calls").iter().all(|c| c["success"] == true), "{:#}", r.at("/calls"));
    let frames = list(&r, "/calls/0/frames");
    let line = line_of(SOURCE, "mallopt");
    assert!(frames.iter().any(|f| f["line"] == line), "{frames:#?}");
    for report in [&r, &now] {
        assert_eq!(setting(report, "memory", "mmap_threshold"), (512 << 10).to_string());
        assert_eq!(setting(report, "memory", "trim_threshold"), (256 << 10).to_string());
        assert_eq!(setting(report, "memory", "top_pad"), "200000");
        assert_eq!(setting(report, "memory", "tcache_count"), "3");
        assert_eq!(setting(report, "memory", "dynamic_thresholds"), "0");
        let blocks = list(report, "/figures").iter().find(|f| f["name"] == "mapped_blocks");
        assert_eq!(blocks.expect("mapped blocks")["value"], 10, "{:#}", report.0);
    }
    // Sorted and cut.
    let r = allocator(&scene, file, &["--top", "1", "--sort", "count"]);
    assert_eq!(list(&r, "/overhead/stacks").len(), 1);
    assert_eq!(r.at("/overhead/stacks/0/live/count"), 1000);
    assert_eq!((list(&r, "/calls").len(), r.number("/other_calls")), (1, 3));
}

/// Returns the path of an allocator's library, if it is installed.
fn library(name: &str) -> Option<String> {
    let path = format!("{LIBRARIES}/{name}");
    (cfg!(target_arch = "x86_64") && Path::new(&path).exists()).then_some(path)
}

#[test]
fn jemallocs_settings_and_its_calls_are_told() {
    let Some(jemalloc) = library("libjemalloc.so.2") else {
        return skip("jemallocs_settings_and_its_calls_are_told", "needs libjemalloc2");
    };
    let scene = Scene::new("jemalloc");
    let mut target = start(Some(&jemalloc), &[("MALLOC_CONF", "narenas:2,dirty_decay_ms:2000")]);
    let recording = scene.attach(&target);
    let answer = target.ask("blocks");
    let controls = target.ask("controls");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording);
    let r = allocator(&scene, recording.to_str().expect("UTF-8"), &["--top", "0"]);
    let names: Vec<_> =
        list(&r, "/allocators").iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"jemalloc") && names.contains(&"glibc"), "{names:?}");
    let found = list(&r, "/allocators").iter().find(|a| a["name"] == "jemalloc").expect("jemalloc");
    assert!(found["version"].as_str().is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit())));
    assert!(
        found["functions"].as_array().is_some_and(|f| f.iter().any(|f| f == "malloc")),
        "{found:#}"
    );
    assert_eq!(setting(&r, "environment", "MALLOC_CONF"), "narenas:2,dirty_decay_ms:2000");
    let calls: Vec<_> = list(&r, "/calls")
        .iter()
        .map(|c| {
            let text = |name: &str| c[name].as_str().unwrap().to_owned();
            (
                text("function"),
                text("parameter"),
                c["value"].as_i64(),
                c["result"].as_i64().unwrap(),
            )
        })
        .collect();
    let parts = controls.split_whitespace().find_map(|w| w.strip_prefix("parts=")).expect("parts");
    let of = |function: &str, parameter: &str, value, result| {
        (function.to_owned(), parameter.to_owned(), value, result)
    };
    let wanted = [
        of("mallctl", "epoch", Some(1), 0),
        of("mallctl", "arena.0.dirty_decay_ms", Some(1234), 0),
        of("mallctl", "arena.0.purge", None, 0),
        of("mallctl", "no.such.name", Some(1234), libc::ENOENT.into()),
        of("mallctlbymib", parts, Some(-1), 0),
    ];
    assert_eq!(calls, wanted, "reads are not recorded");
    let decay = list(&r, "/call_groups").iter().find(|g| g["parameter"] == "no.such.name");
    assert_eq!(decay.map(|g| (&g["count"], &g["failed"])), Some((&1.into(), &1.into())));
    // jemalloc has no headers, and rounds up to its size classes.
    assert_eq!(r.at("/overhead/how"), "size-classes");
    for marker in ["even", "odd", "large"] {
        let live = &stack(&r, marker)["live"];
        assert_eq!(
            live["taken_bytes"],
            answer_of(&answer, &format!("{marker}_usable")),
            "{live:#}"
        );
    }
    assert!(list(&r, "/unknown").iter().any(|u| u["allocator"] == "jemalloc"), "{:#}", r.0);
}

/// The filter of mappings goes by their stacks.
#[test]
fn mappings_that_jemalloc_has_made_are_selected() {
    let Some(jemalloc) = library("libjemalloc.so.2") else {
        return skip("mappings_that_jemalloc_has_made_are_selected", "needs libjemalloc2");
    };
    let scene = Scene::new("jemalloc-maps");
    let mut target = start(Some(&jemalloc), &[]);
    let recording = scene.attach(&target);
    target.ask("blocks");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording);
    let file = recording.to_str().expect("UTF-8");
    let made = |by: &str| -> Vec<Value> {
        let args = ["maps", file, "--jemalloc", by, "-n", "0", "--format", "json"];
        let r = Report::parse(&scene.prof(&args).ok("prof maps").stdout);
        list(&r, "/maps").to_vec()
    };
    let (by_it, by_others) = (made("yes"), made("no"));
    assert!(!by_it.is_empty(), "{by_others:#?}");
    for m in &by_it {
        assert_eq!(m["caught"], true, "{m:#}");
        assert!(by_others.iter().all(|o| o["id"] != m["id"]), "{m:#}");
        let frames =
            m["source"]["backtrace"].as_array().unwrap_or_else(|| panic!("no stack: {m:#}"));
        let is_its = |f: &Value| f["module"].as_str().is_some_and(|m| m.contains("jemalloc"));
        assert!(frames.iter().any(is_its), "{m:#}");
    }
}

#[test]
fn other_allocators_are_known_as_far_as_they_show() {
    for (file, name) in [("libmimalloc.so.2", "mimalloc"), ("libtcmalloc_minimal.so.4", "tcmalloc")]
    {
        let Some(path) = library(file) else {
            skip("other_allocators_are_known_as_far_as_they_show", file);
            continue;
        };
        let scene = Scene::new(name);
        let mut target = start(Some(&path), &[]);
        let recording = scene.attach(&target);
        let answer = target.ask("blocks");
        scene.detach(&target);
        target.quit();
        scene.finished(&recording);
        let r = allocator(&scene, recording.to_str().expect("UTF-8"), &[]);
        let found =
            list(&r, "/allocators").iter().find(|a| a["name"] == name).expect("the allocator");
        assert!(found["version"].as_str().is_some_and(|v| v.contains('.')), "{found:#}");
        assert!(list(&r, "/unknown").iter().any(|u| u["allocator"] == name), "{:#}", r.0);
        if name == "mimalloc" {
            for marker in ["even", "odd"] {
                let live = &stack(&r, marker)["live"];
                assert_eq!(live["taken_bytes"], answer_of(&answer, &format!("{marker}_usable")));
            }
        } else {
            assert_eq!(r.at("/overhead/how"), "unknown");
            let taken = list(&r, "/figures").iter().find(|f| f["name"] == "from_system");
            let taken = taken.and_then(|f| f["value"].as_u64()).expect("bytes from the system");
            assert!(taken > 10_000_000, "{:#}", r.0);
        }
    }
}

#[test]
fn what_a_file_or_process_does_not_tell_is_said() {
    let scene = Scene::new("untold");
    let mut target = start(None, &[]);
    let recording = scene.attach_with(&target, &["--no-maps"]);
    target.ask("blocks");
    scene.detach(&target);
    target.quit();
    let file = recording.to_str().expect("UTF-8");
    let r = allocator(&scene, file, &[]);
    assert_eq!((r.at("/calls_recorded"), list(&r, "/doings").len()), (&Value::Bool(false), 0));
    let text = scene.prof(&["allocator", file]).ok("prof allocator").stdout;
    assert!(text.contains("--no-maps"), "{text}");
    let pid = std::process::id().to_string();
    let out = scene.prof(&["allocator", &pid, "--min-size", "1"]);
    assert_eq!(out.code, 2, "{out:#?}");
    assert!(out.stderr.contains("not being recorded"), "{out:#?}");
}
