//! Bad input and targets that can't be recorded: prof prints one line that says what is wrong, returns the exit code
//! (2: usage, 3: the target), and touches nothing. Damaged recordings are read as far as they are whole.

use common::build::{compile, other_width, program};
use common::snapshot::Snapshot;
use common::{Output, Scene, Target, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Asserts a refusal: the code, one line on stderr with all the words, nothing on stdout.
#[track_caller]
fn refused(out: &Output, code: i32, words: &[&str]) {
    assert_eq!(out.code, code, "{out:#?}");
    assert!(out.stdout.is_empty(), "{out:#?}");
    assert_eq!(out.stderr.trim_end().lines().count(), 1, "more than one line: {out:#?}");
    let lower = out.stderr.to_lowercase();
    for word in words {
        assert!(lower.contains(&word.to_lowercase()), "{word:?} is not in {:?}", out.stderr);
    }
}

/// Asserts that no file was written to the scratch folder.
#[track_caller]
fn nothing_written(scene: &Scene) {
    let left: Vec<_> = std::fs::read_dir(&scene.dir).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn no_such_process() {
    let scene = Scene::new("gone");
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let pid = child.id().to_string();
    for command in ["attach", "detach", "pause", "resume", "status"] {
        let out = scene.prof(&[command, &pid]);
        refused(&out, 3, &[&pid, "no "]);
        assert!(out.stderr.contains("process"), "{out:?}");
    }
    refused(&scene.prof(&["attach", "99999999"]), 3, &["99999999"]);
    for nonsense in ["0", "-1", "1.5", ""] {
        let out = scene.prof(&["attach", nonsense]);
        assert_eq!(out.code, 2, "{nonsense:?}: {out:?}");
    }
    nothing_written(&scene);
}

#[test]
fn a_kernel_thread() {
    let name = std::fs::read_to_string("/proc/2/status").unwrap_or_default();
    if !name.starts_with("Name:\tkthreadd") {
        return skip("a_kernel_thread", "process 2 is none here: a pid namespace");
    }
    let scene = Scene::new("kernel");
    let words: &[&str] =
        if nix::unistd::geteuid().is_root() { &["2", "kernel thread"] } else { &["2"] };
    refused(&scene.prof(&["attach", "2"]), 3, words);
    nothing_written(&scene);
}

#[test]
fn a_zombie() {
    let scene = Scene::new("zombie");
    let mut parent = Target::spawn(Command::new(program("zombie.c")));
    let line = parent.expect("ready");
    let pid = line.rsplit(' ').next().unwrap();
    refused(&scene.prof(&["attach", pid]), 3, &[pid, "zombie"]);
    nothing_written(&scene);
    parent.quit();
}

#[test]
fn prof_itself_is_no_target() {
    let scene = Scene::new("itself");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" attach $$"]).arg(Scene::binary());
    let out = scene.run(command);
    assert_eq!(out.code, 3, "{out:?}");
    nothing_written(&scene);
}

#[test]
fn no_permission() {
    if !nix::unistd::geteuid().is_root() || !common::installed("setpriv") {
        return skip("no_permission", "needs root and setpriv to become someone else");
    }
    let scene = Scene::new("permission");
    std::fs::set_permissions(&scene.dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = scene.path("prof");
    std::fs::copy(Scene::binary(), &copy).unwrap();
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let before = Snapshot::of(&target);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(nobody).arg(&copy).args(["attach", &pid]);
    let out = scene.run(command);
    refused(&out, 3, &[&pid]);
    let lower = out.stderr.to_lowercase();
    let says = ["permission", "another user", "cap_sys_ptrace", "root"];
    assert!(says.iter().any(|w| lower.contains(w)), "says which knob: {}", out.stderr);
    before.assert_same(&Snapshot::of(&target));

    // Conversely, root may record another user's process, and nobody those of nobody.
    std::fs::remove_file(&copy).unwrap();
    target.quit();
}

#[test]
fn a_process_of_another_user_is_recorded_by_root() {
    if !nix::unistd::geteuid().is_root() || !common::installed("setpriv") {
        return skip("a_process_of_another_user", "needs root and setpriv");
    }
    let scene = Scene::new("other");
    std::fs::set_permissions(&scene.dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = scene.path("toggle.copy");
    std::fs::copy(program("toggle.c"), &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    let mut target = Target::spawn(command);
    target.expect("ready");
    let recording = scene.attach(&target);
    target.ask("alloc 5");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(5, 640);
}

#[test]
fn already_traced() {
    let scene = Scene::new("traced");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let tracer = Target::start(&program("tracer.c"), &[&pid]);
    let before = Snapshot::of(&target);
    let by = tracer.pid.to_string();
    refused(&scene.prof(&["attach", &pid]), 3, &[&pid, "traced", &by, "tracer"]);
    before.assert_same(&Snapshot::of(&target));
    drop(tracer);
    target.ask("alloc 1");
    nothing_written(&scene);
    target.quit();
}

/// Tests both directions where there is a prof of the other width, as in a machine of tests/vm.
#[test]
fn a_process_of_another_width() {
    let flags = ["-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector"];
    let other = other_width();
    let found = other.as_ref().map(|d| d.join("bits32"));
    let bits = match found.map_or_else(|| compile("cc", "bits32.c", &flags), Ok) {
        Ok(p) => p,
        Err(e) => return skip("a_process_of_another_width", &format!("cc -m32: {e}")),
    };
    if Command::new(&bits).stdin(std::process::Stdio::null()).status().is_err() {
        return skip("a_process_of_another_width", "the kernel runs no programs of another width");
    }
    let (ours, theirs) =
        if cfg!(target_pointer_width = "64") { ("64-bit", "32-bit") } else { ("32-bit", "64-bit") };
    let scene = Scene::new("bits32");
    let mut target = Target::spawn(Command::new(bits));
    target.ask("");
    let pid = target.pid.to_string();
    refused(&scene.prof(&["attach", &pid]), 3, &[&pid, ours, theirs]);
    target.ask("");
    if let Some(dir) = other {
        let mut target = Target::start(&program("toggle.c"), &[]);
        let pid = target.pid.to_string();
        let mut command = Command::new(dir.join("prof"));
        command.args(["attach", &pid]);
        refused(&scene.run(command), 3, &[&pid, ours, theirs]);
        target.ask("alloc 1");
        target.quit();
    }
    nothing_written(&scene);
}

#[test]
fn an_allocator_that_can_not_be_hooked() {
    if !cfg!(target_arch = "x86_64") {
        return skip("an_allocator_that_can_not_be_hooked", "a jump fits into any function here");
    }
    let scene = Scene::new("tiny");
    let mut target = Target::start(&program("tiny.c"), &[]);
    let before = Snapshot::of(&target);
    let attach = ["attach", "--symbols-prefix", "tiny_", &target.pid.to_string()];
    let words = ["none of the functions", "tiny_", "nothing was changed", "--alloc-fn"];
    refused(&scene.prof(&attach), 3, &words);
    nothing_written(&scene);
    before.assert_same(&Snapshot::of(&target));
    target.ask("go");
    target.quit();
}

/// Has another program run the target, and attaches to it.
fn translated(scene: &Scene, mut command: Command) -> (Target, Output) {
    command.arg(program("toggle.c"));
    let mut target = Target::spawn(command);
    target.expect("ready");
    let out = scene.prof(&["attach", &target.pid.to_string()]);
    (target, out)
}

#[test]
fn a_program_whose_code_is_translated() {
    if !cfg!(target_arch = "x86_64") {
        return skip(
            "a_program_whose_code_is_translated",
            "needs valgrind and QEMU for this machine",
        );
    }
    let scene = Scene::new("translated");
    let tools: [(&str, &[&str], &[&str]); 2] = [
        ("valgrind", &["--tool=none", "-q"], &["under valgrind", "without valgrind"]),
        ("qemu-x86_64-static", &[], &["under qemu-x86_64", "architecture"]),
    ];
    for (tool, options, words) in tools {
        if !common::installed(tool) {
            skip("a_program_whose_code_is_translated", &format!("no {tool}"));
            continue;
        }
        let mut command = Command::new(tool);
        command.args(options);
        let (mut target, out) = translated(&scene, command);
        refused(&out, 3, words);
        refused(&out, 3, &[&target.pid.to_string(), "translates", "would never be called"]);
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid)).unwrap();
        assert!(!maps.contains("prof-ring"), "{maps}");
        target.ask("alloc 1");
        target.quit();
    }
    nothing_written(&scene);

    // An emulator whose own allocator can be hooked.
    let emulator = scene.path("qemu-sparc64");
    std::fs::copy(program("toggle.c"), &emulator).unwrap();
    let (mut target, out) = translated(&scene, Command::new(&emulator));
    let note = "is qemu-sparc64, which translates the code of the program that it runs";
    assert!(out.code == 0 && out.stderr.contains(note), "{out:?}");
    scene.detach(&target);
    let doctor = scene.prof(&["doctor", &target.pid.to_string()]).stdout;
    assert!(doctor.contains(note), "{doctor}");
    target.quit();
    let run = scene.prof(&["run", "-o", "r.prof", emulator.to_str().unwrap()]);
    assert!(run.stderr.contains(note), "{run:?}");
}

#[test]
fn attach_twice() {
    let scene = Scene::new("twice");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let recording = scene.attach(&target);
    let name = recording.file_name().unwrap().to_str().unwrap();
    refused(&scene.prof(&["attach", &pid]), 3, &[&pid, "already", name]);
    target.ask("alloc 4");
    scene.detach(&target);
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(4, 512);
}

#[test]
fn two_attaches_at_once_make_one_recording() {
    let scene = Scene::new("race");
    let mut target = Target::start(&program("stress.c"), &[]);
    for _ in 0..5 {
        let outs: Vec<Output> = std::thread::scope(|s| {
            let (scene, pid) = (&scene, target.pid);
            let run = |i: usize| {
                move || {
                    let file = format!("r{i}.prof");
                    scene.prof(&["attach", &pid.to_string(), "-o", &file])
                }
            };
            let threads: Vec<_> = (0..3).map(|i| s.spawn(run(i))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let good: Vec<_> = outs.iter().filter(|o| o.code == 0).collect();
        assert_eq!(good.len(), 1, "{outs:#?}");
        outs.iter().filter(|o| o.code != 0).for_each(|o| refused(o, 3, &[]));
        scene.detach(&target);
        scene.finished(&scene.path(good[0].stdout.trim_end()));
        for i in 0..3 {
            let _ = std::fs::remove_file(scene.path(&format!("r{i}.prof")));
        }
    }
    assert_eq!(target.ask("stop"), "done OK");
    target.quit();
}

#[test]
fn commands_on_a_process_that_is_not_recorded() {
    let scene = Scene::new("unrecorded");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let before = Snapshot::of(&target);
    for command in ["detach", "pause", "resume"] {
        refused(&scene.prof(&[command, &pid]), 3, &[&pid, "not"]);
    }
    before.assert_same(&Snapshot::of(&target));
    nothing_written(&scene);
    target.quit();
}

#[test]
fn unwritable_output() {
    let scene = Scene::new("unwritable");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let before = Snapshot::of(&target);
    for file in ["/nonexistent/folder/x.prof", "/proc/x.prof", "/dev/full/x", "/"] {
        let out = scene.prof(&["attach", &pid, "-o", file]);
        assert!(matches!(out.code, 1..=3), "{out:?}");
        refused(&out, out.code, &[file]);
        before.assert_same(&Snapshot::of(&target));
    }
    // An existing file is never overwritten by accident.
    target.ask("alloc 1");
    nothing_written(&scene);
    target.quit();
}

#[test]
fn files_that_are_no_recordings() {
    let scene = Scene::new("files");
    let cases: [(&str, &[u8]); 4] = [
        ("empty.prof", b""),
        ("short.prof", b"PROF"),
        ("text.prof", b"This is a text of more than sixteen bytes, and no recording."),
        ("elf.prof", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0"),
    ];
    for (name, bytes) in cases {
        std::fs::write(scene.path(name), bytes).unwrap();
        let out = scene.prof(&["report", name]);
        assert!(matches!(out.code, 1..=3), "{out:?}");
        refused(&out, out.code, &[name]);
    }
    let out = scene.prof(&["report", "missing.prof"]);
    refused(&out, out.code, &["missing.prof"]);
    assert_ne!(out.code, 0);
    let empty = Scene::new("empty");
    let out = empty.prof::<&str>(&["report"]);
    assert_ne!(out.code, 0, "{out:?}");
    assert_eq!(out.stderr.trim_end().lines().count(), 1, "{out:?}");
}

#[test]
fn a_recording_of_a_newer_version() {
    let scene = Scene::new("newer");
    let bytes = small_recording(&scene);
    let mut newer = bytes.clone();
    newer[8..12].copy_from_slice(&77u32.to_le_bytes());
    std::fs::write(scene.path("newer.prof"), newer).unwrap();
    let out = scene.prof(&["report", "newer.prof"]);
    refused(&out, out.code, &["newer.prof", "77", "newer"]);
    assert_ne!(out.code, 0);
}

/// Returns a finished recording of 2,000 blocks in two parts.
fn small_recording(scene: &Scene) -> Vec<u8> {
    let mut target = Target::start(&program("toggle.c"), &[]);
    let file = scene.path("whole.prof");
    scene.attach_with(&target, &["-o", file.to_str().unwrap()]);
    target.ask("alloc 1000");
    common::until("the first part is in the file", || {
        scene.report(&file).total("allocations") == 1000
    });
    target.ask("alloc 1000");
    scene.detach(&target);
    target.quit();
    assert_eq!(scene.finished(&file).total("allocations"), 2000);
    std::fs::read(&file).unwrap()
}

#[test]
fn a_recording_that_was_cut_off_is_read_up_to_its_last_whole_chunk() {
    let scene = Scene::new("cut");
    let bytes = small_recording(&scene);
    let cut = scene.path("cut.prof");
    let mut seen = std::collections::BTreeSet::new();
    let mut last = 0;
    let mut read = 0;
    let step = (bytes.len() / 40).max(1);
    for length in (1..bytes.len()).step_by(step).chain(bytes.len() - 3..bytes.len()) {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let out = scene.prof(&["report", "cut.prof", "--format", "json"]);
        if out.code != 0 {
            // This happens only before there is a whole header and a first chunk.
            refused(&out, out.code, &["cut.prof"]);
            assert!(read == 0, "{length} of {} bytes: {out:?}", bytes.len());
            continue;
        }
        read += 1;
        let r = common::Report::parse(&out.stdout);
        assert!(!r.bool("/recording/complete"), "{length} of {} bytes are complete", bytes.len());
        let n = r.total("allocations");
        assert!(n >= last && n <= 2000, "{n} after {last}");
        last = n;
        seen.insert(n);
    }
    assert!(read >= 20, "only {read} of the cut files were read");
    assert!(seen.contains(&1000) || seen.contains(&2000), "{seen:?}");
    let text = scene.prof(&["report", "cut.prof"]).ok("report of a cut recording");
    let all = (text.stdout + &text.stderr).to_lowercase();
    let says = ["cut off", "incomplete", "not complete", "truncated", "unfinished"];
    assert!(says.iter().any(|w| all.contains(w)), "does not say that it is cut off:\n{all}");
    let file = "cut.prof";
    for args in [
        &["export", "csv", file][..],
        &["export", "folded", file, "-o", "x.folded"],
        &["check", file, "--max-leaked", "1GiB"],
        &["maps", file],
        &["allocator", file],
        &["leaks", file],
        &["fragmentation", file],
        &["diff", file, file],
        &["strip", file, "-o", "stripped.prof", "--threshold", "1ms"],
        &["pack", file, "-o", "packed.prof"],
    ] {
        let out = scene.prof(args);
        let says = (out.stdout + &out.stderr).contains("recording cut off: reported up to");
        assert!(says, "{args:?} does not say that it is cut off: {}", out.stderr);
    }
}

#[test]
fn damage_in_the_middle_does_no_harm() {
    let scene = Scene::new("damage");
    let bytes = small_recording(&scene);
    let file = scene.path("damaged.prof");
    for i in 0..40 {
        let mut damaged = bytes.clone();
        let at = 16 + (bytes.len() - 16) * i / 40;
        damaged[at] ^= 0x55;
        std::fs::write(&file, damaged).unwrap();
        let out = scene.prof(&["report", "damaged.prof", "--format", "json"]);
        if out.code == 0 {
            let n = common::Report::parse(&out.stdout).total("allocations");
            assert!(n <= 2000, "byte {at}: {n} allocations");
        } else {
            refused(&out, out.code, &["damaged.prof"]);
            assert!(out.code <= 3, "byte {at}: {out:?}");
        }
    }
    assert!(Path::new(&file).exists());
}

/// The process ends at every instant of an attach, in turn: whatever failed first, one reason is reported.
#[test]
fn a_process_that_ends_meanwhile() {
    let scene = Scene::new("ending");
    let mut ended = 0;
    for i in 0..20 {
        let mut command = Command::new("sleep");
        command.arg(format!("0.0{:02}", 1 + 3 * i));
        let mut child = command.spawn().unwrap();
        let pid = child.id().to_string();
        let reaper = std::thread::spawn(move || child.wait());
        let recording = format!("{i}.prof");
        let out = scene.prof(&["attach", &pid, "-o", &recording]);
        let _ = reaper.join();
        if out.code == 0 {
            continue;
        }
        ended += 1;
        refused(&out, 3, &[&pid]);
        let reasons = ["has ended", "no such process", "zombie", "started another program"];
        assert!(reasons.iter().any(|r| out.stderr.contains(r)), "{out:#?}");
        assert!(!scene.path(&recording).exists(), "{out:#?}");
    }
    assert!(ended > 0, "all attaches were faster than a millisecond");
}

#[test]
fn no_address_space_left() {
    let scene = Scene::new("space");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 100000; exec \"$0\""]).arg(program("counts.c"));
    let mut target = Target::spawn(command);
    target.expect("ready");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    refused(&scene.prof(&["attach", &pid]), 3, &[&pid, "limited to 97.7 MiB", "prlimit --pid"]);
    before.assert_same(&Snapshot::of(&target));
    nothing_written(&scene);
    target.quit();
}

/// The hook would take such threads for one, and both would write to the same place of the ring.
#[test]
fn threads_that_can_not_be_told_apart() {
    let scene = Scene::new("apart");
    let program = program("bare.c");
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let mut target = Target::start(&program, &[]);
    target.ask("alloc");
    let before = Snapshot::of(&target);
    let (pid, pool) = (target.pid.to_string(), format!("--alloc-fn={name}:bare_get(1)"));
    let out = scene.prof(&["attach", &pid, "-o", "r.prof", &pool]);
    assert!(out.code == 3 && out.stderr.contains("the same thread pointer"), "{out:?}");
    assert!(!scene.path("r.prof").exists());
    before.assert_same(&Snapshot::of(&target));
    target.ask("alloc");
    // Such a thread can't call libc's functions in any case.
    let recording = scene.attach(&target);
    target.ask("alloc");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording).assert_sound();
}

/// The hook's words are not all aligned: the first recorded call would end the thread.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_checks_alignment() {
    let scene = Scene::new("alignment");
    let mut target = Target::start(&program("aligned.c"), &[]);
    target.ask("spin");
    let before = Snapshot::of(&target);
    let args = ["attach", &target.pid.to_string(), "-o", "r.prof"];
    let out = scene.prof(&args);
    assert!(out.code == 3 && out.stderr.contains("EFLAGS.AC"), "{out:?}");
    assert!(!scene.path("r.prof").exists());
    before.assert_same(&Snapshot::of(&target));
    // When the thread no longer does that, it can be recorded.
    target.ask("stop");
    scene.prof(&args).ok("attach");
    target.ask("spin");
    target.ask("stop");
    scene.detach(&target);
    target.quit();
}
