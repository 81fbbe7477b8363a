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
