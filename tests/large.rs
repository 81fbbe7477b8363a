//! A process with much memory must not be blocked while prof looks at it. `PROF_TEST_GIB` sets the amount of memory;
//! the default is 1 GiB. For exact figures run it by `chrt -f 10`, so that no thread waits for a processor.

// The virtual machines of the other architectures have too little memory.
#![cfg(target_arch = "x86_64")]

use common::build::program;
use common::{Scene, Target, skip};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Longest time in microseconds that mapping and unmapping a page may take because of prof.
const MOST_US: u64 = 10_000;

/// Returns the longest call since the last "reset", in microseconds, without and with the time that the thread waited
/// for a processor, and the number of calls.
fn longest(target: &mut Target) -> [u64; 3] {
    let answer = target.ask("longest");
    let words: Vec<u64> = answer.split(' ').skip(1).map(|w| w.parse().expect("a number")).collect();
    words.try_into().expect("three numbers")
}

#[test]
fn the_lock_of_the_mappings_is_never_held_for_long() {
    if !Path::new("/proc/self/schedstat").exists() {
        return skip("large", "the kernel has no /proc/PID/schedstat");
    }
    let gib = std::env::var("PROF_TEST_GIB").ok().and_then(|n| n.parse::<u64>().ok());
    let mut command = Command::new(program("large.c"));
    command.arg((gib.unwrap_or(1) << 10).to_string());
    let mut target = Target::spawn(command);
    let ready = target.line_within(common::DEADLINE * gib.unwrap_or(1) as u32);
    assert_eq!(ready.as_deref(), Some("ready"));
    // A look at 16 GiB takes a second, and there are several.
    let looks = if gib.is_some() { 8000 } else { 1500 };
    // The holder of the lock may itself wait for a processor now and then, but delays by prof would occur each time.
    let mut least = u64::MAX;
    for round in 0..20 {
        target.ask("reset");
        std::thread::sleep(Duration::from_millis(500));
        let alone = longest(&mut target);
        let scene = Scene::new("large");
        let recording = scene.attach(&target);
        // Exclude the stops of the attach: the collector looks for the first time before, and again a second later.
        target.ask("reset");
        target.ask("alloc");
        std::thread::sleep(Duration::from_millis(looks));
        let with = longest(&mut target);
        scene.detach(&target);
        println!("round {round}: alone {alone:?}, recorded {with:?}");
        scene.finished(&recording);
        least = least.min(with[0]);
        if least < MOST_US && gib.is_none() {
            break;
        }
        if gib.is_some() && round == 2 {
            break;
        }
    }
    assert!(least < MOST_US, "{least} us");
    target.quit();
}
