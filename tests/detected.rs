//! The unreachable blocks beside those of LeakSanitizer, in the same program: one build is watched by prof, the other by
//! the compiler's detector, in its own build.

use common::build::{compile, program_with};
use common::{Scene, Target, skip};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Blocks by the function that allocated them.
type Kinds = BTreeMap<String, u64>;

const SOURCE: &str = "leaked.cpp";

/// Builds the program with a detector of the compiler's.
fn with_detector(test: &str, detector: &str) -> Option<PathBuf> {
    let built = compile("c++", SOURCE, &["-O1", detector]);
    if let Err(why) = &built {
        skip(test, &format!("c++ has no {detector}: {}", why.lines().next().unwrap_or("")));
    }
    built.ok()
}

/// Runs the program with its detector, and returns what it finds.
fn detected(scene: &Scene, program: &PathBuf, is_exiting: bool) -> Kinds {
    let log = scene.path("detector");
    let options = format!("fast_unwind_on_malloc=0:log_path={}", log.display());
    let mut command = Command::new(program);
    command.env("ASAN_OPTIONS", &options).env("LSAN_OPTIONS", &options);
    let pid;
    if is_exiting {
        let mut child = command.arg("exit").spawn().expect("the program");
        pid = child.id();
        // It says by its exit code that it has found something.
        assert!(!child.wait().expect("the program").success());
    } else {
        let mut target = Target::spawn(command);
        pid = target.pid.unsigned_abs();
        target.expect("ready");
        target.ask("begin");
        target.ask("check");
        target.ask("end");
        assert_eq!(target.wait(), 0);
    }
    let file = format!("{}.{pid}", log.display());
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut kinds = Kinds::new();
    for leak in text.split("\n\n").filter(|part| part.contains(" leak of ")) {
        let (head, frames) = leak.trim().split_once('\n').expect("frames");
        // "Direct leak of 48 byte(s) in 2 object(s) allocated from:"
        let blocks = head.split(' ').nth(6).and_then(|n| n.parse::<u64>().ok());
        *kinds.entry(kind_in(frames)).or_default() += blocks.unwrap_or_else(|| panic!("{head}"));
    }
    kinds
}

/// Returns the name of the first function that stands for a kind of blocks.
fn kind_in(frames: &str) -> String {
    let words = frames.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut kinds = words.filter(|w| w.starts_with("held_") || w.starts_with("lost_"));
    kinds.next().unwrap_or("another").to_owned()
}

/// Asserts that all is found that the detector finds, and nothing else than what is lost. Blocks that a pointer happens to
/// be left of, on a stack or in a freed block, are not found by one or the other.
#[track_caller]
fn assert_alike(found: &Kinds, by_detector: &Kinds) {
    let held: Vec<_> = found.keys().filter(|k| !k.starts_with("lost_")).collect();
    assert!(held.is_empty(), "held: {held:?}");
    let is_said_held = |k: &String| !k.starts_with("lost_");
    assert!(!by_detector.keys().any(is_said_held), "{by_detector:?}");
    let all: u64 = by_detector.values().sum();
    assert!(all > 900, "the detector has found {by_detector:?}");
    let both: u64 = by_detector.iter().map(|(k, n)| *n.min(found.get(k).unwrap_or(&0))).sum();
    assert!(both * 100 >= all * 95, "{both} of {all}:\n{found:?}\n{by_detector:?}");
    println!(
        "{both} of the {all} blocks of the detector, and {} in all",
        found.values().sum::<u64>()
    );
}

#[test]
fn a_running_process_is_judged_as_by_leak_sanitizer() {
    let name = "a_running_process_is_judged_as_by_leak_sanitizer";
    for detector in ["-fsanitize=address", "-fsanitize=leak"] {
        let Some(other) = with_detector(name, detector) else { return };
        let scene = Scene::new("detected");
        let by_detector = detected(&scene, &other, false);
        let mut target = Target::start(&program_with(SOURCE, &["-O1"]), &[]);
        scene.attach(&target);
        target.ask("begin");
        let pid = target.pid.to_string();
        for how in ["none", "stop", "fork"] {
            let args = ["reach", &pid, "--top", "0", "--format", "json", "--snapshot", how];
            let out = scene.prof(&args).ok("prof reach").stdout;
            let report: Value = serde_json::from_str(&out).expect("JSON");
            assert_eq!(report["scan"]["settled"], true, "{out}");
            let mut found = Kinds::new();
            for s in report["top"].as_array().expect("stacks") {
                let blocks = |kind: &str| s[kind]["blocks"].as_u64().expect("blocks");
                let kind = kind_in(&s["frames"].to_string());
                *found.entry(kind).or_default() += blocks("direct") + blocks("indirect");
            }
            assert_alike(&found, &by_detector);
        }
        scene.detach(&target);
        target.ask("end");
        assert_eq!(target.wait(), 0);
    }
}

#[test]
fn a_process_that_ends_is_judged_as_by_leak_sanitizer() {
    let name = "a_process_that_ends_is_judged_as_by_leak_sanitizer";
    for detector in ["-fsanitize=address", "-fsanitize=leak"] {
        let Some(other) = with_detector(name, detector) else { return };
        let scene = Scene::new("detected-ends");
        let by_detector = detected(&scene, &other, true);
        let program = program_with(SOURCE, &["-O1"]);
        let program = program.to_str().expect("a path");
        let args = ["run", "--prove", "--top", "0", "-o", "r.prof", "--", program, "exit"];
        let text = scene.prof(&args).ok("prof run").stdout;
        let mut found = Kinds::new();
        for stack in text.split("=== unreachable #").skip(1) {
            // "... === [700 B in 7 blocks] [indirect: 48 B in 1]"
            let head = stack.lines().next().expect("a line");
            let blocks = head.split(" in ").nth(1).and_then(|s| s.split(' ').next());
            let blocks = blocks.and_then(|n| n.replace(',', "").parse::<u64>().ok());
            *found.entry(kind_in(stack)).or_default() += blocks.unwrap_or_else(|| panic!("{head}"));
        }
        assert_alike(&found, &by_detector);
        std::fs::remove_file(scene.path("r.prof")).expect("the recording");
    }
}
