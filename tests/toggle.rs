//! Recording switched off and on: by SIGUSR1, by other signals, by pause and resume, in numbered parts; a target's own
//! handler is left alone; detach restores the disposition.

use common::build::program;
use common::{Report, Scene, Target};
use nix::sys::signal::Signal;

fn parts(r: &Report) -> usize {
    r.at("/recording/parts").as_array().unwrap().len()
}

/// Asserts parts that follow each other without overlap.
#[track_caller]
fn assert_parts(r: &Report, wanted: usize) {
    let list = r.at("/recording/parts").as_array().unwrap();
    assert_eq!(list.len(), wanted, "{list:?}");
    let bounds: Vec<u64> = list
        .iter()
        .flat_map(|p| [p["start_ns"].as_u64().expect("start"), p["end_ns"].as_u64().expect("end")])
        .collect();
    assert!(bounds.is_sorted(), "{list:?}");
}

/// Returns whether the mask in /proc/PID/status has the signal.
fn has(target: &Target, mask: &str, signal: i32) -> bool {
    let bits = u128::from_str_radix(&target.status(mask), 16).expect("a mask");
    bits >> (signal - 1) & 1 == 1
}

#[test]
fn usr1_switches_recording_off_and_on_any_number_of_times() {
    let scene = Scene::new("usr1");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    // A single thread handles the signal before it reads the next command.
    for _ in 0..5 {
        target.signal(Signal::SIGUSR1);
        target.ask("alloc 1000");
        target.signal(Signal::SIGUSR1);
        target.ask("alloc 10");
    }
    scene.detach(&target);
    target.ask("free 5150");
    target.quit();
    let r = scene.finished(&recording);
    r.marked("toggle.c", "toggled_block").assert_live(150, 150 * 128);
    assert_eq!(r.total("allocations"), 150);
    assert_parts(&r, 6);
}

#[test]
fn pause_and_resume_do_the_same() {
    let scene = Scene::new("pause");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach(&target);
    // The signal interrupts waits, which some programs take for the end, so it does not come first.
    let status = scene.prof(&["status", &pid]).ok("status").stdout;
    let line = status.lines().find(|l| l.trim_start().starts_with("toggle")).expect("a line");
    let ways =
        [format!("prof pause {pid}"), format!("prof resume {pid}"), format!("kill -USR1 {pid}")];
    let places = ways.map(|way| line.find(&way).unwrap_or_else(|| panic!("no {way}: {line}")));
    assert!(places.is_sorted() && line.contains("interrupts waits"), "{line}");
    target.ask("alloc 3");
    for _ in 0..3 {
        scene.prof(&["pause", &pid]).ok("pause");
        target.ask("alloc 1000");
        scene.prof(&["resume", &pid]).ok("resume");
        target.ask("alloc 1");
    }
    scene.prof(&["pause", &pid]).ok("pause");
    scene.prof(&["pause", &pid]).ok("a second pause");
    target.ask("alloc 1000");
    scene.detach(&target);
    let r = scene.finished(&recording);
    r.marked("toggle.c", "toggled_block").assert_live(6, 6 * 128);
    assert_parts(&r, 4);
}

#[test]
fn frees_while_off_are_not_invented() {
    let scene = Scene::new("off");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    target.signal(Signal::SIGUSR1);
    target.ask("free 40");
    target.signal(Signal::SIGUSR1);
    target.ask("free 10");
    scene.detach(&target);
    let r = scene.finished(&recording);
    assert_eq!(r.total("allocations"), 100);
    assert_eq!(
        r.total("frees"),
        10,
        "the frees of the second part, and no others: {:#}",
        r.brief()
    );
}

#[test]
fn paused_from_the_start() {
    let scene = Scene::new("paused");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach_with(&target, &["--paused"]);
    target.ask("alloc 50");
    target.signal(Signal::SIGUSR1);
    target.ask("alloc 7");
    scene.detach(&target);
    let r = scene.finished(&recording);
    r.marked("toggle.c", "toggled_block").assert_live(7, 7 * 128);
    assert_parts(&r, 1);
}

#[test]
fn the_signal_can_be_chosen() {
    let scene = Scene::new("signal");
    let real_time = nix::libc::SIGRTMIN() + 3;
    let cases = [("USR2", nix::libc::SIGUSR2), ("RTMIN+3", real_time)];
    for (name, number) in cases {
        let mut target = Target::start(&program("toggle.c"), &[]);
        let recording = scene.attach_with(&target, &["--signal", name]);
        assert!(has(&target, "SigCgt", number), "{name} has no handler");
        assert!(!has(&target, "SigCgt", nix::libc::SIGUSR1), "USR1 has a handler");
        let pid = target.pid.to_string();
        let send = || {
            let kill = std::process::Command::new("kill")
                .args([format!("-{number}"), pid.clone()])
                .status();
            assert!(kill.expect("kill").success());
        };
        send();
        target.ask("alloc 50");
        send();
        target.ask("alloc 5");
        scene.detach(&target);
        assert!(!has(&target, "SigCgt", number), "{name} still has a handler");
        target.quit();
        let r = scene.finished(&recording);
        r.marked("toggle.c", "toggled_block").assert_live(5, 5 * 128);
    }
    let target = Target::start(&program("toggle.c"), &[]);
    let before = target.status("SigCgt");
    scene.attach_with(&target, &["--signal", "none"]);
    let status = scene.prof(&["status", &target.pid.to_string()]).ok("status").stdout;
    assert!(status.contains("prof pause ") && !status.contains("kill -"), "{status}");
    assert_eq!(target.status("SigCgt"), before, "--signal none touches no signal");
    scene.detach(&target);
    let out = scene.prof(&["attach", &target.pid.to_string(), "--signal", "KILL"]);
    assert_eq!(out.code, 2, "{out:?}");
}

#[test]
fn a_handler_of_the_targets_own_is_left_alone() {
    let scene = Scene::new("own");
    let mut target = Target::start(&program("toggle.c"), &["handler"]);
    let out = scene.prof(&["attach", &target.pid.to_string()]).ok("attach");
    assert!(out.stderr.contains("USR1"), "says that there is no toggle: {}", out.stderr);
    target.signal(Signal::SIGUSR1);
    assert_eq!(target.ask("handled"), "done 1");
    target.ask("alloc 9");
    scene.detach(&target);
    target.signal(Signal::SIGUSR1);
    assert_eq!(target.ask("handled"), "done 2");
    target.quit();
    let r = scene.finished(&scene.path(out.stdout.trim_end()));
    r.marked("toggle.c", "toggled_block").assert_live(9, 9 * 128);
    assert_parts(&r, 1);
}

#[test]
fn the_disposition_is_restored_and_late_signals_do_no_harm() {
    let scene = Scene::new("late");
    let mut target = Target::start(&program("toggle.c"), &[]);
    for i in 0..10 {
        let masks = ["SigCgt", "SigIgn", "SigBlk"].map(|m| target.status(m));
        scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        assert!(has(&target, "SigCgt", nix::libc::SIGUSR1));
        // As many as possible, right before the detach.
        for _ in 0..20 {
            target.signal(Signal::SIGUSR1);
        }
        scene.detach(&target);
        assert_eq!(masks, ["SigCgt", "SigIgn", "SigBlk"].map(|m| target.status(m)));
        target.ask("alloc 1");
    }
    target.quit();
}

#[test]
fn an_ignored_signal_is_ignored_again_after_the_detach() {
    let scene = Scene::new("ignored");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' USR1; exec \"$0\""]).arg(program("toggle.c"));
    let mut target = Target::spawn(command);
    target.expect("ready");
    assert!(has(&target, "SigIgn", nix::libc::SIGUSR1));
    scene.attach(&target);
    target.ask("alloc 1");
    scene.detach(&target);
    assert!(has(&target, "SigIgn", nix::libc::SIGUSR1), "no longer ignored");
    target.signal(Signal::SIGUSR1);
    target.ask("alloc 1");
    target.quit();
}

#[test]
fn many_threads_and_many_switches() {
    let scene = Scene::new("storm");
    let mut target = Target::start(&program("stress.c"), &[]);
    let recording = scene.attach(&target);
    for _ in 0..200 {
        target.signal(Signal::SIGUSR1);
        target.ask("operations");
    }
    scene.detach(&target);
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
    let r = scene.finished(&recording);
    assert!(parts(&r) >= 1 && parts(&r) <= 101, "{} parts", parts(&r));
    assert!(r.total("allocations") > 0);
}
