//! Events between the steps of an attach or a detach: another tracer, a stack that grows, a handler that the target
//! sets itself; and messages about forked children.

use common::build::program;
use common::snapshot::Snapshot;
use common::{Scene, Target, skip};
use nix::sys::signal::Signal;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

/// Returns whether the other tracer has reported that it holds the target.
fn is_held(tracer: &mut Target) -> bool {
    tracer.line_within(Duration::from_millis(300)).is_some_and(|l| l == "held")
}

fn has_descriptor(target: &Target) -> bool {
    let all = std::fs::read_dir(format!("/proc/{}/fd", target.pid)).into_iter().flatten().flatten();
    let mut links = all.filter_map(|e| std::fs::read_link(e.path()).ok());
    links.any(|l| l.to_string_lossy().contains("prof-ring"))
}

#[test]
fn another_tracer_in_the_midst_of_an_attach_leaves_nothing_unsaid() {
    let scene = Scene::new("tracer");
    let mut named = 0;
    for i in 0..8 {
        let mut target = Target::start(&program("toggle.c"), &[]);
        target.ask("alloc 10");
        let pid = target.pid.to_string();
        let mut tracer = Target::start(&program("breaks_in.c"), &[&pid]);
        let file = format!("{i}.prof");
        // On a busy machine it may be too late.
        let out = loop {
            let out = scene.prof(&["attach", &pid, "-o", &file, "--timeout", "300ms"]);
            if out.code == 0 || is_held(&mut tracer) {
                break out;
            }
        };
        if out.code == 0 {
            tracer.expect("held");
        }
        let has_parts = |t: &Target| t.proc("maps").contains("prof-ring") || has_descriptor(t);
        if out.code != 0 {
            assert!(!scene.path(&file).exists());
            if has_parts(&target) {
                named += 1;
                let advice = format!("`prof detach {pid}`");
                assert!(out.stderr.contains(&advice), "{out:?}");
                assert!(!out.stderr.contains("nothing was changed"), "{out:?}");
            }
        }
        tracer.quit();
        if has_parts(&target) {
            scene.prof(&["detach", &pid]).ok("detach when the tracer has gone");
        }
        assert!(!has_parts(&target));
        target.ask("free 10");
        target.quit();
    }
    assert!(named > 0, "the other tracer always came too late");
}

#[test]
fn another_tracer_in_the_midst_of_a_detach_leaves_nothing_unsaid() {
    let scene = Scene::new("tracer-later");
    let mut named = 0;
    for i in 0..8 {
        let mut target = Target::start(&program("toggle.c"), &[]);
        target.ask("alloc 10");
        let pid = target.pid.to_string();
        scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        let mut tracer = Target::start(&program("breaks_in.c"), &[&pid, "later"]);
        let mut again = 0;
        let out = loop {
            let out = scene.prof(&["detach", &pid, "--timeout", "300ms"]);
            if is_held(&mut tracer) {
                break out;
            }
            if out.code == 0 {
                again += 1;
                // The other tracer may have acted on that one.
                let file = format!("{i}-{again}.prof");
                scene.prof(&["attach", &pid, "-o", &file, "--timeout", "300ms"]);
                if is_held(&mut tracer) {
                    break scene.prof(&["detach", &pid, "--timeout", "300ms"]);
                }
            }
        };
        let has_parts = |t: &Target| t.proc("maps").contains("prof-ring") || has_descriptor(t);
        assert!(out.code != 0 || !has_parts(&target), "{out:?}");
        if out.code != 0 && has_parts(&target) {
            named += 1;
            let names_it = out.stderr.contains("left in the process: ")
                && out.stderr.contains("`prof detach` again removes it");
            let is_off = out.stderr.contains("recording is off")
                && out.stderr.contains(&format!("until `prof detach {pid}` succeeds"));
            let state = || scene.prof(&["status", &pid]).ok("status").stdout;
            let untouched = || out.stderr.contains("traced by") && state().contains(": recording");
            assert!(names_it || is_off || untouched(), "{out:?}");
            assert!(!out.stderr.contains("nothing was changed"), "{out:?}");
            let lines: Vec<&str> = out.stderr.lines().collect();
            let is_said_once = |k: usize| !lines[..k].contains(&lines[k]);
            assert!((0..lines.len()).all(is_said_once), "{out:?}");
        }
        tracer.quit();
        if has_parts(&target) {
            scene.prof(&["detach", &pid]).ok("detach when the tracer has gone");
        }
        assert!(!has_parts(&target));
        target.ask("free 10");
        target.quit();
    }
    assert!(named > 0, "the other tracer always came too late");
}

#[test]
fn a_stack_that_grows_is_room_enough() {
    let scene = Scene::new("grows");
    for i in 0..5 {
        let mut target = Target::spawn(Command::new(program("grows.c")));
        target.expect("ready");
        for k in 0..3 {
            scene.attach_with(&target, &["-o", &format!("{i}-{k}.prof")]);
            scene.detach(&target);
        }
        target.send("up");
        target.expect("deep");
        target.quit();
    }
}

#[test]
fn a_handler_that_the_target_sets_during_a_detach_is_its_own() {
    let scene = Scene::new("own");
    for i in 0..3 {
        let mut target = Target::start(&program("own_handler.c"), &[]);
        scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        target.ask("seen");
        let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
        assert!(!out.stderr.contains("left in the process"), "{out:?}");
        target.quit();
    }
}

#[test]
fn a_detach_names_forked_children_that_keep_jumps() {
    let scene = Scene::new("prefork");
    let mut target = Target::start(&program("prefork.c"), &[]);
    let child = |target: &mut Target| target.ask("fork")["done ".len()..].trim().to_owned();
    let before = child(&mut target);
    scene.attach(&target);
    let children = [child(&mut target), child(&mut target)];
    let out = scene.prof(&["detach", &target.pid.to_string()]).ok("detach");
    let line = out.stderr.lines().find(|l| l.contains("children forked while it was recorded"));
    let line = line.unwrap_or_else(|| panic!("nothing is said: {out:?}"));
    let words: Vec<&str> = line.split(|c: char| !c.is_ascii_digit()).collect();
    for c in &children {
        assert!(words.contains(&c.as_str()), "{c}: {line}");
    }
    assert!(!words.contains(&before.as_str()), "{line}");
    target.quit();
}

/// Overwrites a child's note of the original bytes where its parent was hooked, as older builds have left no such note.
fn forget(pid: &str) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let mem = std::fs::File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
    let mem = mem.expect("memory");
    let range = |l: &str| {
        let (start, end) = l.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    let nameless = |l: &&str| l.contains("rw-p") && l.split_whitespace().count() == 5;
    let mut forgotten = 0;
    for (start, end) in maps.lines().filter(nameless).filter_map(range) {
        let mut bytes = vec![0; (end - start).min(1 << 20) as usize];
        let _ = mem.read_exact_at(&mut bytes, start);
        for at in (0..bytes.len()).step_by(8).filter(|at| bytes[*at..].starts_with(b"profnote")) {
            mem.write_all_at(&[0; 8], start + at as u64).expect("written");
            forgotten += 1;
        }
    }
    assert_eq!(forgotten, 1);
}

#[test]
fn a_child_with_jumps_of_its_parents_recording_is_refused_for_that() {
    let scene = Scene::new("inherited");
    let mut target = Target::start(&program("prefork.c"), &[]);
    let child = |target: &mut Target| target.ask("fork")["done ".len()..].trim().to_owned();
    let early = child(&mut target);
    scene.attach(&target);
    let copy = child(&mut target);
    forget(&copy);
    let refused = |args: &[&str], word: &str| {
        let out = scene.prof(args);
        assert!(out.code == 3 && out.stderr.contains(word), "{out:?}");
    };
    let jumps = "forked from a process that was";
    refused(&["attach", &copy, "-o", "copy.prof"], jumps);
    refused(&["detach", &copy], jumps);
    scene.detach(&target);
    refused(&["attach", &copy, "-o", "copy.prof"], jumps);
    assert!(!scene.path("copy.prof").exists());
    // A child that was forked before the attach, or after the detach, has no jumps.
    let late = child(&mut target);
    for pid in [&early, &late] {
        refused(&["detach", pid], "start with `prof attach");
        scene.prof(&["attach", pid, "-o", &format!("{pid}.prof")]).ok("attach");
        scene.prof(&["detach", pid]).ok("detach");
    }
    target.quit();
}

#[test]
fn a_jump_that_comes_back_in_a_detach_is_taken_out_before_its_page_goes() {
    let scene = Scene::new("replaces");
    let mut came_back = 0;
    for i in 0..10 {
        let mut target = Target::start(&program("replaces.c"), &[]);
        scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        target.ask("copy");
        let out = scene.prof(&["detach", &target.pid.to_string()]);
        // On a busy machine the target may get to it too late.
        if out.stderr.contains("had come back") {
            assert_eq!(out.code, 0, "{out:?}");
            target.send("work");
            assert_eq!(target.line(), "done replaced=1 same=1");
            target.quit();
            came_back += 1;
        } else {
            assert_eq!(out.code, 0, "{out:?}");
            target.kill();
        }
        if came_back == 2 {
            return;
        }
    }
    panic!("the target always came too late");
}

#[test]
fn memory_that_a_target_with_caught_calls_keeps_is_said_and_found_again() {
    if common::is_refused_by_dlopen("blinks", "its threads catch their system calls") {
        return;
    }
    let scene = Scene::new("blinks");
    let mut target = Target::spawn(Command::new(program("dispatched.c")));
    if target.expect("") == "unsupported" {
        return skip("blinks", "the kernel has no PR_SET_SYSCALL_USER_DISPATCH");
    }
    let pid = target.pid.to_string();
    let before = Snapshot::of(&target);
    let blinks = |target: &mut Target| {
        target.send("blink");
        target.expect("blinking");
    };
    let rests = |target: &mut Target| {
        target.signal(Signal::SIGUSR2);
        assert_eq!(target.line(), "done caught=0");
    };
    for i in 0..9 {
        let file = format!("{i}.prof");
        let attach = || scene.prof(&["attach", &pid, "-o", &file, "--timeout", "300ms"]);
        let attached_before = i % 3 != 0;
        if attached_before {
            attach().ok("attach");
        }
        blinks(&mut target);
        let out = match attached_before {
            true => scene.prof(&["detach", &pid, "--timeout", "300ms"]),
            false => attach(),
        };
        let recorded = !attached_before && out.code == 0;
        rests(&mut target);
        let differs = before.differences(&Snapshot::of(&target));
        let left = match attached_before {
            true => out.code == 1,
            false => recorded || out.stderr.contains("could not be taken back"),
        };
        assert_eq!(left, !differs.is_empty(), "{out:?}\n{}", differs.join("\n"));
        if left {
            assert!(recorded || out.stderr.contains("prof detach"), "{out:?}");
            scene.prof(&["detach", &pid]).ok("detach of what was left");
            before.assert_same(&Snapshot::of(&target));
        }
    }
    target.quit();
}
