//! The recording can't be written, or no collector is there to write it: the target goes on at full speed, recording
//! ends or switches itself off, and the loss is reported.

use common::build::program;
use common::disk::{small_disk, unmount};
use common::snapshot::Snapshot;
use common::{Output, Scene, Target, until, writers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::Command;

fn operations(target: &mut Target) -> u64 {
    target.ask("operations").rsplit(' ').next().unwrap().parse().unwrap()
}

/// Checks that the target works, contains nothing of prof, and made no errors.
#[track_caller]
fn assert_unharmed(mut target: Target) {
    let before = operations(&mut target);
    until("it works on", || operations(&mut target) > before + 10_000);
    let after = Snapshot::of(&target);
    assert!(after.foreign().is_empty(), "{:#?}", after.foreign());
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
}

/// Checks that a recording that ended when it could not be written reports that, and how much it lost.
#[track_caller]
fn assert_cut_short(scene: &Scene, file: &Path) {
    until("the collector has given up", || writers(file).is_empty());
    let r = scene.report(file);
    assert!(r.total("allocations") > 0, "what fitted in is there: {:#}", r.brief());
    let out = scene.prof(&["report", file.to_str().unwrap(), "--top", "1"]).ok("report").stdout;
    let lost = r.number("/recording/lost_events");
    assert!(lost > 0 || out.contains("not complete"), "the loss is not said:\n{out}");
}

#[test]
fn a_file_that_may_not_grow() {
    let scene = Scene::new("limit");
    let target = Target::start(&program("stress.c"), &[]);
    let file = scene.path("small.prof");
    scene.attach_with(&target, &["-o", file.to_str().unwrap()]);
    let limit = libc::rlimit { rlim_cur: 256 << 10, rlim_max: 256 << 10 };
    // SAFETY: the call reads `limit`, and the pointer for the old limit may be null.
    let set = unsafe {
        libc::prlimit(writers(&file)[0], libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut())
    };
    assert_eq!(set, 0);
    assert_cut_short(&scene, &file);
    assert_unharmed(target);
}

#[test]
fn a_prof_that_may_not_make_large_files_refuses() {
    let scene = Scene::new("ulimit");
    let target = Target::start(&program("stress.c"), &[]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 256; exec \"$0\" attach \"$1\" -o \"$2\""]);
    command.arg(Scene::binary()).arg(target.pid.to_string()).arg(scene.path("none.prof"));
    let out = scene.run(command);
    assert!(out.code == 1 && out.stderr.contains("ulimit -f"), "{out:?}");
    assert!(!scene.path("none.prof").exists());
    assert_unharmed(target);
}

#[test]
fn a_full_disk() {
    let scene = Scene::new("disk");
    if !small_disk(&scene, "a_full_disk", 1) {
        return;
    }
    let target = Target::start(&program("stress.c"), &[]);
    let file = scene.path("disk/full.prof");
    scene.attach_with(&target, &["-o", file.to_str().unwrap(), "--keep-free", "0"]);
    assert_cut_short(&scene, &file);
    assert_unharmed(target);
    unmount(&scene);
}

/// Starts a program of which one thread allocates, so that the collector gets a processor in time on any machine: what
/// is lost while it gets none has nothing to do with bounds.
fn one_worker() -> Target {
    Target::start(&program("stress.c"), &["0", "1"])
}

/// Checks a recording that has ended at a bound: it is complete, it says so, and the process is as before.
#[track_caller]
fn assert_ended_early(scene: &Scene, file: &Path, target: Target, why: &str) {
    until("the collector has ended", || writers(file).is_empty());
    let out = scene.prof(&["report", file.to_str().unwrap(), "--top", "1"]).ok("report").stdout;
    assert!(out.contains("ended early") && out.contains(why), "{out}");
    let r = scene.report(file);
    assert!(r.total("allocations") > 1000, "{:#}", r.brief());
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
    let status = scene.prof(&["status", &target.pid.to_string()]);
    assert!(status.code == 3 && status.stderr.contains(why), "{status:?}");
    assert_unharmed(target);
}

#[test]
fn a_recording_that_may_not_become_longer() {
    let scene = Scene::new("max-disk");
    let target = one_worker();
    let file = scene.path("short.prof");
    let small = ["--max-disk", "24MiB", "--ring-size", "1MiB"];
    scene.attach_with(&target, &[&["-o", file.to_str().unwrap()], &small[..]].concat());
    assert_ended_early(&scene, &file, target, "--max-disk");
    let length = std::fs::metadata(&file).unwrap().len();
    assert!((16 << 20..=24 << 20).contains(&length), "{length}");
}

#[test]
fn a_disk_on_which_others_keep_room() {
    let scene = Scene::new("keep-free");
    if !small_disk(&scene, "a_disk_on_which_others_keep_room", 16) {
        return;
    }
    let target = one_worker();
    let (pid, file) = (target.pid.to_string(), scene.path("disk/part.prof"));
    let to = ["attach", &pid, "-o", file.to_str().unwrap(), "--ring-size", "1MiB"];
    let out = scene.prof(&[&to[..], &["--keep-free", "100%"]].concat());
    assert!(out.code == 3 && out.stderr.contains("--keep-free"), "{out:?}");
    assert!(!file.exists(), "a refused recording leaves no file");
    scene.attach_with(&target, &[&to[2..], &["--keep-free", "60%"]].concat());
    assert_ended_early(&scene, &file, target, "60%");
    let length = std::fs::metadata(&file).unwrap().len();
    assert!((3 << 20..9 << 20).contains(&length), "{length}");
    unmount(&scene);
}

#[test]
fn a_disk_that_goes_away() {
    let scene = Scene::new("gone-disk");
    if !small_disk(&scene, "a_disk_that_goes_away", 1) {
        return;
    }
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    scene.attach_with(&target, &["-o", scene.path("disk/gone.prof").to_str().unwrap()]);
    target.ask("alloc 100");
    unmount(&scene);
    target.ask("alloc 100");
    let status = scene.prof(&["status", &pid]);
    assert!(status.code == 1 && status.stdout.contains("was unmounted"), "{status:?}");
    let out = scene.prof(&["detach", &pid]);
    assert!(out.code == 1 && out.stderr.contains("as it was before"), "{out:?}");
    // It is saved in the folder that the other file system was mounted on.
    let saved = scene.path("disk/gone.prof");
    assert!(out.stderr.contains("saved it as") && saved.is_file(), "{out:?}");
    assert_eq!(scene.report(&saved).total("allocations"), 200);
    assert!(Snapshot::of(&target).foreign().is_empty());
    target.ask("free 200");
    target.quit();
}

fn state(scene: &Scene, target: &Target) -> serde_json::Value {
    let out = scene.prof(&["status", &target.pid.to_string(), "--format", "json"]).ok("status");
    serde_json::from_str(&out.stdout).expect("JSON")
}

/// Checks a ring without a collector: no thread waits for long, and recording switches itself off.
fn without_a_collector(signal: Signal, off: &str, says: &str) {
    let scene = Scene::new("nobody");
    let mut target = Target::start(&program("stress.c"), &[]);
    let recording = scene.attach_with(&target, &["--ring-size", "1MiB"]);
    let collector = writers(&recording)[0];
    kill(Pid::from_raw(collector), signal).expect("signal");
    let before = operations(&mut target);
    until("recording turns itself off", || {
        let now = state(&scene, &target);
        now["state"] == off && now["lost_events"].as_u64() > Some(1000)
    });
    let (now, off_now) = (operations(&mut target), state(&scene, &target));
    // If threads waited for a segment at each event, they would reach some hundreds.
    assert!(now - before > 50_000, "the target was held up: {} operations", now - before);
    assert!(off_now["lost_events"].as_u64() > Some(1000), "{off_now}");
    if signal == Signal::SIGSTOP {
        let pid = target.pid.to_string();
        let out = scene.prof(&["resume", &pid]);
        let advice = format!("kill -CONT {collector}");
        assert!(out.code == 3 && out.stderr.contains(&advice), "{out:?}");
        kill(Pid::from_raw(collector), Signal::SIGCONT).expect("signal");
        scene.prof(&["resume", &pid]).ok("resume");
        assert_eq!(state(&scene, &target)["state"], "recording");
    }
    let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
    assert!(out.stderr.contains(says) && out.stderr.contains("were lost"), "{out:?}");
    let r = scene.finished(&recording);
    assert!(r.number("/recording/lost_events") > 1000, "{:#}", r.brief());
    assert_unharmed(target);
}

#[test]
fn a_collector_that_is_stopped() {
    without_a_collector(Signal::SIGSTOP, "turned off", "the process is as it was before");
}

#[test]
fn a_collector_that_is_killed() {
    without_a_collector(Signal::SIGKILL, "orphaned", "the collector had died");
}

/// Runs prof from a shell, which redirects its output.
fn redirected(scene: &Scene, arguments: &str, redirection: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" {arguments} {redirection}")]).arg(Scene::binary());
    scene.run(command)
}

#[test]
fn a_terminal_that_can_not_be_written_changes_no_exit_code() {
    let scene = Scene::new("full-terminal");
    let mut target = Target::start(&program("stress.c"), &[]);
    let pid = target.pid;
    for (k, redirection) in
        ["2>/dev/full", ">/dev/full", ">/dev/full 2>/dev/full", "2>&-"].into_iter().enumerate()
    {
        let file = scene.path(&format!("{k}.prof"));
        let attach = format!("attach {pid} -o '{}'", file.display());
        let out = redirected(&scene, &attach, redirection);
        assert_eq!(out.code, 0, "{redirection}: {out:?}");
        if redirection == ">/dev/full" {
            let named = out.stderr.contains(file.to_str().unwrap());
            assert!(named, "the path is on standard error instead: {out:?}");
        }
        let before = operations(&mut target);
        until("it works on", || operations(&mut target) > before);
        let out = redirected(&scene, &format!("detach {pid}"), redirection);
        assert_eq!(out.code, 0, "{redirection}: {out:?}");
        assert!(scene.report(&file).total("allocations") > 0, "{redirection}");
    }
    let out = redirected(&scene, "run --report -o run.prof -- sh -c 'exit 7'", ">/dev/full 2>&1");
    assert_eq!(out.code, 7, "the exit code of the command: {out:?}");
    assert_unharmed(target);
}

#[test]
fn manuals_completions_and_the_doctor() {
    let scene = Scene::new("manuals");
    let out = scene.prof(&["completions", "bash"]).ok("completions");
    let script = scene.path("prof.bash");
    std::fs::write(&script, &out.stdout).unwrap();
    let complete = "source \"$0\"; COMP_WORDS=(prof repo); COMP_CWORD=1; _prof prof repo prof; echo \"${COMPREPLY[*]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", complete]).arg(&script);
    assert_eq!(scene.run(bash).ok("bash").stdout.trim(), "report");
    let folder = scene.path("man1");
    scene.prof(&["man", folder.to_str().unwrap()]).ok("man");
    let page = std::fs::read_to_string(folder.join("prof-attach.1")).unwrap();
    assert!(page.contains(".TH prof-attach 1") && page.contains("sample\\-rate"), "{page}");
    assert!(!folder.join("prof-collect.1").exists(), "hidden commands have no page");

    let out = scene.prof(&["--version", "-v"]).ok("version").stdout;
    assert!(out.contains("architecture") && out.contains("yama"), "{out}");
    let target = Target::start(&program("stress.c"), &[]);
    let out = scene.prof(&["doctor", "--format", "json", &target.pid.to_string()]).ok("doctor");
    let checks: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    let find = |name: &str| checks.as_array().unwrap().iter().find(|c| c["name"] == name).unwrap();
    assert_eq!(find("trial")["verdict"], "good", "{checks:#}");
    assert_eq!(find("process")["verdict"], "good", "{checks:#}");
    assert_unharmed(target);
    let out = scene.prof(&["doctor", "1073741823"]);
    assert!(out.code == 1 && out.stdout.contains("would be refused"), "{out:?}");
}

#[test]
fn a_detach_waits_for_no_collector_that_is_stopped() {
    let scene = Scene::new("stopped-end");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    let collector = writers(&recording)[0];
    kill(Pid::from_raw(collector), Signal::SIGSTOP).expect("signal");
    let out = scene.prof(&["detach", &target.pid.to_string()]);
    kill(Pid::from_raw(collector), Signal::SIGCONT).expect("signal");
    assert_eq!(out.code, 1, "the recording is not finished: {out:?}");
    let (clean, advice) = ("the process is as it was before", format!("kill -CONT {collector}"));
    let places =
        [clean, "which is stopped", &advice, "is still writing"].map(|w| out.stderr.find(w));
    assert!(places.is_sorted() && places[0].is_some(), "{places:?}: {out:?}");
    assert_eq!(scene.finished(&recording).total("allocations"), 100);
    assert_unharmed_toggle(target);
}

#[track_caller]
fn assert_unharmed_toggle(mut target: Target) {
    assert!(Snapshot::of(&target).foreign().is_empty());
    target.ask("free 100");
    target.quit();
}

#[test]
fn short_lived_blocks_are_counted_but_not_written() {
    let scene = Scene::new("cull");
    let mut target = Target::start(&program("stress.c"), &[]);
    let file = scene.path("cull.prof");
    scene.attach_with(&target, &["-o", file.to_str().unwrap(), "--cull", "1h"]);
    let before = operations(&mut target);
    until("it has worked", || operations(&mut target) > before + 100_000);
    scene.detach(&target);
    let r = scene.report(&file);
    let made = r.total("allocations");
    let out = scene.prof(&["report", file.to_str().unwrap(), "--top", "1"]).ok("report").stdout;
    assert!(out.contains("counted, but not recorded (--cull)"), "{out}");
    assert!(!out.contains("figures are those at"), "they are those of the whole:\n{out}");
    // An event takes a byte and more, and each block has two.
    let bytes = std::fs::metadata(&file).expect("the recording").len();
    assert!(made > 50_000 && bytes < made, "{made} allocations in {bytes} bytes");
    assert_unharmed(target);
}

/// The events of a whole ring come at once, and are more than there is room for.
#[test]
fn events_that_have_no_room_end_the_recording() {
    let scene = Scene::new("no-room");
    let mut target = Target::start(&program("folds.c"), &[]);
    let bounds = ["-o", "r.prof", "--max-disk", "3MiB", "--compress", "none"];
    let file = scene.attach_with(&target, &bounds);
    let collector = writers(&file);
    assert!(!collector.is_empty());
    let send = |signal| {
        collector.iter().for_each(|pid| kill(Pid::from_raw(*pid), signal).expect("a signal"));
    };
    send(Signal::SIGSTOP);
    (0..12).for_each(|_| _ = target.ask("batch"));
    send(Signal::SIGCONT);
    until("the recording has ended", || writers(&file).is_empty());
    let info = scene.prof(&["info", "r.prof"]).ok("info").stdout;
    assert!(info.contains("ended early, at a bound"), "{info}");
    let r = scene.report(&file);
    assert!(r.number("/recording/lost_events") > 0, "{:#}", r.brief());
    target.ask("batch");
    let _ = scene.prof(&["detach", &target.pid.to_string()]);
    target.quit();
}
