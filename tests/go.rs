//! Stacks of Go programs with cgo continue from C code to the goroutine that called it.
#![cfg(target_arch = "x86_64")]

mod common;

use common::build::sources;
use common::{Scene, installed, skip};
use std::process::Command;

#[test]
fn stacks_of_c_code_that_go_has_called_continue_in_the_goroutine() {
    if !installed("go") || !installed("cc") {
        return skip("stacks_of_c_code_that_go_has_called", "go or cc is not installed");
    }
    let scene = Scene::new("go");
    let mut build = Command::new("go");
    build.args(["build", "-o", "cgo"]).arg(sources().join("cgo.go")).current_dir(&scene.dir);
    // The first build compiles Go's C part, which may take longer than the deadline of a step.
    let built = build.env("CGO_ENABLED", "1").output().expect("go");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut run = Command::new(Scene::binary());
    run.args(["run", "-o", "r.prof", "--verify-stacks", "--", "./cgo"]);
    scene.run(run).ok("prof run");

    let file = scene.path("r.prof");
    for (function, calls) in [
        ("^take$", 300),
        ("^runtime.asmcgocall", 300),
        ("^runtime.cgocall$", 300),
        ("^main.allocates$", 300),
        ("^main.deeper$", 300),
        ("^main.main$", 100),
        ("^runtime.main$", 100),
        ("^main.main.func1$", 200),
    ] {
        let report = scene.report_with(&file, &["--function", "^take$", "--function", function]);
        assert_eq!(report.total("allocations"), calls, "{function}: {:#}", report.brief());
    }
    let report = scene.report_with(&file, &["--function", "^take$"]);
    for group in report.groups() {
        let outermost = group.functions().last().copied().unwrap_or_default();
        assert!(outermost.starts_with("runtime.goexit"), "{:#}", group.0);
        assert_eq!(group.0["truncated"], false, "{:#}", group.0);
    }
    // The memoized walk finds the same as a full walk.
    assert!(report.number("/recording/verified_stacks") >= 300, "{:#}", report.brief());
    assert_eq!(report.number("/recording/mismatched_stacks"), 0, "{:#}", report.brief());
}
