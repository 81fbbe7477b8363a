//! Recordings that are deleted or moved while they are being written: prof reports it, and saves what was written.

use common::build::program;
use common::{Scene, Target, until, writers};
use std::fs;
use std::path::Path;

/// Records a hundred allocations to a file in a new folder.
fn record(scene: &Scene, target: &mut Target) {
    fs::create_dir(scene.path("gone")).expect("folder");
    scene.attach_with(target, &["-o", "gone/a.prof"]);
    target.ask("alloc 100");
}

/// Returns the output of `prof status`, which must not report success.
fn status(scene: &Scene, target: &Target) -> String {
    let out = scene.prof(&["status", &target.pid.to_string()]);
    assert_eq!(out.code, 1, "{out:?}");
    assert!(out.stdout.contains("live"), "figures from the file all the same: {out:?}");
    out.stdout
}

/// Detaches, which must not report success; returns the path that it prints.
#[track_caller]
fn detach(scene: &Scene, target: &Target, says: &str) -> String {
    let out = scene.prof(&["detach", &target.pid.to_string()]);
    assert_eq!(out.code, 1, "{out:?}");
    for word in [says, "gone/a.prof", "as it was before"] {
        assert!(out.stderr.contains(word), "{word:?} is not in {:?}", out.stderr);
    }
    out.stdout.trim().into()
}

/// Checks that everything is in a recording.
#[track_caller]
fn assert_complete(scene: &Scene, file: &Path, allocations: u64) {
    assert_eq!(scene.finished(file).total("allocations"), allocations);
}

#[test]
fn a_deleted_folder() {
    let scene = Scene::new("deleted-folder");
    let mut target = Target::start(&program("toggle.c"), &[]);
    record(&scene, &mut target);
    fs::remove_dir_all(scene.path("gone")).expect("remove");
    target.ask("alloc 100");
    assert!(status(&scene, &target).contains("deleted"));
    let path = detach(&scene, &target, "saved it as");
    // It is saved in the folder where prof was called.
    assert_eq!(Path::new(&path), scene.path("a.prof").canonicalize().expect("it is there"));
    assert_complete(&scene, Path::new(&path), 200);
    target.quit();
}

#[test]
fn a_file_that_another_one_has_replaced() {
    let scene = Scene::new("replaced");
    let mut target = Target::start(&program("toggle.c"), &[]);
    record(&scene, &mut target);
    let file = scene.path("gone/a.prof");
    fs::remove_file(&file).expect("remove");
    fs::write(&file, "somebody else's").expect("write");
    assert!(status(&scene, &target).contains("deleted"));
    let path = detach(&scene, &target, "saved it as");
    assert_eq!(fs::read(&file).expect("read"), b"somebody else's");
    assert!(path.ends_with("gone/a.prof.2"), "{path}");
    assert_complete(&scene, Path::new(&path), 100);
    target.quit();
}

#[test]
fn a_file_that_was_moved() {
    let scene = Scene::new("moved");
    let mut target = Target::start(&program("toggle.c"), &[]);
    record(&scene, &mut target);
    let to = scene.path("b.prof");
    fs::rename(scene.path("gone/a.prof"), &to).expect("rename");
    assert!(status(&scene, &target).contains("moved to"));
    let path = detach(&scene, &target, "was moved to");
    assert_eq!(Path::new(&path), to.canonicalize().expect("it is there"));
    assert!(!scene.path("gone/a.prof").exists());
    assert_complete(&scene, Path::new(&path), 100);
    target.quit();
}

#[test]
fn a_target_that_ends_by_itself() {
    let scene = Scene::new("deleted-exit");
    let mut target = Target::start(&program("toggle.c"), &[]);
    record(&scene, &mut target);
    let file = scene.path("gone/a.prof");
    fs::remove_file(&file).expect("remove");
    target.quit();
    until("the collector has saved it", || file.exists() && writers(&file).is_empty());
    assert_complete(&scene, &file, 100);
}

#[test]
fn a_command_that_deletes_its_recording() {
    let scene = Scene::new("deleted-run");
    let out = scene.prof(&["run", "-o", "a.prof", "--", "sh", "-c", "rm a.prof; exit 5"]);
    assert_eq!(out.code, 5, "the exit code of the command: {out:?}");
    assert!(out.stderr.contains("was deleted") && out.stderr.contains("saved it as"), "{out:?}");
    scene.finished(&scene.path("a.prof"));
}
