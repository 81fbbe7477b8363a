//! Tests targets that become the parent of prof's collector.

use common::build::program;
use common::{Scene, Target, until};
use std::process::Command;

const NONE: &str = "done 0 strangers, 0 signals, no more";

/// Runs prof as a descendant of the target, which so becomes the collector's parent; returns the standard error.
fn below(scene: &Scene, target: &mut Target, args: &str) -> String {
    let (script, message) = (scene.path("script"), scene.path("message"));
    let prof = Scene::binary().display();
    let line = format!("{prof} {args} --timeout 20s 2>{}; exit $?\n", message.display());
    std::fs::write(&script, line).expect("written");
    let answer = target.ask(&format!("run sh {}", script.display()));
    let message = std::fs::read_to_string(message).expect("what prof has message");
    assert_eq!(answer, "done 0", "{args}: {message}");
    message
}

fn attach(scene: &Scene, target: &mut Target, name: &str, more: &str) -> String {
    let (pid, file) = (target.pid, scene.path(name));
    below(scene, target, &format!("attach {pid} --look 0s -o {} {more}", file.display()))
}

/// Returns the children of a process.
fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    text.expect("children").split_whitespace().map(|p| p.parse().expect("a number")).collect()
}

#[test]
fn a_detach_takes_the_collector_away_unnoticed() {
    let scene = Scene::new("adopts");
    let mut target = Target::start(&program("adopts.c"), &[]);
    for by_itself in [true, false] {
        let name = format!("{by_itself}.prof");
        let message = attach(&scene, &mut target, &name, "");
        assert!(message.contains("may adopt orphans"), "{message}");
        let child = children(target.pid);
        assert_eq!(child.len(), 1, "{child:?}");
        // The name that ps shows.
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", child[0])).expect("a name");
        assert_eq!(comm.trim(), "prof");
        assert_eq!(target.ask("children"), NONE.replace("no more", "more"));
        let detach = format!("detach {}", target.pid);
        if by_itself {
            below(&scene, &mut target, &detach);
        } else {
            scene.detach(&target);
        }
        assert_eq!(children(target.pid), Vec::<i32>::new());
        assert_eq!(target.ask("children"), NONE);
        scene.finished(&scene.path(&name));
    }
    target.quit();
}

/// The kernel merges the SIGCHLDs of children that end before the signal is handled: the signal of the target's own
/// child must not be lost with the collector's.
#[test]
fn no_child_of_its_own_is_lost_with_the_collector() {
    let scene = Scene::new("adopts-storm");
    let mut target = Target::start(&program("adopts.c"), &[]);
    for cycle in 0..3 {
        attach(&scene, &mut target, &format!("{cycle}.prof"), "");
        target.ask("storm");
        scene.detach(&target);
        target.send("children");
        target.expect("stormed");
        assert_eq!(target.expect("done"), NONE);
    }
    target.quit();
}

#[test]
fn a_collector_that_ends_otherwise_is_a_child_like_any_orphan() {
    let scene = Scene::new("adopts-ends");
    let mut target = Target::start(&program("adopts.c"), &[]);
    // The collector ends by itself.
    attach(&scene, &mut target, "duration.prof", "--duration 100ms");
    until("the collector has ended", || children(target.pid).is_empty());
    assert_eq!(target.ask("children"), "done 1 strangers, 1 signals, no more");
    scene.finished(&scene.path("duration.prof"));
    // The collector is killed.
    attach(&scene, &mut target, "killed.prof", "");
    let mut kill = Command::new("kill");
    kill.args(["-9", &children(target.pid)[0].to_string()]);
    scene.run(kill).ok("kill");
    until("the collector has ended", || children(target.pid).is_empty());
    scene.detach(&target);
    assert_eq!(target.ask("children"), "done 2 strangers, 2 signals, no more");
    target.quit();
}

#[test]
fn a_detach_takes_the_supervisor_of_a_family_away_unnoticed() {
    let scene = Scene::new("adopts-family");
    // A name of its own, which no other test's processes have.
    let name = format!("adopter{}", std::process::id());
    let copy = scene.path(&name);
    std::fs::copy(program("adopts.c"), &copy).expect("copied");
    let mut target = Target::start(&copy, &[]);
    let folder = scene.path("all").display().to_string();
    let args = format!("attach --name {name} --follow --look 0s -o {folder}");
    let message = below(&scene, &mut target, &args);
    assert!(message.contains("may adopt orphans"), "{message}");
    assert_eq!(children(target.pid).len(), 2, "a collector and a supervisor");
    scene.prof(&["detach", &folder]).ok("detach");
    assert_eq!(children(target.pid), Vec::<i32>::new());
    assert_eq!(target.ask("children"), NONE);
    target.quit();
}
