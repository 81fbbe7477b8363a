//! Fibers that are switched away inside a hooked function, so that no thread shows where they will return to.

use common::build::program;
use common::{Scene, Target};

/// Checks that a detach while a fiber is inside leaves the hook for it, and that a later detach removes the rest.
fn a_fiber_returns(name: &str, how: &str) {
    let scene = Scene::new(name);
    let mut target = Target::start(&program("yields.c"), &[]);
    let file = program("yields.c").file_name().unwrap().to_str().unwrap().to_owned();
    let named = format!("--alloc-fn={file}:lent_block(1)");
    let recording = scene.attach_with(&target, &[&named]);
    target.ask("start");
    // This clears the mark that the thread is inside.
    target.ask("alloc");
    let pid = target.pid.to_string();
    let out = scene.prof(&["detach", &pid, "--timeout", "300ms"]);
    assert_eq!(out.code, 1, "{out:#?}");
    assert!(out.stderr.contains("fibers (coroutines) that are not running"), "{out:#?}");
    // The functions are as they were; only the fiber returns into the hook.
    target.ask("alloc");
    target.ask(how);
    scene.detach(&target);
    target.ask("start");
    target.ask(how);
    target.quit();
    let r = scene.finished(&recording);
    let sum: u64 = r.asked_by("lent_block").iter().map(|g| g.number("allocations")).sum();
    assert!(sum <= 1, "{}", r.askers());
}

#[test]
fn a_fiber_returns_into_the_hook_after_a_detach() {
    a_fiber_returns("fiber", "resume");
}

#[test]
fn a_fiber_returns_into_the_hook_on_another_thread() {
    a_fiber_returns("moved", "move");
}

/// The recorded extent of a stack must end with the stack.
#[test]
fn a_stack_that_was_given_back_is_not_read() {
    let scene = Scene::new("restacked");
    let mut target = Target::start(&program("restacked.c"), &[]);
    let recording = scene.attach(&target);
    for _ in 0..3 {
        assert_eq!(target.ask("go"), "done");
    }
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    let sum: u64 = r.asked_by("allocate").iter().map(|g| g.number("allocations")).sum();
    assert_eq!(sum, 6, "{}", r.askers());
}

/// Frames of calls that have returned must not prevent a detach, wherever they are.
#[test]
fn fibers_that_have_returned_hold_nothing_up() {
    let scene = Scene::new("returned");
    let mut target = Target::start(&program("yields.c"), &[]);
    let file = program("yields.c").file_name().unwrap().to_str().unwrap().to_owned();
    scene.attach_with(&target, &[&format!("--alloc-fn={file}:lent_block(1)")]);
    for how in ["resume", "move"] {
        target.ask("start");
        target.ask("alloc");
        target.ask(how);
    }
    scene.detach(&target);
    target.ask("start");
    target.ask("resume");
    target.quit();
}
