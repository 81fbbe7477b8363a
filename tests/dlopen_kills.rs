//! Kills of prof while a target's dynamic linker loads or unloads the hook (`--by dlopen`).

use common::build::program;
use common::killer::{killed_at, killed_when};
use common::library::{BY_DLOPEN, busy, clean_up, maps_of_hook, no_mounts, over_folders};
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use std::process::Command;

/// Number of kills in a run of a test, unless `PROF_KILLS` sets it.
const KILLS: usize = 20;

/// Returns the system calls at which to kill: evenly spaced, and others each time.
fn places(calls: usize) -> Vec<usize> {
    let wanted = std::env::var("PROF_KILLS").ok().and_then(|v| v.parse().ok());
    let step = (calls / wanted.unwrap_or(KILLS)).max(1);
    (1 + std::process::id() as usize % step..=calls).step_by(step).collect()
}

/// Kills prof at system calls of its attach to a busy program, and cleans up after each.
fn kill_attaches(scene: &Scene, command: Command) {
    let (mut target, linked) = busy(command);
    let pid = target.pid.to_string();
    let run = |at| {
        let _ = std::fs::remove_file(scene.path("k.prof"));
        let options = ["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB", "--look", "0s"];
        let options = [&options[..], &["--timeout", "60s"], &BY_DLOPEN].concat();
        killed_at(scene.command(&options), at)
    };
    let (calls, _) = run(None);
    assert!(maps_of_hook(&target) > 0);
    clean_up(scene, &mut target, &linked, 0);
    let mut killed = 0;
    for place in places(calls) {
        killed += usize::from(run(Some(place)).1);
        clean_up(scene, &mut target, &linked, place);
    }
    println!("killed {killed} times in {calls} calls");
    assert!(killed > KILLS / 3, "{killed}");
    target.quit();
}

#[test]
fn kills_of_attach_do_no_harm() {
    let scene = Scene::new("dlopen-killed-attach");
    kill_attaches(&scene, Command::new(program("busy.c")));
}

/// The library is a memfd, of which the process has a descriptor for a moment.
#[test]
fn kills_of_attach_without_a_folder_do_no_harm() {
    if let Some(why) = no_mounts() {
        return common::skip("dlopen-killed-attach-memfd", why);
    }
    let scene = Scene::new("dlopen-killed-attach-memfd");
    kill_attaches(&scene, over_folders(["ro", "noexec", "ro", "noexec"], &program("busy.c")));
}

/// The process does not keep the descriptor of the library, also if no other prof follows.
#[test]
fn a_kill_in_the_moment_of_the_descriptor_does_no_harm() {
    if let Some(why) = no_mounts() {
        return common::skip("dlopen-killed-descriptor", why);
    }
    let scene = Scene::new("dlopen-killed-descriptor");
    let mut target = Target::spawn(over_folders(["ro"; 4], &program("toggle.c")));
    target.expect("ready");
    target.ask("alloc 1");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    for _ in 0..3 {
        let _ = std::fs::remove_file(scene.path("k.prof"));
        let attach = ["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB", "--by", "dlopen"];
        let has_it = |_| target.has_memfd("/prof-hook-");
        let (calls, killed) = killed_when(scene.command(&attach), has_it);
        assert!(killed, "at none of {calls} calls had the target the descriptor");
        until("the descriptor is closed", || !target.has_memfd("/prof-hook-"));
        let out = scene.prof(&["detach", &pid]);
        assert!(out.code == 0 || out.stderr.contains("is not being recorded"), "{out:?}");
        before.assert_same(&Snapshot::of(&target));
    }
    scene.attach_with(&target, &BY_DLOPEN);
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}

#[test]
fn kills_of_detach_do_no_harm() {
    let scene = Scene::new("dlopen-killed-detach");
    let (mut target, linked) = busy(Command::new(program("busy.c")));
    let pid = target.pid.to_string();
    let run = |at| {
        let _ = std::fs::remove_file(scene.path("k.prof"));
        let options = ["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB"];
        scene.prof(&[&options[..], &BY_DLOPEN].concat()).ok("attach");
        killed_at(scene.command(&["detach", &pid, "--timeout", "60s"]), at)
    };
    let (calls, _) = run(None);
    clean_up(&scene, &mut target, &linked, 0);
    let mut killed = 0;
    for place in places(calls) {
        killed += usize::from(run(Some(place)).1);
        clean_up(&scene, &mut target, &linked, place);
    }
    println!("killed {killed} times in {calls} calls");
    assert!(killed > KILLS / 3, "{killed}");
    target.quit();
}
