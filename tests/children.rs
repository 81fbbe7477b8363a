//! Children that are forked from a recorded process: those of a handler that has interrupted the hook, and
//! those that outlive the recording with prof's jumps in them.

mod common;

use common::build::program;
use common::{Scene, Target};

#[test]
fn children_that_a_handler_forks_out_of_the_hook_live() {
    let scene = Scene::new("handler-fork");
    let mut target = Target::start(&program("handler_fork.c"), &[]);
    for (i, how) in ["fork", "alt", "raw"].into_iter().enumerate() {
        let recording = scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        let answer = target.ask(&format!("go 40 {how}"));
        let numbers: Vec<u64> = answer.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        assert!(numbers[0] >= 20, "{how}: {answer}");
        assert_eq!(numbers[1], 0, "{how}: {answer}");
        scene.detach(&target);
        if how == "fork" {
            // What the children did is not in their parent's recording.
            scene.report(&recording).assert_sound();
        }
    }
    target.quit();
}

/// Who adopts orphans, as a container's first process does, is told so before the collector becomes one.
#[test]
fn who_adopts_the_collector_is_told_so() {
    let scene = Scene::new("adopts");
    let mut target = Target::start(&program("adopts.c"), &[]);
    let (pid, prof) = (target.pid, Scene::binary().display());
    let mut prof = |name: &str, args: &str| {
        let (script, said) = (scene.path(name), scene.path(&format!("{name}.said")));
        let line = format!("{prof} {args} 2>{}; exit $?\n", said.display());
        std::fs::write(&script, line).expect("written");
        assert_eq!(target.ask(&format!("run sh {}", script.display())), "done 0");
        let children = target.ask("children");
        (std::fs::read_to_string(said).expect("what prof has said"), children)
    };
    let file = scene.path("r.prof");
    let (said, children) = prof("attach", &format!("attach {pid} -o {}", file.display()));
    assert!(said.contains("becomes its child"), "{said}");
    assert_eq!(children, "done 0 ended, more");
    // The name that ps shows.
    let task = format!("/proc/{pid}/task/{pid}/children");
    let child = std::fs::read_to_string(task).expect("children");
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", child.trim())).expect("a name");
    assert_eq!(comm.trim(), "prof");
    let (said, children) = prof("detach", &format!("detach {pid}"));
    assert!(said.contains(&format!("process {}, has ended", child.trim())), "{said}");
    assert_eq!(children, "done 1 ended, no more");
    target.quit();
    scene.finished(&file);
}
