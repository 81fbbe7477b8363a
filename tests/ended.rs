//! Recordings whose process is gone, runs another program, or was detached from because the recording could not be
//! written: `prof status` and `prof detach` say where the recording is and why it ended.

use common::build::program;
use common::{Output, Scene, Target, until, writers};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::Path;

/// Returns the outputs of the two commands after the recording has ended.
#[track_caller]
fn messages(scene: &Scene, pid: i32, recording: &Path) -> [Output; 2] {
    until("the collector lets go of the recording", || writers(recording).is_empty());
    let pid = pid.to_string();
    let mut all = [Vec::new(), Vec::new()];
    // The collector writes the note of the end last.
    until("the end is noted", || {
        all = ["status", "detach"].map(|c| vec![scene.prof(&[c, &pid])]);
        !all.iter().flatten().any(|o| o.stderr.contains("still writing"))
    });
    let messages = all.map(|mut o| o.remove(0));
    for out in &messages {
        assert_eq!(out.code, 3, "{out:#?}");
        let name = recording.file_name().and_then(|n| n.to_str()).expect("UTF-8");
        assert!(out.stderr.contains(name) && out.stderr.contains("ended"), "{out:#?}");
    }
    assert!(messages[1].stdout.trim_end().ends_with(".prof"), "{:#?}", messages[1]);
    messages
}

/// Checks that both outputs contain one of these texts.
#[track_caller]
fn assert_why(messages: &[Output; 2], why: &[&str]) {
    for out in messages {
        let ago = ["ended just now: ", " s ago: ", " min ago: "];
        assert!(ago.iter().any(|w| out.stderr.contains(w)), "{out:#?}");
        assert!(why.iter().any(|w| out.stderr.contains(w)), "{why:?}: {out:#?}");
    }
}

#[test]
fn of_a_process_that_has_ended() {
    let scene = Scene::new("has-ended");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 25");
    target.quit();
    let out = messages(&scene, target.pid, &recording);
    // The kernel tells how it ended only until the parent has waited for it.
    assert_why(&out, &["the process has exited", "the process has ended"]);
    let pid = target.pid.to_string();
    let json = scene.prof(&["status", &pid, "--format", "json"]);
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((&json["state"], &json["pid"]), (&"ended".into(), &target.pid.into()), "{json:#}");
    assert_eq!(json["path"].as_str().map(Path::new), Some(&*recording), "{json:#}");

    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.signal(Signal::SIGKILL);
    assert_eq!(target.wait(), 128 + 9);
    let out = messages(&scene, target.pid, &recording);
    assert_why(&out, &["the process was killed by signal 9", "the process has ended"]);
}

#[test]
fn of_a_process_that_runs_another_program() {
    let scene = Scene::new("has-run");
    let mut target = Target::start(&program("exec.c"), &[]);
    let recording = scene.attach(&target);
    target.send("go");
    target.expect("second life");
    let out = messages(&scene, target.pid, &recording);
    assert_why(&out, &["the process has run another program in its place (exec)"]);
    // The note must not be taken for the new recording's.
    scene.attach_with(&target, &["-o", "second.prof"]);
    let status = scene.prof(&["status", &target.pid.to_string()]).ok("prof status");
    assert!(!status.stderr.contains("ended"), "{status:#?}");
    scene.detach(&target);
    let out = messages(&scene, target.pid, &scene.path("second.prof"));
    assert_why(&out, &["prof was detached"]);
    // It is the last recording of the process, though its name has no number.
    let report = scene.prof(&["report", &target.pid.to_string()]).ok("prof report");
    assert!(report.stdout.contains("second.prof"), "{report:#?}");
    target.quit();
}

#[test]
fn of_a_file_that_can_grow_no_more() {
    let scene = Scene::new("has-no-room");
    let target = Target::start(&program("stress.c"), &[]);
    let recording = scene.attach(&target);
    let limit = libc::rlimit { rlim_cur: 256 << 10, rlim_max: 256 << 10 };
    let collector = writers(&recording)[0];
    // SAFETY: the call reads `limit`, and the pointer for the old limit may be null.
    let set = unsafe { libc::prlimit(collector, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    let out = messages(&scene, target.pid, &recording);
    assert_why(&out, &["it could not be written any further: File too large"]);
    for o in &out {
        assert!(o.stderr.contains("what was written is readable"), "{o:#?}");
    }
    scene.report(&recording);
}
