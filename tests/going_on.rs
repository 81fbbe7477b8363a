//! `prof attach -o SAME` after the collector was killed: the recording goes on, and what can't go on is refused before
//! anything is touched.

use common::build::program;
use common::disk::{small_disk, unmount};
use common::killer::{kill_collector, killed_at, may_open_mappings};
use common::{Scene, Target, until, writers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Kills the collector of a process whose recording others read, too, as soon as it has one.
fn kill_collector_of(scene: &Scene, target: &Target) {
    let mut collector = None;
    until("it has a collector", || {
        let out = scene.prof(&["status", &target.pid.to_string(), "--format", "json"]);
        let status = serde_json::from_str::<serde_json::Value>(&out.stdout).unwrap_or_default();
        collector = status["collector_pid"].as_i64();
        collector.is_some()
    });
    let pid = Pid::from_raw(collector.expect("a collector") as i32);
    kill(pid, Signal::SIGKILL).expect("killed");
}

/// Waits until the collector has written what there is, and no fold is in progress: a program that allocates without a
/// pause could meet the bound first, where processors are few.
fn calm(recording: &Path) {
    let fold = recording.with_file_name(".r.prof.fold");
    let length = || std::fs::metadata(recording).map_or(0, |m| m.len());
    until("the collector has caught up", || {
        let before = length();
        std::thread::sleep(Duration::from_millis(20));
        !fold.exists() && before == length()
    });
}

/// Returns what the program says: allocations, frees and reallocations, and its long-lived blocks.
fn said(line: &str) -> [u64; 4] {
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    [numbers[0], numbers[1], numbers[2], numbers[7]]
}

#[test]
fn a_recording_goes_on_after_its_collector_was_killed() {
    let scene = Scene::new("going-on");
    for bounds in [&[][..], &["--max-disk", "4MiB", "--on-limit", "drop-oldest"]] {
        let mut target = Target::start(&program("folds.c"), &[]);
        let pid = target.pid.to_string();
        target.ask("waits");
        let args = [&["attach", &pid, "-o", "r.prof", "--compress", "none"], bounds].concat();
        scene.prof(&args).ok("attach");
        let file = scene.path("r.prof");
        let first = said(&target.ask("counts"));
        for round in 0..4 {
            for _ in 0..8 {
                target.ask("batch");
                calm(&file);
            }
            std::thread::scope(|scope| {
                // Sometimes in the midst of the work, sometimes after it.
                let killer = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(if round % 2 == 0 { 2 } else { 60 }));
                    kill_collector(&file);
                });
                target.ask("batch");
                killer.join().expect("the collector is killed");
            });
            // Nobody collects, and the ring has room.
            target.ask("batch");
            let out = scene.prof(&args);
            if !may_open_mappings() {
                assert!(out.code == 3 && out.stderr.contains("CAP_CHECKPOINT_RESTORE"), "{out:?}");
                common::skip("going_on", "only root may open another process's memory");
                return;
            }
            let out = out.ok("attach again");
            assert!(out.stderr.contains("r.prof goes on"), "round {round}: {out:?}");
            assert!(!out.stderr.contains("cut off"), "nothing is missing: {out:?}");
            calm(&file);
        }
        let last = said(&target.ask("batch"));
        scene.detach(&target);
        let r = scene.finished(&file);
        let [a, f, re] = [0, 1, 2].map(|i| last[i] - first[i]);
        assert_eq!(r.number("/recording/lost_events"), 0, "{bounds:?}: {:#}", r.brief());
        assert_eq!(r.total("reallocations"), re, "{bounds:?}: {:#}", r.brief());
        // Making a thread allocates, and ending one frees.
        assert!((a..a + 200).contains(&r.total("allocations")), "{bounds:?}: {:#}", r.brief());
        assert!((f..f + 200).contains(&r.total("frees")), "{bounds:?}: {:#}", r.brief());
        let long = r.marked("folds.c", "long").number("allocations");
        assert_eq!(long, last[3], "a stack has one row: {:#}", r.brief());
        assert_eq!(r.marked("folds.c", "again").number("reallocations"), re);
        target.quit();
        std::fs::remove_file(&file).expect("the recording");
    }
}

/// The ring has more than the recording may: that is folded while the ring is read.
#[test]
fn a_ring_that_holds_more_than_the_bound_does_not_end_the_recording() {
    const MOST: u64 = 4 << 20;
    if !may_open_mappings() {
        return common::skip("going_on", "only root may open another process's memory");
    }
    let scene = Scene::new("going-on-more");
    for compress in ["none", "best"] {
        let mut target = Target::start(&program("folds.c"), &[]);
        let pid = target.pid.to_string();
        target.ask("waits");
        let bounds = ["--max-disk", "4MiB", "--on-limit", "drop-oldest", "--ring-size", "64MiB"];
        let attach = ["attach", &pid, "-o", "r.prof", "--compress", compress];
        let args = [&attach[..], &bounds].concat();
        scene.prof(&args).ok("attach");
        let file = scene.path("r.prof");
        let first = said(&target.ask("counts"));
        target.ask("batch");
        kill_collector(&file);
        (0..60).for_each(|_| _ = target.ask("batch"));
        let out = scene.prof(&args).ok("attach again");
        assert!(out.stderr.contains("r.prof goes on"), "{out:?}");
        let (fold, mut longest) = (scene.path(".r.prof.fold"), 0);
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
        until("the ring has been read", || {
            longest = longest.max(length(&file) + length(&fold));
            let before = length(&file);
            std::thread::sleep(Duration::from_millis(5));
            !fold.exists() && before == length(&file)
        });
        calm(&file);
        let last = said(&target.ask("batch"));
        scene.detach(&target);
        let r = scene.finished(&file);
        assert!(longest <= MOST && length(&file) <= MOST, "{longest} bytes");
        let [a, f, re] = [0, 1, 2].map(|i| last[i] - first[i]);
        assert_eq!(r.number("/recording/lost_events"), 0, "{compress}: {:#}", r.brief());
        assert_eq!(r.total("reallocations"), re, "{compress}: {:#}", r.brief());
        assert!((a..a + 200).contains(&r.total("allocations")), "{compress}: {:#}", r.brief());
        assert!((f..f + 200).contains(&r.total("frees")), "{compress}: {:#}", r.brief());
        let long = r.marked("folds.c", "long").number("allocations");
        assert_eq!(long, last[3], "a stack has one row: {:#}", r.brief());
        target.quit();
        std::fs::remove_file(&file).expect("the recording");
    }
}

/// A recording that is too long for the bound of the second attach: it would end at once, or its oldest part goes first.
#[test]
fn a_recording_that_is_longer_than_the_bound_is_refused_or_folded() {
    const MOST: u64 = 4 << 20;
    if !may_open_mappings() {
        return common::skip("going_on", "only root may open another process's memory");
    }
    let scene = Scene::new("going-on-longer");
    let mut target = Target::start(&program("folds.c"), &[]);
    let pid = target.pid.to_string();
    target.ask("waits");
    let attach = ["attach", &pid, "-o", "r.prof", "--compress", "none", "--max-disk"];
    scene.prof(&[&attach[..], &["64MiB"]].concat()).ok("attach");
    let file = scene.path("r.prof");
    let length = || std::fs::metadata(&file).map_or(0, |m| m.len());
    let first = said(&target.ask("counts"));
    while length() < 5 * MOST / 2 {
        target.ask("batch");
        calm(&file);
    }
    kill_collector(&file);
    let before = std::fs::read(&file).expect("the recording");
    let out = scene.prof(&[&attach[..], &["4MiB"]].concat());
    let size = format!("it has {}, and would end", prof_trace::values::text::bytes(length()));
    assert!(out.code == 3 && out.stderr.contains(&size), "{size}: {out:?}");
    assert!(out.stderr.contains("--max-disk 4.0 MiB; go on with a larger"), "{out:?}");
    assert_eq!(std::fs::read(&file).expect("the recording"), before, "it was touched");
    target.ask("batch");
    let out = scene.prof(&[&attach[..], &["4MiB", "--on-limit", "drop-oldest"]].concat());
    let out = out.ok("attach again");
    assert!(out.stderr.contains("its oldest part is dropped first"), "{out:?}");
    until("it fits", || length() <= MOST / 2);
    for _ in 0..40 {
        target.ask("batch");
        calm(&file);
        assert!(length() <= MOST, "{} bytes", length());
    }
    let last = said(&target.ask("counts"));
    scene.detach(&target);
    let r = scene.finished(&file);
    assert!(length() <= MOST, "{} bytes", length());
    let [a, f, re] = [0, 1, 2].map(|i| last[i] - first[i]);
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
    assert_eq!(r.total("reallocations"), re, "{:#}", r.brief());
    assert!((a..a + 200).contains(&r.total("allocations")), "{:#}", r.brief());
    assert!((f..f + 200).contains(&r.total("frees")), "{:#}", r.brief());
    target.quit();
}

/// Cuts the last part off a file: a tenth, and so in the midst of a chunk.
fn cut(file: &Path) {
    let open = std::fs::File::options().write(true).open(file).expect("the recording");
    let len = open.metadata().expect("its length").len();
    open.set_len(len - len / 10).expect("cut");
}

/// Returns the number of events that prof says were cut off.
fn said_cut(stderr: &str) -> u64 {
    let line =
        stderr.lines().find(|l| l.contains("it was cut off")).unwrap_or_else(|| panic!("{stderr}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.windows(3).position(|w| w[1..] == ["events", "that"]).expect("a number");
    words[at].replace(',', "").parse().expect("a number")
}

#[test]
fn what_was_cut_off_a_recording_is_said_and_counted() {
    let scene = Scene::new("going-on-cut");
    for compress in ["none", "best"] {
        let mut target = Target::start(&program("toggle.c"), &[]);
        let pid = target.pid.to_string();
        target.ask("alloc 1");
        let attach = ["attach", &pid, "-o", "r.prof", "--compress", compress];
        scene.prof(&attach).ok("attach");
        let file = scene.path("r.prof");
        for _ in 0..6 {
            target.ask("alloc 4000");
            calm(&file);
        }
        kill_collector(&file);
        target.ask("alloc 100");
        let has = || scene.report(&file).marked("toggle.c", "toggled_block").number("allocations");
        // The ring may still have the collector's last events, and records about a process that waits may fill more than a tenth.
        while has() > 12_000 {
            cut(&file);
        }
        let mut all = 24_100;
        let missing = if may_open_mappings() {
            let said = said_cut(&scene.prof(&attach).ok("attach again").stderr);
            target.ask("alloc 10");
            all += 10;
            scene.detach(&target);
            said
        } else {
            said_cut(&scene.prof(&["detach", &pid]).ok("detach").stderr)
        };
        let r = scene.finished(&file);
        let there = r.marked("toggle.c", "toggled_block").number("allocations");
        assert!(missing > 100 && there >= 100, "{missing} {there}");
        assert_eq!(r.number("/recording/lost_events"), missing, "{:#}", r.brief());
        // Calls by which the heap grew are events, too.
        let sum = there + missing;
        assert!((all..all + 100).contains(&sum), "{sum} for {all}: {:#}", r.brief());
        target.quit();
        std::fs::remove_file(&file).expect("the recording");
    }
}

#[test]
fn what_was_cut_off_a_folded_recording_is_said_by_a_detach() {
    let scene = Scene::new("going-on-cut-folded");
    let mut target = Target::start(&program("folds.c"), &[]);
    target.ask("waits");
    let bounds = ["--max-disk", "4MiB", "--on-limit", "drop-oldest", "--compress", "none"];
    let file = scene.attach_with(&target, &[&["-o", "r.prof"], &bounds[..]].concat());
    let first = said(&target.ask("counts"));
    (0..30).for_each(|_| {
        target.ask("batch");
        calm(&file);
    });
    kill_collector(&file);
    cut(&file);
    let last = said(&target.ask("counts"));
    let pid = target.pid.to_string();
    let missing = said_cut(&scene.prof(&["detach", &pid]).ok("detach").stderr);
    let r = scene.finished(&file);
    assert_eq!(std::fs::read(&file).expect("the recording")[8], 6, "it is a folded one");
    assert_eq!(r.number("/recording/lost_events"), missing, "{:#}", r.brief());
    let gone = [0, 1, 2].map(|i| last[i] - first[i]);
    let there = ["allocations", "frees", "reallocations"].map(|what| r.total(what));
    let lack: u64 = gone.iter().zip(there).map(|(all, there)| all.saturating_sub(there)).sum();
    // A reallocation is an event or two.
    assert!(
        lack > 100 && (lack..=2 * lack + 400).contains(&missing),
        "{lack} {missing}: {:#}",
        r.brief()
    );
    target.quit();
}

#[test]
fn recording_is_switched_on_again_where_the_ring_was_full() {
    if !may_open_mappings() {
        return common::skip("going_on", "only root may open another process's memory");
    }
    let scene = Scene::new("going-on-full");
    let mut target = Target::start(&program("stress.c"), &[]);
    let recording = scene.attach_with(&target, &["--ring-size", "1MiB", "-o", "r.prof"]);
    let pid = target.pid.to_string();
    kill_collector(&recording);
    let status = |scene: &Scene| {
        let out = scene.prof(&["status", &pid, "--format", "json"]).ok("status");
        serde_json::from_str::<serde_json::Value>(&out.stdout).expect("JSON")
    };
    let lost = || status(&scene)["lost_events"].as_u64();
    until("recording turns itself off", || {
        let before = lost();
        std::thread::sleep(Duration::from_millis(300));
        before > Some(1000) && before == lost()
    });
    let out = scene.prof(&["attach", &pid, "-o", "r.prof"]).ok("attach again");
    assert!(out.stderr.contains("turned itself off"), "{out:?}");
    let now = status(&scene);
    assert_eq!(now["state"], "recording", "{now:#}");
    let events = now["events"].as_u64();
    until("events are recorded again", || status(&scene)["events"].as_u64() > events);
    scene.detach(&target);
    let r = scene.finished(&recording);
    assert!(r.number("/recording/lost_events") > 1000, "{:#}", r.brief());
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
}

#[test]
fn what_can_not_go_on_is_refused_before_anything_is_touched() {
    let scene = Scene::new("going-on-not");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let file = scene.path("r.prof");
    for (args, again, says) in [
        (&[][..], &["--sample=1M"][..], "other settings"),
        (&["--aggregate"], &["--aggregate"], "--aggregate"),
        (&["--aggregate"], &[], "figures in place of blocks"),
    ] {
        let attach = ["attach", &pid, "-o", "r.prof"];
        scene.prof(&[&attach[..], args].concat()).ok("attach");
        target.ask("alloc 100");
        kill_collector(&file);
        let before = std::fs::read(&file).expect("the recording");
        let out = scene.prof(&[&attach[..], again].concat());
        assert!(out.code == 3 && out.stderr.contains(says), "{out:?}");
        assert!(out.stderr.contains("another file with -o"), "{out:?}");
        std::fs::write(scene.path("other"), b"mine").expect("written");
        let out = scene.prof(&["attach", &pid, "-o", "other"]);
        assert!(out.code == 2 && out.stderr.contains("exists"), "{out:?}");
        assert_eq!(std::fs::read(&file).expect("the recording"), before, "it was touched");
        assert_eq!(std::fs::read(scene.path("other")).expect("a file"), b"mine");
        // As the message says.
        let out = scene.prof(&["attach", &pid, "-o", "next.prof"]).ok("attach to another file");
        assert!(out.stderr.contains("finished an earlier recording"), "{out:?}");
        assert_eq!(scene.ended(&file).bool("/recording/complete"), args.is_empty());
        target.ask("free 100");
        scene.detach(&target);
        let out = scene.prof(&attach);
        assert!(out.code == 2 && out.stderr.contains("exists"), "a finished one: {out:?}");
        for name in ["r.prof", "next.prof"] {
            std::fs::remove_file(scene.path(name)).expect("a recording");
        }
    }
    target.quit();
}

#[test]
fn a_paused_recording_stays_paused() {
    if !may_open_mappings() {
        return common::skip("going_on", "only root may open another process's memory");
    }
    let scene = Scene::new("going-on-paused");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let attach = ["attach", &pid, "-o", "r.prof"];
    scene.prof(&attach).ok("attach");
    target.ask("alloc 10");
    scene.prof(&["pause", &pid]).ok("pause");
    kill_collector(&scene.path("r.prof"));
    let out = scene.prof(&attach).ok("attach again");
    assert!(out.stderr.contains("paused, as before"), "{out:?}");
    target.ask("alloc 100");
    scene.prof(&["resume", &pid]).ok("resume");
    target.ask("alloc 5");
    scene.detach(&target);
    let r = scene.finished(&scene.path("r.prof"));
    assert_eq!(r.marked("toggle.c", "toggled_block").number("allocations"), 15, "{:#}", r.brief());
    target.quit();
}

/// An attach that is killed while it goes on: the recording goes on without it, or by the next one.
#[test]
fn a_killed_attach_ends_no_recording() {
    if !may_open_mappings() {
        return common::skip("going_on", "only root may open another process's memory");
    }
    let scene = Scene::new("going-on-killed");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    target.ask("alloc 1");
    let attach = ["attach", &pid, "-o", "r.prof"];
    let go_on = || {
        let mut c = Command::new(Scene::binary());
        c.args(attach).current_dir(scene.path(""));
        c
    };
    scene.prof(&attach).ok("attach");
    let file = scene.path("r.prof");
    kill_collector(&file);
    let (calls, _) = killed_at(go_on(), None);
    let mut allocated = 0;
    for at in (1 + std::process::id() as usize % 8..=calls).step_by((calls / 30).max(1)) {
        kill_collector(&file);
        target.ask("alloc 10");
        killed_at(go_on(), Some(at));
        target.ask("alloc 10");
        allocated += 20;
        let out = scene.prof(&attach);
        let records = out.code == 0 || out.stderr.contains("already being recorded");
        assert!(records, "after a kill at call {at} of {calls}: {out:?}");
        until("somebody collects", || !writers(&file).is_empty());
    }
    scene.detach(&target);
    let r = scene.finished(&file);
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
    assert_eq!(r.marked("toggle.c", "toggled_block").number("allocations"), allocated);
    target.quit();
}

/// Returns the collector that a prof has started, as soon as there is one.
fn collector_started_by(prof: u32) -> Pid {
    let children = format!("/proc/{prof}/task/{prof}/children");
    let is_collector = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(8).any(|w| w == b"\0collect")
    };
    let mut found = None;
    until("it starts a collector", || {
        let all = std::fs::read_to_string(&children).unwrap_or_default();
        let mut pids = all.split(' ').filter_map(|pid| pid.parse().ok());
        found = pids.find(is_collector);
        found.is_some()
    });
    Pid::from_raw(found.expect("a collector"))
}

/// The attach is killed when it has started a collector that has not got to its work yet. The next one must not start
/// another collector: both would write to the recording.
#[test]
fn a_collector_that_is_slow_to_begin_stays_the_only_one() {
    if !may_open_mappings() {
        return common::skip("going_on", "only root may open another process's memory");
    }
    let scene = Scene::new("going-on-slow");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let file = scene.attach_with(&target, &["-o", "r.prof"]);
    target.ask("alloc 10");
    kill_collector(&file);
    // A collector at the lowest priority beside a program that does not wait takes long to begin.
    let mut busy = Command::new("taskset");
    let mut busy = busy.args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn().expect("busy");
    let mut slow = Command::new("taskset");
    slow.args(["-c", "0", "chrt", "--idle", "0"]).arg(Scene::binary());
    slow.args(["attach", &pid, "-o", "r.prof"]).current_dir(scene.path(""));
    let slow = slow.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut slow = slow.expect("prof attach");
    let collector = collector_started_by(slow.id());
    kill(collector, Signal::SIGSTOP).expect("stopped");
    let has_begun = slow.try_wait().expect("its state").is_some();
    slow.kill().expect("killed");
    slow.wait().expect("an end");
    busy.kill().expect("killed");
    busy.wait().expect("an end");
    assert!(!has_begun, "the collector was not slow");
    target.ask("alloc 10");
    let out = scene.prof(&["attach", &pid, "-o", "r.prof"]);
    assert!(out.code == 3, "a second collector: {out:?}");
    kill(collector, Signal::SIGCONT).expect("continued");
    until("it collects", || {
        let out = scene.prof(&["attach", &pid, "-o", "r.prof"]);
        out.stderr.contains("already being recorded")
    });
    target.ask("alloc 10");
    scene.detach(&target);
    let r = scene.finished(&file);
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
    assert_eq!(r.marked("toggle.c", "toggled_block").number("allocations"), 30);
    target.quit();
}

/// Commands that follow a recording neither begin another one where its collector has died, nor end as if all were well.
#[test]
fn who_follows_a_recording_is_told_that_its_collector_has_died() {
    let scene = Scene::new("followed");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let file = scene.attach_with(&target, &["-o", "r.prof"]);
    let follow = |args: &[&str]| {
        let mut c = Command::new(Scene::binary());
        c.args(args).current_dir(scene.path("")).stdout(Stdio::null()).stderr(Stdio::piped());
        c.spawn().expect("prof")
    };
    let ends = |child: std::process::Child| {
        let out = child.wait_with_output().expect("an end");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for args in [&["trace", &pid][..], &["leaks", &pid, "--live", "100ms"]] {
        let following = follow(args);
        target.ask("alloc 10");
        std::thread::sleep(Duration::from_millis(700));
        kill_collector_of(&scene, &target);
        let (code, said) = ends(following);
        assert!(code == Some(1) && said.contains("has died"), "{args:?}: {code:?} {said}");
        assert!(said.contains(&format!("prof attach {pid} -o")), "{args:?}: {said}");
        // Nothing is begun behind it either.
        let (code, said) = ends(follow(args));
        assert!(code == Some(3) && said.contains("has died"), "{args:?}: {code:?} {said}");
        if may_open_mappings() {
            let out = scene.prof(&["attach", &pid, "-o", "r.prof"]).ok("attach again");
            assert!(out.stderr.contains("r.prof goes on"), "{out:?}");
        } else {
            scene.prof(&["detach", &pid]).ok("detach");
            std::fs::remove_file(&file).expect("the recording");
            scene.attach_with(&target, &["-o", "r.prof"]);
        }
    }
    scene.detach(&target);
    // A recording of the command's own is saved, and the process is as it was.
    let own = scene.path("own.prof");
    let following = follow(&["trace", &pid, "-o", "own.prof"]);
    // A collector that has not begun yet would fail the command in another way.
    until("it records", || {
        target.ask("alloc 10");
        let out = scene.prof(&["status", &pid, "--format", "json"]);
        let status = serde_json::from_str::<serde_json::Value>(&out.stdout).unwrap_or_default();
        status["events"].as_u64() > Some(0)
    });
    kill_collector_of(&scene, &target);
    let (code, said) = ends(following);
    assert!(code == Some(1) && said.contains("has died"), "{code:?} {said}");
    assert_eq!(scene.prof(&["status", &pid]).code, 3);
    scene.finished(&own);
    target.quit();
}

/// The collector is killed when prof is out of the process, but the recording is not finished yet.
#[test]
fn a_detach_finishes_the_recording_of_a_collector_that_is_killed_meanwhile() {
    if !may_open_mappings() {
        return common::skip("going_on", "only root may open another process's memory");
    }
    let scene = Scene::new("killed-meanwhile");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    let collectors = writers(&recording);
    for pid in &collectors {
        kill(Pid::from_raw(*pid), Signal::SIGSTOP).expect("stopped");
    }
    target.ask("alloc 20000");
    let mut detach = Command::new(Scene::binary());
    detach.args(["detach", &target.pid.to_string()]);
    let detach = detach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("detach");
    until("prof is out of the process", || !target.proc("maps").contains("prof-ring"));
    for pid in &collectors {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("killed");
    }
    let out = detach.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("saved what it had left"), "{said}");
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
    assert_eq!(r.marked("toggle.c", "toggled_block").number("allocations"), 20_000);
    target.quit();
}

/// Kills the collector of a program that has more in memory than its recording may take, detaches, and checks that the
/// recording says so. Returns its length.
fn detach_with_too_much(scene: &Scene, file: &Path, bounds: &[&str]) -> u64 {
    let mut target = Target::start(&program("folds.c"), &[]);
    let name = file.to_str().expect("a path");
    let recorded =
        scene.attach_with(&target, &[&["-o", name, "--compress", "none"], bounds].concat());
    kill_collector(&recorded);
    (0..20).for_each(|_| _ = target.ask("batch"));
    let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
    assert!(out.stderr.contains("have no room for them"), "{out:?}");
    let r = scene.report(&recorded);
    assert!(r.number("/recording/lost_events") > 10_000, "{:#}", r.brief());
    assert!(r.total("allocations") > 10_000, "{:#}", r.brief());
    let why = scene.prof(&["info", name]).ok("info").stdout;
    assert!(why.contains("ended early, at a bound: its collector had died"), "{why}");
    target.quit();
    std::fs::metadata(&recorded).expect("the recording").len()
}

#[test]
fn what_a_detach_saves_stays_within_the_bounds() {
    let scene = Scene::new("saved");
    let len = detach_with_too_much(&scene, &scene.path("r.prof"), &["--max-disk", "3MiB"]);
    assert!((1 << 20..=3 << 20).contains(&len), "{len}");
    if !small_disk(&scene, "what_a_detach_saves_stays_within_the_bounds", 12) {
        return;
    }
    let file = scene.path("disk/r.prof");
    let len = detach_with_too_much(&scene, &file, &["--keep-free", "8MiB"]);
    assert!((1 << 20..=4 << 20).contains(&len), "{len}");
    unmount(&scene);
}
