//! Programs whose garbage collector stops threads by signals, and finds live objects from their stack pointers: the
//! hook must not show it a stack of its own.

// The virtual machines of the other architectures have no libgc.
#![cfg(target_arch = "x86_64")]

use common::build::compile;
use common::library::BY_DLOPEN;
use common::{Scene, Target, skip};

/// Number of collections; 100,000 take minutes: `PROF_TEST_COLLECTIONS` sets it.
const COLLECTIONS: u32 = 1000;

/// Starts the program, under a seccomp filter if one is given.
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
    // Under a filter that prof has read, the hook may block signals.
    for under in [None, Some("default")] {
        if under.is_some() && !nix::unistd::geteuid().is_root() {
            return skip("collected", "reading a filter takes CAP_SYS_ADMIN");
        }
        let scene = Scene::new("collected");
        let Some(mut target) = start("collected", under) else { return };
        let recording = scene.attach(&target);
        // In parts that are answered in time on a busy machine.
        for _ in 0..all.div_ceil(100) {
            collect(&mut target, 100);
        }
        scene.detach(&target);
        collect(&mut target, 10);
        target.quit();
        if wanted.is_some() {
            // A report on that much takes too long for a test.
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

/// The collector reads the data of all libraries after it has asked the linker for them. The hook's may go in between.
#[test]
fn the_data_of_a_library_that_goes_is_not_read() {
    let scene = Scene::new("collected-library");
    let Some(mut target) = start("collected-library", None) else { return };
    for i in 0..20 {
        let file = format!("{i}.prof");
        let recording = scene.attach_with(&target, &[&BY_DLOPEN[..], &["-o", &file]].concat());
        collect(&mut target, 10);
        scene.detach(&target);
        std::fs::remove_file(recording).expect("the recording");
    }
    collect(&mut target, 10);
    target.quit();
}

/// A filter that is installed later is not known: stacks are cut rather than shown to the garbage collector.
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
