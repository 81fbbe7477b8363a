//! Reports at a signal to the recorded process.

use common::build::program;
use common::{Scene, Target, until};
use nix::libc;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Returns whether the mask in /proc/PID/status has the signal.
fn has(target: &Target, mask: &str, signal: i32) -> bool {
    let bits = u128::from_str_radix(&target.status(mask), 16).expect("a mask");
    bits >> (signal - 1) & 1 == 1
}

/// Sends a signal that may be a real-time one.
fn send(pid: i32, signal: i32) {
    // SAFETY: the call takes two integers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill");
}

/// Waits for a report, which has its name when it is complete.
fn read(path: &Path) -> String {
    until("the report", || path.exists());
    let mode = fs::metadata(path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    fs::read_to_string(path).expect("UTF-8")
}

/// Returns how the names of a target's reports begin.
fn beside(target: &Target) -> String {
    let comm = fs::read_to_string(format!("/proc/{}/comm", target.pid)).expect("a name");
    format!("prof.{}.{}", comm.trim_end().replace('.', "_"), target.pid)
}

fn live(json: &str) -> u64 {
    let report: Value = serde_json::from_str(json).expect("JSON");
    report["totals"]["live_count"].as_u64().expect("a number")
}

fn status(scene: &Scene, target: &Target) -> Value {
    let pid = target.pid.to_string();
    let out = scene.prof(&["status", &pid, "--format", "json"]).ok("prof status").stdout;
    serde_json::from_str(&out).expect("JSON")
}

#[test]
fn a_signal_gives_a_report_in_each_format_and_the_recording_goes_on() {
    let scene = Scene::new("formats");
    let mut target = Target::start(&program("toggle.c"), &[]);
    for (format, ending) in
        [("text", "txt"), ("json", "json"), ("folded", "folded"), ("flamegraph", "svg")]
    {
        let output = format!("{format}.prof");
        let options = ["--dump-signal", "USR2", "--report-format", format, "-o", &output];
        let recording = scene.attach_with(&target, &options);
        target.ask("alloc 40");
        target.signal(Signal::SIGUSR2);
        let text = read(&scene.path(&format!("{}.1.{ending}", beside(&target))));
        match format {
            "text" => {
                let line = text.lines().find(|l| l.starts_with("live")).expect("a line");
                assert!(line.ends_with("5.0 KiB in 40 blocks"), "{text}");
                assert!(
                    text.contains("toggled_block") && text.contains("still recording"),
                    "{text}"
                );
            }
            "json" => {
                assert_eq!(live(&text), 40, "{text}");
                assert!(text.starts_with("{\n  \"signals\": 1,\n"), "{text}");
            }
            "folded" => {
                assert!(text.contains(";toggled_block [") && text.ends_with(" 5120\n"), "{text}");
                assert_eq!(text.lines().count(), 1, "{text}");
            }
            _ => assert!(text.contains("<svg") && text.contains("toggled_block"), "{text}"),
        }
        target.ask("alloc 5");
        scene.detach(&target);
        scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(45, 45 * 128);
    }
    let left = fs::read_dir(&scene.dir).expect("a folder").flatten();
    let parts = left.filter(|f| f.file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(parts.count(), 0);
    target.quit();
}

#[test]
fn numbers_make_new_files_and_without_one_the_newest_report_replaces_the_file() {
    let scene = Scene::new("numbers");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let options = ["--dump-signal=USR2", "--report-format=json"];
    fs::write(scene.path("r.2"), "another's").expect("written");
    scene.attach_with(&target, &[&options[..], &["--report-file=r.{n}", "-o=1.prof"]].concat());
    for (name, all) in [("r.1", 3), ("r.3", 6), ("r.4", 9)] {
        target.ask("alloc 3");
        target.signal(Signal::SIGUSR2);
        assert_eq!(live(&read(&scene.path(name))), all);
    }
    let reports = || status(&scene, &target)["reports"].clone();
    until("the last is noted", || reports()["written"] == 3);
    assert_eq!(reports()["signals"], 3);
    assert_eq!(reports()["last"], scene.path("r.4").to_str().expect("UTF-8"));
    scene.detach(&target);
    assert_eq!(fs::read_to_string(scene.path("r.2")).expect("read"), "another's");
    let file = scene.path("one.json");
    scene.attach_with(&target, &[&options[..], &["--report-file=one.json", "-o=2.prof"]].concat());
    for all in [2, 4] {
        target.ask("alloc 2");
        target.signal(Signal::SIGUSR2);
        until("the newest report", || {
            fs::read_to_string(&file).is_ok_and(|text| live(&text) == all)
        });
    }
    scene.detach(&target);
    target.quit();
}

#[test]
fn signals_that_come_while_a_report_is_written_are_counted_and_answered_by_the_next() {
    let scene = Scene::new("burst");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let fifo = scene.path("reports");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    // These are queued, so that none of them is lost.
    let signal = libc::SIGRTMIN() + 3;
    let options = ["--dump-signal=RTMIN+3", "--report-file=reports", "--report-format=json"];
    scene.attach_with(&target, &options);
    let collector = status(&scene, &target)["collector_pid"].as_u64().expect("a pid");
    let children = |pid: u64| {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let threads = common::numbers_in(Path::new(&format!("/proc/{pid}/task")));
        let of = |tid: &i32| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
        assert!(Path::new(&path).exists(), "{path}");
        threads.iter().filter_map(|t| of(t).ok()).collect::<String>().split_whitespace().count()
    };
    let fds = || common::numbers_in(Path::new(&format!("/proc/{}/fd", target.pid)));
    let masks = || ["SigBlk", "SigIgn", "SigCgt", "Threads"].map(|m| target.status(m));
    let before = (fds(), masks());
    send(target.pid, signal);
    // The report can't be written until somebody reads.
    until("the report's process is there", || children(collector) == 1);
    (0..20).for_each(|_| send(target.pid, signal));
    target.ask("alloc 9");
    assert_eq!(children(target.pid as u64), 0, "the report's process is not the target's child");
    let fds = || common::numbers_in(Path::new(&format!("/proc/{}/fd", target.pid)));
    let masks = || ["SigBlk", "SigIgn", "SigCgt", "Threads"].map(|m| target.status(m));
    assert_eq!((fds(), masks()), before);
    assert_eq!(children(collector), 1, "one at a time");
    // The collector looks at the number from time to time.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let next = || {
        let text = fs::read_to_string(&fifo).expect("read");
        let report: Value = serde_json::from_str(&text).expect("JSON");
        report["signals"].as_u64().expect("a number")
    };
    assert_eq!(next(), 1);
    let mut all = 0;
    while all < 20 {
        all += next();
    }
    assert_eq!(all, 20);
    until("all are noted", || status(&scene, &target)["reports"]["signals"] == 21);
    assert_eq!(status(&scene, &target)["reports"]["written"], 2);
    let text = scene.prof(&["status", &target.pid.to_string()]).ok("status").stdout;
    assert!(text.contains("kill -RTMIN+3") && text.contains("for 20 signals"), "{text}");
    // One that can't be written is given up when the recording ends.
    send(target.pid, signal);
    until("the report's process is there", || children(collector) == 1);
    scene.detach(&target);
    let started = format!("--recording\0{}", scene.dir.display());
    let left = common::numbers_in(Path::new("/proc")).into_iter().filter(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&started)
    });
    assert_eq!(left.count(), 0, "no process is left");
    target.quit();
}

#[test]
fn each_member_of_a_family_has_its_own_reports() {
    let scene = Scene::new("family");
    let mut target = Target::start(&program("prefork.c"), &[]);
    let mut fork = || -> i32 {
        let said = target.ask("fork");
        said["done ".len()..].trim().parse().expect("a pid")
    };
    let children = [fork(), fork()];
    let root = target.pid.to_string();
    let options = ["--dump-signal=RTMIN+1", "--report-file={pid}.{n}.json", "--report-format=json"];
    let follow = ["attach", "--children", &root, "-o", "all"];
    scene.prof(&[&follow[..], &options[..]].concat()).ok("attach");
    // A child that comes later is attached to by another process, whose current folder is another.
    let late: i32 = {
        let said = target.ask("fork");
        said["done ".len()..].trim().parse().expect("a pid")
    };
    until("the new child is recorded", || {
        let out = scene.prof(&["status", &late.to_string()]);
        out.code == 0 && out.stdout.contains(": recording")
    });
    for pid in [target.pid, children[0], children[1], late] {
        send(pid, libc::SIGRTMIN() + 1);
        let report: Value =
            serde_json::from_str(&read(&scene.path(&format!("{pid}.1.json")))).expect("JSON");
        assert_eq!(report["target"]["pid"], pid, "{report:#}");
    }
    scene.prof(&["detach", "all"]).ok("detach");
    // The program handles this one itself.
    let out =
        scene.prof(&["attach", "--tree", &root, "-o", "own", "--dump-signal=USR2"]).ok("attach");
    assert_eq!(out.stderr.matches("uses USR2 itself").count(), 4, "{out:#?}");
    let text = scene.prof(&["status", &late.to_string()]).ok("status").stdout;
    assert!(text.contains("none at USR2: ") && text.contains("prof dump"), "{text}");
    scene.prof(&["detach", "own"]).ok("detach");
    target.kill();
}

#[test]
fn reports_are_written_while_recording_is_off() {
    let scene = Scene::new("off");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let options = ["--paused", "--dump-signal=USR2", "--report-file={n}", "--report-format=json"];
    scene.attach_with(&target, &options);
    target.ask("alloc 10");
    target.signal(Signal::SIGUSR2);
    assert_eq!(live(&read(&scene.path("1"))), 0);
    target.signal(Signal::SIGUSR1);
    target.ask("alloc 7");
    target.signal(Signal::SIGUSR1);
    target.ask("alloc 5");
    target.signal(Signal::SIGUSR2);
    assert_eq!(live(&read(&scene.path("2"))), 7);
    assert_eq!(status(&scene, &target)["state"], "paused", "the dump signal switches nothing");
    scene.detach(&target);
    target.quit();
}

#[test]
fn the_disposition_is_restored_and_late_signals_do_no_harm() {
    let scene = Scene::new("late");
    let mut target = Target::start(&program("toggle.c"), &[]);
    for i in 0..5 {
        let masks = ["SigCgt", "SigIgn", "SigBlk"].map(|m| target.status(m));
        let output = format!("{i}.prof");
        scene.attach_with(&target, &["-o", &output, "--dump-signal", "USR2"]);
        assert!([libc::SIGUSR1, libc::SIGUSR2].iter().all(|s| has(&target, "SigCgt", *s)));
        for _ in 0..20 {
            target.signal(Signal::SIGUSR1);
            target.signal(Signal::SIGUSR2);
        }
        scene.detach(&target);
        assert_eq!(masks, ["SigCgt", "SigIgn", "SigBlk"].map(|m| target.status(m)));
        target.ask("alloc 1");
        // What came before the end is answered: by the end, each signal has its report.
        let name = format!("{}.{}.txt", beside(&target), i + 1);
        assert!(scene.path(&name).exists(), "{name}");
    }
    // Without a toggle signal, too.
    scene.attach_with(&target, &["-o=x.prof", "--signal=none", "--dump-signal=USR2"]);
    assert!(has(&target, "SigCgt", libc::SIGUSR2) && !has(&target, "SigCgt", libc::SIGUSR1));
    scene.detach(&target);
    assert!(!has(&target, "SigCgt", libc::SIGUSR2));
    target.quit();
}

#[test]
fn a_signal_that_the_target_uses_itself_is_left_alone() {
    let scene = Scene::new("own");
    let mut target = Target::start(&program("toggle.c"), &["handler"]);
    let pid = target.pid.to_string();
    let options = ["attach", &pid, "--signal", "USR2", "--dump-signal", "USR1"];
    let out = scene.prof(&options).ok("attach");
    assert!(out.stderr.contains("handles or ignores SIGUSR1 itself"), "{}", out.stderr);
    assert!(out.stderr.contains(&format!("prof dump {pid}")), "{}", out.stderr);
    target.signal(Signal::SIGUSR1);
    assert_eq!(target.ask("handled"), "done 1");
    assert_eq!(status(&scene, &target)["dump_signal"], Value::Null);
    scene.detach(&target);
    target.signal(Signal::SIGUSR1);
    assert_eq!(target.ask("handled"), "done 2");
    for (options, part) in [
        (&["--dump-signal", "USR1"][..], "switches recording off and on already"),
        (&["--dump-signal", "KILL"], "no process can catch"),
        (&["--dump-signal", "TERM"], "USR1, USR2, RTMIN+N"),
        (&["--report-file", "x"], "--dump-signal"),
        (&["--dump-signal", "USR2", "--report-file", "x/"], "not a folder"),
    ] {
        let out = scene.prof(&[&["attach", &pid], options].concat());
        assert!(out.code == 2 && out.stderr.contains(part), "{out:#?}");
    }
    target.quit();
}

#[test]
fn a_killed_collector_leaves_a_signal_that_does_no_harm() {
    let scene = Scene::new("killed");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let masks = ["SigCgt", "SigIgn", "SigBlk"].map(|m| target.status(m));
    let recording = scene.attach_with(&target, &["--dump-signal", "USR2"]);
    target.ask("alloc 4");
    let collector = status(&scene, &target)["collector_pid"].as_u64().expect("a pid");
    send(collector as i32, libc::SIGKILL);
    until("the collector is gone", || status(&scene, &target)["state"] == "orphaned");
    (0..5).for_each(|_| target.signal(Signal::SIGUSR2));
    target.ask("alloc 4");
    scene.detach(&target);
    assert_eq!(masks, ["SigCgt", "SigIgn", "SigBlk"].map(|m| target.status(m)));
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(8, 8 * 128);
    target.quit();
}

#[test]
fn a_report_that_cannot_be_written_is_told_and_ends_nothing() {
    let scene = Scene::new("failing");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let options = ["--dump-signal=USR2", "--report-file=nowhere/{n}.txt"];
    let recording = scene.attach_with(&target, &options);
    target.ask("alloc 4");
    target.signal(Signal::SIGUSR2);
    until("the failure is told", || status(&scene, &target)["reports"]["failed"] == 1);
    let text = scene.prof(&["status", &target.pid.to_string()]).ok("status").stdout;
    assert!(text.contains("0 written for 1 signal, 1 failed"), "{text}");
    assert!(text.contains("the last attempt failed: cannot create "), "{text}");
    fs::create_dir(scene.path("nowhere")).expect("a folder");
    target.signal(Signal::SIGUSR2);
    read(&scene.path("nowhere/1.txt"));
    scene.detach(&target);
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(4, 4 * 128);
    target.quit();
}

#[test]
fn a_command_that_prof_runs_has_reports_too() {
    let scene = Scene::new("run");
    let mut command = std::process::Command::new(Scene::binary());
    command.args(["run", "--dump-signal=RTMIN+2", "--report-file={n}", "--report-format=json"]);
    command.args(["-o", "r.prof"]).arg(program("toggle.c")).current_dir(&scene.dir);
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask("alloc 6");
    // It is passed on to the command.
    send(target.pid, libc::SIGRTMIN() + 2);
    let text = read(&scene.path("1"));
    assert!(live(&text) >= 6, "{text}");
    target.quit();
    scene.finished(&scene.path("r.prof")).marked("toggle.c", "toggled_block").assert_live(6, 768);
}
