//! `prof heap`, `prof attach --census` and `prof reach --census` on tcmalloc, beside what tcmalloc and the program say
//! themselves.

use common::build::{compile, program_with};
use common::heap::{self, assert_listed, json, number};
use common::{Scene, Target, skip};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FLAGS: [&str; 2] = ["-O1", "-pthread"];
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// How the program gets its tcmalloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linked {
    /// It is preloaded.
    Preloaded,
    /// It is preloaded, with its profilers.
    Whole,
    /// It is in the program.
    Static,
    /// It is in the program, which has no symbols.
    Stripped,
}

const ALL: [Linked; 4] = [Linked::Preloaded, Linked::Whole, Linked::Static, Linked::Stripped];
/// Those that can be recorded: prof needs the symbols of a static allocator for that.
const RECORDED: [Linked; 2] = [Linked::Preloaded, Linked::Static];

/// Starts the program with tcmalloc and has it make its heap; `None` without the library.
fn start(test: &str, linked: Linked) -> Option<Target> {
    let library = match linked {
        Linked::Preloaded => "libtcmalloc_minimal.so.4",
        Linked::Whole => "libtcmalloc.so.4",
        Linked::Static | Linked::Stripped => "libtcmalloc_minimal.a",
    };
    let library = Path::new(LIBRARIES).join(library);
    if !library.exists() {
        skip(test, &format!("needs {} (libgoogle-perftools-dev)", library.display()));
        return None;
    }
    let mut command = match linked {
        Linked::Preloaded | Linked::Whole => {
            let mut command = Command::new(program_with("variety.c", &FLAGS));
            command.env("LD_PRELOAD", library);
            command
        }
        Linked::Static | Linked::Stripped => {
            let strip = if linked == Linked::Stripped { "-s" } else { "-g" };
            let file = library.to_str()?;
            let more =
                [strip, "-Wl,--whole-archive", file, "-Wl,--no-whole-archive", "-lstdc++", "-lm"];
            let flags = [&FLAGS[..], &more].concat();
            Command::new(compile("cc", "variety.c", &flags).expect("a program with tcmalloc"))
        }
    };
    let mut target = Target::spawn({
        command.arg("plain");
        command
    });
    target.expect("ready");
    target.ask("begin");
    Some(target)
}

fn heap(scene: &Scene, target: &Target) -> Value {
    let heap = heap::heap(scene, target);
    let lost = &heap["lost"];
    for name in ["bytes", "places", "links"] {
        assert_eq!(lost[name], 0, "{heap}");
    }
    for name in ["unknown_layout", "caches", "late"] {
        assert_eq!(lost[name], false, "{heap}");
    }
    // Its tree is of the same form as that of a jemalloc.
    assert_eq!(heap["jemallocs"], Value::Array(Vec::new()), "{heap}");
    heap
}

/// Returns tcmalloc's figures by their names.
fn figures(target: &mut Target) -> HashMap<String, u64> {
    target.send("figures");
    let line = target.expect("figures ");
    target.expect("done");
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let pairs = words.as_chunks::<2>().0.iter();
    pairs.map(|[name, n]| ((*name).to_owned(), n.parse().expect("a number"))).collect()
}

#[test]
fn figures_are_those_of_tcmalloc() {
    let scene = Scene::new("tcmalloc-figures");
    for linked in ALL {
        let Some(mut target) = start("tcmalloc-figures", linked) else { return };
        for turn in 0..3 {
            let said = figures(&mut target);
            let heap = heap(&scene, &target);
            let t = &heap["tcmallocs"][0];
            let sums = ["in_use", "transfer", "cached"].map(|n| number(&t[n]["bytes"]));
            let told = ["allocated", "transfer", "thread"].map(|n| said[n]);
            assert_eq!(sums, told, "{linked:?}, {turn}: {heap}");
            let pages = ["free_page_bytes", "returned_page_bytes"].map(|n| number(&t[n]));
            assert_eq!(pages, ["free", "unmapped"].map(|n| said[n]), "{linked:?}, {turn}: {heap}");
            // Its own figure has the ends of spans that no block fits into as well.
            let central = number(&t["central"]["bytes"]);
            let ends = said["central"] - central;
            assert!(ends < said["allocated"] / 8, "{linked:?}, {turn}: {ends} and {heap}");
            // Those of four threads, and two of the first one.
            assert_eq!(number(&t["caches"]), 6, "{linked:?}, {turn}: {heap}");
            let of_sizes = heap["sizes"].as_array().expect("sizes").iter();
            let of_sizes: u64 = of_sizes.map(|s| number(&s["in_use"]["bytes"])).sum();
            assert_eq!(of_sizes, number(&heap["in_use"]["bytes"]), "{heap}");
            target.ask("mix");
        }
        let text = scene.prof(&["heap", &target.pid.to_string()]).ok("prof heap").stdout;
        assert!(text.contains("  tcmalloc: ") && !text.contains("not walked: tcmalloc"), "{text}");
        target.quit();
    }
}

/// Small, large and aligned blocks, resized ones, of threads that go on and that have ended; and none that was freed.
#[test]
fn every_block_is_known_by_address_and_size() {
    for linked in ALL {
        let Some(mut target) = start("tcmalloc-blocks", linked) else { return };
        target.ask("extreme");
        for _ in 0..3 {
            // The rest is of the libraries.
            assert_listed(&mut target, 60, &format!("{linked:?}"));
            target.ask("mix");
        }
        target.quit();
    }
}

#[test]
fn a_census_of_a_quiet_process_is_exact() {
    if common::is_refused_by_dlopen("tcmalloc-census", common::LINKERS_BLOCKS) {
        return;
    }
    let scene = Scene::new("tcmalloc-census");
    for linked in RECORDED {
        let Some(mut target) = start("tcmalloc-census", linked) else { return };
        target.ask("leak");
        target.ask("mix");
        let before = heap(&scene, &target);
        let live = |v: &Value| ["blocks", "bytes"].map(|n| number(&v["in_use"][n]));
        let recording = scene.attach_with(&target, &["--census"]);
        let pid = target.pid.to_string();
        let reach = json(&scene, &["reach", &pid, "--format", "json", "--top", "0"]);
        let [blocks, bytes] = live(&before);
        assert_eq!(number(&reach["judged_blocks"]), blocks, "{linked:?}: {reach}");
        // Most of the hundred that nobody knows.
        let lost = number(&reach["unreachable"]["blocks"]);
        assert!((70..=100).contains(&lost), "{linked:?}: {lost}: {reach}");
        let file = recording.to_str().expect("UTF-8");
        let report = json(&scene, &["report", &pid, "--format", "json", "--top", "0"]);
        let totals = &report["totals"];
        let found = ["live_count", "live_bytes"].map(|n| number(&totals[n]));
        assert_eq!(found, [blocks, bytes], "{linked:?}: {totals}");
        for _ in 0..3 {
            target.ask("mix");
        }
        let after = heap(&scene, &target);
        scene.detach(&target);
        let report = json(&scene, &["report", file, "--format", "json", "--top", "0"]);
        let (totals, head) = (&report["totals"], &report["recording"]);
        for name in ["lost_events", "unknown_frees", "implied_frees"] {
            assert_eq!(head[name], 0, "{linked:?}: {totals} {head}");
        }
        assert_eq!(number(&totals["live_count"]), live(&after)[0], "{linked:?}: {totals}");
        target.quit();
        std::fs::remove_file(recording).expect("the recording");
    }
}

/// The threads allocate and free at full speed during the attach; afterwards every block is known.
#[test]
fn a_census_of_a_busy_process_is_exact() {
    let scene = Scene::new("tcmalloc-busy");
    for linked in RECORDED {
        let is_programs = matches!(linked, Linked::Static);
        if is_programs
            && common::is_refused_by_dlopen("tcmalloc-busy", "it is a part of the program")
        {
            continue;
        }
        let Some(mut target) = start("tcmalloc-busy", linked) else { return };
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
        let about = format!("{linked:?}: {totals} {head}");
        for name in ["lost_events", "unknown_frees", "implied_frees"] {
            assert_eq!(head[name], 0, "{about}");
        }
        assert_eq!(totals["live_count"], heap["in_use"]["blocks"], "{about}");
        assert!(number(&totals["before_attach"]["count"]) > 15_000, "{about}");
        target.quit();
        std::fs::remove_file(recording).expect("the recording");
    }
}
