//! What a user does to a family while it is recorded: pauses it, interrupts the attach, follows a process that can't be recorded.

use common::build::program;
use common::family::Family;
use common::{Scene, Target, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::time::Duration;

#[test]
fn a_pause_holds_for_processes_to_come() {
    let mut family = Family::start("switched");
    let first = family.fork();
    family.attach().ok("attach");
    family.recording(first);
    family.scene.prof(&["pause", "all"]).ok("pause");
    let second = family.fork();
    let recordings = [first, second].map(|pid| family.recording(pid));
    let status = family.scene.prof(&["status", "all"]).ok("status").stdout;
    assert!(status.contains("the family is paused"), "{status}");
    until("both are off", || {
        let status = family.scene.prof(&["status", "all"]).ok("status").stdout;
        status.matches("): paused").count() == 3 && !status.contains("): recording")
    });
    let before = family.batch();
    family.scene.prof(&["resume", "all"]).ok("resume");
    let status = family.scene.prof(&["status", "all", "--format", "json"]).ok("status").stdout;
    assert!(status.contains("\"paused\": false"), "{status}");
    let third = family.fork();
    let last = family.recording(third);
    let after = family.batch();
    family.scene.prof(&["detach", "all"]).ok("detach");
    for (pid, recording) in [first, second].iter().zip(&recordings) {
        let (all, off) = (after[pid], before[pid]);
        let [allocations, _] = family.counted(recording);
        assert_eq!(allocations, all[0] - off[0], "process {pid}");
    }
    assert_eq!(family.counted(&last), after[&third]);
    family.target.quit();
}

#[test]
fn an_attach_that_is_interrupted_leaves_nothing() {
    let mut family = Family::start("interrupted-family");
    for _ in 0..12 {
        family.fork();
    }
    let root = family.target.pid.to_string();
    let command = family.scene.command(&["attach", "--tree", &root, "-o", "all"]);
    let mut attach = Target::spawn(command);
    let has_begun = || family.folder.join("family.jsonl").exists() && !family.journal().is_empty();
    until("it has begun", has_begun);
    std::thread::sleep(Duration::from_millis(100));
    kill(Pid::from_raw(attach.pid), Signal::SIGINT).expect("interrupted");
    assert_eq!(attach.wait(), 1, "the code of what was not done");
    let status = family.scene.prof(&["status", "--tree", &root]);
    assert_eq!(status.code, 3, "none is recorded: {status:?}");
    assert!(family.noted("follows", None).is_empty());
    let before = family.batch();
    assert_eq!(before.len(), 13, "all live");
    family.target.quit();
}

#[test]
fn children_are_recorded_of_a_process_that_can_not_be() {
    let mut family = Family::start("unrecorded-root");
    let root = family.target.pid.to_string();
    family.scene.prof(&["attach", &root, "-o", "one.prof"]).ok("attach");
    let out = family.attach();
    assert_eq!(out.code, 1, "{out:?}");
    assert!(out.stderr.contains("not recorded"), "{out:?}");
    let child = family.fork();
    let recording = family.recording(child);
    let counts = family.batch()[&child];
    family.scene.prof(&["detach", "all"]).ok("detach");
    let counted = family.counted(&recording);
    assert!(counted[0] > 0 && counted[0] <= counts[0], "{counted:?} of {counts:?}");
    family.scene.prof(&["detach", &root]).ok("detach");
    family.target.quit();
}

/// Returns whether any thread of a process sees prof's memory: the first one sees none when it has ended.
fn has_ring(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten();
    let maps = threads.map(|t| std::fs::read_to_string(t.path().join("maps")).unwrap_or_default());
    let maps: Vec<String> = maps.filter(|maps| !maps.is_empty()).collect();
    assert!(!maps.is_empty(), "a thread lives");
    maps.iter().any(|maps| maps.contains("prof-ring"))
}

#[test]
fn a_process_whose_first_thread_has_ended_belongs_to_its_family() {
    let scene = Scene::new("leaderless-family");
    let mut target = Target::start(&program("leader.c"), &[]);
    target.ask("leave");
    let (pid, journal) = (target.pid, scene.path("all/family.jsonl"));
    scene.prof(&["attach", "--children", &pid.to_string(), "-o", "all"]).ok("attach");
    target.ask("alloc 10");
    assert!(has_ring(pid));
    let events = || -> Vec<String> {
        let text = std::fs::read_to_string(&journal).expect("a journal");
        let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON"));
        let own = lines.filter(|l| l["pid"] == pid);
        own.map(|l| l["event"].as_str().expect("an event").to_owned()).collect()
    };
    // The thread that runs the next program gets the process's number.
    target.send("again");
    target.expect("ready");
    until("the next program is recorded", || events() == ["attached", "exec", "attached"]);
    target.ask("alloc 100");
    target.ask("leave");
    target.ask("alloc 7");
    scene.prof(&["detach", "all"]).ok("detach");
    assert!(!has_ring(pid));
    assert_eq!(events()[3..], ["detached"]);
    let r: Value = serde_json::from_str(
        &scene.prof(&["report", "all", "--format", "json"]).ok("report").stdout,
    )
    .expect("JSON");
    assert_eq!(r["recording"]["complete"], true, "{r:#}");
    assert!(r["totals"]["allocations"].as_u64() >= Some(117), "{r:#}");
    target.quit();
}

#[test]
fn a_process_that_is_not_there_has_no_family() {
    let scene = Scene::new("no-root");
    for options in [["attach", "--children"], ["attach", "--tree"]] {
        let out = scene.prof(&[&options[..], &["4194303"]].concat());
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains("there is no process 4194303"), "{out:?}");
    }
    assert_eq!(std::fs::read_dir(&scene.dir).expect("a folder").count(), 0);
}
