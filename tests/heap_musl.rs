//! `prof heap` and `prof attach --census` on musl's allocator, beside what the program says itself.

use common::build::{compile, has_compiler};
use common::heap::{assert_listed, heap, json, number};
use common::{Scene, Target, skip};
use std::process::Command;
use std::time::Duration;

/// Shared and static, with symbols and without.
const BUILDS: [&[&str]; 3] = [&["-O1"], &["-O1", "-static"], &["-O1", "-static", "-s"]];
/// The builds that can be recorded: prof needs the symbols of a static program for that.
const RECORDED: [&[&str]; 2] = [BUILDS[0], BUILDS[1]];

/// The walk reads thousands of places, each by a system call of its own: an emulated processor takes seconds for that.
const STOP: [&str; 3] = ["--census", "--census-stop", "60s"];

/// Starts the program with musl and has it make its heap; `None` without the compiler.
fn start(test: &str, flags: &[&str]) -> Option<Target> {
    if !has_compiler("musl-gcc") {
        skip(test, "needs musl-gcc (musl-tools)");
        return None;
    }
    let mut command = Command::new(compile("musl-gcc", "variety.c", flags).expect("a program"));
    let mut target = Target::spawn({
        command.arg("plain");
        command
    });
    target.expect("ready");
    target.ask("begin");
    Some(target)
}

/// Small, large and aligned blocks, resized ones, of threads that go on and that have ended; and none that was freed.
#[test]
fn every_block_is_known_by_address_and_size() {
    for flags in BUILDS {
        let Some(mut target) = start("musl-blocks", flags) else { return };
        for _ in 0..3 {
            // The rest is musl's own.
            assert_listed(&mut target, 20, &flags.join(" "));
            target.ask("mix");
        }
        target.quit();
    }
}

#[test]
fn a_census_of_a_quiet_process_is_exact() {
    let scene = Scene::new("musl-census");
    for flags in RECORDED {
        let is_static = flags.contains(&"-static");
        if is_static && common::is_refused_by_dlopen("musl-census", "it is static") {
            continue;
        }
        let Some(mut target) = start("musl-census", flags) else { return };
        target.ask("mix");
        target.ask("leak");
        let listed = target.listed();
        let recording = scene.attach_with(&target, &STOP);
        let heap = heap(&scene, &target);
        let musl = &heap["musls"][0];
        let [blocks, bytes] = ["blocks", "bytes"].map(|n| number(&musl["in_use"][n]));
        let own = blocks - listed.len() as u64;
        assert!((100..=120).contains(&own), "{own} beside those of the list: {heap}");
        let of_sizes: u64 = heap["sizes"]
            .as_array()
            .expect("sizes")
            .iter()
            .map(|s| number(&s["in_use"]["bytes"]))
            .sum();
        assert_eq!((of_sizes, number(&heap["in_use"]["bytes"])), (bytes, bytes), "{heap}");
        let text = scene.prof(&["heap", &target.pid.to_string()]).ok("prof heap").stdout;
        assert!(text.contains("  musl: ") && !text.contains("not walked"), "{text}");
        let pid = target.pid.to_string();
        let reach = json(&scene, &["reach", &pid, "--format", "json", "--top", "0"]);
        assert_eq!(number(&reach["judged_blocks"]), blocks, "{reach}");
        // Most of the hundred that nobody knows.
        let lost = number(&reach["unreachable"]["blocks"]);
        assert!((80..=100).contains(&lost), "{lost}: {reach}");
        scene.detach(&target);
        let file = recording.to_str().expect("UTF-8");
        let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
        let totals = &report["totals"];
        let live = ["live_count", "live_bytes", "allocations"].map(|n| number(&totals[n]));
        assert_eq!(live, [blocks, bytes, 0], "{totals}");
        target.quit();
        std::fs::remove_file(recording).expect("the recording");
    }
}

/// The threads allocate and free at full speed during the attach; afterwards every block is known.
#[test]
fn a_census_of_a_busy_process_is_exact() {
    let scene = Scene::new("musl-busy");
    for flags in RECORDED {
        let is_static = flags.contains(&"-static");
        if is_static && common::is_refused_by_dlopen("musl-busy", "it is static") {
            continue;
        }
        let Some(mut target) = start("musl-busy", flags) else { return };
        target.ask("churn");
        let recording = scene.attach_with(&target, &STOP);
        std::thread::sleep(Duration::from_millis(100));
        target.ask("calm");
        target.ask("mix");
        let heap = heap(&scene, &target);
        let in_use = &heap["in_use"];
        scene.detach(&target);
        let file = recording.to_str().expect("UTF-8");
        let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
        let (totals, head) = (&report["totals"], &report["recording"]);
        let about = format!("{totals} {head}");
        for name in ["lost_events", "unknown_frees", "implied_frees"] {
            assert_eq!(head[name], 0, "{about}");
        }
        assert_eq!(totals["live_count"], in_use["blocks"], "{about}");
        assert_eq!(totals["live_bytes"], in_use["bytes"], "{about}");
        assert!(number(&totals["before_attach"]["count"]) > 15_000, "{about}");
        target.quit();
        std::fs::remove_file(recording).expect("the recording");
    }
}
