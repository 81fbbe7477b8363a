//! The breakdown of resident memory compared with the allocator's own statistics at the same moment.

use common::build::program_with;
use common::{Scene, Target, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Returns the breakdown of a recording of one "go", and the allocator's statistics right after the detach.
fn told(preload: Option<&str>) -> (Value, BTreeMap<String, u64>) {
    let scene = Scene::new("resident");
    let mut command = Command::new(program_with("resident.c", &["-O1", "-ldl"]));
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let mut target = Target::spawn(command);
    target.expect("ready");
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    scene.finished(&recording);
    target.send("stats");
    let stats = target.line();
    target.kill();
    let words: Vec<&str> = stats.split_whitespace().collect();
    let pair = |p: &[&str; 2]| (p[0].to_owned(), p[1].parse().expect("a number"));
    let file = recording.to_str().expect("UTF-8");
    let out = scene.prof(&["fragmentation", file, "--format", "json"]).ok("prof fragmentation");
    let f: Value = serde_json::from_str(&out.stdout).expect("JSON");
    eprintln!("{stats}\n{:#}", f["account"]);
    (f["account"].clone(), words.as_chunks::<2>().0.iter().map(pair).collect())
}

#[track_caller]
fn near(what: &str, found: u64, told: u64) {
    assert!(found.abs_diff(told) * 50 <= told, "{what}: {found}, and the allocator says {told}");
}

fn number(a: &Value, name: &str) -> u64 {
    a[name].as_u64().unwrap_or_else(|| panic!("{name}: {a:#}"))
}

#[test]
fn what_glibc_keeps_is_what_glibc_says() {
    // On a busy machine the arenas may not be read to their end: prof reports that, and estimates from pages instead.
    let told = |_| told(None);
    let (a, stats) = (0..5).map(told).find(|(a, _)| a["by_allocator"] == true).expect("the arenas");
    let n = |name: &str| number(&a, name);
    near("free", n("free_bytes"), stats["free"]);
    // Nearly all free memory is resident; a new heap has parts that were never written to.
    assert!(n("slack_bytes") <= n("free_bytes"), "{a:#}");
    near("free and resident", n("slack_bytes"), stats["free"]);
    let used = n("live_bytes") + n("beside_bytes") + n("before_bytes") - n("not_resident_bytes");
    near("in use", used, stats["used"]);
    near("mapped by the program", n("other_anonymous_bytes"), stats["own"]);
    // A third of the old blocks, and half a dozen large ones, are still live.
    assert!(n("before_bytes") > 30_000_000 && n("before_bytes") < 37_000_000, "{a:#}");
    let maps = a["maps"].as_array().expect("mappings");
    let stacks = maps.iter().find(|m| m["kind"] == "stacks").expect("stacks");
    assert!(number(stacks, "rss_bytes") < 2 << 20, "{stacks:#}");
}

#[test]
fn what_jemalloc_keeps_is_what_jemalloc_says() {
    let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if !Path::new(library).exists() {
        return skip("what_jemalloc_keeps_is_what_jemalloc_says", "needs libjemalloc2");
    }
    let (a, stats) = told(Some(library));
    let n = |name: &str| number(&a, name);
    let kept = n("live_bytes") + n("beside_bytes") + n("before_bytes") + n("slack_bytes")
        - n("not_resident_bytes");
    near("resident", kept, stats["resident"]);
}

/// Returns the breakdown of a recording that ends while three threads allocate and free at full speed, and the bytes in
/// use before the attach, all of which stay.
fn in_full_run() -> (Value, u64) {
    let scene = Scene::new("moment");
    let mut command = Command::new(program_with("moment.c", &["-O1"]));
    // Blocks in a thread's cache count as in use, so how many there are would have to be known.
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    let mut target = Target::spawn(command);
    let kept = target.expect("kept");
    let recording = scene.attach(&target);
    target.ask("go");
    let pid = target.pid.to_string();
    common::until("events", || {
        let status = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["events"].as_u64().is_some_and(|n| n > 50_000)
    });
    scene.detach(&target);
    scene.finished(&recording);
    target.kill();
    let file = recording.to_str().expect("UTF-8");
    let out = scene.prof(&["fragmentation", file, "--format", "json"]).ok("prof fragmentation");
    let f: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let kept = kept.split_whitespace().nth(1).and_then(|w| w.parse().ok()).expect("a number");
    eprintln!("{kept} bytes in use before: {:#}", f["account"]);
    (f["account"].clone(), kept)
}

#[test]
fn what_was_there_before_is_told_within_bounds_while_threads_allocate() {
    // On a busy machine the arenas may not be read to their end, or not before prof has to go on, or events are lost.
    let good = |a: &Value| {
        a["by_allocator"] == true && a["unrecorded_ns"] == 0 && a["before_between_bytes"].is_array()
    };
    let found = (0..6).map(|_| in_full_run()).find(|(a, _)| good(a));
    let (a, kept) = found.expect("a look at the arenas while events are recorded");
    let bounds = a["before_between_bytes"].as_array().expect("bounds");
    let [least, most] = [0, 1].map(|i| bounds[i].as_u64().expect("a number"));
    assert!(least <= kept + kept / 50 && most >= kept - kept / 50, "{kept}: {least} to {most}");
    // The three threads have at most three times 8,000 blocks of 1.5 KiB.
    assert!(most - least < 3 * 8000 * 1500, "{kept}: {least} to {most}");
    assert!((least..=most).contains(&number(&a, "before_bytes")), "{a:#}");
}
