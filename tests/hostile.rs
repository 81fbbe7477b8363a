//! A target that means harm: it overwrites everything that it shares with prof while it is recorded.

use common::build::program;
use common::{Scene, Target};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

/// Checks that prof ended in an orderly way: no signal, no panic.
#[track_caller]
fn sane(out: &common::Output) {
    assert!(out.code <= 3, "{out:#?}");
    assert!(!out.stderr.contains("panicked"), "{out:#?}");
    assert!(!out.stdout.contains('\u{1b}') && !out.stderr.contains('\u{1b}'), "{out:#?}");
}

#[test]
fn scribbling_over_the_shared_memory_harms_nobody_else() {
    for (what, seeds) in [("control", 0..6), ("scribble", 0..6)] {
        for seed in seeds {
            let scene = Scene::new("scribble");
            let mut target = Target::start(&program("hostile.c"), &[]);
            let pid = target.pid.to_string();
            let recording = scene.attach(&target);
            target.ask("names");
            target.ask(&format!("{what} {seed}"));
            for args in [&["status", &pid][..], &["status"], &["pause", &pid], &["resume", &pid]] {
                sane(&scene.prof(args));
            }
            target.send(&format!("{what} {}", seed + 100));
            sane(&scene.prof(&["detach", &pid, "--timeout", "1s"]));
            sane(&scene.prof(&["attach", &pid, "-o", "second.prof", "--timeout", "1s"]));
            sane(&scene.prof(&["report", &pid]));
            sane(&scene.prof(&["detach", &pid, "--timeout", "1s"]));
            target.kill();
            common::until("the collector ends", || common::writers(&recording).is_empty());
            let report = scene.prof(&["report", recording.to_str().expect("UTF-8")]);
            sane(&report);
            assert_eq!(report.code, 0, "what was written is a recording: {report:#?}");
            // Only recordings were written.
            for entry in std::fs::read_dir(&scene.dir).unwrap().flatten() {
                assert!(entry.file_name().to_string_lossy().ends_with(".prof"), "{entry:?}");
            }
        }
    }
}

#[test]
fn a_recording_is_its_owner_s_alone_and_never_written_over() {
    let scene = Scene::new("own");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let victim = scene.path("victim");
    std::fs::write(&victim, "precious").unwrap();
    symlink(&victim, scene.path("link.prof")).unwrap();
    symlink(scene.path("nowhere"), scene.path("dangling.prof")).unwrap();
    for name in ["victim", "link.prof", "dangling.prof"] {
        let out = scene.prof(&["attach", &pid, "-o", name]);
        assert_eq!(out.code, 2, "{name}: {out:?}");
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    assert!(!scene.path("nowhere").exists());
    let recording = scene.attach_with(&target, &["-o", "good.prof"]);
    let mode = std::fs::metadata(&recording).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    scene.detach(&target);
    target.quit();
}

#[test]
fn a_recording_that_is_a_fifo_or_a_device_is_none() {
    let scene = Scene::new("fifo");
    let fifo = scene.path("f.prof");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for name in [fifo.to_str().unwrap(), "/dev/zero", "/dev/tty", "/proc/self/mem"] {
        let out = scene.prof(&["report", name]);
        assert_eq!(out.code, 2, "{name}: {out:?}");
    }
}
