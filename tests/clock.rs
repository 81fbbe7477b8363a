//! Times by the kernel, where the processor's counter can't be used: `PROF_CLOCK` chooses them.

use common::build::program;
use common::{Scene, Target};
use std::process::Command;

/// The machine's own choice (in a virtual machine another one: `PROF_VM_APPEND=clocksource=hpet`), and the kernel's two
/// clocks.
const CLOCKS: [&str; 3] = ["", "vdso", "syscall"];

fn attach(scene: &Scene, target: &Target, clock: &str) -> std::path::PathBuf {
    let mut c = Command::new(Scene::binary());
    c.env("PROF_CLOCK", clock).args(["attach", &target.pid.to_string(), "--timeout", "60s"]);
    let out = scene.run(c).ok("prof attach");
    scene.path(out.stdout.trim())
}

#[test]
fn threads_are_in_order_by_either_clock_of_the_kernel() {
    const ROUNDS: u64 = 20_000;
    const THREADS: u64 = 4;
    for clock in CLOCKS {
        let scene = Scene::new("clock");
        let mut target = Target::start(&program("handed.c"), &[]);
        let recording = attach(&scene, &target, clock);
        target.ask(&format!("go {ROUNDS}"));
        scene.detach(&target);
        target.quit();
        let r = scene.finished(&recording);
        r.assert_sound();
        // With a wrong clock, blocks passed to another thread would be freed before they are allocated.
        assert_eq!(r.number("/recording/unknown_frees"), 0, "{clock}: {:#}", r.brief());
        let group = r.marked("handed.c", "handed_block");
        assert_eq!(group.number("allocations"), ROUNDS * THREADS, "{clock}");
        group.assert_live(0, 0);
        // Nanoseconds since the attach.
        let last = group.number("last_ns");
        assert!(last > group.number("first_ns") && last < 600_000_000_000, "{clock}: {last}");
    }
}

#[test]
fn no_clock_makes_system_calls_under_a_filter() {
    for clock in CLOCKS {
        let scene = Scene::new("clock-filter");
        let mut target = Target::start(&program("late_filter.c"), &[]);
        let recording = attach(&scene, &target, clock);
        target.ask("thread");
        // The filter kills for clock_gettime, too.
        target.ask("prctl");
        target.ask("thread");
        target.ask("thread");
        scene.detach(&target);
        target.quit();
        let r = scene.finished(&recording);
        r.assert_sound();
        let groups = r.asked_by("filtered_block");
        let all: u64 = groups.iter().map(|g| g.number("allocations")).sum();
        assert_eq!(all, 300, "{clock}: {}", r.askers());
    }
}

/// On other architectures no kernel has this setting, or only the latest.
#[cfg(target_arch = "x86_64")]
#[test]
fn who_may_not_read_the_counter_is_recorded_without_it() {
    for (mode, how) in [("early", ""), ("late", "prctl"), ("late", "syscall")] {
        let scene = Scene::new("closed");
        let mut target = Target::start(&program("counter.c"), &[mode]);
        let out = scene.prof(&["attach", &target.pid.to_string()]).ok("prof attach");
        assert_eq!(out.stderr.contains("PR_SET_TSC"), mode == "early", "{out:?}");
        target.ask("alloc");
        if mode == "late" {
            target.ask(how);
        }
        target.ask("alloc");
        // Time continues, but only as the collector updates it.
        scene.prof(&["pause", &target.pid.to_string()]).ok("prof pause");
        scene.prof(&["resume", &target.pid.to_string()]).ok("prof resume");
        target.ask("alloc");
        scene.detach(&target);
        target.ask("alloc");
        target.quit();
        let r = scene.finished(&scene.path(out.stdout.trim()));
        r.assert_sound();
        let groups = r.asked_by("timed_block");
        let all: u64 = groups.iter().map(|g| g.number("allocations")).sum();
        assert_eq!(all, 600, "{mode} {how}: {}", r.askers());
        groups.iter().for_each(|g| g.assert_live(0, 0));
        assert_eq!(r.number("/recording/unknown_frees"), 0, "{mode} {how}");
    }
}
