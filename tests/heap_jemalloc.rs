//! `prof heap` and `prof attach --census` on jemalloc, beside what jemalloc and the program say themselves.

use common::build::{compile, program_with};
use common::heap::{assert_listed, heap, json, number};
use common::{Scene, Target, skip};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FLAGS: [&str; 2] = ["-O1", "-pthread"];
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// How the program gets its jemalloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linked {
    /// It is preloaded.
    Preloaded,
    /// It is in the program, which has no symbols.
    Static,
}

/// Starts the program and has it make its heap; `None` without the library.
fn start(linked: Linked) -> Option<Target> {
    let mut command = match linked {
        Linked::Preloaded => {
            let library = Path::new(LIBRARIES).join("libjemalloc.so.2");
            let library = library.exists().then_some(library)?;
            let mut command = Command::new(program_with("variety.c", &FLAGS));
            command.env("LD_PRELOAD", library);
            command
        }
        Linked::Static => {
            let library = Path::new(LIBRARIES).join("libjemalloc.a");
            let library = library.exists().then_some(library)?;
            let more = ["-s", "-Wl,--whole-archive", library.to_str()?, "-Wl,--no-whole-archive"];
            let libraries = ["-lstdc++", "-lm", "-ldl"];
            let flags = [&FLAGS[..], &more, &libraries].concat();
            Command::new(compile("cc", "variety.c", &flags).expect("a program with jemalloc"))
        }
    };
    // Free pages would go back to the kernel with time, between the program's figures and the walk.
    command.env("MALLOC_CONF", "dirty_decay_ms:-1");
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask("begin");
    Some(target)
}

/// Returns jemalloc's figures by their names.
fn told(target: &mut Target) -> HashMap<String, u64> {
    target.send("told");
    let line = target.expect("told ");
    target.expect("done");
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let pairs = words.as_chunks::<2>().0.iter();
    pairs.map(|[name, n]| ((*name).to_owned(), n.parse().expect("a number"))).collect()
}

/// Compares a report with jemalloc's figures. Returns the blocks and bytes that are neither in caches nor jemalloc's own.
fn check(heap: &Value, told: &HashMap<String, u64>) -> (u64, u64) {
    let all = heap["jemallocs"].as_array().expect("a list");
    let [j] = &all[..] else { panic!("{heap}") };
    assert_eq!(j["version"], "5.3", "{heap}");
    let [in_use, cached] = ["in_use", "cached"].map(|n| number(&j[n]["bytes"]));
    let sum = |name: &str| {
        let arenas = j["arenas"].as_array().expect("arenas");
        arenas.iter().map(|a| number(&a[name])).sum::<u64>()
    };
    let found =
        [in_use + cached, cached, sum("active_bytes"), sum("dirty_bytes"), sum("muzzy_bytes")];
    let said = ["allocated", "cached", "active", "dirty", "muzzy"].map(|n| told[n]);
    assert_eq!(found, said, "{heap}");
    let lost = &heap["lost"];
    for name in ["bytes", "places", "links"] {
        assert_eq!(lost[name], 0, "{heap}");
    }
    assert_eq!((&lost["caches"], &lost["late"]), (&false.into(), &false.into()), "{heap}");
    // Every size is counted in one class.
    let sizes = heap["sizes"].as_array().expect("sizes");
    let of_sizes: u64 = sizes.iter().map(|s| number(&s["in_use"]["bytes"])).sum();
    assert_eq!(of_sizes, number(&heap["in_use"]["bytes"]), "{heap}");
    let own = &j["own"];
    (number(&j["in_use"]["blocks"]) - number(&own["blocks"]), in_use - number(&own["bytes"]))
}

fn compare_figures(test: &str, linked: Linked) {
    let Some(mut target) = start(linked) else { return skip(test, "needs libjemalloc-dev") };
    let scene = Scene::new(test);
    for turn in 0..3 {
        let said = told(&mut target);
        let heap = heap(&scene, &target);
        check(&heap, &said);
        // Four threads, the first one, and a cache of the program's own; those of threads that have ended are gone.
        assert_eq!(heap["jemallocs"][0]["caches"], 6, "{turn}: {heap}");
        target.ask("mix");
    }
    let text = scene.prof(&["heap", &target.pid.to_string()]).ok("prof heap").stdout;
    assert!(text.contains("jemalloc 5.3: ") && !text.contains("not walked: jemalloc"), "{text}");
    target.quit();
}

#[test]
fn figures_are_those_of_jemalloc() {
    compare_figures("jemalloc-figures", Linked::Preloaded);
}

#[test]
fn a_jemalloc_without_symbols_in_a_program_is_found() {
    compare_figures("jemalloc-static", Linked::Static);
}

/// Small, large and aligned blocks, resized ones, of threads that go on and that have ended, of an arena that the program
/// has made; and none that was freed, into whichever cache.
#[test]
fn every_block_is_known_by_address_and_size() {
    const TEST: &str = "jemalloc-blocks";
    let Some(mut target) = start(Linked::Preloaded) else {
        return skip(TEST, "needs libjemalloc2");
    };
    for _ in 0..2 {
        // The rest is what libc has asked for, for each thread, and the lists of jemalloc's caches.
        assert_listed(&mut target, 40, "jemalloc");
        target.ask("mix");
    }
    target.quit();
}

#[test]
fn a_census_of_a_quiet_process_is_exact() {
    if common::is_refused_by_dlopen("jemalloc-census", common::LINKERS_BLOCKS) {
        return;
    }
    const TEST: &str = "jemalloc-census";
    let Some(mut target) = start(Linked::Preloaded) else {
        return skip(TEST, "needs libjemalloc2");
    };
    let scene = Scene::new(TEST);
    target.ask("leak");
    let said = told(&mut target);
    let recording = scene.attach_with(&target, &["--census"]);
    let (blocks, bytes) = check(&heap(&scene, &target), &said);
    let pid = target.pid.to_string();
    let reach = json(&scene, &["reach", &pid, "--format", "json", "--top", "0"]);
    assert_eq!(number(&reach["judged_blocks"]), blocks, "{reach}");
    scene.detach(&target);
    let file = recording.to_str().expect("UTF-8");
    let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
    let totals = &report["totals"];
    let live = [&totals["live_count"], &totals["live_bytes"], &totals["allocations"]].map(number);
    assert_eq!(live, [blocks, bytes, 0], "{totals}");
    target.quit();
}

/// The threads allocate and free at full speed during the attach; afterwards every block is known.
#[test]
fn a_census_of_a_busy_process_is_exact() {
    const TEST: &str = "jemalloc-busy";
    let scene = Scene::new(TEST);
    for _ in 0..2 {
        let Some(mut target) = start(Linked::Preloaded) else {
            return skip(TEST, "needs libjemalloc2");
        };
        target.ask("churn");
        let recording = scene.attach_with(&target, &["--census", "--census-stop", "5s"]);
        std::thread::sleep(Duration::from_millis(100));
        target.ask("calm");
        target.ask("mix");
        let said = told(&mut target);
        assert!(said["changes"] > 0);
        let (blocks, _) = check(&heap(&scene, &target), &said);
        scene.detach(&target);
        let file = recording.to_str().expect("UTF-8");
        let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
        let (totals, head) = (&report["totals"], &report["recording"]);
        let about = format!("{totals} {head}");
        assert_eq!(head["lost_events"], 0, "{about}");
        assert_eq!(
            (&head["unknown_frees"], &head["implied_frees"]),
            (&0.into(), &0.into()),
            "{about}"
        );
        assert_eq!(number(&totals["live_count"]), blocks, "{about}");
        assert!(number(&totals["before_attach"]["count"]) > 15_000, "{about}");
        target.quit();
    }
}

/// jemalloc has the address of each slab and of each large block itself. These words hold nothing: the first block of a
/// slab can be lost as well.
#[test]
fn lost_blocks_are_proved_wherever_they_lie() {
    const TEST: &str = "jemalloc-reach";
    let Some(mut target) = start(Linked::Preloaded) else {
        return skip(TEST, "needs libjemalloc2");
    };
    let scene = Scene::new(TEST);
    target.ask("leak");
    // What is left in caches and registers goes.
    target.ask("mix");
    let listed = target.listed();
    scene.attach(&target);
    let pid = target.pid.to_string();
    let options = ["--census", "--snapshot", "stop", "--show-blocks", "--top", "0"];
    let reach = json(&scene, &[&["reach", &pid, "--format", "json"], &options[..]].concat());
    let found = reach["top"][0]["blocks_listed"].as_array().expect("blocks");
    let address = |b: &Value| {
        let text = b["address"].as_str().and_then(|a| a.strip_prefix("0x")).expect("an address");
        u64::from_str_radix(text, 16).expect("a number")
    };
    let lost: Vec<u64> = found.iter().map(address).collect();
    assert!(
        lost.iter().all(|at| !listed.contains_key(at)),
        "a block that the program has: {reach}"
    );
    // Of a hundred. Old contents of the lists of caches hold some. Two fit into each slab.
    let first = lost.iter().filter(|at| at.is_multiple_of(4096)).count();
    assert!((70..=100).contains(&lost.len()) && first >= 25, "{first} of {}: {reach}", lost.len());
    scene.detach(&target);
    target.quit();
}

/// Debian's Redis, which most people have: its own figure is the oracle.
#[test]
fn redis_is_counted_before_and_while_it_is_recorded() {
    const TEST: &str = "jemalloc-redis";
    if !common::installed("redis-server") || !common::installed("redis-cli") {
        return skip(TEST, "needs redis-server and redis-tools");
    }
    let scene = Scene::new(TEST);
    let socket = scene.path("redis.sock");
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--enable-debug-command", "yes", "--unixsocket"]);
    let mut target = Target::spawn({
        server.arg(&socket);
        server
    });
    let ask = |words: &[&str]| {
        let mut cli = Command::new("redis-cli");
        cli.arg("-s").arg(&socket).args(words);
        String::from_utf8(cli.output().expect("redis-cli").stdout).expect("text")
    };
    common::until("redis answers", || ask(&["ping"]).starts_with("PONG"));
    assert!(ask(&["debug", "populate", "20000", "key", "100"]).contains("OK"));
    let told = || -> u64 {
        let text = ask(&["memory", "malloc-stats"]);
        let rest = text.split("Allocated: ").nth(1).expect("its figure");
        rest.split(',').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    // A client that comes and goes has blocks of its own in between.
    let near = |heap: &Value| {
        let j = &heap["jemallocs"][0];
        let found = number(&j["in_use"]["bytes"]) + number(&j["cached"]["bytes"]);
        let said = told();
        assert!(found.abs_diff(said) < 1 << 18, "{found} of {said}");
    };
    near(&heap(&scene, &target));
    let recording = scene.attach_with(&target, &["--census"]);
    ask(&["debug", "populate", "1000", "other", "50"]);
    ask(&["flushall"]);
    let heap = heap(&scene, &target);
    near(&heap);
    scene.detach(&target);
    let file = recording.to_str().expect("UTF-8");
    let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
    let head = &report["recording"];
    assert_eq!((&head["unknown_frees"], &head["implied_frees"]), (&0.into(), &0.into()), "{head}");
    let before = &report["totals"]["before_attach"];
    assert!(number(&before["count"]) > 60_000, "{before}");
    assert!(number(&before["live_count"]) < number(&before["count"]) - 55_000, "{before}");
    target.kill();
}
