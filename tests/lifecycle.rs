//! From attach to detach and beyond: nothing left behind, cycles under load, stopped targets, targets that are killed,
//! fork, exec or end, reports on a growing file, and a killed prof.

use common::build::program;
use common::snapshot::Snapshot;
use common::{Report, Scene, Target, until, writers};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Starts a process that has allocated before, so that its memory map does not change by itself.
fn warm() -> Target {
    let mut target = Target::start(&program("toggle.c"), &[]);
    target.ask("alloc 100");
    target.ask("free 100");
    target
}

#[test]
fn a_program_that_is_just_starting_is_waited_for() {
    let scene = Scene::new("starting");
    let mut command = Command::new(program("toggle.c"));
    // SAFETY: the closure makes one system call and does not allocate.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let mut target = Target::spawn(command);
    let pid = Pid::from_raw(target.pid);
    // It is stopped at its first instruction, with only itself and the dynamic linker loaded.
    let stopped = waitpid(pid, None).expect("waitpid");
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGTRAP));
    ptrace::detach(pid, Signal::SIGSTOP).expect("detached");
    let starts = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        kill(pid, Signal::SIGCONT).expect("it goes on");
    });
    let recording = scene.attach(&target);
    starts.join().expect("started");
    target.expect("ready");
    target.ask("alloc 10");
    scene.detach(&target);
    target.quit();
    assert!(scene.finished(&recording).total("allocations") >= 10);
}

#[test]
fn detach_leaves_nothing_behind() {
    let scene = Scene::new("nothing");
    for (source, commands) in [("toggle.c", &["alloc 1000"][..]), ("new_delete.cpp", &["go"])] {
        let mut target = Target::start(&program(source), &[]);
        // Everything has run once, so that the heap and lazy bindings will not change.
        commands.iter().for_each(|c| drop(target.ask(c)));
        let idle = |t: &Target| until("the target waits", || t.status("State").starts_with('S'));
        idle(&target);
        let before = Snapshot::of(&target);
        let recording = scene.attach(&target);
        idle(&target);
        let during = Snapshot::of(&target);
        assert!(!during.foreign().is_empty(), "the snapshot does not see the hook");
        scene.detach(&target);
        idle(&target);
        before.assert_same(&Snapshot::of(&target));
        until("the collector is gone", || writers(&recording).is_empty());
        target.quit();
    }
}

#[test]
fn fifty_cycles_under_load() {
    let scene = Scene::new("cycles");
    let mut target = Target::start(&program("stress.c"), &[]);
    let file = scene.path("cycle.prof");
    for i in 0..50 {
        let _ = std::fs::remove_file(&file);
        let recording = scene.attach_with(&target, &["-o", file.to_str().unwrap()]);
        scene.detach(&target);
        assert!(target.alive(), "cycle {i}");
        if i % 10 == 0 {
            scene.finished(&recording);
        }
    }
    let after = Snapshot::of(&target);
    assert!(after.foreign().is_empty(), "{:#?}", after.foreign());
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
}

#[test]
fn everything_before_a_kill_9_is_in_the_recording() {
    let scene = Scene::new("killed");
    for round in 0..5u64 {
        let mut target = Target::start(&program("steady.c"), &[]);
        let recording = scene.attach(&target);
        target.send("go");
        let mut seen = 0u64;
        while seen < 20_000 + 7_000 * round {
            seen = target.expect("count").rsplit(' ').next().unwrap().parse().unwrap();
        }
        target.kill();
        while let Some(line) = target.line_within(Duration::from_secs(5)) {
            seen = line.rsplit(' ').next().unwrap().parse().unwrap_or(seen);
        }
        let r = scene.finished(&recording);
        assert_eq!(r.number("/recording/lost_events"), 0);
        let group = r.marked("steady.c", "steady_block");
        let live = group.number("live_count");
        assert!(live >= seen && live <= seen + 1000, "{live} recorded, {seen} said");
        assert_eq!(group.number("live_bytes"), 32 * live);
        std::fs::remove_file(&recording).unwrap();
    }
}

#[test]
fn a_target_that_ends_by_itself_finishes_the_recording() {
    let scene = Scene::new("ends");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 321");
    target.quit();
    let r = scene.finished(&recording);
    r.marked("toggle.c", "toggled_block").assert_live(321, 321 * 128);
    let out = scene.prof(&["detach", &target.pid.to_string()]);
    assert_eq!(out.code, 3, "{out:?}");
}

#[test]
fn a_stopped_target_stays_stopped_through_attach_and_detach() {
    let scene = Scene::new("stopped");
    let mut target = warm();
    target.signal(Signal::SIGSTOP);
    until("the target is stopped", || target.status("State").starts_with('T'));
    let before = Snapshot::of(&target);
    let recording = scene.attach(&target);
    // When it is released, it runs to its next stop in the kernel, which can take a while on a busy machine.
    until("the target is stopped", || target.status("State").starts_with('T'));
    assert_eq!(target.status("TracerPid"), "0");
    target.send("alloc 5");
    let early = target.line_within(Duration::from_millis(300));
    assert_eq!(early, None, "a stopped process answered");
    target.signal(Signal::SIGCONT);
    target.expect("done");
    target.signal(Signal::SIGSTOP);
    until("the target is stopped", || target.status("State").starts_with('T'));
    scene.detach(&target);
    until("the target is stopped", || target.status("State").starts_with('T'));
    before.assert_same(&Snapshot::of(&target));
    target.signal(Signal::SIGCONT);
    target.quit();
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(5, 5 * 128);
}

#[test]
fn reports_on_a_growing_recording_never_go_backwards() {
    let scene = Scene::new("growing");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    let mut last = 0;
    for i in 1..=10 {
        target.ask("alloc 500");
        // Committed events are in the file soon, without any further event.
        until("the events are in the file", || {
            let r = scene.report(&recording);
            assert!(!r.bool("/recording/complete"));
            let n = r.total("allocations");
            assert!(n >= last && n <= 500 * i, "{n} after {last}");
            last = n;
            n == 500 * i
        });
    }
    scene.detach(&target);
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(5000, 5000 * 128);
}

#[test]
fn children_are_as_they_would_be_and_do_not_disturb_the_recording() {
    let scene = Scene::new("fork");
    let mut target = Target::start(&program("fork.c"), &[]);
    target.ask("go");
    let recording = scene.attach(&target);
    target.ask("go");
    target.ask("go");
    scene.detach(&target);
    target.ask("go");
    target.quit();
    let r = scene.finished(&recording);
    r.marked("fork.c", "parent_block").assert_live(20, 20 * 7000);
    assert!(r.asked_by("child_block").is_empty(), "a child wrote into the recording");
    assert_eq!(r.number("/recording/lost_events"), 0);
}

#[test]
fn exec_ends_the_recording_and_starts_a_clean_life() {
    let scene = Scene::new("exec");
    let mut target = Target::start(&program("exec.c"), &[]);
    let recording = scene.attach(&target);
    target.send("go");
    target.expect("second life");
    assert_eq!(target.ask("go"), "done");
    let after = Snapshot::of(&target);
    assert!(after.foreign().is_empty(), "{:#?}", after.foreign());
    let r = scene.finished(&recording);
    r.marked("exec.c", "before_exec").assert_live(1, 4321);
    // The new program can be recorded like any process.
    let out = scene.path("again.prof");
    let again = scene.attach_with(&target, &["-o", out.to_str().unwrap()]);
    assert_eq!(target.ask("go"), "done");
    scene.detach(&target);
    scene.finished(&again);
    target.quit();
}

#[test]
fn status_tells_recorded_from_paused() {
    let scene = Scene::new("status");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach_with(&target, &["--no-maps"]);
    target.ask("alloc 77");
    let ask = |args: &[&str]| -> serde_json::Value {
        let out = scene.prof(args).ok("status").stdout;
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
    };
    let name = recording.file_name().unwrap().to_str().unwrap();
    let text = scene.prof(&["status", &pid]).ok("status").stdout;
    assert!(text.contains(name) && text.contains(&pid), "{text}");
    let state = || {
        let json = ask(&["status", &pid, "--format", "json"]);
        assert!(json["path"].as_str().is_some_and(|p| p.ends_with(name)), "{json}");
        assert_eq!((&json["pid"], &json["lost_events"]), (&target.pid.into(), &0.into()));
        assert_eq!(json["events"], 77);
        json["state"].as_str().expect("a state").to_owned()
    };
    assert_eq!(state(), "recording");
    let all = ask(&["status", "--format", "json"]);
    let mine = all.as_array().expect("a list").iter().filter(|s| s["pid"] == target.pid).count();
    assert_eq!(mine, 1, "without a pid, every recorded process: {all}");
    scene.prof(&["pause", &pid]).ok("pause");
    assert_eq!(state(), "paused");
    scene.prof(&["resume", &pid]).ok("resume");
    assert_eq!(state(), "recording");
    target.signal(Signal::SIGUSR1);
    until("the signal has switched it off", || state() == "paused");
    scene.detach(&target);
    let out = scene.prof(&["status", &pid]);
    assert_eq!(out.code, 3, "status of a process that is not recorded: {out:?}");
    let all = scene.prof(&["status"]).ok("status").stdout;
    assert!(!all.contains(name), "{all}");
}

#[test]
fn a_second_prof_takes_over_after_the_collector_was_killed() {
    let scene = Scene::new("orphan");
    let mut target = warm();
    let before = Snapshot::of(&target);
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    let collectors = writers(&recording);
    assert!(!collectors.is_empty(), "nobody writes the recording");
    for pid in collectors {
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill the collector");
    }
    target.ask("alloc 100");
    scene.prof(&["detach", &target.pid.to_string()]).ok("detach without a collector");
    before.assert_same(&Snapshot::of(&target));
    target.ask("free 200");
    target.quit();
}

#[test]
fn foreground_ends_with_its_duration_and_detaches() {
    let scene = Scene::new("foreground");
    let mut target = warm();
    let before = Snapshot::of(&target);
    let mut command = Command::new(Scene::binary());
    command.args(["attach", &target.pid.to_string(), "--foreground", "--duration", "1s"]);
    let out = scene.run(command).ok("attach --foreground --duration");
    assert!(out.took >= Duration::from_millis(900), "{:?}", out.took);
    before.assert_same(&Snapshot::of(&target));
    let path = out.stdout.lines().next().expect("the path");
    let r = scene.finished(&scene.path(path));
    let duration = r.number("/recording/duration_ns");
    let took = out.took.as_nanos() as u64;
    assert!((800_000_000..took).contains(&duration), "{duration} ns of {took}");
    target.ask("alloc 1");
    target.quit();
}

#[test]
fn duration_in_the_background_detaches_too() {
    let scene = Scene::new("duration");
    let mut target = warm();
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &["--duration", "1s"]);
    target.ask("alloc 12");
    let r = scene.finished(&recording);
    r.marked("toggle.c", "toggled_block").assert_live(12, 12 * 128);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}

#[test]
fn foreground_ends_with_ctrl_c_and_with_the_target() {
    let scene = Scene::new("ctrl-c");
    // Ctrl-C, Ctrl-\, a terminal that goes, a service manager.
    let signals = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGTERM];
    for signal in signals.into_iter().map(Some).chain([None]) {
        let mut target = Target::start(&program("toggle.c"), &[]);
        let mut command = Command::new(Scene::binary());
        let file = scene.path(&format!("{signal:?}.prof"));
        command.current_dir(&scene.dir).args(["attach", &target.pid.to_string(), "--foreground"]);
        command.arg("-o").arg(&file);
        let mut prof = Target::spawn(command);
        let path = prof.line();
        assert_eq!(scene.path(&path), file);
        target.ask("alloc 40");
        match signal {
            Some(signal) => prof.signal(signal),
            None => target.quit(),
        }
        assert_eq!(prof.wait(), 0, "the exit code of prof after {signal:?}");
        let r: Report = scene.finished(&file);
        r.marked("toggle.c", "toggled_block").assert_live(40, 40 * 128);
        if signal.is_some() {
            assert!(Snapshot::of(&target).foreign().is_empty());
            target.quit();
        }
    }
}

#[test]
fn a_foreground_that_ignores_the_end_of_its_terminal_goes_on() {
    let scene = Scene::new("nohup");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let mut command = Command::new("sh");
    // As by nohup.
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(Scene::binary());
    command.args(["attach", "--foreground", "-o", "r.prof", &target.pid.to_string()]);
    let mut prof = Target::spawn({
        command.current_dir(&scene.dir);
        command
    });
    prof.line();
    prof.signal(Signal::SIGHUP);
    target.ask("alloc 40");
    prof.signal(Signal::SIGINT);
    assert_eq!(prof.wait(), 0);
    let r = scene.finished(&scene.path("r.prof"));
    r.marked("toggle.c", "toggled_block").assert_live(40, 40 * 128);
    target.quit();
}
