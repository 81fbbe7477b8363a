//! Programs whose garbage collector stops threads by signals, and finds what is live by their stack
//! pointers: the hook does not show it a stack of its own.

// The virtual machines of the other architectures have no libgc.
#![cfg(target_arch = "x86_64")]

mod common;

use common::build::compile;
use common::{Scene, Target, skip};

/// 100,000 of them take minutes: `PROF_TEST_COLLECTIONS` says how many.
const COLLECTIONS: u32 = 1000;

/// The program, under a seccomp filter from its start if that is wanted.
fn start(test: &str, under: Option<&str>) -> Option<Target> {
    let program = match compile("cc", "boehm.c", &["-O1", "-Wl,--no-as-needed", "-lgc"]) {
        Ok(program) => program,
        Err(e) => {
            skip(test, &format!("no libgc: {e}"));
            return None;
        }
    };
    let Some(kind) = under else { return Some(Target::start(&program, &[])) };
    Some(Target::start(&common::build::program("filters.c"), &[kind, program.to_str().unwrap()]))
}

#[track_caller]
fn collect(target: &mut Target, times: u32) {
    let line = target.ask(&format!("go {times}"));
    assert!(line.starts_with("done rounds="), "{line}");
}

#[test]
fn what_a_collector_finds_on_stacks_lives() {
    let wanted = std::env::var("PROF_TEST_COLLECTIONS").ok().and_then(|n| n.parse().ok());
    let all = wanted.unwrap_or(COLLECTIONS);
    // A filter that is known lets signals be blocked.
    for under in [None, Some("default")] {
        if under.is_some() && !nix::unistd::geteuid().is_root() {
            return skip("collected", "reading a filter takes CAP_SYS_ADMIN");
        }
        let scene = Scene::new("collected");
        let Some(mut target) = start("collected", under) else { return };
        let recording = scene.attach(&target);
        // In parts, each of which answers in time on a machine with more to do.
        for _ in 0..all.div_ceil(100) {
            collect(&mut target, 100);
        }
        scene.detach(&target);
        collect(&mut target, 10);
        target.quit();
        if wanted.is_some() {
            // A report on so much takes longer than a test may.
            continue;
        }
        let r = scene.finished(&recording);
        let groups = r.asked_by("plain_block");
        let sum: u64 = groups.iter().map(|g| g.number("allocations")).sum();
        assert!(sum > 1000, "{under:?}: {}", r.askers());
        let found = groups.iter().all(|g| g.functions().contains(&"work"));
        assert!(found, "{under:?}: {}", r.askers());
    }
}

/// Of a filter that comes later nothing is known: stacks are cut rather than shown to the collector.
#[test]
fn what_a_collector_finds_on_stacks_lives_when_a_filter_comes() {
    let scene = Scene::new("collected-later");
    let Some(mut target) = start("collected-later", None) else { return };
    let recording = scene.attach(&target);
    collect(&mut target, 20);
    let line = target.ask("filter");
    assert!(line.starts_with("done rounds="), "{line}");
    for _ in 0..5 {
        collect(&mut target, 100);
    }
    scene.detach(&target);
    collect(&mut target, 10);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    assert!(r.asked_by("plain_block").iter().any(|g| g.rooted()), "{}", r.askers());
}
