//! The target comes to no harm: signals, unusual places to allocate in, registers, threads that can't be stopped, and
//! heaps that are already broken.

use common::build::program;
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use nix::sys::signal::Signal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Attaches and detaches this many times, into a new recording each time.
fn cycles(scene: &Scene, target: &Target, count: usize) {
    for i in 0..count {
        let file = scene.path(&format!("cycle{i}.prof"));
        scene.attach_with(target, &["-o", file.to_str().unwrap()]);
        scene.detach(target);
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn no_signal_is_lost_or_doubled_or_misdirected() {
    let scene = Scene::new("signals");
    let mut target = Target::start(&program("signals.c"), &[]);
    cycles(&scene, &target, 20);
    let answer = target.ask("stop");
    assert!(answer.starts_with("done OK"), "{answer}");
    target.quit();
}

#[test]
fn a_stopped_job_stays_stopped_and_in_its_group() {
    let scene = Scene::new("job");
    // A process group of its own, whose parent is in another one, as the kernel does not stop orphaned groups.
    let mut command = Command::new(program("toggle.c"));
    command.process_group(0);
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask("alloc 10");
    // Parent, group, session, terminal, its foreground group.
    let job = |t: &Target| -> Vec<String> {
        let stat = t.proc("stat");
        let fields = stat[stat.rfind(')').unwrap() + 2..].split(' ').skip(1).take(5);
        fields.map(str::to_owned).collect()
    };
    let before = job(&target);
    for signal in [Signal::SIGTSTP, Signal::SIGSTOP, Signal::SIGTTIN] {
        target.signal(signal);
        until("the target is stopped", || target.status("State").starts_with('T'));
        cycles(&scene, &target, 3);
        until("the target is stopped", || target.status("State").starts_with('T'));
        assert_eq!(job(&target), before);
        target.signal(Signal::SIGCONT);
        until("the target goes on", || target.status("State").starts_with('S'));
    }
    target.ask("free 10");
    target.quit();
}

#[test]
fn allocations_in_odd_places() {
    let scene = Scene::new("places");
    let mut target = Target::start(&program("places.cpp"), &[]);
    let all = ["atfork", "destructors", "overflow", "fibers", "exceptions"];
    let mut answers = Vec::new();
    for word in all {
        answers.push(target.ask(word));
    }
    let recording = scene.attach(&target);
    for (word, answer) in all.iter().zip(&answers) {
        assert_eq!(target.ask(word), *answer);
    }
    scene.detach(&target);
    for (word, answer) in all.iter().zip(&answers) {
        assert_eq!(target.ask(word), *answer, "after the detach");
    }
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0);
    for (marker, function, calls) in [
        ("prepare_block", "prepare_block", 20),
        ("parent_block", "parent_block", 20),
        ("tls_block", "tls_block", 20),
        ("key_block", "key_block", 20),
        ("after_block", "after_block", 40),
        ("fiber_block", "fiber_block", 40),
    ] {
        let line = common::build::line_of("places.cpp", marker);
        let sum: u64 = r.asked_by(function).iter().map(|g| g.number("allocations")).sum();
        assert_eq!(sum, calls, "{function}, line {line}: {}", r.askers());
    }
}

#[test]
fn exit_handlers_run_while_recording() {
    let scene = Scene::new("exit");
    let mut target = Target::start(&program("places.cpp"), &[]);
    let recording = scene.attach(&target);
    target.send("quit");
    target.expect("bye");
    target.expect("exit OK");
    assert_eq!(target.wait(), 0);
    let r = scene.finished(&recording);
    let sum: u64 = r.asked_by("exit_block").iter().map(|g| g.number("allocations")).sum();
    assert_eq!(sum, 1, "{}", r.askers());
}

#[test]
fn registers_and_errno_survive_every_function_and_every_stop() {
    let scene = Scene::new("registers");
    let mut target = Target::start(&program("registers.c"), &[]);
    target.ask("calls");
    for options in [&[][..], &["--free-stacks"], &["--verify-stacks"], &["--paused"]] {
        let recording = scene.attach_with(&target, options);
        let answer = target.ask("calls");
        assert_eq!(answer, "done 7200 calls");
        scene.detach(&target);
        std::fs::remove_file(recording).unwrap();
    }
    cycles(&scene, &target, 20);
    target.ask("calls");
    let spins = target.ask("spins");
    assert!(!spins.starts_with("done 0 "), "{spins}");
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
}

#[test]
fn a_process_with_a_thread_that_does_not_stop_is_refused_and_goes_on() {
    for (kind, ms) in [("alone", 6000), ("beside", 6000)] {
        let scene = Scene::new(kind);
        let mut target = Target::start(&program("stuck.c"), &[kind]);
        let pid = target.pid.to_string();
        target.send(&format!("go {ms}"));
        target.expect("going");
        let stuck = || {
            let tasks = common::numbers_in(Path::new(&format!("/proc/{pid}/task")));
            let state = |t: &i32| std::fs::read_to_string(format!("/proc/{pid}/task/{t}/stat"));
            tasks.iter().any(|t| state(t).is_ok_and(|s| s.contains(") D ")))
        };
        until("a thread waits in vfork", stuck);
        let before = Snapshot::of(&target);
        let out = scene.prof(&["attach", &pid, "--timeout", "500ms", "-o", "refused.prof"]);
        if out.code == 0 {
            // The child was faster, as the machine was busy.
            assert!(!stuck(), "{out:?}");
            scene.detach(&target);
        } else {
            assert!(out.stderr.contains("did not stop within"), "{out:?}");
            assert!(!scene.path("refused.prof").exists());
            if stuck() {
                before.assert_same(&Snapshot::of(&target));
            }
        }
        if kind == "beside" {
            // The other threads are not held up.
            target.send("alloc");
        }
        target.expect("done");
        // With a longer timeout it works, as soon as the child has ended.
        let recording = scene.attach_with(&target, &["--timeout", "30s", "-o", "later.prof"]);
        scene.detach(&target);
        assert!(recording.exists());
        target.kill();
    }
}

#[test]
fn a_recording_that_ends_beside_such_a_thread_is_taken_out_later() {
    let scene = Scene::new("later");
    let mut target = Target::start(&program("stuck.c"), &["beside"]);
    let tasks = format!("/proc/{}/task", target.pid);
    let alone = || common::numbers_in(Path::new(&tasks)).len() == 1;
    // The memory that an ended thread leaves behind exists before the snapshot.
    target.send("go 10");
    target.expect("going");
    target.expect("done");
    until("the thread has ended", alone);
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &["--duration", "1s"]);
    // Longer than the first detach waits.
    target.send("go 9000");
    target.expect("going");
    target.expect("done");
    scene.finished(&recording);
    until("the thread has ended", alone);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}

/// Returns the exit code and the output of a broken program, recorded or not.
fn end_of(scene: &Scene, how: &str, recorded: bool) -> (i32, String, String) {
    let stderr = scene.path("stderr");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c 0; exec \"$0\" \"$1\" 2>\"$2\""]);
    command.arg(program("corrupt.c")).arg(how).arg(&stderr);
    let mut target = Target::spawn(command);
    target.expect("ready");
    let recording = recorded.then(|| scene.attach(&target));
    target.send("go");
    let message = target.line_within(common::DEADLINE / 3).unwrap_or_default();
    let code = target.wait();
    if let Some(file) = recording {
        scene.finished(&file);
        std::fs::remove_file(file).unwrap();
    }
    (code, message, std::fs::read_to_string(&stderr).unwrap())
}

#[test]
fn a_broken_heap_fails_as_it_would_have() {
    let scene = Scene::new("corrupt");
    let mut aborted = 0;
    for how in ["double", "double-large", "invalid", "not-heap", "overrun", "top", "wild"] {
        let native = end_of(&scene, how, false);
        assert_eq!(end_of(&scene, how, true), native, "{how}");
        aborted += i32::from(native.0 == 128 + 6 && !native.2.is_empty());
    }
    // glibc detects these errors; other libcs detect others.
    if cfg!(target_env = "gnu") {
        assert!(aborted >= 4, "only {aborted} of them were found out");
    }
}

#[test]
fn a_stack_in_a_huge_page() {
    if common::is_refused_by_dlopen("huge", "its stack can't be followed to its end") {
        return;
    }
    let scene = Scene::new("huge");
    let mut target = Target::start(&program("huge.c"), &[]);
    cycles(&scene, &target, 5);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording).marked("huge.c", "huge_block").assert_live(1, 777);
}

/// The frame of a remote call must not overwrite anybody's data, not even for an instant.
#[test]
fn data_below_a_small_stack_is_never_touched() {
    if common::is_refused_by_dlopen("pooled", "its stack can't be followed to its end") {
        return;
    }
    let scene = Scene::new("pooled");
    let mut target = Target::start(&program("pooled.c"), &[]);
    let before = Snapshot::of(&target);
    cycles(&scene, &target, 4);
    assert_eq!(target.ask("count"), "done bad=0");
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}
