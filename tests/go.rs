//! Stacks of Go programs with cgo continue from C code to the goroutine that called it, and from Go code to the C code
//! that called it.
#![cfg(target_arch = "x86_64")]

use common::build::sources;
use common::{Report, Scene, installed, skip};
use std::process::Command;

/// Compiles Go code. Go's cache may be empty, so this may take longer than the deadline of a step.
fn go_build(scene: &Scene, to: &str, source: &str, more: &[&str]) {
    let mut build = Command::new("go");
    build.args(["build", "-o", to]).args(more).arg(sources().join(source)).current_dir(&scene.dir);
    let built = build.env("CGO_ENABLED", "1").output().expect("go");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Records a program, and compares each stack with one that is unwound anew.
fn record(scene: &Scene, program: &str) -> std::path::PathBuf {
    let mut run = Command::new(Scene::binary());
    run.args(["run", "-o", "r.prof", "--verify-stacks", "--", program]);
    scene.run(run).ok("prof run");
    scene.path("r.prof")
}

/// The allocations of a function of C are those whose stacks have each of these functions, and no stack is cut.
fn all_have(scene: &Scene, file: &std::path::Path, c: &str, functions: &[(&str, u64)]) -> Report {
    for (function, calls) in functions {
        let report = scene.report_with(file, &["--function", c, "--function", function]);
        assert_eq!(report.total("allocations"), *calls, "{c} {function}: {:#}", report.brief());
    }
    let report = scene.report_with(file, &["--function", c]);
    for group in report.groups() {
        assert_eq!(group.0["truncated"], false, "{:#}", group.0);
    }
    report
}

/// Both ways to take a stack have found the same.
fn are_verified(report: &Report, stacks: u64) {
    assert!(report.number("/recording/verified_stacks") >= stacks, "{:#}", report.brief());
    assert_eq!(report.number("/recording/mismatched_stacks"), 0, "{:#}", report.brief());
}

fn go_is_missing(test: &str) -> bool {
    let missing = !installed("go") || !installed("cc");
    if missing {
        skip(test, "go or cc is not installed");
    }
    missing
}

#[test]
fn stacks_of_c_code_that_go_has_called_continue_in_the_goroutine() {
    if go_is_missing("stacks_of_c_code_that_go_has_called") {
        return;
    }
    let scene = Scene::new("go");
    go_build(&scene, "cgo", "cgo.go", &[]);
    let file = record(&scene, "./cgo");
    let expected = [
        ("^take$", 300),
        ("^runtime.asmcgocall", 300),
        ("^runtime.cgocall$", 300),
        ("^main.allocates$", 300),
        ("^main.deeper$", 300),
        ("^main.main$", 100),
        ("^runtime.main$", 100),
        ("^main.main.func1$", 200),
    ];
    let report = all_have(&scene, &file, "^take$", &expected);
    for group in report.groups() {
        let outermost = group.functions().last().copied().unwrap_or_default();
        assert!(outermost.starts_with("runtime.goexit"), "{:#}", group.0);
    }
    are_verified(&report, 500);
    // From C to Go and back: three calls of C by Go are on the stack, and two of Go by C between them.
    let deep = [("^main.callsC$", 50), ("^main.calledByC$", 50), ("^calls_go$", 50)];
    all_have(&scene, &file, "^take_in_callback$", &deep);
    let report = all_have(&scene, &file, "^take_after_callback$", &[("^main.callsC$", 150)]);
    let mut depths: Vec<(usize, u64)> = report
        .groups()
        .map(|g| {
            let of = |name: &str| g.functions().iter().filter(|f| **f == name).count();
            assert_eq!(of("main.callsC"), of("calls_go"), "{:#}", g.0);
            assert_eq!(of("main.callsC"), of("main.calledByC") + 1, "{:#}", g.0);
            assert!(g.functions().last().is_some_and(|f| f.starts_with("runtime.goexit")));
            (of("calls_go"), g.number("allocations"))
        })
        .collect();
    depths.sort_unstable();
    assert_eq!(depths, [(1, 50), (2, 50), (3, 50)], "{:#}", report.brief());
}

#[test]
fn stacks_of_a_stripped_go_library_continue_in_the_c_code_that_called_it() {
    if go_is_missing("stacks_of_a_stripped_go_library") {
        return;
    }
    let scene = Scene::new("golib");
    let options = ["-buildmode=c-shared", "-ldflags=-s -w"];
    go_build(&scene, "libgo.so", "golib.go", &options);
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O2", "-pthread", "-o", "golib"]).arg(sources().join("golib.c"));
    cc.args(["./libgo.so"]).current_dir(&scene.dir);
    assert!(cc.status().expect("cc").success());
    let file = record(&scene, "./golib");
    // The library's functions have no names; C's have them.
    let report = all_have(&scene, &file, "^(main|thread)$", &[]);
    let sized = |name: &str| -> u64 {
        let of = report.groups().filter(|g| g.functions().contains(&name));
        of.filter(|g| g.number("allocated_bytes") == 1000 * g.number("allocations"))
            .map(|g| g.number("allocations"))
            .sum()
    };
    assert_eq!((sized("main"), sized("thread")), (150, 100), "{:#}", report.brief());
    are_verified(&report, 250);
}
