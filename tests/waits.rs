//! Waits that a stop ends, and that no kernel restarts, continue for the rest of their time.

use common::build::program;
use common::{Scene, Target};
use std::time::{Duration, Instant};

/// Duration of a test's waits in milliseconds, unless the machine is too slow for that.
const WAIT: u64 = 3000;

/// Greatest duration of the waits in milliseconds.
const MOST: u64 = 60_000;

/// Returns how long each of the waits took during one attach and one detach, and when these were over; in milliseconds.
fn through_attach_and_detach(
    scene: &Scene,
    target: &mut Target,
    wait: u64,
) -> (Vec<(String, i64)>, u64) {
    target.send(&format!("once {wait}"));
    target.expect("going");
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(WAIT * 2 / 5));
    let file = scene.attach(target);
    std::thread::sleep(Duration::from_millis(WAIT / 5));
    scene.detach(target);
    let over = began.elapsed().as_millis() as u64;
    std::fs::remove_file(file).unwrap();
    let mut took = Vec::new();
    loop {
        let line = target.line();
        if let Some((name, ms)) = line.split_once(" took ") {
            took.push((name.to_owned(), ms.parse().unwrap()));
        } else {
            assert_eq!(line, "done changed=0");
            return (took, over);
        }
    }
}

#[test]
fn waits_go_on_for_what_is_left_of_them() {
    let scene = Scene::new("waits");
    let mut target = Target::start(&program("waits.c"), &[]);
    // On a slow machine the waits may be over before the detach, and then prove nothing.
    let mut wait = WAIT;
    for _ in 0..5 {
        let (took, over) = through_attach_and_detach(&scene, &mut target, wait);
        assert_eq!(took.len(), 5, "{took:?}");
        assert!(took.iter().all(|t| t.1 >= wait as i64 - 1), "{took:?}");
        if over > wait - 200 {
            println!("waits of {wait} ms were over before the detach, after {over} ms: {took:?}");
            wait = (2 * over).min(MOST);
            continue;
        }
        // A wait that starts again at the last stop takes this much longer. prof lets one do so if the processor was taken
        // from its thread at the stop, so that the thread may have woken up by itself: no wait is early, but on a busy
        // machine one may be late.
        let most = (wait + over / 2) as i64;
        if took.iter().all(|t| t.1 < most) {
            target.quit();
            return;
        }
        println!("a wait of {wait} ms began anew: {took:?}, detached after {over} ms");
    }
    panic!("waits began anew each time, or no attach and detach were over in {MOST} ms");
}

#[test]
fn a_wait_in_a_loop_comes_to_its_end_while_prof_comes_and_goes() {
    let scene = Scene::new("loop");
    let mut target = Target::start(&program("waits.c"), &[]);
    let wait = 1200;
    target.send(&format!("loop {wait}"));
    target.expect("going");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(6 * wait) {
        let file = scene.attach(&target);
        scene.detach(&target);
        std::fs::remove_file(file).unwrap();
    }
    let passed = began.elapsed().as_millis() as u64;
    let answer = target.ask("count");
    let count: u64 = answer.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(answer.ends_with("changed=0"), "{answer}");
    assert!(count <= passed / wait, "too early: {answer} in {passed} ms");
    assert!(count >= passed / wait / 2, "{answer} in {passed} ms");
    target.quit();
}

/// A thread that is about to fall asleep when it is stopped looks the same as one whose wait a signal has ended.
#[test]
fn no_wait_is_interrupted_at_falling_asleep() {
    let scene = Scene::new("short");
    // By epoll_wait, semtimedop and sigtimedwait; the first argument of the last two is not a descriptor.
    for (arguments, kind) in [(&[][..], 0), (&["overflows"], 2), (&["overflows"], 3)] {
        let mut target = Target::start(&program("waits.c"), arguments);
        target.send(&format!("loop 1 {kind}"));
        target.expect("going");
        let began = Instant::now();
        for _ in 0..12 {
            let file = scene.attach(&target);
            scene.detach(&target);
            std::fs::remove_file(file).unwrap();
            if began.elapsed() > Duration::from_secs(10) {
                break;
            }
        }
        let answer = target.ask("count");
        assert!(answer.ends_with("changed=0"), "kind {kind}: {answer}");
        target.quit();
    }
}

/// The timeout is in a register, which the code may use afterwards.
#[test]
fn a_register_that_a_program_reads_after_its_wait_is_as_it_was() {
    let scene = Scene::new("raw");
    let mut target = Target::start(&program("waits.c"), &["raw"]);
    let (took, _) = through_attach_and_detach(&scene, &mut target, WAIT);
    assert!(took.iter().all(|t| t.1 >= WAIT as i64 - 1), "{took:?}");
    target.quit();
}
