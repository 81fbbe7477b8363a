//! Functions that the user names may do what malloc does not: throw, be left by a thread's cancellation or a jump,
//! take arguments on the stack, leave registers alone that their callers know of.
#![cfg(target_arch = "x86_64")]

mod common;

use common::build::program_with;
use common::snapshot::Snapshot;
use common::{Scene, Target};

fn start(flags: &[&str]) -> (Target, Vec<String>) {
    let program = program_with("thrown.cpp", flags);
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let options = [
        format!("--alloc-fn={name}:pool_new(1)"),
        format!("--alloc-fn={name}:pool_jump(1)"),
        format!("--alloc-fn={name}:pool_many(2)"),
        format!("--alloc-fn={name}:pool_wait(1)"),
        format!("--alloc-fn={name}:quiet_alloc(1)"),
        format!("--realloc-fn={name}:pool_grow(1,2)"),
        format!("--free-fn={name}:pool_put(1)"),
    ];
    (Target::start(&program, &[]), options.to_vec())
}

#[test]
fn exceptions_cancellation_and_jumps_pass_through_named_functions() {
    for flags in [&["-O2"][..], &["-O2", "-static"]] {
        let scene = Scene::new("named");
        let (mut target, options) = start(flags);
        let commands = ["go", "registers", "cancel"];
        let answers = commands.map(|c| target.ask(c));
        assert_eq!(answers[0], "done 200 caught 50 jumped 300 destroyed");
        assert_eq!(answers[2], "done cancelled 1");
        let before = Snapshot::of(&target);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let file = scene.path("named.prof");
        let output = ["-o", file.to_str().unwrap()];
        for way in
            [&[][..], &["--free-stacks", "--verify-stacks"], &["--paused"], &["--sample-rate=3"]]
        {
            let pid = target.pid.to_string();
            let args = [&["attach", &pid], &options[..], way, &output].concat();
            let out = scene.prof(&args).ok("prof attach");
            assert!(!out.stderr.contains("exception"), "{out:?}");
            for (command, answer) in commands.iter().zip(&answers) {
                assert_eq!(target.ask(command), *answer, "{way:?}");
            }
            scene.detach(&target);
            for (command, answer) in commands.iter().zip(&answers) {
                assert_eq!(target.ask(command), *answer, "after the detach");
            }
            let r = scene.finished(&file);
            assert_eq!(r.number("/recording/lost_events"), 0, "{way:?}");
            if way.len() != 1 {
                // What was thrown through is no allocation, and does not hide those that come after it.
                let calls = |f: &str| -> u64 {
                    r.asked_by(f).iter().map(|g| g.number("allocations")).sum()
                };
                assert_eq!(calls("catches"), 100, "{}", r.askers());
                assert_eq!(calls("registers") + calls("call_quiet"), 200, "{}", r.askers());
                assert_eq!(calls("main"), 100, "{}", r.askers());
            }
            std::fs::remove_file(&file).unwrap();
        }
        before.assert_same(&Snapshot::of(&target));
        target.quit();
    }
}

#[test]
fn a_detach_waits_for_a_thread_inside_of_a_named_function() {
    let scene = Scene::new("named-wait");
    let (mut target, options) = start(&["-O2"]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    target.ask("go");
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &options);
    target.send("wait");
    target.expect("waiting");
    let pid = target.pid.to_string();
    let out = scene.prof(&["detach", &pid, "--timeout", "300ms"]);
    assert!(out.code != 0 && out.stderr.contains("still inside"), "{out:?}");
    target.send("");
    target.expect("done waiting");
    scene.prof(&["detach", &pid]).ok("the second detach");
    target.ask("go");
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    scene.finished(&recording);
}
