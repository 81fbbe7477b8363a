//! prof is killed at any of its system calls: the next prof cleans up, and the target is as it was before.

use common::build::program;
use common::killer::{killed_at, killed_when};
use common::snapshot::Snapshot;
use common::{DEADLINE, Scene, Target};
use prof_trace::shared::{STABLE_AT, Stable};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Number of kills in a run of a test, unless `PROF_KILLS` sets it.
const KILLS: usize = 30;

/// Returns the system calls at which to kill: evenly spaced, and others each time.
fn places(calls: usize, kills: usize) -> Vec<usize> {
    let wanted = std::env::var("PROF_KILLS").ok().and_then(|v| v.parse().ok());
    let step = (calls / wanted.unwrap_or(kills)).max(1);
    (1 + std::process::id() as usize % step..=calls).step_by(step).collect()
}

fn prof(scene: &Scene, args: &[&str]) -> Command {
    let mut c = Command::new(Scene::binary());
    c.args(args).args(common::way(args)).current_dir(scene.path(""));
    c
}

/// Detaches after a kill: that succeeds, or finds nothing to do.
#[track_caller]
fn clean_up(scene: &Scene, target: &mut Target, before: &Snapshot, place: usize) {
    let out = scene.prof(&["detach", &target.pid.to_string()]);
    let nothing = out.stderr.contains("is not being recorded");
    assert!(out.code == 0 || nothing, "after a kill at call {place}: {out:?}");
    // A thread may still have to finish the call that the killed prof made it do.
    let end = Instant::now() + DEADLINE / 6;
    loop {
        let found = before.differences(&Snapshot::of(target));
        if found.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "after a kill at call {place}: {}", found.join("\n"));
        std::thread::sleep(Duration::from_millis(5));
    }
    target.ask("alloc 1");
    target.ask("free 1");
}

#[test]
fn of_detach() {
    let scene = Scene::new("killed-detach");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    target.ask("alloc 1"); // the heap
    let before = Snapshot::of(&target);
    let run = |at| {
        let file = scene.path("k.prof");
        let _ = std::fs::remove_file(&file);
        scene.prof(&["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB"]).ok("attach");
        killed_at(prof(&scene, &["detach", &pid]), at)
    };
    let (calls, _) = run(None);
    before.assert_same(&Snapshot::of(&target));
    assert!(calls > 100, "{calls}");
    let mut killed = 0;
    for place in places(calls, KILLS) {
        killed += usize::from(run(Some(place)).1);
        clean_up(&scene, &mut target, &before, place);
    }
    println!("killed {killed} times in {calls} calls");
    assert!(killed > 10, "{killed}");
    target.quit();
}

/// Kills prof while it attaches.
fn killed_attaching(name: &str, program: &Path, args: &[&str], kills: usize) {
    let scene = Scene::new(name);
    let mut target = Target::start(program, args);
    let pid = target.pid.to_string();
    target.ask("alloc 1"); // the heap
    let before = Snapshot::of(&target);
    let run = |at| {
        let _ = std::fs::remove_file(scene.path("k.prof"));
        let options = ["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB", "--look", "0s"];
        killed_at(prof(&scene, &options), at)
    };
    let (calls, _) = run(None);
    scene.prof(&["detach", &pid]).ok("detach");
    assert!(calls > 100, "{calls}");
    let mut killed = 0;
    for place in places(calls, kills) {
        killed += usize::from(run(Some(place)).1);
        clean_up(&scene, &mut target, &before, place);
    }
    println!("killed {killed} times in {calls} calls");
    assert!(killed > kills / 3, "{killed}");
    // The program reports how often it found its own data overwritten.
    let last = target.ask("alloc 1");
    assert!(!last.contains("bad=") || last.ends_with(" bad=0"), "{last}");
    target.ask("free 1");
    target.quit();
}

#[test]
fn of_attach() {
    killed_attaching("killed-attach", &program("toggle.c"), &[], KILLS);
}

/// Checks that the control page names the hook and the flag page only together with the area that they are in. A next prof
/// could not tell a part that is named alone from memory of the target's.
#[track_caller]
fn assert_parts_are_in_the_place(target: &Target, maps: &str) {
    let Some(ring) = maps.lines().find(|l| l.contains("/memfd:prof-ring")) else { return };
    let ring = u64::from_str_radix(&ring[..ring.find('-').expect("a range")], 16).expect("hex");
    let memory = target.memory();
    let word = |offset: usize| {
        let mut bytes = [0; 8];
        let read = memory.read_exact_at(&mut bytes, ring + (STABLE_AT + offset) as u64);
        read.map_or(0, |()| u64::from_ne_bytes(bytes))
    };
    let place = word(offset_of!(Stable, place));
    let parts = [offset_of!(Stable, hook_addr), offset_of!(Stable, flag_addr)].map(word);
    assert!(place != 0 || parts == [0, 0], "{parts:#x?}");
}

/// Kills prof at each change of the target's mappings, while it attaches and while it detaches. Some of these moments are
/// so short that kills at any call rarely meet them.
fn killed_at_changes(name: &str, by: &str) {
    let scene = Scene::new(name);
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    target.ask("alloc 1"); // the heap
    let before = Snapshot::of(&target);
    let attach =
        ["attach", &pid, "--by", by, "-o", "k.prof", "--ring-size", "1MiB", "--look", "0s"];
    let detach = ["detach", &pid];
    for args in [&attach[..], &detach] {
        let is_detach = args == detach;
        for at in 1.. {
            let _ = std::fs::remove_file(scene.path("k.prof"));
            if is_detach {
                scene.prof(&attach).ok("attach");
            }
            let (mut last, mut changes, mut seen) = (target.proc("maps"), 0, 0);
            let (_, killed) = killed_when(prof(&scene, args), |calls| {
                if calls != seen {
                    let now = target.proc("maps");
                    assert_parts_are_in_the_place(&target, &now);
                    changes += usize::from(now != last);
                    (last, seen) = (now, calls);
                }
                changes >= at
            });
            clean_up(&scene, &mut target, &before, at);
            if !killed {
                println!("{}: {changes} changes", args[0]);
                assert!(changes > 3, "{changes}");
                break;
            }
        }
    }
    target.quit();
}

#[test]
fn at_each_change_of_the_mappings() {
    killed_at_changes("killed-change", "map");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn at_each_change_of_the_mappings_by_dlopen() {
    killed_at_changes("killed-change-dlopen", "dlopen");
}

/// The ring grows from its first page. A next prof must know a part of a ring from a whole one.
#[test]
fn of_attach_while_the_ring_grows() {
    let scene = Scene::new("killed-growing");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    target.ask("alloc 1"); // the heap
    let before = Snapshot::of(&target);
    let attach = ["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB", "--look", "0s"];
    let page = prof_os::page_size();
    let mut parts = 0;
    // Each test run kills at other calls.
    for at in (1 + std::process::id() as usize % 3..).step_by(3) {
        let _ = std::fs::remove_file(scene.path("k.prof"));
        let (mut last, mut len, mut seen) = (0, 0, 0);
        let (_, killed) = killed_when(prof(&scene, &attach), |calls| {
            if calls != last {
                last = calls;
                len = ring_len(&target.proc("maps"));
                seen += usize::from(len > 0);
            }
            seen >= at
        });
        assert!(killed, "the ring was not seen at {at} calls");
        clean_up(&scene, &mut target, &before, at);
        parts += usize::from(len == page);
        if len > page {
            break;
        }
    }
    println!("killed {parts} times while the ring had one page");
    assert!(parts > 3, "{parts}");
    target.quit();
}

/// Returns the length of the first mapping of a ring; 0 if there is none.
fn ring_len(maps: &str) -> u64 {
    let Some(line) = maps.lines().find(|l| l.contains("/memfd:prof-ring")) else { return 0 };
    let range = line.split(' ').next().and_then(|r| r.split_once('-')).expect("a range");
    let [from, to] = [range.0, range.1].map(|at| u64::from_str_radix(at, 16).expect("hex"));
    to - from
}

/// The target must not keep the descriptor that it has for a moment, also if no other prof follows.
#[test]
fn of_attach_in_the_moment_of_the_descriptor() {
    let scene = Scene::new("killed-descriptor");
    let mut target = Target::start(&program("toggle.c"), &[]);
    target.ask("alloc 1"); // the heap
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    for _ in 0..2 {
        let _ = std::fs::remove_file(scene.path("k.prof"));
        let attach = prof(&scene, &["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB"]);
        let (calls, killed) = killed_when(attach, |_| target.has_ring());
        assert!(killed, "at none of {calls} calls had the target the descriptor");
        common::until("the descriptor is closed", || !target.has_ring());
        common::until("the process is as before", || {
            before.differences(&Snapshot::of(&target)).is_empty()
        });
    }
    scene.attach(&target);
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}

/// The frame of a remote call may be left behind, but not in anybody's data.
#[test]
fn of_attach_to_a_program_on_a_small_stack_between_its_data() {
    if common::is_refused_by_dlopen("killed-pooled", "its stack can't be followed to its end") {
        return;
    }
    killed_attaching("killed-pooled", &program("pooled.c"), &[], KILLS / 2);
}

/// The suspension of a filter ends with prof.
#[test]
fn of_attach_to_a_program_with_a_filter() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("killed-filter", "reading a filter takes CAP_SYS_ADMIN");
    }
    killed_attaching("killed-filter", &program("filters.c"), &["default"], KILLS / 2);
}
