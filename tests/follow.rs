//! `prof run` follows its command through exec: wrappers, shims, and programs that call exec late.

use common::build::program;
use common::{Scene, Target, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn run(scene: &Scene, options: &[&str], command: &[&str]) -> Command {
    let mut c = Command::new(Scene::binary());
    c.current_dir(&scene.dir).arg("run").args(options).arg("--").args(command);
    c
}

/// Writes a script that replaces itself by a program.
fn shim(scene: &Scene, program: &str) -> String {
    let path = scene.path("shim");
    let script = format!("#!/bin/sh\nexport SHIM=1\nexec env nice '{program}' \"$@\"\n");
    std::fs::write(&path, script).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("mode");
    path.to_string_lossy().into_owned()
}

fn files(scene: &Scene) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(&scene.dir).expect("files").flatten().map(|f| f.path()).collect();
    all.retain(|p| p.extension().is_some_and(|x| x == "prof"));
    all.sort();
    all
}

#[test]
fn the_program_behind_a_shim_is_recorded_from_its_first_allocation_on() {
    let scene = Scene::new("shim");
    let counts = program("counts.c");
    let shim = shim(&scene, counts.to_str().expect("UTF-8"));
    let mut target = Target::spawn(run(&scene, &["-o", "r.prof"], &[&shim]));
    target.expect("ready");
    let answer = target.ask("go");
    target.ask("old");
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    r.assert_sound();
    assert_eq!(r.number("/recording/unknown_frees"), 0, "every block is known: {:#}", r.brief());
    r.marked("counts.c", "plain").assert_live(500, 50_000);
    assert!(answer.contains(" allocations=1027 "), "{answer}");
    let main: u64 = r.asked_by("main").iter().map(|g| g.number("allocations")).sum();
    assert_eq!(main, 6, "{}", r.askers());
    // The recordings of the shell, env and nice.
    let all = files(&scene);
    assert_eq!(all.len(), 4, "{all:?}");
    for part in &all[..3] {
        assert_eq!(scene.finished(part).at("/recording/end_reason"), "exec", "{all:?}");
    }
}

#[test]
fn words_exit_codes_and_names_are_those_of_the_last_program() {
    let scene = Scene::new("words");
    let out = scene.run(run(&scene, &[], &["sh", "-c", "exec env sleep 0.1"])).ok("prof run");
    assert!(out.stderr.contains("has run env in its place (exec)"), "{out:#?}");
    assert!(out.stderr.contains("env has run sleep in its place (exec)"), "{out:#?}");
    let last = out.stderr.lines().rev().find_map(|l| l.strip_prefix("prof: recorded to "));
    assert!(last.is_some_and(|l| l.contains("prof.sleep.")), "{out:#?}");
    assert_eq!(files(&scene).len(), 3, "{out:#?}");
    let code = scene.run(run(&scene, &["-o", "a.prof"], &["sh", "-c", "exec sh -c 'exit 7'"]));
    assert_eq!(code.code, 7, "{code:#?}");
    let died =
        scene.run(run(&scene, &["-o", "b.prof"], &["sh", "-c", "exec sh -c 'kill -TERM $$'"]));
    assert_eq!(died.code, 128 + 15, "{died:#?}");
    // A command that does not exist is no exec. Its path lies in the test's own folder: some programs make a folder of
    // the home folder /nonexistent that Debian gives users without one.
    let none = scene.run(run(&scene, &["-o", "c.prof"], &["sh", "-c", "exec ./no-such-command"]));
    assert_eq!(none.code, 127, "{none:#?}");
    assert!(!none.stderr.contains("in its place"), "{none:#?}");
}

#[test]
fn an_exec_that_comes_late_is_found() {
    let scene = Scene::new("late-exec");
    let exec = program("exec.c");
    let mut target =
        Target::spawn(run(&scene, &["-o", "r.prof"], &[exec.to_str().expect("UTF-8")]));
    target.expect("ready");
    // By now it is not traced any more.
    std::thread::sleep(std::time::Duration::from_millis(900));
    target.send("go");
    target.expect("second life");
    target.ask("go");
    until("the second program is recorded", || files(&scene).len() == 2);
    let first = files(&scene).into_iter().find(|p| p.to_string_lossy().contains("r.1-"));
    let first = scene.finished(&first.expect("the first program's"));
    assert_eq!(first.at("/recording/end_reason"), "exec", "{:#}", first.brief());
    first.marked("exec.c", "before_exec").assert_live(1, 4321);
    // The file has its head before the program is recorded.
    until("it is under way", || {
        let all = scene.prof(&["status", "--format", "json"]).stdout;
        let all: serde_json::Value = serde_json::from_str(&all).unwrap_or_default();
        let path = scene.path("r.prof").display().to_string();
        let is_recorded = |s: &serde_json::Value| s["path"] == path && s["state"] == "recording";
        all.as_array().is_some_and(|all| all.iter().any(is_recorded))
    });
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    assert_eq!(r.at("/recording/end_reason"), "exited", "{:#}", r.brief());
}

#[test]
fn a_wrapper_that_is_followed_can_be_detached_from() {
    let scene = Scene::new("let-go");
    let script = "echo $$; read -r line; echo got $line; exit 5";
    let mut target = Target::spawn(run(&scene, &["-o", "r.prof"], &["sh", "-c", script]));
    let pid = target.line();
    scene.prof(&["detach", &pid]).ok("prof detach");
    target.send("word");
    target.expect("got word");
    assert_eq!(target.wait(), 5);
}

#[test]
fn a_wrapper_survives_the_death_of_its_follower() {
    let scene = Scene::new("follower");
    let script = "echo $$; read -r line; echo got $line >answer; exec sleep 60";
    let mut c = run(&scene, &["-o", "r.prof"], &["sh", "-c", script]);
    c.stderr(Stdio::null());
    let mut target = Target::spawn(c);
    let pid: i32 = target.line().parse().expect("a pid");
    target.signal(Signal::SIGKILL);
    target.send("word");
    let answer = scene.path("answer");
    until("the wrapper goes on", || {
        std::fs::read_to_string(&answer).is_ok_and(|t| t == "got word\n")
    });
    let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    until("its exec is as any", || comm() == "sleep\n");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill");
}
