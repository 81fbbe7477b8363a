//! Targets that restrict their own system calls: prof makes no call in them that they do not expect, whenever the
//! restriction begins.

use common::build::{program, program_with};
use common::snapshot::Snapshot;
use common::{Scene, Target, is_refused_by_dlopen, skip};
use nix::sys::signal::Signal;

const CATCHES: &str = "the calls of its dynamic linker would be caught, so prof refuses dlopen";

/// As long as there is no filter, the hook makes system calls to read the memory of an unknown stack, and to get a
/// thread's ID.
fn filtered_while_recorded(by: &str) {
    let scene = Scene::new(by);
    let mut target = Target::start(&program("late_filter.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("thread");
    target.ask(by);
    for what in ["thread", "fiber", "thread", "fiber"] {
        target.ask(what);
    }
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    let groups = r.asked_by("filtered_block");
    let all: u64 = groups.iter().map(|g| g.number("allocations")).sum();
    assert_eq!(all, 500, "{}", r.askers());
}

#[test]
fn a_filter_by_prctl_comes_while_recording() {
    filtered_while_recorded("prctl");
}

#[test]
fn a_filter_by_the_seccomp_call_comes_while_recording() {
    filtered_while_recorded("syscall");
}

/// In seccomp's strict mode the kernel kills for any call but four, and AMD64's counter can't be read.
fn strict_while_recorded(by: &str) {
    let scene = Scene::new(&format!("strict_{by}"));
    let mut target = Target::start(&program_with("strict.c", &["-pthread"]), &[]);
    let recording = scene.attach(&target);
    target.ask(by);
    target.ask("work");
    // A detach would need calls, so prof's memory stays, without effect.
    let out = scene.prof(&["detach", &target.pid.to_string()]);
    assert!(out.code != 0 && out.stderr.contains("strict mode"), "{out:#?}");
    target.ask("work");
    assert!(target.alive(), "the process was killed");
    target.kill();
    let r = scene.ended(&recording);
    let all: u64 = r.asked_by("strictly").iter().map(|g| g.number("allocations")).sum();
    assert!(all >= 2000, "{}", r.askers());
}

#[test]
fn strict_mode_by_prctl_comes_while_recording() {
    strict_while_recorded("prctl");
}

#[test]
fn strict_mode_by_the_seccomp_call_comes_while_recording() {
    strict_while_recorded("syscall");
}

#[test]
fn a_process_with_a_thread_in_strict_mode_is_left_alone() {
    let scene = Scene::new("strict_worker");
    let strict = program_with("strict.c", &["-pthread"]);
    let mut worker = Target::start(&strict, &["worker"]);
    let out = scene.prof(&["attach", &worker.pid.to_string()]);
    assert!(out.code == 3 && out.stderr.contains("strict mode"), "{out:#?}");
    assert!(worker.alive(), "the process was killed");
    worker.kill();
    // No copy is made by a thread that may make no call.
    let mut alone = Target::start(&strict, &[]);
    alone.ask("prctl");
    let out = scene.prof(&["heap", &alone.pid.to_string(), "--snapshot", "fork"]);
    assert!(out.code != 0 && out.stderr.contains("strict mode"), "{out:#?}");
    alone.ask("work");
    alone.kill();
}

#[test]
fn prctl_and_syscall_are_not_named_among_allocators() {
    let scene = Scene::new("watched");
    let mut target = Target::start(&program("late_filter.c"), &[]);
    scene.attach(&target);
    let pid = target.pid.to_string();
    for args in [&["status", &pid][..], &["status", &pid, "--format", "json"]] {
        let out = scene.prof(args).ok("prof status");
        assert!(out.stdout.contains("malloc"), "{out:?}");
        for name in ["prctl", "syscall", "_dl_debug_state"] {
            assert!(!out.stdout.contains(name), "{name}: {out:?}");
        }
    }
    scene.detach(&target);
    target.quit();
}

#[test]
fn calls_that_are_dispatched_to_the_target_itself_are_none_of_prof() {
    if is_refused_by_dlopen("dispatched", CATCHES) {
        return;
    }
    let scene = Scene::new("dispatched");
    let mut target = Target::spawn(std::process::Command::new(program("dispatched.c")));
    if target.expect("") == "unsupported" {
        return skip("dispatched", "the kernel has no PR_SET_SYSCALL_USER_DISPATCH");
    }
    let pid = target.pid.to_string();
    target.send("compute");
    target.expect("computing");
    common::until("it computes", || target.proc("syscall").starts_with("running"));
    let before = Snapshot::of(&target);
    let out = scene.prof(&["attach", &pid]);
    if out.code == 0 || !target.alive() {
        // Before Linux 6.4 the kernel does not tell.
        assert!(!kernel_tells(), "{out:?}");
        return skip("dispatched", "the kernel does not say how calls are dispatched");
    }
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("PR_SET_SYSCALL_USER_DISPATCH"), "{out:?}");
    before.assert_same(&Snapshot::of(&target));
    target.signal(Signal::SIGUSR2);
    assert_eq!(target.line(), "done caught=0");
    // When the calls pass, everything works as usual; and a detach needs such a moment, too.
    let recording = scene.attach(&target);
    target.ask("go");
    target.send("compute");
    target.expect("computing");
    common::until("it computes", || target.proc("syscall").starts_with("running"));
    let out = scene.prof(&["detach", &pid]);
    assert_eq!(out.code, 1, "{out:?}");
    target.signal(Signal::SIGUSR2);
    assert_eq!(target.line(), "done caught=0");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording).marked("dispatched.c", "dispatched_block").assert_live(50, 1600);
}

/// Each step of an attach and a detach waits for a moment in which the calls pass.
#[test]
fn calls_that_pass_at_times_are_enough() {
    if is_refused_by_dlopen("at-times", CATCHES) {
        return;
    }
    let scene = Scene::new("at-times");
    let mut target = Target::spawn(std::process::Command::new(program("dispatched.c")));
    if target.expect("") == "unsupported" || !kernel_tells() {
        return skip("at-times", "the kernel can't dispatch calls, or does not say so");
    }
    let before = Snapshot::of(&target);
    target.send("blink");
    target.expect("blinking");
    let recordings: Vec<_> = (0..4)
        .map(|i| {
            scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
            scene.detach(&target)
        })
        .collect();
    target.signal(Signal::SIGUSR2);
    assert_eq!(target.line(), "done caught=0");
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    recordings.iter().for_each(|r| drop(scene.finished(r)));
}

/// Returns whether the kernel is Linux 6.4 or later.
fn kernel_tells() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(['.', '-']).map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(6), Some(4))
}
