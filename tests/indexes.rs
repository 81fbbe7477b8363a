//! The index of a recording: its length, its place, and what is left of an unfinished one.

use common::build::program;
use common::{Scene, until};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Records a program to its end.
fn record(scene: &Scene, name: &str, options: &[&str], args: &[&str]) -> PathBuf {
    let mut command = Command::new(Scene::binary());
    command.args(["run", "-o", name]).args(options).arg("--").arg(program("mixed.c")).args(args);
    command.current_dir(&scene.dir).stdout(Stdio::null());
    assert!(command.status().expect("prof").success());
    scene.path(name)
}

fn names(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<String> = all.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    all.sort();
    all
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).len()
}

#[test]
fn an_index_is_hardly_longer_than_its_recording() {
    let scene = Scene::new("index-length");
    let best = &["--compress", "best"][..];
    // Times of a machine that is busy repeat less. The index is always compressed by zstd's first level, so it gains less
    // from what repeats than a recording that is compressed as far as possible.
    for (name, options, args, most_percent) in [
        ("random.prof", &[][..], &["200000"][..], 150),
        ("regular.prof", &[], &["200000", "regular"], 150),
        ("best.prof", best, &["200000"], 200),
        ("regular-best.prof", best, &["200000", "regular"], 200),
    ] {
        let file = record(&scene, name, options, args);
        scene.prof(&["report", "--index", name, "-n", "1"]).ok("prof report");
        let index = len(&scene.path(&format!("{name}.idx")));
        let recording = len(&file);
        eprintln!("{name}: {recording} bytes, index {index}");
        assert!(
            index * 100 <= recording * most_percent,
            "{name}: {recording} bytes, its index {index}"
        );
        // A report with the index equals one without.
        let text = |more: &str| scene.prof(&["report", name, more]).ok("prof report").stdout;
        assert_eq!(text("--no-index"), text("--index"));
    }
}

#[test]
fn an_index_is_where_it_may_be_and_was_asked_for() {
    let scene = Scene::new("index-place");
    let file = record(&scene, "r.prof", &[], &["20000"]);
    scene.prof(&["report", "--index", "--index-dir", "elsewhere", "r.prof"]).ok("prof report");
    assert_eq!(names(&scene.dir), ["elsewhere", "r.prof"]);
    let made = names(&scene.path("elsewhere"));
    assert!(
        made.len() == 1 && made[0].starts_with("r.prof.") && made[0].ends_with(".idx"),
        "{made:?}"
    );
    // If the folder is another user's, the index goes to the user's own cache folder.
    let (home, folder) = (scene.path("home"), scene.path("readonly"));
    for dir in [&home, &folder] {
        std::fs::create_dir(dir).expect("a folder");
    }
    let there = folder.join("r.prof");
    std::fs::copy(&file, &there).expect("a copy");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode(&there, 0o444);
    mode(&folder, 0o555);
    mode(&scene.dir, 0o755);
    let cache = home.join("cache");
    // The other user may not reach the folder that prof was built in, such as one in /root.
    let prof = scene.path("prof");
    std::fs::hard_link(Scene::binary(), &prof)
        .or_else(|_| std::fs::copy(Scene::binary(), &prof).map(|_| ()))
        .expect("a copy of prof");
    let report = || {
        let mut command = Command::new(&prof);
        command.args(["report", "--index", "-n", "1"]).arg(&there).current_dir("/");
        command.env("XDG_CACHE_HOME", &cache).stdout(Stdio::null());
        // SAFETY: `geteuid` takes no arguments and always succeeds.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(65534).gid(65534);
        }
        assert!(command.status().expect("prof").success());
    };
    // SAFETY: `geteuid` takes no arguments and always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::chown(&home, Some(65534), Some(65534)).expect("given away");
    }
    report();
    assert_eq!(names(&folder), ["r.prof"]);
    let made = names(&cache.join("prof/index"));
    assert!(made.len() == 1 && made[0].starts_with("r.prof."), "{made:?}");
    let at = cache.join("prof/index").join(&made[0]);
    let time = || std::fs::metadata(&at).and_then(|m| m.modified()).expect("a time");
    let before = time();
    report();
    assert_eq!(time(), before, "it is used again");
}

#[test]
fn nothing_is_left_of_an_index_that_was_not_finished() {
    let scene = Scene::new("index-killed");
    record(&scene, "r.prof", &[], &["150000"]);
    let before = names(&scene.dir);
    for (signal, ms) in
        [(libc::SIGINT, 20), (libc::SIGTERM, 60), (libc::SIGKILL, 40), (libc::SIGHUP, 100)]
    {
        let mut command = Command::new(Scene::binary());
        command.args(["report", "--index", "r.prof"]).current_dir(&scene.dir);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("prof");
        std::thread::sleep(std::time::Duration::from_millis(ms));
        // SAFETY: the call takes no pointers, and the child has not been waited for, so its PID is not reused.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        until("it has ended", || child.try_wait().expect("a child").is_some());
        let after: Vec<String> =
            names(&scene.dir).into_iter().filter(|n| n != "r.prof.idx").collect();
        assert_eq!(after, before, "after signal {signal}");
        let _ = std::fs::remove_file(scene.path("r.prof.idx"));
    }
}
