//! Pid namespaces: a process has other numbers in them, and prof may be in one of its own.

use common::build::program;
use common::killer::kill_collector;
use common::{Output, Scene, Target, installed, skip};
use std::path::Path;
use std::process::Command;

/// Returns whether namespaces can be made, and what processes have mapped can be opened, in tests of this name.
fn possible(test: &str) -> bool {
    let works = |args: &[&str]| {
        Command::new("unshare").args(args).output().is_ok_and(|o| o.status.success())
    };
    if !nix::unistd::geteuid().is_root() || !["unshare", "nsenter"].iter().all(|c| installed(c)) {
        skip(test, "needs root, unshare and nsenter");
        return false;
    }
    if !works(&["--pid", "--fork", "--mount-proc", "true"]) {
        skip(test, "no pid namespaces here");
        return false;
    }
    true
}

/// A program in a pid namespace of its own, as its first process.
struct Contained {
    target: Target,
    /// The program's number outside.
    outside: i32,
}

impl Contained {
    fn start(program: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(program);
        let mut target = Target::spawn(command);
        target.expect("ready");
        let children = format!("/proc/{0}/task/{0}/children", target.pid);
        let text = std::fs::read_to_string(children).expect("children");
        let outside = text.split_whitespace().next().and_then(|n| n.parse().ok());
        Self { target, outside: outside.expect("the program") }
    }

    /// Runs prof in the namespace.
    fn inside(&self, scene: &Scene, args: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.outside.to_string(), "--pid", "--mount"]);
        scene.run(with(command, args))
    }
}

/// Adds prof to a command that runs it.
fn with(mut command: Command, args: &[&str]) -> Command {
    let (what, rest) = args.split_at(1);
    command.arg(Scene::binary()).args(what).args(common::way(args));
    if what == ["attach"] {
        command.args(["--look", "0s"]);
    }
    command.args(rest);
    command
}

/// Attaches, kills the collector and goes on, by a prof in the namespaces `first` and `then`.
fn goes_on(name: &str, first: Who, then: Who) {
    let scene = Scene::new(name);
    let mut c = Contained::start(&program("toggle.c"));
    let file = scene.path("r.prof");
    let prof = |c: &Contained, who: Who, what: &str| {
        let outside = c.outside.to_string();
        let file = file.to_str().expect("a path");
        let output: &[&str] = if what == "attach" { &["-o", file] } else { &[] };
        match who {
            Who::Outside => scene.prof(&[&[what, &outside], output].concat()),
            // The program is the first process of its namespace.
            Who::Inside => c.inside(&scene, &[&[what, "1"], output].concat()),
        }
    };
    prof(&c, first, "attach").ok("attach");
    c.target.ask("alloc 10");
    // Whoever looks sees a collector that lives.
    for who in [Who::Outside, Who::Inside] {
        let out = prof(&c, who, "attach");
        assert!(out.code == 3 && out.stderr.contains("is already being recorded"), "{out:?}");
    }
    kill_collector(&file);
    c.target.ask("alloc 100");
    let out = prof(&c, then, "attach").ok("attach again");
    assert!(out.stderr.contains("r.prof goes on"), "{out:?}");
    c.target.ask("alloc 5");
    prof(&c, then, "detach").ok("detach");
    let r = scene.finished(&file);
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
    assert_eq!(r.marked("toggle.c", "toggled_block").number("allocations"), 115, "{:#}", r.brief());
    c.target.quit();
}

/// The pid namespace in which prof runs.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    Outside,
    Inside,
}

#[test]
fn a_recording_of_a_container_goes_on_from_outside() {
    if possible("a_recording_of_a_container_goes_on_from_outside") {
        goes_on("outside", Who::Outside, Who::Outside);
    }
}

#[test]
fn a_recording_by_a_prof_in_a_container_goes_on_there_and_from_outside() {
    if possible("a_recording_by_a_prof_in_a_container_goes_on_there_and_from_outside") {
        goes_on("inside", Who::Inside, Who::Inside);
        goes_on("inside-out", Who::Inside, Who::Outside);
    }
}

#[test]
fn what_was_begun_outside_of_a_container_is_refused_in_it() {
    if !possible("what_was_begun_outside_of_a_container_is_refused_in_it") {
        return;
    }
    let scene = Scene::new("outside-in");
    let mut c = Contained::start(&program("toggle.c"));
    let (pid, file) = (c.outside.to_string(), scene.path("r.prof"));
    let attach = ["attach", &pid, "-o", "r.prof"];
    scene.prof(&attach).ok("attach");
    c.target.ask("alloc 10");
    kill_collector(&file);
    let before = std::fs::read(&file).expect("the recording");
    // Nothing but its heartbeat tells of the collector there, and that a prof waits for.
    let out = c.inside(&scene, &["attach", "1", "-o", file.to_str().expect("a path")]);
    assert!(out.code == 3 && out.stderr.contains("outside of this pid namespace"), "{out:?}");
    assert_eq!(std::fs::read(&file).expect("the recording"), before, "it was touched");
    scene.prof(&attach).ok("attach again");
    scene.prof(&["detach", &pid]).ok("detach");
    let r = scene.finished(&file);
    assert_eq!(r.marked("toggle.c", "toggled_block").number("allocations"), 10, "{:#}", r.brief());
    c.target.quit();
}

/// The numbers of `/proc` are other processes', for ptrace and kill, than for who reads it.
#[test]
fn the_proc_of_another_namespace_is_refused() {
    if !possible("the_proc_of_another_namespace_is_refused") {
        return;
    }
    let scene = Scene::new("proc");
    let mut c = Contained::start(&program("toggle.c"));
    let mut other = Target::start(&program("toggle.c"), &[]);
    let pid = c.outside.to_string();
    let above = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork"]);
        scene.run(with(command, args))
    };
    let enter = |namespace: &str, args: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid, namespace]);
        scene.run(with(command, args))
    };
    let theirs = other.pid.to_string();
    for args in [
        &["attach", &theirs, "-o", "r.prof"][..],
        &["run", "-o", "r.prof", "--", "true"],
        &["heap", &theirs],
        &["detach", &theirs],
    ] {
        let out = above(args);
        assert!(out.code == 3 && out.stderr.contains("--mount-proc"), "{args:?}: {out:?}");
        assert!(!scene.path("r.prof").exists(), "{args:?}");
    }
    let file = scene.path("r.prof");
    for (namespace, id) in [("--pid", &*pid), ("--mount", "1")] {
        let out = enter(namespace, &["attach", id, "-o", file.to_str().expect("a path")]);
        assert!(out.code == 3 && out.stderr.contains("/proc"), "{namespace}: {out:?}");
        assert!(!file.exists(), "{namespace}");
    }
    // A process that is recorded is not touched either.
    let recording = scene.attach(&other);
    let out = above(&["detach", &theirs]);
    assert!(out.code == 3 && out.stderr.contains("--mount-proc"), "{out:?}");
    other.ask("alloc 3");
    scene.detach(&other);
    let r = scene.finished(&recording);
    assert_eq!(r.marked("toggle.c", "toggled_block").number("allocations"), 3, "{:#}", r.brief());
    c.target.quit();
    other.quit();
}
