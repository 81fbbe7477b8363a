//! Waits of the thread by which the target's own dynamic linker loads the hook, and unloads it (`--by dlopen`).

use common::build::program;
use common::{Scene, Target};
use std::time::{Duration, Instant};

const BY_DLOPEN: [&str; 2] = ["--by", "dlopen"];

/// The thread that has called the linker's functions sleeps on for what is left of its time, in each way in which kernels
/// continue a call.
#[test]
fn a_sleep_goes_on_behind_the_calls() {
    let scene = Scene::new("dlopen-nap");
    let mut target = Target::start(&program("naps.c"), &[]);
    let mut nap = 2000;
    for way in ["nanosleep", "clock", "poll", "futex", "epoll"] {
        nap = goes_on(&scene, &mut target, way, nap);
    }
    target.quit();
}

/// Has prof come and go during a sleep, which goes on. Returns the duration, in milliseconds, of sleeps during which prof can
/// do so on this machine; `nap` is the first that is tried.
fn goes_on(scene: &Scene, target: &mut Target, way: &str, mut nap: u64) -> u64 {
    for _ in 0..5 {
        target.send(&format!("nap {nap} {way}"));
        target.expect("going");
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(nap / 3));
        let recording = scene.attach_with(target, &BY_DLOPEN);
        scene.detach(target);
        let over = began.elapsed().as_millis() as u64;
        std::fs::remove_file(recording).expect("the recording");
        let answer = target.expect("done");
        let mut words = answer["done ".len()..].split_whitespace();
        let took: u64 = words.next().expect("a time").parse().expect("a number");
        assert!(took + 1 >= nap && words.next() == Some("0"), "{way}: {answer} of {nap} ms");
        // A sleep that began anew at either call would take at least a third longer. prof itself makes epoll_wait again, on a
        // busy machine for its whole time (tests/waits.rs).
        if over < nap - 200 && (took < nap + nap / 4 || way == "epoll") {
            return nap;
        }
        println!("{way}: slept for {took} ms of {nap} ms; detached after {over} ms");
        nap = nap.max((2 * over).min(60_000));
    }
    panic!("{way}: the sleep began anew each time, or the attach and the detach took too long");
}

/// A wait without an end is not ended by the calls, and can be ended behind them.
#[test]
fn a_wait_without_an_end_goes_on_behind_the_calls() {
    let scene = Scene::new("dlopen-wait");
    let mut target = Target::start(&program("naps.c"), &[]);
    for way in ["poll", "epoll", "futex"] {
        target.send(&format!("wait {way}"));
        target.expect("going");
        let recording = scene.attach_with(&target, &BY_DLOPEN);
        scene.detach(&target);
        std::fs::remove_file(recording).expect("the recording");
        target.send("wake");
        assert_eq!(target.expect("done"), "done 0", "{way}");
    }
    target.quit();
}
