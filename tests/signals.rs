//! Targets with a use of their own for the toggle signal: handlers that chain to prof's, pointers to it that are kept
//! beyond the detach, sigwait and signalfd.

use common::build::program;
use common::library::maps_of_hook;
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use nix::sys::signal::Signal;

fn chained(mode: &str) -> Target {
    let mut target = Target::start(&program("chained.c"), &[mode]);
    target.ask("alloc");
    target
}

fn catches(target: &Target) -> bool {
    let mask = u128::from_str_radix(&target.status("SigCgt"), 16).expect("a mask");
    mask >> (nix::libc::SIGUSR1 - 1) & 1 == 1
}

/// Detaches; returns the standard error.
#[track_caller]
fn detach(scene: &Scene, target: &Target) -> String {
    scene.prof(&["detach", &target.pid.to_string()]).ok("detach").stderr
}

/// Returns the number of mappings that a detach leaves where prof's handler has to stay: its page, or the whole library that
/// it is in.
fn kept_mappings(target: &Target) -> usize {
    if common::is_by_dlopen() { maps_of_hook(target) } else { 1 }
}

#[test]
fn a_handler_that_chains_to_profs_works_on_after_the_detach() {
    let scene = Scene::new("chains");
    let mut target = chained("");
    scene.attach(&target);
    assert_eq!(target.ask("install"), "done 1", "there was a handler from before: prof's");
    target.ask("raise");
    assert_eq!(target.ask("own"), "done 1");
    let message = detach(&scene, &target);
    assert!(message.contains("keeps it") && message.contains("stays mapped"), "{message}");
    for _ in 0..3 {
        target.ask("raise");
    }
    assert_eq!(target.ask("own"), "done 4");
    // One page stays, and the next recording, which finds the target's handler, adds none.
    let kept = Snapshot::of(&target);
    assert_eq!(kept.foreign().len(), kept_mappings(&target), "{:?}", kept.foreign());
    scene.attach_with(&target, &["-o", "again.prof"]);
    detach(&scene, &target);
    kept.assert_same(&Snapshot::of(&target));
    // The earlier disposition, as the target knows it: prof's handler, which just returns.
    target.ask("restore");
    target.ask("raise");
    target.ask("alloc");
    target.quit();
}

#[test]
fn a_pointer_to_the_handler_that_was_only_asked_for_stays_callable() {
    let scene = Scene::new("asked");
    let mut target = chained("");
    scene.attach(&target);
    assert_eq!(target.ask("ask"), "done 1");
    let message = detach(&scene, &target);
    assert!(message.contains("stays mapped"), "{message}");
    assert!(!catches(&target), "the disposition is the old one");
    for _ in 0..3 {
        target.ask("call");
    }
    assert_eq!(Snapshot::of(&target).foreign().len(), kept_mappings(&target));
    target.quit();
}

#[test]
fn nothing_stays_where_nobody_has_asked() {
    let scene = Scene::new("unasked");
    let mut target = chained("");
    let before = Snapshot::of(&target);
    scene.attach(&target);
    target.ask("raise");
    target.ask("raise");
    let message = detach(&scene, &target);
    assert!(!message.contains("stays mapped"), "{message}");
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}

#[test]
fn a_signal_that_is_taken_without_a_handler_stays_the_targets() {
    let scene = Scene::new("taken");
    for (mode, word) in [("sigwait", "sigwait"), ("signalfd", "signalfd"), ("blocked", "blocks")] {
        let mut target = chained(mode);
        let before = Snapshot::of(&target);
        let out = scene.prof(&["attach", &target.pid.to_string(), "-o", &format!("{mode}.prof")]);
        let out = out.ok("attach");
        assert!(out.stderr.contains(word), "{mode}: {}", out.stderr);
        assert!(out.stderr.contains("--signal"), "{mode}: {}", out.stderr);
        assert!(!catches(&target), "{mode}: a handler");
        target.signal(Signal::SIGUSR1);
        if mode == "sigwait" {
            until("it has waited", || target.ask("waited") == "done 1");
        }
        scene.detach(&target);
        match mode {
            "sigwait" => {
                target.signal(Signal::SIGUSR1);
                until("it has waited", || target.ask("waited") == "done 2");
            }
            "signalfd" => assert_eq!(target.ask("read"), "done 1", "the pending one is lost"),
            _ => assert_ne!(target.status("ShdPnd"), "0000000000000000", "it is lost"),
        }
        if mode != "blocked" {
            before.assert_same(&Snapshot::of(&target));
        }
        target.quit();
    }
}

#[test]
fn a_signal_that_was_pending_before_is_not_lost() {
    let scene = Scene::new("pending");
    let mut target = chained("signalfd");
    target.signal(Signal::SIGUSR1);
    scene.attach(&target);
    scene.detach(&target);
    assert_eq!(target.ask("read"), "done 1");
    target.quit();
}

#[test]
fn run_takes_the_signal_that_it_is_told() {
    let scene = Scene::new("run-signal");
    let caught = |option: &[&str]| {
        let mut args = vec!["run"];
        args.extend_from_slice(option);
        args.extend_from_slice(&["--", "cat", "/proc/self/status"]);
        let out = scene.prof(&args).ok("run").stdout;
        let line = out.lines().find_map(|l| l.strip_prefix("SigCgt:")).expect("a mask").trim();
        let mask = u128::from_str_radix(line, 16).expect("hex");
        let bit = |signal: i32| mask >> (signal - 1) & 1 == 1;
        (bit(nix::libc::SIGUSR1), bit(nix::libc::SIGUSR2), bit(nix::libc::SIGRTMIN() + 3))
    };
    assert_eq!(caught(&[]), (true, false, false));
    assert_eq!(caught(&["--signal", "USR2"]), (false, true, false));
    assert_eq!(caught(&["--signal=RTMIN+3"]), (false, false, true));
    assert_eq!(caught(&["--signal", "none"]), (false, false, false));
    let out = scene.prof(&["run", "--signals", "true"]);
    assert_eq!(out.code, 2, "{out:?}");
    assert!(out.stderr.contains("no option --signals"), "{}", out.stderr);
}
