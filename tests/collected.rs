//! Programs whose garbage collector stops threads by signals, and finds what is live by their stack
//! pointers: the hook does not show it a stack of its own.

// The virtual machines of the other architectures have no libgc.
#![cfg(target_arch = "x86_64")]

mod common;

use common::build::compile;
use common::{Scene, Target, skip};

/// 100,000 of them take minutes: `PROF_TEST_COLLECTIONS` says how many.
const COLLECTIONS: u32 = 1000;

#[test]
fn what_a_collector_finds_on_stacks_lives() {
    let program = match compile("cc", "boehm.c", &["-O1", "-Wl,--no-as-needed", "-lgc"]) {
        Ok(program) => program,
        Err(e) => return skip("what_a_collector_finds_on_stacks_lives", &format!("no libgc: {e}")),
    };
    let wanted = std::env::var("PROF_TEST_COLLECTIONS").ok().and_then(|n| n.parse().ok());
    let all = wanted.unwrap_or(COLLECTIONS);
    let scene = Scene::new("collected");
    let mut target = Target::start(&program, &[]);
    let recording = scene.attach(&target);
    for _ in 0..10 {
        let line = target.ask(&format!("go {}", all.div_ceil(10)));
        assert!(line.starts_with("done rounds="), "{line}");
    }
    scene.detach(&target);
    let line = target.ask("go 10");
    assert!(line.starts_with("done rounds="), "{line}");
    target.quit();
    let r = scene.finished(&recording);
    let groups = r.asked_by("plain_block");
    assert!(groups.iter().map(|g| g.number("allocations")).sum::<u64>() > 1000, "{}", r.askers());
    assert!(groups.iter().all(|g| g.functions().contains(&"work")), "{}", r.askers());
}
