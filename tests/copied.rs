//! `--snapshot fork`: a copy of the memory is looked at. It is of one moment, and nothing of it stays in the process.

use common::build::program_with;
use common::killer::killed_at;
use common::{Scene, Target, skip, until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};

/// What the program is told of children if it has none.
const NONE: &str = "done: told 0, reaped 0";
/// Blocks that the program loses.
const LOST: u64 = 50;

fn start() -> Target {
    Target::start(&program_with("copied.c", &["-O1", "-pthread"]), &[])
}

/// Returns the children of a process with the letters of their states (proc_pid_stat(5)).
fn children(pid: i32) -> Vec<(i32, char)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((id, rest)) = stat.rsplit_once(") ") else { continue };
        let mut rest = rest.split(' ');
        let state = rest.next().and_then(|s| s.chars().next()).expect("a state");
        if rest.next() == Some(&pid.to_string()) {
            let id = id.split(' ').next().and_then(|id| id.parse().ok()).expect("an id");
            all.push((id, state));
        }
    }
    all
}

/// Checks that the unreachable blocks are those that the program has lost.
#[track_caller]
fn assert_lost(report: &Value) {
    assert_eq!(report["scan"]["settled"], true, "{report}");
    assert_eq!(report["unreachable"]["blocks"], LOST, "{report:#}");
    for s in report["top"].as_array().expect("stacks") {
        assert!(s["frames"].to_string().contains("lost_block"), "{s:#}");
    }
}

fn fork<'a>(command: &'a str, pid: &'a str) -> [&'a str; 8] {
    [command, pid, "--top", "0", "--format", "json", "--snapshot", "fork"]
}

#[test]
fn a_copy_shows_one_moment_and_leaves_nothing_behind() {
    let scene = Scene::new("copied");
    let mut target = start();
    scene.attach(&target);
    target.ask("begin");
    let pid = target.pid.to_string();
    let before = target.status("voluntary_ctxt_switches");
    for _ in 0..20 {
        let out = scene.prof(&fork("reach", &pid)).ok("prof reach");
        assert_eq!(out.stderr, "", "nothing to warn of");
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        assert!(report["scan"]["stop_ns"].as_u64() > Some(0), "{report}");
        assert_lost(&report);
        assert_eq!(children(target.pid), []);
    }
    let out = scene.prof(&fork("holds", &pid)).ok("prof holds").stdout;
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["unreachable"]["blocks"], LOST, "{report:#}");
    let proved = ["leaks", &pid, "--prove=fork", "--fail-if", "proved > 1MiB"];
    assert!(scene.prof(&proved).ok("prof leaks").stdout.contains("lost_block"));
    let heap = ["heap", &pid, "--snapshot", "fork", "--format", "json"];
    let heap: Value =
        serde_json::from_str(&scene.prof(&heap).ok("prof heap").stdout).expect("JSON");
    assert!(heap["stop_ns"].as_u64() > Some(0) && heap["lost"]["bytes"] == 0, "{heap}");
    let census = [&fork("reach", &pid)[..], &["--census"]].concat();
    let report: Value =
        serde_json::from_str(&scene.prof(&census).ok("reach --census").stdout).expect("JSON");
    assert!(report["unreachable"]["blocks"].as_u64() >= Some(LOST), "{report:#}");
    assert_eq!(children(target.pid), []);
    assert_ne!(target.status("voluntary_ctxt_switches"), before, "it went on");
    assert_eq!(target.ask("children"), NONE);
    scene.detach(&target);
    target.quit();
}

#[test]
fn who_may_be_harmed_by_a_copy_is_not_copied() {
    let name = "who_may_be_harmed_by_a_copy_is_not_copied";
    let scene = Scene::new("not-copied");
    for (command, says) in [
        ("aio", "O_DIRECT"),
        ("watch", "userfaultfd"),
        ("share", "shared memory"),
        ("forbid", "seccomp"),
        ("unshare", "PID namespace"),
    ] {
        let mut target = start();
        scene.attach(&target);
        target.ask("begin");
        target.send(command);
        if target.line() != "done" {
            skip(name, &format!("the kernel has no {command}"));
            continue;
        }
        let pid = target.pid.to_string();
        let refused = scene.prof(&fork("reach", &pid));
        assert!(refused.code == 3 && refused.stdout.is_empty(), "{command}: {refused:?}");
        assert!(refused.stderr.contains(says), "{command}: {refused:?}");
        let report = ["reach", &pid, "--top", "0", "--format", "json", "--snapshot", "stop"];
        let report = scene.prof(&report).ok("prof reach --snapshot stop").stdout;
        assert_lost(&serde_json::from_str(&report).expect("JSON"));
        assert_eq!(children(target.pid), []);
        assert_eq!(target.ask("children"), NONE);
        scene.detach(&target);
        // It can still fork: a copy would have been the first process of the namespace, and taken it along.
        if command == "unshare" {
            assert_eq!(target.ask("fork"), "done");
        }
        target.quit();
    }
}

/// Ctrl-C ends prof as soon as it has taken the copy away.
#[test]
fn an_interrupted_prof_leaves_nothing_behind() {
    let scene = Scene::new("copied-interrupted");
    let mut target = start();
    scene.attach(&target);
    target.ask("begin");
    target.ask("big");
    let pid = target.pid.to_string();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut reach = Command::new(Scene::binary());
        reach.args(fork("reach", &pid)).args(["--max-cpu", "1", "--passes", "1"]);
        let mut reach = reach.stdout(Stdio::null()).spawn().expect("prof reach");
        until("there is a copy", || !children(target.pid).is_empty());
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(reach.id() as i32), signal)
            .expect("kill");
        let ended = common::wait(&mut reach, common::DEADLINE);
        assert_eq!(ended, Some(128 + signal as i32));
        assert_eq!(children(target.pid), []);
    }
    assert_eq!(target.ask("children"), NONE);
    scene.detach(&target);
    target.quit();
}

/// prof is killed at any of its system calls: no copy goes on, and at most its remains stay.
#[test]
fn a_killed_prof_leaves_no_second_process() {
    let scene = Scene::new("copied-killed");
    let mut target = start();
    scene.attach(&target);
    target.ask("begin");
    let pid = target.pid.to_string();
    let reach = || {
        let mut c = Command::new(Scene::binary());
        c.args(fork("reach", &pid)).args(["--passes", "1"]).current_dir(scene.path(""));
        c
    };
    let (calls, _) = killed_at(reach(), None);
    let kills = std::env::var("PROF_KILLS").ok().and_then(|v| v.parse().ok()).unwrap_or(60);
    let step = (calls / kills).max(1);
    for at in (1 + std::process::id() as usize % step..=calls).step_by(step) {
        killed_at(reach(), Some(at));
        let is_over = || children(target.pid).iter().all(|(_, state)| *state == 'Z');
        until(&format!("no copy goes on after a kill at call {at} of {calls}"), is_over);
        assert_eq!(target.ask("children"), NONE, "after a kill at call {at} of {calls}");
    }
    let report = scene.prof(&fork("reach", &pid)).ok("prof reach").stdout;
    assert_lost(&serde_json::from_str(&report).expect("JSON"));
    scene.detach(&target);
    target.quit();
}
