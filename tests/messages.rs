//! Error messages: each says what happened, to which process, and what to do next.

use common::build::program;
use common::killer::kill_collector;
use common::{Output, Scene, Target, skip, until};
use nix::sys::signal::Signal;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[track_caller]
fn says(out: &Output, words: &[&str]) {
    for word in words {
        assert!(out.stderr.contains(word), "{word:?} is not in {:?}", out.stderr);
    }
}

/// Commands that look at processes that nobody records.
#[test]
fn a_process_without_memory_is_called_what_it_is() {
    let scene = Scene::new("memoryless");
    let mut child = Command::new("true").spawn().expect("true");
    let ended = child.id().to_string();
    let status = format!("/proc/{ended}/status");
    until("it has ended", || {
        std::fs::read_to_string(&status).is_ok_and(|s| s.contains("(zombie)"))
    });
    let has_kernel = std::fs::read_to_string("/proc/2/comm").is_ok_and(|c| c == "kthreadd\n");
    let kernel = has_kernel.then_some(("2", "a kernel thread"));
    for (pid, what) in [(ended.as_str(), "a zombie")].into_iter().chain(kernel) {
        for command in ["heap", "allocator"] {
            let out = scene.prof(&[command, pid]);
            assert_eq!(out.code, 3, "{command}: {out:?}");
            says(&out, &[pid, what]);
        }
    }
    child.wait().expect("a child");
}

#[test]
fn a_process_that_has_ended_is_called_so() {
    let scene = Scene::new("ended");
    let target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    scene.attach(&target);
    target.signal(Signal::SIGKILL);
    // Its parent, this test, has not waited for it.
    until("it has ended", || target.status("State").starts_with('Z'));
    for command in ["attach", "detach", "pause", "resume", "status"] {
        let out = scene.prof(&[command, &pid]);
        assert_eq!(out.code, 3, "{command}: {out:?}");
        says(&out, &[&pid, "toggle", "has ended", "exit code"]);
    }
}

#[test]
fn a_thread_is_answered_with_the_command_for_its_process() {
    let scene = Scene::new("thread");
    let mut target = Target::start(&program("crowd.c"), &[]);
    target.ask("go 2");
    let pid = target.pid.to_string();
    let tasks = common::numbers_in(format!("/proc/{pid}/task").as_ref());
    let tid = tasks.into_iter().find(|t| *t != target.pid).expect("a thread").to_string();
    let all: [(i32, &[&str]); 9] = [
        (3, &["attach"]),
        (3, &["detach", "--children"]),
        (3, &["pause"]),
        (3, &["resume"]),
        (3, &["status"]),
        (2, &["report"]),
        (2, &["leaks", "--function", "a b"]),
        (2, &["export", "csv"]),
        (2, &["info"]),
    ];
    // Both of a process that is recorded and of one that is not.
    for is_recorded in [true, false] {
        if is_recorded {
            scene.attach_with(&target, &["-o", "r.prof"]);
        }
        for (code, command) in all {
            let mut args = command.to_vec();
            args.push(&tid);
            let mut c = Command::new(Scene::binary());
            c.args(&args);
            let out = scene.run(c);
            assert_eq!(out.code, code, "{out:?}");
            args.pop();
            args.push(&pid);
            let line = args.join(" ").replace("a b", "'a b'");
            says(&out, &[&format!("{tid} is a thread of process {pid}; type `prof {line}`")]);
        }
        if is_recorded {
            scene.detach(&target);
        }
    }
    let doctor = scene.prof(&["doctor", &tid]).stdout;
    assert!(doctor.contains(&format!("is a thread of process {pid}")), "{doctor}");
    target.kill();
}

/// A filter for a time after the recording's end would match no block, so any limit would hold.
#[test]
fn times_after_the_end_of_a_recording_are_wrong() {
    let scene = Scene::new("after-the-end");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    scene.detach(&target);
    let file = recording.to_str().expect("a path");
    for (command, option) in [
        (&["report"][..], "--from"),
        (&["report"], "--at"),
        (&["report"], "--base"),
        (&["report"], "--alive-at"),
        (&["leaks"], "--from"),
        (&["check", "--max-leaked", "1"], "--from"),
        (&["export", "folded"], "--at"),
        (&["export", "csv"], "--from"),
        (&["fragmentation"], "--at"),
    ] {
        let out = scene.prof(&[command, &[option, "2h"], &[file]].concat());
        assert_eq!(out.code, 2, "{command:?} {option}: {out:?}");
        says(&out, &[option, "2h 00m is after the end of the recording, which is at "]);
    }
    let out = scene.prof(&["report", "--from", "90%", "--to", "10%", file]);
    assert_eq!(out.code, 2, "{out:?}");
    says(&out, &["--from is later than --to"]);
    let r = scene.prof(&["report", "--to", "2h", "--at", "100%", file]).ok("all of it");
    assert!(r.stdout.contains("100 allocations"), "{r:?}");
    target.quit();
}

#[test]
fn a_ring_of_another_size_than_asked_for_is_said() {
    let scene = Scene::new("ring-size");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid, "--ring-size", "1KiB", "-o", "small.prof"]).ok("attach");
    says(&out, &["the ring has 1.0 MiB, not 1.0 KiB"]);
    target.ask("alloc 100");
    scene.detach(&target);
    assert_eq!(scene.finished(&scene.path("small.prof")).total("allocations"), 100);
    target.quit();
}

#[test]
fn a_missing_proc_is_said_by_each_command_that_needs_it() {
    let scene = Scene::new("no-proc");
    let without_proc = |args: &[&str]| {
        let mut c = Command::new("unshare");
        c.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
        c.arg(Scene::binary()).args(args);
        scene.run(c)
    };
    if without_proc(&["--version"]).code != 0 {
        return skip(
            "a_missing_proc_is_said",
            "unshare --mount is not permitted, or not installed",
        );
    }
    let commands: [&[&str]; 8] = [
        &["attach", "1"],
        &["detach", "1"],
        &["pause", "1"],
        &["resume", "1"],
        &["status"],
        &["status", "1"],
        &["run", "--", "true"],
        &["demo"],
    ];
    for command in commands {
        let out = without_proc(command);
        assert_eq!(out.code, 3, "{command:?}: {out:?}");
        says(&out, &["/proc is not mounted", "mount -t proc proc /proc"]);
    }
    let out = without_proc(&["doctor"]);
    assert!(out.code == 1 && out.stdout.contains("/proc is not mounted"), "{out:?}");
}

#[test]
fn a_program_that_can_not_be_started_is_named_with_what_to_do() {
    let scene = Scene::new("start");
    let file = |name: &str, text: &str, mode: u32| {
        std::fs::write(scene.path(name), text).expect("a file");
        std::fs::set_permissions(scene.path(name), PermissionsExt::from_mode(mode)).expect("mode");
    };
    file("plain", "echo\n", 0o644);
    file("interpreted", "#!/nowhere/perl\n", 0o755);
    for (name, advice) in [
        ("no-such-program", "no program of that name is in PATH"),
        ("./interpreted", "first line"),
        ("./plain", "make it executable"),
    ] {
        let out = scene.prof(&["run", "-o", "start.prof", "--", name]);
        assert_eq!(out.code, 3, "{out:?}");
        says(&out, &[name, "can't start it", advice]);
        assert!(!scene.path("start.prof").exists());
    }
}

#[test]
fn what_an_earlier_recording_has_left_is_named() {
    let scene = Scene::new("parts");
    let mut target = Target::start(&program("yields.c"), &[]);
    let pid = target.pid.to_string();
    let file = program("yields.c").file_name().unwrap().to_str().unwrap().to_owned();
    let recording = scene.attach_with(&target, &[&format!("--alloc-fn={file}:lent_block(1)")]);
    target.ask("start");
    target.ask("alloc");
    assert_eq!(scene.prof(&["detach", &pid, "--timeout", "100ms"]).code, 1);
    kill_collector(&recording);
    let out = scene.prof(&["attach", &pid, "-o", "second.prof"]);
    assert_eq!(out.code, 3, "{out:?}");
    says(
        &out,
        &[&pid, "parts of an earlier recording", "fibers (coroutines) that are not running"],
    );
    says(&out, &["do nothing", &format!("`prof detach {pid}`")]);
    assert!(!scene.path("second.prof").exists());
    target.ask("resume");
    scene.prof(&["detach", &pid]).ok("detach");
    target.quit();
}

#[test]
fn an_earlier_recording_that_can_not_be_ended_now() {
    let scene = Scene::new("earlier");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach_with(&target, &["-o", "first.prof"]);
    kill_collector(&recording);
    // Another prof works on the process.
    let lock = File::open(format!("/proc/{pid}/status")).expect("status");
    lock.lock().expect("a lock");
    let out = scene.prof(&["attach", &pid, "-o", "second.prof"]);
    assert_ne!(out.code, 0, "{out:?}");
    let detach = format!("prof detach {pid}");
    for word in [&format!("process {pid}"), "first.prof", "another prof", "try again", &detach] {
        assert!(out.stderr.contains(word), "{word:?} is not in {:?}", out.stderr);
    }
    drop(lock);
    scene.attach_with(&target, &["-o", "second.prof"]);
    scene.detach(&target);
    target.quit();
}

#[test]
fn nothing_is_called_lost_where_nothing_was_recorded() {
    let scene = Scene::new("nothing-lost");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach_with(&target, &["--paused"]);
    kill_collector(&recording);
    std::fs::remove_file(&recording).expect("the recording");
    let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
    assert!(!out.stderr.contains("collector had died"), "{}", out.stderr);
    target.quit();
}

#[test]
fn events_that_can_not_be_saved_are_called_so() {
    let scene = Scene::new("events-lost");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 10");
    kill_collector(&recording);
    std::fs::remove_file(&recording).expect("the recording");
    let out = scene.prof(&["detach", &target.pid.to_string()]);
    assert_eq!(out.code, 1, "{out:?}");
    let path = recording.file_name().unwrap().to_str().unwrap();
    for word in ["collector had died", "still in memory can't be saved", path] {
        assert!(out.stderr.contains(word), "{word:?} is not in {:?}", out.stderr);
    }
    target.quit();
}

/// The kernel refuses munmap with EPERM for ever.
#[test]
fn what_a_process_has_sealed_is_said_to_stay() {
    let scene = Scene::new("sealed");
    let mut target = Target::spawn(std::process::Command::new(program("sealed.c")));
    if target.line() == "none" {
        target.kill();
        return common::skip("a sealed process", "the kernel has no mseal");
    }
    let pid = target.pid.to_string();
    target.ask("alloc");
    scene.attach_with(&target, &["-o", "first.prof"]);
    target.ask("alloc");
    target.ask("seal");
    for _ in 0..2 {
        let out = scene.prof(&["detach", &pid]);
        assert_eq!(out.code, 1, "{out:?}");
        assert_eq!(out.stderr.matches("munmap").count(), 1, "{out:?}");
        assert!(out.stderr.contains("mseal") && !out.stderr.contains("again removes"), "{out:?}");
    }
    let status = scene.prof(&["status", &pid]).ok("status").stdout;
    assert!(status.contains("detached from, with prof's memory left in it"), "{status}");
    // No output may suggest a signal that would end the process.
    assert!(!status.contains("toggle") && !status.contains("kill -"), "{status}");
    let json = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
    assert!(json.contains("\"signal\": null"), "{json}");
    for command in ["pause", "resume"] {
        let out = scene.prof(&[command, &pid]);
        assert_eq!(out.code, 3, "{command}: {out:?}");
        assert!(out.stderr.contains("not recorded any more"), "{command}: {out:?}");
    }
    let out = scene.prof(&["attach", &pid, "-o", "second.prof"]);
    assert!(out.code == 3 && out.stderr.contains("mseal"), "{out:?}");
    assert!(!scene.path("second.prof").exists());
    target.ask("alloc");
    target.quit();
}

/// Toggling by the signal after the end of a recording would end the process.
#[test]
fn a_recording_that_ends_by_itself_says_what_its_signal_does_then() {
    let scene = Scene::new("signal-later");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let args = ["attach", &pid, "-o", "r.prof", "--duration", "100ms"];
    let message = scene.prof(&args).ok("attach").stderr;
    assert!(message.contains("USR1 means what it meant before"), "{message}");
    scene.finished(&scene.path("r.prof"));
    until("prof is out", || !target.proc("maps").contains("prof-ring"));
    for command in ["pause", "resume"] {
        let out = scene.prof(&[command, &pid]);
        assert!(out.code == 3 && out.stderr.contains("not being recorded"), "{out:?}");
    }
    target.quit();
}
