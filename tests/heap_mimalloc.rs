//! `prof heap`, `prof attach --census` and `prof reach --census` on mimalloc, beside what mimalloc and the program say
//! themselves.

use common::build::program_with;
use common::heap::{self, census, json, number};
use common::{Scene, Target, skip};
use prof_census::Census;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FLAGS: [&str; 2] = ["-O1", "-pthread"];
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2";

/// Starts the program with mimalloc, and gives it a command; `None` without the library.
fn start(test: &str, first: &str) -> Option<Target> {
    if !Path::new(LIBRARY).exists() {
        skip(test, "needs libmimalloc2.0");
        return None;
    }
    let mut command = Command::new(program_with("variety.c", &FLAGS));
    command.env("LD_PRELOAD", LIBRARY).arg("plain");
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask(first);
    Some(target)
}

fn heap(scene: &Scene, target: &Target) -> Value {
    let heap = heap::heap(scene, target);
    let lost = &heap["lost"];
    for name in ["bytes", "places", "links"] {
        assert_eq!(lost[name], 0, "{heap}");
    }
    assert_eq!((&lost["unknown_layout"], &lost["late"]), (&false.into(), &false.into()), "{heap}");
    heap
}

/// Checks that each block that the program lists is found: by address and size, or, where its page has aligned blocks, as
/// the place that it ends with. Returns how many are found that way, and how many are found and not listed.
fn check(census: &Census, listed: &HashMap<u64, u64>) -> (usize, usize) {
    let found: BTreeMap<u64, u64> = census.blocks().map(|b| (b.address, b.size)).collect();
    assert_eq!(found.len(), census.blocks().count(), "no place is found twice");
    let mut later = 0;
    for (at, size) in listed {
        if found.get(at) == Some(size) {
            continue;
        }
        let place = found.range(..at).next_back();
        let ends = place.is_some_and(|(start, len)| start + len == at + size);
        assert!(
            ends,
            "{size} bytes at {at:#x}, and of places {place:?} is the last in front of it"
        );
        later += 1;
    }
    (later, found.len() - listed.len())
}

/// Small, large and aligned blocks, resized ones, of threads that go on and that have ended; and none that was freed, by
/// its own thread or by another.
#[test]
fn every_block_is_known_by_address_and_size() {
    let Some(mut target) = start("mimalloc-blocks", "begin") else { return };
    for turn in 0..4 {
        let listed = target.listed();
        assert!(listed.len() > 15_000, "{} blocks", listed.len());
        let census = census(&target);
        let (later, more) = check(&census, &listed);
        let [m] = census.mimallocs[..] else { panic!("{:?}", census.mimallocs) };
        assert!(later > 0 && later as u64 <= m.shifted.blocks, "{turn}: {later} of {m:?}");
        // The rest is of the C library.
        assert!(more <= 20, "{turn}: {more} blocks too many");
        assert_eq!(m.in_use.blocks, (listed.len() + more) as u64, "{m:?}");
        target.ask("mix");
    }
    target.quit();
}

/// Blocks that have segments of their own, at alignments that need one as well.
#[test]
fn the_largest_blocks_are_known() {
    let Some(mut target) = start("mimalloc-extreme", "extreme") else { return };
    let listed = target.listed();
    let census = census(&target);
    let (later, more) = check(&census, &listed);
    // Of those aligned to 4, 8 and 16 MiB nothing says where they begin.
    assert!(later <= 3 && more <= 20, "{later} later, {more} more");
    let [m] = census.mimallocs[..] else { panic!("{:?}", census.mimallocs) };
    assert!((6..=9).contains(&m.huge.blocks) && m.huge.bytes > 5 << 30, "{m:?}");
    target.quit();
}

/// mimalloc visits the blocks of one thread's heap itself.
#[test]
fn figures_are_those_of_mimalloc() {
    let Some(mut target) = start("mimalloc-figures", "alone") else { return };
    let scene = Scene::new("mimalloc-figures");
    target.send("visited");
    let line = target.expect("visited ");
    target.expect("done");
    let words: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    let heap = heap(&scene, &target);
    let m = &heap["mimallocs"][0];
    let in_use = ["blocks", "bytes"].map(|n| number(&m["in_use"][n]));
    assert_eq!(words, in_use, "{heap}");
    let of_sizes = heap["sizes"].as_array().expect("sizes").iter();
    let of_sizes: u64 = of_sizes.map(|s| number(&s["in_use"]["bytes"])).sum();
    assert_eq!(of_sizes, number(&heap["in_use"]["bytes"]), "{heap}");
    let text = scene.prof(&["heap", &target.pid.to_string()]).ok("prof heap").stdout;
    assert!(text.contains("  mimalloc 2.0: ") && !text.contains("not walked: mimalloc"), "{text}");
    target.quit();
}

/// Frees of aligned blocks from before have addresses at which no place begins, and end them all the same.
#[test]
fn a_census_of_a_quiet_process_is_exact() {
    if common::is_refused_by_dlopen("mimalloc-census", common::LINKERS_BLOCKS) {
        return;
    }
    let Some(mut target) = start("mimalloc-census", "begin") else { return };
    let scene = Scene::new("mimalloc-census");
    target.ask("leak");
    let before = heap(&scene, &target);
    let live = |v: &Value| number(&v["mimallocs"][0]["in_use"]["blocks"]);
    let recording = scene.attach_with(&target, &["--census"]);
    let pid = target.pid.to_string();
    let reach = json(&scene, &["reach", &pid, "--format", "json", "--top", "0"]);
    assert_eq!(number(&reach["judged_blocks"]), live(&before), "{reach}");
    // Most of the hundred that nobody knows.
    let lost = number(&reach["unreachable"]["blocks"]);
    assert!((70..=100).contains(&lost), "{lost}: {reach}");
    for _ in 0..3 {
        target.ask("mix");
    }
    let after = heap(&scene, &target);
    scene.detach(&target);
    let file = recording.to_str().expect("UTF-8");
    let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
    let (totals, head) = (&report["totals"], &report["recording"]);
    for name in ["lost_events", "unknown_frees", "implied_frees"] {
        assert_eq!(head[name], 0, "{totals} {head}");
    }
    assert_eq!(number(&totals["before_attach"]["count"]), live(&before), "{totals}");
    assert_eq!(number(&totals["live_count"]), live(&after), "{totals}");
    target.quit();
}

/// A census that is taken long after the attach knows aligned blocks that are recorded from those that are not.
#[test]
fn a_census_beside_a_recording_counts_no_block_twice() {
    let Some(mut target) = start("mimalloc-reach", "begin") else { return };
    let scene = Scene::new("mimalloc-reach");
    scene.attach(&target);
    target.ask("extreme");
    target.ask("mix");
    let (pid, listed) = (target.pid.to_string(), target.listed().len() as u64);
    let options = ["--census", "--snapshot", "stop", "--format", "json", "--top", "0"];
    let reach = json(&scene, &[&["reach", &pid], &options[..]].concat());
    let judged = number(&reach["judged_blocks"]);
    assert!((listed..=listed + 20).contains(&judged), "{judged} of {listed}: {reach}");
    assert_eq!(number(&reach["unreachable"]["blocks"]), 0, "{reach}");
    scene.detach(&target);
    target.quit();
}

/// The threads allocate and free at full speed during the attach; afterwards every block is known.
#[test]
fn a_census_of_a_busy_process_is_exact() {
    let scene = Scene::new("mimalloc-busy");
    for _ in 0..2 {
        let Some(mut target) = start("mimalloc-busy", "begin") else { return };
        target.ask("churn");
        let recording = scene.attach_with(&target, &["--census", "--census-stop", "5s"]);
        std::thread::sleep(Duration::from_millis(100));
        target.ask("calm");
        target.ask("mix");
        let heap = heap(&scene, &target);
        scene.detach(&target);
        let file = recording.to_str().expect("UTF-8");
        let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
        let (totals, head) = (&report["totals"], &report["recording"]);
        let about = format!("{totals} {head}");
        for name in ["lost_events", "unknown_frees", "implied_frees"] {
            assert_eq!(head[name], 0, "{about}");
        }
        assert_eq!(totals["live_count"], heap["in_use"]["blocks"], "{about}");
        assert!(number(&totals["before_attach"]["count"]) > 15_000, "{about}");
        target.quit();
        std::fs::remove_file(recording).expect("the recording");
    }
}
