//! `prof heap`: the blocks of processes that nobody has recorded, beside what their allocator says itself.

use common::build::{compile, has_compiler, program_with};
use common::{Scene, Target, skip};
use serde_json::Value;
use std::collections::HashMap;
use std::process::Command;

/// Figures of glibc's own.
struct Told {
    /// Figures of `mallinfo2`, by name.
    sums: HashMap<String, u64>,
    /// Figures of each arena of `malloc_info`: free blocks in fast bins, other free blocks with the top one, bytes from the kernel.
    arenas: Vec<[u64; 3]>,
}

impl Told {
    fn ask(target: &mut Target) -> Self {
        target.send("told");
        let line = target.expect("arena ");
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |w: &str| -> u64 { w.parse().expect("a number") };
        let pairs = words.as_chunks::<2>().0.iter();
        let sums = pairs.map(|[name, n]| ((*name).to_owned(), number(n))).collect();
        let attribute = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\"")).expect("an attribute");
            number(rest.split('"').next().expect("a value"))
        };
        let (mut arenas, mut within) = (Vec::new(), false);
        loop {
            let line = target.line();
            let kinds =
                ["<total type=\"fast\"", "<total type=\"rest\"", "<system type=\"current\""];
            let kind = kinds.iter().position(|k| line.starts_with(k));
            match (line.as_str(), kind) {
                ("done", _) => return Self { sums, arenas },
                (l, _) if l.starts_with("<heap ") => {
                    arenas.push([0; 3]);
                    within = true;
                }
                ("</heap>", _) => within = false,
                (l, Some(kind)) if within => {
                    let name = if kind == 2 { "size" } else { "count" };
                    arenas.last_mut().expect("an arena")[kind] = attribute(l, name);
                }
                _ => {}
            }
        }
    }

    /// Compares the figures with those of prof.
    fn check(&self, heap: &Value) {
        let of = |v: &Value, name: &str| v[name].as_u64().unwrap_or_else(|| panic!("{name}: {v}"));
        let arenas = heap["arenas"].as_array().expect("arenas");
        let sum = |kind: &str| arenas.iter().map(|a| of(&a[kind], "bytes")).sum::<u64>();
        let plain = |name: &str| arenas.iter().map(|a| of(a, name)).sum::<u64>();
        let told = |name: &str| self.sums[name];
        assert_eq!(plain("system_bytes"), told("arena"), "{heap}");
        assert_eq!(sum("fast_bins"), told("fast"), "{heap}");
        let free = sum("fast_bins") + sum("bins") + plain("top_bytes");
        assert_eq!(free, told("free"), "{heap}");
        let mapped = &heap["mapped"];
        assert_eq!(
            (of(mapped, "bytes"), of(mapped, "blocks")),
            (told("mapped"), told("mapped_blocks"))
        );
        let counted = arenas.iter().map(|a| {
            let fast = of(&a["fast_bins"], "blocks");
            [fast, of(&a["bins"], "blocks") + 1, of(a, "system_bytes")]
        });
        assert_eq!(counted.collect::<Vec<_>>(), self.arenas, "{heap}");
    }
}

fn heap(scene: &Scene, target: &Target, more: &[&str]) -> Value {
    let pid = target.pid.to_string();
    let out = scene.prof(&[&["heap", &pid, "--format", "json"], more].concat()).ok("prof heap");
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

fn start(flags: &[&str], mode: Option<&str>) -> Target {
    let mut command = Command::new(program_with("census.c", flags));
    if let Some(mode) = mode {
        command.env(mode, "1");
    }
    let mut target = Target::spawn(command);
    target.expect("ready");
    target
}

/// Makes the heap; returns the number of blocks that the program has.
fn begin(target: &mut Target) -> u64 {
    target.send("begin");
    let live = target.expect("live ")["live ".len()..].parse().expect("a number");
    target.expect("done");
    live
}

fn blocks(heap: &Value) -> u64 {
    heap["in_use"]["blocks"].as_u64().expect("a number")
}

const FLAGS: [&str; 1] = ["-O1"];

/// The words in front of an arena look nearly like its beginning. What stands at the place of their next arena is the map
/// of bins: an address beyond all others, if the program has used all sizes.
#[test]
fn an_arena_that_has_free_blocks_of_all_sizes_is_found() {
    let scene = Scene::new("heap-bins");
    // Compilers leave out allocations that nobody uses.
    let mut target = Target::spawn(Command::new(program_with("bins.c", &["-O0"])));
    let live: u64 = target.expect("live ")["live ".len()..].parse().expect("a number");
    target.expect("ready");
    let heap = heap(&scene, &target, &["--snapshot", "stop"]);
    let arenas = heap["arenas"].as_array().expect("arenas");
    assert_eq!(arenas.len(), 1, "{heap}");
    assert!(arenas[0]["bins"]["blocks"].as_u64() >= Some(2 * 56), "{heap}");
    assert!(blocks(&heap) >= live, "{live} of {heap}");
    target.kill();
}

/// Nearly no bin of such a heap is empty.
#[test]
fn an_arena_that_has_a_free_block_in_every_bin_is_found() {
    let scene = Scene::new("heap-all-bins");
    let mut command = Command::new(program_with("bins.c", &["-O0"]));
    command.arg("all");
    let mut target = Target::spawn(command);
    let live: u64 = target.expect("live ")["live ".len()..].parse().expect("a number");
    target.expect("ready");
    let heap = heap(&scene, &target, &["--snapshot", "stop"]);
    assert_eq!(heap["arenas"].as_array().map(Vec::len), Some(1), "{heap}");
    assert!(blocks(&heap) >= live, "{live} of {heap}");
    target.kill();
}

#[test]
fn a_time_that_is_too_short_is_said_to_be() {
    let scene = Scene::new("heap-late");
    let target = start(&FLAGS, None);
    let out = scene.prof(&["heap", &target.pid.to_string(), "--timeout", "1us"]).ok("heap");
    assert!(out.stdout.contains("time was up before a heap was found"), "{out:?}");
}

#[test]
fn every_block_is_counted_as_glibc_counts_it() {
    let scene = Scene::new("heap");
    let is_static: &[&str] = &["-O1", "-static"];
    let modes = [None, Some("CENSUS_SBRK"), Some("CENSUS_HEAPS"), Some("CENSUS_BRK")];
    let modes = modes.map(|mode| (&FLAGS[..], mode));
    for (flags, mode) in modes.into_iter().chain([(is_static, None)]) {
        let mut target = start(flags, mode);
        let before = blocks(&heap(&scene, &target, &[]));
        let live = begin(&mut target);
        let told = Told::ask(&mut target);
        assert!(told.arenas.len() >= 3, "{} arenas", told.arenas.len());
        for how in ["none", "stop", "fork"] {
            let heap = heap(&scene, &target, &["--snapshot", how]);
            told.check(&heap);
            assert_eq!(heap["stop_ns"].is_u64(), how != "none", "{heap}");
            let lost = &heap["lost"];
            assert_eq!((&lost["bytes"], &lost["links"]), (&0.into(), &0.into()), "{heap}");
            let gap = lost["taken_by_others_bytes"].as_u64().expect("a number");
            assert_eq!(gap >= 40_000, mode == Some("CENSUS_SBRK"), "{heap}");
            // Beside the program's own blocks there are libc's: for each thread its cache and its thread-local variables.
            // What caches have is not in use, though glibc counts it so.
            let others = blocks(&heap) - before - live;
            assert!((5..=20).contains(&others), "{others} of others: {heap}");
            let arenas = heap["arenas"].as_array().expect("arenas");
            let cached: u64 = arenas.iter().filter_map(|a| a["cached"]["blocks"].as_u64()).sum();
            assert!(cached > 6 * 50, "{heap}");
        }
        target.quit();
    }
}

#[test]
fn a_heap_that_changes_is_counted_and_the_process_goes_on() {
    let scene = Scene::new("heap_churn");
    let mut target = start(&FLAGS, None);
    let live = begin(&mut target);
    target.ask("churn");
    for how in ["none", "auto", "stop", "none", "fork", "none", "stop", "fork"] {
        let of_moment = matches!(how, "stop" | "fork");
        let is_exact = |h: &Value| h["lost"]["bytes"] == 0 && h["lost"]["links"] == 0;
        // A thread may stand still between two words that the allocator writes of one chunk.
        let mut looks = (0..5).map(|_| heap(&scene, &target, &["--snapshot", how]));
        let heap = looks.find(|h| !of_moment || is_exact(h)).expect("an exact look");
        let n = blocks(&heap);
        // Each of the five threads has at most 200 blocks.
        let lost = heap["lost"]["bytes"] != 0;
        // A machine may be too slow for a short stop.
        let ran = how == "none" || how == "auto" && heap["stop_ns"].is_null();
        assert!(lost && ran || (live..live + 1100).contains(&n), "{how}: {live}, {heap}");
    }
    target.ask("calm");
    let told = Told::ask(&mut target);
    told.check(&heap(&scene, &target, &[]));
    target.quit();
}

#[test]
fn a_damaged_heap_is_counted_up_to_the_damage() {
    let scene = Scene::new("heap_damaged");
    let mut target = start(&FLAGS, None);
    let live = begin(&mut target);
    target.ask("damage");
    for how in ["none", "stop", "fork"] {
        let heap = heap(&scene, &target, &["--snapshot", how]);
        let lost = &heap["lost"];
        assert!(lost["bytes"].as_u64() > Some(0) && lost["places"] == 1, "{heap}");
        assert!(lost["links"].as_u64() > Some(0), "{heap}");
        assert!(blocks(&heap) > live / 2, "{heap}");
    }
    let pid = target.pid.to_string();
    let text = scene.prof(&["heap", &pid]).ok("prof heap").stdout;
    assert!(text.contains("not counted: ") && text.contains("broken"), "{text}");
    target.quit();
}

#[test]
fn a_heap_that_lies_of_its_end_is_counted() {
    let scene = Scene::new("heap_lies");
    let mut target = start(&FLAGS, None);
    let before = heap(&scene, &target, &[]);
    target.ask("lie");
    for how in ["none", "auto", "stop", "fork"] {
        let heap = heap(&scene, &target, &["--snapshot", how]);
        let top = heap["arenas"][0]["top_bytes"].as_u64().expect("a number");
        let system = heap["arenas"][0]["system_bytes"].as_u64().expect("a number");
        assert!(top > 0 && top <= system, "{heap}");
        assert_eq!(heap["lost"]["bytes"], 0, "{heap}");
        assert!(blocks(&heap) >= blocks(&before), "{heap}");
    }
    target.quit();
}

#[test]
fn who_has_no_heap_of_glibcs_is_told_so() {
    let scene = Scene::new("heap_none");
    let gone = scene.prof(&["heap", "2147483000"]);
    assert!(gone.code == 3 && gone.stdout.is_empty(), "{gone:?}");
    if !has_compiler("musl-gcc") {
        return skip("who_has_no_heap_of_glibcs_is_told_so", "no musl-gcc");
    }
    // It has not allocated.
    let demo = compile("musl-gcc", "toggle.c", &["-O1", "-static"]);
    let Ok(demo) = demo else {
        return skip("who_has_no_heap_of_glibcs_is_told_so", "musl-gcc can't build it");
    };
    let mut target = Target::start(&demo, &[]);
    let text = scene.prof(&["heap", &target.pid.to_string()]).ok("prof heap").stdout;
    assert!(text.contains("none of glibc's allocator, jemalloc, mimalloc, "), "{text}");
    assert!(text.contains("of other anonymous memory"), "{text}");
    target.quit();
}

/// The cache of a thread is found in a chunk that is larger than it, too.
#[test]
fn a_cache_in_a_larger_chunk_is_found() {
    let scene = Scene::new("heap_wide");
    let mut command = Command::new(program_with("wide.c", &["-O1", "-pthread"]));
    command.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1");
    let mut target = Target::spawn(command);
    target.expect("ready");
    let pid = target.pid.to_string();
    let out = scene.prof(&["heap", &pid, "--format", "json"]).ok("prof heap").stdout;
    let heap: Value = serde_json::from_str(&out).expect("JSON");
    let arenas = heap["arenas"].as_array().expect("arenas");
    let cached =
        arenas.iter().map(|a| a["cached"]["blocks"].as_u64().expect("blocks")).sum::<u64>();
    assert_eq!((arenas.len(), cached), (1, 7 + 20 * 7), "{heap:#}");
    target.quit();
}

/// Objects are counted by class in a program without symbols that prof never recorded.
#[test]
fn objects_are_counted_by_class() {
    let scene = Scene::new("heap_classes");
    let mut target = Target::start(&program_with("holds.cpp", &["-O1", "-pthread", "-s"]), &[]);
    target.ask("begin");
    let pid = target.pid.to_string();
    let heap = ["heap", &pid, "--classes"];
    let out = scene.prof(&[&heap[..], &["--format", "json"]].concat()).ok("prof heap").stdout;
    let heap_data: Value = serde_json::from_str(&out).expect("JSON");
    let classes = &heap_data["classes"];
    let list: Vec<(&str, u64)> = classes["list"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| (c["class"].as_str().expect("a name"), c["blocks"].as_u64().expect("blocks")))
        .collect();
    assert_eq!(list, [("Session", 40), ("shop::Cart", 1)], "{heap_data:#}");
    let all = heap_data["in_use"]["blocks"].as_u64().expect("blocks");
    assert_eq!(classes["other_blocks"], all - 41, "{heap_data:#}");
    let text = scene.prof(&heap).ok("prof heap").stdout;
    let has = |blocks: &str, class: &str| {
        text.lines().any(|l| l.ends_with(class) && l.split_whitespace().any(|w| w == blocks))
    };
    assert!(has("40", "  Session") && has("1", "  shop::Cart"), "{text}");
    let text = scene.prof(&[&heap[..], &["--top", "1"]].concat()).ok("prof heap").stdout;
    assert!(text.contains("1 class more") && !text.contains("Cart"), "{text}");
    assert!(!scene.prof(&heap[..2]).ok("prof heap").stdout.contains("Session"));
    target.ask("end");
    target.quit();
}

#[test]
fn blocks_from_before_the_attach_are_proved_unreachable_or_held_by_name() {
    let scene = Scene::new("heap_before");
    let json = |scene: &Scene, args: &[&str]| -> Value {
        let out = scene.prof(args).ok("prof");
        serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    };
    let mut target = Target::start(&program_with("reach.c", &["-O1", "-pthread"]), &[]);
    target.ask("begin");
    let pid = target.pid.to_string();
    scene.attach(&target);
    // An emulated processor is slow.
    let how = ["--format", "json", "--top", "0", "--snapshot", "stop", "--timeout", "240s"];
    let reach = [&["reach", &pid][..], &how].concat();
    let without = json(&scene, &reach);
    assert_eq!(without["unreachable"]["blocks"], 0, "all blocks are from before: {without}");
    let with = json(&scene, &[&reach[..], &["--census", "--show-blocks"]].concat());
    assert_eq!(with["scan"]["settled"], true, "{with}");
    let stacks = with["top"].as_array().expect("stacks");
    let before: Vec<_> = stacks.iter().filter(|s| s["before_attach"] == true).collect();
    assert_eq!(before.len(), 1, "{with}");
    // 116 blocks that nothing holds on any machine, 20 of a thread that has ended and 20 by freed blocks where these are
    // known; and a few of libc's.
    let lost = before[0]["blocks"].as_u64().expect("a number");
    assert!((116..=170).contains(&lost), "{lost}: {with}");
    let listed = before[0]["blocks_listed"].as_array().expect("blocks");
    assert!(listed.iter().all(|b| b["content"].is_string()), "{with}");
    let args = [&reach[..], &["--census", "--show-blocks", "--no-content"]].concat();
    let private = json(&scene, &args);
    let stacks = private["top"].as_array().expect("stacks").iter();
    let mut listed = stacks.flat_map(|s| s["blocks_listed"].as_array().expect("blocks"));
    assert!(listed.all(|b| b["content"].is_null()), "{private}");
    // A pointer to the only block that a variable holds makes it one of that variable's.
    let holds = json(&scene, &[&["holds", &pid, "--census"][..], &how].concat());
    let roots = holds["top_roots"].as_array().expect("roots").iter();
    let retained = |name: &str| -> u64 {
        let named = roots.clone().filter(|r| r["variable"] == name);
        named.map(|r| r["retained"]["blocks"].as_u64().expect("a number")).sum()
    };
    assert_eq!((retained("global"), retained("list")), (1, 20), "{holds}");
    let text = scene.prof(&["holds", &pid, "--census", "--snapshot", "stop"]).ok("prof holds");
    assert!(text.stdout.contains("(before the attach)"), "{text:?}");
    let none = scene.prof(&["reach", &pid, "--census", "--snapshot", "none"]);
    assert!(none.code == 3 && none.stderr.contains("--snapshot stop"), "{none:?}");
    target.ask("end");
    scene.detach(&target);
    target.quit();
}

#[test]
fn blocks_that_are_freed_while_the_census_is_taken_are_not_lost_ones() {
    let scene = Scene::new("heap_freed");
    let mut target = start(&FLAGS, None);
    target.ask("chain");
    let pid = target.pid.to_string();
    scene.attach(&target);
    for _ in 0..3 {
        let args = ["reach", &pid, "--census", "--format", "json", "--snapshot", "stop"];
        let out = scene.prof(&args).ok("prof reach").stdout;
        let report: Value = serde_json::from_str(&out).expect("JSON");
        assert!(report["judged_blocks"].as_u64() > Some(1000), "{out}");
        assert_eq!(report["unreachable"]["blocks"], 0, "{out}");
    }
    target.ask("unchain");
    scene.detach(&target);
    // What is not recorded may have been freed.
    for (how, why) in [("--min-size=64", "leaves blocks out"), ("--cull=5s", "--cull")] {
        let mut attach = Command::new(Scene::binary());
        attach.args(["attach", &pid, how, "-o", &format!("{}.prof", &how[2..5])]);
        scene.run(attach).ok("prof attach");
        let refused = scene.prof(&["reach", &pid, "--census"]);
        assert!(refused.code == 3 && refused.stderr.contains(why), "{refused:?}");
        scene.prof(&["detach", &pid]).ok("prof detach");
    }
    target.quit();
}
