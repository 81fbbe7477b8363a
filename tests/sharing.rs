//! Processes that share the target's memory without being its threads.

use common::build::program;
use common::{Scene, Target, until};
use std::path::Path;
use std::process::Command;

/// Starts a program that shares its memory with another process; returns that one's PID.
fn start(how: &[&str]) -> (Target, i32) {
    let mut command = Command::new(program("sharing.c"));
    command.args(how);
    let mut target = Target::spawn(command);
    let ready = target.expect("ready");
    (target, ready["ready ".len()..].trim().parse().expect("the other's id"))
}

fn ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rfind(')').is_none_or(|at| stat[at..].starts_with(") Z"))
}

#[test]
fn both_processes_of_one_memory_live_through_attaches_to_either() {
    for (how, of_other) in [(&[][..], false), (&["files"], false), (&[], true)] {
        let scene = Scene::new("either");
        let (mut target, other) = start(how);
        let pid = if of_other { other } else { target.pid }.to_string();
        for i in 0..6 {
            let file = format!("cycle{i}.prof");
            scene.prof(&["attach", &pid, "-o", &file]).ok("attach");
            target.ask("alive");
            scene.prof(&["detach", &pid]).ok("detach");
            target.ask("alive");
        }
        target.ask("stop");
        target.quit();
    }
}

#[test]
fn what_the_other_process_allocates_is_recorded_in_order() {
    for how in ["slow", "own"] {
        let scene = Scene::new("order");
        let (mut target, _) = start(&[how]);
        let recording = scene.attach_with(&target, &["--ring-size", "64M"]);
        target.ask("alive");
        // Long enough for the collector to check several times which threads have ended.
        std::thread::sleep(std::time::Duration::from_millis(2500));
        target.ask("alive");
        target.ask("stop");
        scene.detach(&target);
        target.quit();
        let r = scene.finished(&recording);
        let groups = r.asked_by("shared_block");
        let sum = |name: &str| groups.iter().map(|g| g.number(name)).sum::<u64>();
        assert!(sum("allocations") > 200, "{how:?}: {}", r.askers());
        // Both processes have freed everything: no event of either was lost.
        let lost = r.number("/recording/lost_events");
        assert!(lost > 0 || sum("live_count") == 0, "{how:?}: {}", r.askers());
        assert_eq!(lost, 0, "{how:?}");
    }
}

#[test]
fn one_that_cannot_be_stopped_is_named_and_nothing_is_touched() {
    let scene = Scene::new("refused");
    let (mut target, other) = start(&[]);
    let pid = target.pid.to_string();
    // Once both have allocated, libc makes no arena any more.
    target.ask("alive");
    let traced = |other: i32| Target::start(&program("tracer.c"), &[&other.to_string()]);
    let mut tracer = traced(other);
    let maps = || {
        let is_heap = |l: &&str| !l.ends_with("[heap]");
        target.proc("maps").lines().filter(is_heap).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = maps();
    let out = scene.prof(&["attach", &pid, "-o", "refused.prof"]);
    assert_eq!(out.code, 3, "{out:?}");
    for word in [other.to_string(), "shares the memory".into(), tracer.pid.to_string()] {
        assert!(out.stderr.contains(&word), "no {word}: {out:?}");
    }
    assert!(!scene.path("refused.prof").exists());
    assert_eq!(before, maps());
    tracer.quit();

    let recording = scene.attach_with(&target, &["-o", "later.prof"]);
    let mut tracer = traced(other);
    let out = scene.prof(&["detach", &pid]);
    assert_ne!(out.code, 0, "{out:?}");
    assert!(out.stderr.contains(&other.to_string()), "{out:?}");
    tracer.quit();
    target.ask("alive");
    scene.detach(&target);
    target.ask("alive");
    target.ask("stop");
    target.quit();
    scene.finished(&recording);
}

#[test]
fn the_other_is_freed_when_the_first_process_ends() {
    is_freed(&[]);
}

/// The stack of a killed thread stays mapped, with the frame of the call that it was in.
#[test]
fn the_other_is_freed_when_the_first_process_is_killed_inside_a_hooked_function() {
    is_freed(&["inside"]);
}

fn is_freed(how: &[&str]) {
    let scene = Scene::new("left");
    let (mut target, other) = start(how);
    let recording = scene.attach(&target);
    target.ask("alive");
    target.ask("leave");
    // Its input stays open until the target is dropped, and until then it runs.
    let has_hook = || {
        let maps = std::fs::read_to_string(format!("/proc/{other}/maps")).unwrap_or_default();
        assert!(!ended(other), "the other process has died");
        maps.contains("prof-ring")
    };
    until("the other process is rid of prof", || !has_hook());
    scene.finished(&recording);
    let pid = other.to_string();
    scene.prof(&["attach", &pid, "-o", "again.prof"]).ok("attach to the one that is left");
    let out = scene.prof(&["attach", &pid, "-o", "twice.prof"]);
    assert_eq!(out.code, 3, "{out:?}");
    scene.prof(&["detach", &pid]).ok("detach from the one that is left");
    assert!(!ended(other));
    assert!(Path::new(&format!("/proc/{other}")).exists());
}
