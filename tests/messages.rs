//! Messages of what goes wrong on the way: each says what happened, to which process, and what to do next.

mod common;

use common::build::program;
use common::{Scene, Target, until, writers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;

/// Ends the collector of a recording.
fn kill_collector(scene: &Scene, target: &Target, recording: &std::path::Path) {
    let pid = target.pid.to_string();
    let status = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let collector = status["collector_pid"].as_i64().expect("a collector") as i32;
    kill(Pid::from_raw(collector), Signal::SIGKILL).expect("the collector");
    until("the collector is gone", || writers(recording).is_empty());
}

#[test]
fn an_earlier_recording_that_can_not_be_ended_now() {
    let scene = Scene::new("earlier");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach_with(&target, &["-o", "first.prof"]);
    kill_collector(&scene, &target, &recording);
    // Somebody else works on the process.
    let lock = File::open(format!("/proc/{pid}/status")).expect("status");
    lock.lock().expect("a lock");
    let out = scene.prof(&["attach", &pid, "-o", "second.prof"]);
    assert_ne!(out.code, 0, "{out:?}");
    let detach = format!("prof detach {pid}");
    for word in [&format!("process {pid}"), "first.prof", "another prof", "try again", &detach] {
        assert!(out.stderr.contains(word), "{word:?} is not in {:?}", out.stderr);
    }
    drop(lock);
    scene.attach_with(&target, &["-o", "second.prof"]);
    scene.detach(&target);
    target.quit();
}

#[test]
fn nothing_is_called_lost_where_nothing_was_recorded() {
    let scene = Scene::new("nothing-lost");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach_with(&target, &["--paused"]);
    kill_collector(&scene, &target, &recording);
    std::fs::remove_file(&recording).expect("the recording");
    let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
    assert!(!out.stderr.contains("collector had died"), "{}", out.stderr);
    target.quit();
}

#[test]
fn events_that_can_not_be_saved_are_called_so() {
    let scene = Scene::new("events-lost");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 10");
    kill_collector(&scene, &target, &recording);
    std::fs::remove_file(&recording).expect("the recording");
    let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
    let path = recording.file_name().unwrap().to_str().unwrap();
    for word in ["collector had died", "still in memory can't be saved", path] {
        assert!(out.stderr.contains(word), "{word:?} is not in {:?}", out.stderr);
    }
    target.quit();
}
