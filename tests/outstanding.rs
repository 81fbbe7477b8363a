//! `prof leaks --live`: what is outstanding, at each interval, of a process that is recorded and of one that is not.

use common::build::program;
use common::{Report, Scene, Target};
use serde_json::Value;

/// Returns bytes and blocks of the stack with a function.
fn held(look: &Value, function: &str) -> Option<(u64, u64)> {
    let has = |s: &&Value| {
        let frames = s["frames"].as_array().expect("frames");
        frames.iter().any(|f| f["function"] == function)
    };
    let row = look["top"].as_array().expect("stacks").iter().find(has)?;
    Some((row["bytes"].as_u64().expect("bytes"), row["count"].as_u64().expect("count")))
}

/// Returns whether prof's memory is mapped in the process.
fn is_recorded(target: &Target) -> bool {
    target.proc("maps").contains("/memfd:prof-ring")
}

#[test]
fn a_running_recording_is_looked_at_and_goes_on() {
    let scene = Scene::new("live-leaks");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    target.ask("free 40");
    let look = |options: &[&str]| {
        let args = [&["leaks", &pid, "--live", "1s", "2"], options].concat();
        scene.prof(&args).ok("prof leaks --live").stdout
    };
    // The recording of an idle process gets a new time somewhat less than once a second.
    let args = ["leaks", &pid, "--live", "1s", "4", "--format", "json"];
    let all = scene.prof(&args).ok("prof leaks --live").stdout;
    let looks: Vec<Value> =
        all.lines().map(|l| serde_json::from_str(l).expect("a line of JSON")).collect();
    assert_eq!(looks.len(), 4, "{all}");
    assert_eq!(held(&looks[3], "toggled_block"), Some((60 * 128, 60)), "{all}");
    let times: Vec<u64> = looks.iter().map(|l| l["at_ns"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted() && times[0] < times[3], "{all}");
    let few = look(&["--format", "json", "--max-size", "100", "--function", "toggled_block"]);
    assert!(!few.contains("toggled_block"), "{few}");
    let combined = look(&["--format", "json", "--combined-only"]);
    let last = combined.lines().last().expect("a line");
    let last = serde_json::from_str(last).expect("JSON");
    assert_eq!(held(&last, "toggled_block"), Some((60 * 128, 60)), "{combined}");
    let text = look(&["--show-allocs", "--function", "toggled_block"]);
    assert!(text.contains("stacks with outstanding allocations:"), "{text}");
    assert!(text.contains("7680 bytes in 60 allocations from stack"), "{text}");
    assert_eq!(text.matches("size = 128").count(), 120, "{text}");
    // The recording is not ended by a look.
    target.ask("alloc 5");
    scene.detach(&target);
    target.quit();
    let r: Report = scene.finished(&recording);
    r.marked("toggle.c", "toggled_block").assert_live(65, 65 * 128);
}

#[test]
fn a_process_that_is_not_recorded_is_attached_to_and_let_go_of() {
    let scene = Scene::new("live-leaks-own");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let out = scene.prof(&["leaks", &pid, "--live", "1s", "1"]).ok("prof leaks --live");
    assert!(out.stdout.contains("stacks with outstanding allocations:"), "{out:#?}");
    assert!(out.stderr.contains("the process is as it was before"), "{out:#?}");
    assert!(!is_recorded(&target));
    // What is refused is refused before the attach.
    let refused = scene.prof(&["leaks", &pid, "--live", "1s", "1", "--debug-path", "/nowhere"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(!is_recorded(&target), "{refused:?}");
    target.quit();
    for wrong in [&["--combined-only", "--older", "1s"][..], &["--from", "1s"]] {
        let args = [&["leaks", &pid, "--live", "1s", "1"], wrong].concat();
        assert_eq!(scene.prof(&args).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_command_is_started_and_its_stacks_are_cut_to_a_depth() {
    let scene = Scene::new("live-leaks-command");
    let args = ["leaks", "--live", "5s", "1", "--format", "json", "--depth", "1", "--older", "0s"];
    let args = [&args[..], &["--command", "sh -c 'sleep 1'"]].concat();
    let out = scene.prof(&args).ok("prof leaks --command");
    let look: Value =
        serde_json::from_str(out.stdout.lines().last().expect("a look")).expect("JSON");
    assert!(look["count"].as_u64() > Some(0), "{out:#?}");
    for stack in look["top"].as_array().expect("stacks") {
        assert_eq!(stack["frames"].as_array().map(Vec::len), Some(1), "{stack:#}");
    }
    let wrong = scene.prof(&["leaks", "--live", "4711"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("`prof leaks PID --live`"), "{wrong:?}");
    let wrong = scene.prof(&["leaks", "--live", "--command", "'"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("is no command"), "{wrong:#?}");
    let none = scene.prof(&["leaks", "--live", "--command", "/nowhere/at/all"]);
    assert_eq!(none.code, 3, "{none:#?}");
}

#[test]
fn a_thread_that_does_not_exist_is_told_of() {
    let scene = Scene::new("live-leaks-thread");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    scene.attach(&target);
    target.ask("alloc 5");
    let look = |thread: &str| {
        let args = ["leaks", &pid, "--live", "1s", "1", "--thread", thread];
        scene.prof(&args).ok("prof leaks --live").stdout
    };
    assert!(look("nobody").contains("no thread has the id or name nobody"));
    let known = look(&pid);
    assert!(
        known.contains("640 bytes in 5 allocations") && !known.contains("no thread"),
        "{known}"
    );
    scene.detach(&target);
    target.quit();
}
