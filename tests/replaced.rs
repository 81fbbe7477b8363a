//! Attaches while the process replaces its program.

use common::build::program;
use common::{Scene, Target};
use std::process::Command;

fn start(count: u32, microseconds: u32) -> Target {
    let mut command = Command::new(program("execs.c"));
    command.args([count.to_string(), microseconds.to_string()]);
    Target::spawn(command)
}

/// Wrappers replace themselves: prof records the last program, or the one that it found, to its end.
#[test]
fn an_attach_goes_on_with_the_program_that_an_exec_brings() {
    let scene = Scene::new("exec-once");
    for delay in 1..9 {
        let mut target = start(3, delay * 8000);
        let file = format!("{delay}.prof");
        scene.prof(&["attach", &target.pid.to_string(), "-o", &file]).ok("attach");
        assert!(scene.path(&file).is_file());
        target.expect("ready");
        target.ask("go");
        target.quit();
    }
}

#[test]
fn a_process_that_goes_on_replacing_its_program_is_told_to_do_so() {
    let scene = Scene::new("exec-storm");
    let target = start(1_000_000, 3000);
    let pid = target.pid.to_string();
    let mut named = 0;
    for i in 0..5 {
        let out = scene.prof(&["attach", &pid, "-o", &format!("{i}.prof")]);
        if out.code == 0 {
            let _ = scene.prof(&["detach", &pid]);
            continue;
        }
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains("is replacing its program (exec)"), "{out:?}");
        assert_eq!(out.stderr.lines().count(), 1, "{out:?}");
        assert!(!scene.path(&format!("{i}.prof")).exists());
        named += 1;
    }
    assert!(named > 0, "each attach was faster than the next exec");
}
