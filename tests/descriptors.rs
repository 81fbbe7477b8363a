//! The target's descriptors during attaches and detaches: no number of its own is closed or delayed, no file of its own
//! is changed, and no child inherits anything of prof's.

use common::build::program;
use common::library::BY_DLOPEN;
use common::snapshot::Snapshot;
use common::{Scene, Target};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Number of attaches on a busy machine.
const BUSY: usize = 10;

/// Attaches and detaches this many times.
fn cycles(scene: &Scene, target: &Target, count: usize) {
    for i in 0..count {
        let file = scene.path(&format!("cycle{i}.prof"));
        scene.attach_with(target, &["-o", file.to_str().unwrap()]);
        scene.detach(target);
        std::fs::remove_file(&file).unwrap();
    }
}

/// Parses the answer to "count": the number of errors, and of rounds.
fn count(target: &mut Target) -> (u64, u64) {
    let answer = target.ask("count");
    let words: Vec<&str> = answer.split(' ').collect();
    (words[1].parse().expect("a number"), words[4].parse().expect("a number"))
}

fn nothing_is_wrong(target: &mut Target, scene: &Scene, cycles_of: usize) {
    let before = count(target);
    cycles(scene, target, cycles_of);
    let after = count(target);
    assert!(after.1 > before.1, "it has done nothing meanwhile: {before:?} {after:?}");
    assert_eq!(after.0, 0, "of {} rounds", after.1);
}

#[test]
fn files_of_a_target_that_closes_all_descriptors_stay_as_they_are() {
    let scene = Scene::new("closes");
    let file = scene.path("own");
    std::fs::write(&file, "before").unwrap();
    let program = program("descriptors.c");
    let mut target = Target::start(&program, &["closes", file.to_str().unwrap()]);
    nothing_is_wrong(&mut target, &scene, 25);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
    target.quit();
}

/// A process that shares the table of descriptors is not stopped: prof must notice what that process has put in the place of prof's memory.
#[test]
fn files_of_a_process_that_shares_the_descriptors_stay_as_they_are() {
    if common::is_refused_by_dlopen("shares", "another process has the library's descriptor") {
        return;
    }
    let scene = Scene::new("shares");
    let file = scene.path("own");
    let content = "before".repeat(4000);
    std::fs::write(&file, &content).unwrap();
    let program = program("descriptors.c");
    let mut target = Target::start(&program, &["shares", file.to_str().unwrap()]);
    let pid = target.pid.to_string();
    let mut attached = 0;
    for i in 0..25 {
        let recording = scene.path(&format!("cycle{i}.prof"));
        let out = scene.prof(&["attach", &pid, "-o", recording.to_str().unwrap()]);
        if out.code == 0 {
            attached += 1;
            scene.detach(&target);
        } else {
            for word in [&pid, "descriptor", "share its descriptors", "try again"] {
                assert!(out.stderr.contains(word), "no {word}: {out:?}");
            }
        }
        assert!(std::fs::read_to_string(&file).unwrap() == content, "after {i} attaches");
    }
    println!("{attached} of 25 attached");
    count(&mut target);
    let after = Snapshot::of(&target);
    assert!(after.foreign().is_empty(), "{:#?}", after.foreign());
    target.quit();
}

/// The linker would map what that process has put in the place of the library's descriptor.
#[test]
fn a_process_that_shares_the_descriptors_loads_no_library() {
    let scene = Scene::new("shares-library");
    let file = scene.path("own");
    std::fs::write(&file, "before".repeat(4000)).unwrap();
    let program = program("descriptors.c");
    let mut target = Target::start(&program, &["shares", file.to_str().unwrap()]);
    let pid = target.pid.to_string();
    for _ in 0..3 {
        let out = scene.prof(&["attach", &pid, BY_DLOPEN[0], BY_DLOPEN[1]]);
        assert_eq!(out.code, 3, "{out:?}");
        for word in [&pid, "shares its descriptors", "nothing was changed"] {
            assert!(out.stderr.contains(word), "no {word}: {out:?}");
        }
    }
    let after = Snapshot::of(&target);
    assert!(after.foreign().is_empty(), "{:#?}", after.foreign());
    target.quit();
}

#[test]
fn numbers_are_given_as_without_prof() {
    let scene = Scene::new("lowest");
    let mut target = Target::start(&program("descriptors.c"), &["counts"]);
    nothing_is_wrong(&mut target, &scene, 12);
    target.quit();
}

/// The linker opens the library while no thread of the target's runs, however long it has to wait for a processor.
#[test]
fn the_librarys_descriptor_is_not_seen_on_a_busy_machine() {
    let scene = Scene::new("library-number");
    let mut target = Target::start(&program("descriptors.c"), &["counts"]);
    let ends = AtomicBool::new(false);
    let spins = || {
        while !ends.load(Relaxed) {
            std::hint::spin_loop()
        }
    };
    std::thread::scope(|all| {
        for _ in 0..4 * std::thread::available_parallelism().map_or(1, usize::from) {
            all.spawn(spins);
        }
        for i in 0..BUSY {
            let file = format!("{i}.prof");
            let pid = target.pid.to_string();
            let args = ["attach", &pid, BY_DLOPEN[0], BY_DLOPEN[1], "-o", &file];
            // A failure must not leave the threads spinning.
            let out = scene.prof(&args);
            if out.code != 0 || scene.prof(&["detach", &pid]).code != 0 {
                ends.store(true, Relaxed);
                panic!("{out:?}");
            }
        }
        ends.store(true, Relaxed);
    });
    let (wrong, rounds) = count(&mut target);
    assert_eq!(wrong, 0, "of {rounds} rounds");
    target.quit();
}

#[test]
fn children_of_a_fork_during_an_attach_have_nothing_of_the_ring() {
    let scene = Scene::new("forks");
    let mut target = Target::start(&program("descriptors.c"), &["forks"]);
    nothing_is_wrong(&mut target, &scene, 12);
    target.quit();
}

#[test]
fn a_full_table_of_descriptors_is_named_and_left_alone() {
    let scene = Scene::new("full");
    let mut target = Target::start(&program("descriptors.c"), &["full"]);
    let before = Snapshot::of(&target);
    let out = scene.prof(&["attach", &target.pid.to_string()]);
    assert_eq!(out.code, 3, "{out:?}");
    for word in ["descriptors", "limit of 32", "prlimit", "nothing was changed"] {
        assert!(out.stderr.contains(word), "no {word}: {out:?}");
    }
    before.assert_same(&Snapshot::of(&target));
    target.ask("room");
    scene.attach(&target);
    scene.detach(&target);
    target.quit();
}
