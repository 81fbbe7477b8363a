//! What may come between the steps of an attach or a detach: another tracer, a stack that grows, a handler
//! that the target sets itself; and what a detach says of forked children.

mod common;

use common::build::program;
use common::{Scene, Target};
use std::process::Command;

fn has_descriptor(target: &Target) -> bool {
    let all = std::fs::read_dir(format!("/proc/{}/fd", target.pid)).into_iter().flatten().flatten();
    let mut links = all.filter_map(|e| std::fs::read_link(e.path()).ok());
    links.any(|l| l.to_string_lossy().contains("prof-ring"))
}

#[test]
fn another_tracer_in_the_midst_of_an_attach_leaves_nothing_unsaid() {
    let scene = Scene::new("tracer");
    let mut named = 0;
    for i in 0..8 {
        let mut target = Target::start(&program("toggle.c"), &[]);
        target.ask("alloc 10");
        let pid = target.pid.to_string();
        let mut tracer = Target::start(&program("breaks_in.c"), &[&pid]);
        let file = format!("{i}.prof");
        let out = scene.prof(&["attach", &pid, "-o", &file, "--timeout", "300ms"]);
        tracer.expect("held");
        let has_parts = |t: &Target| t.proc("maps").contains("prof-ring") || has_descriptor(t);
        if out.code != 0 {
            assert!(!scene.path(&file).exists());
            if has_parts(&target) {
                named += 1;
                let advice = format!("`prof detach {pid}`");
                assert!(out.stderr.contains(&advice), "{out:?}");
                assert!(!out.stderr.contains("nothing was changed"), "{out:?}");
            }
        }
        tracer.quit();
        if has_parts(&target) {
            scene.prof(&["detach", &pid]).ok("detach when the tracer has gone");
        }
        assert!(!has_parts(&target));
        target.ask("free 10");
        target.quit();
    }
    assert!(named > 0, "the other tracer always came too late");
}

#[test]
fn a_stack_that_grows_is_room_enough() {
    let scene = Scene::new("grows");
    for i in 0..5 {
        let mut target = Target::spawn(Command::new(program("grows.c")));
        target.expect("ready");
        for k in 0..3 {
            scene.attach_with(&target, &["-o", &format!("{i}-{k}.prof")]);
            scene.detach(&target);
        }
        target.send("up");
        target.expect("deep");
        target.quit();
    }
}

#[test]
fn a_handler_that_the_target_sets_during_a_detach_is_its_own() {
    let scene = Scene::new("own");
    for i in 0..3 {
        let mut target = Target::start(&program("own_handler.c"), &[]);
        scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        target.ask("seen");
        let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
        assert!(!out.stderr.contains("left in the process"), "{out:?}");
        target.quit();
    }
}

#[test]
fn a_detach_names_forked_children_that_keep_jumps() {
    let scene = Scene::new("prefork");
    let mut target = Target::start(&program("prefork.c"), &[]);
    let child = |target: &mut Target| target.ask("fork")["done ".len()..].trim().to_owned();
    let before = child(&mut target);
    scene.attach(&target);
    let children = [child(&mut target), child(&mut target)];
    let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
    let line = out.stderr.lines().find(|l| l.contains("children forked while it was recorded"));
    let line = line.unwrap_or_else(|| panic!("nothing is said: {out:?}"));
    let words: Vec<&str> = line.split(|c: char| !c.is_ascii_digit()).collect();
    for c in &children {
        assert!(words.contains(&c.as_str()), "{c}: {line}");
    }
    assert!(!words.contains(&before.as_str()), "{line}");
    target.quit();
}
