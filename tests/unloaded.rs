//! Libraries that are loaded and unloaded where the hook is not notified: while recording is paused, and under a
//! seccomp filter, where it may not ask the kernel either.

use common::build::program_with;
use common::report::{Frame, Group};
use common::{Scene, Target, until};
use std::path::{Path, PathBuf};
use std::process::Command;

const SMALL: u64 = 333;
const OTHER: u64 = 444;

/// Builds a library with much room behind its tables, and another one that fits in there.
fn libraries() -> (PathBuf, PathBuf) {
    let flags = ["-O1", "-shared", "-fPIC"];
    let with = |more: &[&str]| program_with("plugin.c", &[&flags, more].concat());
    (with(&["-DROOM=8388608"]), with(&["-DSIZE=444", "-DROOM=4194304"]))
}

fn loader() -> Target {
    Target::start(&program_with("loader.c", &["-O1", "-ldl"]), &[])
}

/// Parses the address that the program has printed.
fn address(line: &str) -> u64 {
    let number = line.split_whitespace().last().and_then(|w| w.strip_prefix("0x"));
    number.and_then(|n| u64::from_str_radix(n, 16).ok()).unwrap_or_else(|| panic!("{line}"))
}

fn show(g: &Group<'_>) -> String {
    g.frames().iter().map(Frame::show).collect::<Vec<_>>().join("\n")
}

/// Loads another library at the place of the first one.
fn exchange(scene: &Scene, target: &mut Target, other: &std::path::Path, first: u64) {
    let pid = target.pid.to_string();
    scene.prof(&["pause", &pid]).ok("pause");
    target.ask("unload");
    let second = address(&target.ask(&format!("load {}", other.display())));
    assert!(second > first && second - first < 12 << 20, "{second:x} is not behind {first:x}");
    scene.prof(&["resume", &pid]).ok("resume");
}

#[test]
fn another_library_in_its_place_while_paused() {
    let scene = Scene::new("exchanged");
    let (library, other) = libraries();
    let mut target = loader();
    let recording = scene.attach(&target);
    let first = address(&target.ask(&format!("load {}", library.display())));
    target.ask("call");
    exchange(&scene, &mut target, &other, first);
    for _ in 0..3 {
        target.ask("call");
    }
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    let groups = r.asked_by("plugin_block");
    let mut live: Vec<_> =
        groups.iter().map(|g| (g.number("live_count"), g.number("live_bytes"))).collect();
    live.sort_unstable();
    assert_eq!(live, [(1, SMALL), (3, 3 * OTHER)], "{}", r.askers());
    for g in &groups {
        assert!(g.rooted() && g.functions()[1] == "main", "{}", show(g));
    }
}

#[test]
fn a_library_that_comes_under_a_filter() {
    for early in [false, true] {
        let scene = Scene::new("filtered-library");
        let (library, other) = libraries();
        let mut target = loader();
        if early {
            target.ask("filter");
        }
        let recording = scene.attach(&target);
        if !early {
            target.ask("filter");
        }
        // Each library is called at once; then the collector has time to find it.
        let mut sum = 0;
        for (library, size) in [(&library, SMALL), (&other, OTHER), (&library, SMALL)] {
            target.ask(&format!("load {}", library.display()));
            target.ask("call");
            sum += size;
            until("the collector has seen the call", || {
                let r = scene.report(&recording);
                r.asked_by("plugin_block").iter().map(|g| g.number("live_bytes")).sum::<u64>()
                    == sum
            });
            target.ask("unload");
        }
        scene.detach(&target);
        target.quit();
        let r = scene.finished(&recording);
        r.assert_sound();
        let groups = r.asked_by("plugin_block");
        let live: u64 = groups.iter().map(|g| g.number("live_bytes")).sum();
        assert_eq!(live, 2 * SMALL + OTHER, "{}", r.askers());
        for g in &groups {
            assert!(g.rooted() && g.functions()[1] == "main", "early: {early}, {}", show(g));
        }
    }
}

#[test]
fn under_a_filter_the_collector_looks_after_a_pause() {
    let scene = Scene::new("filtered-pause");
    let (library, other) = libraries();
    let mut target = loader();
    target.ask("filter");
    let recording = scene.attach(&target);
    let first = address(&target.ask(&format!("load {}", library.display())));
    target.ask("call");
    exchange(&scene, &mut target, &other, first);
    // Until the collector has looked, stacks are cut and marked so; none is wrong.
    until("a stack of the other library reaches main", || {
        target.ask("call");
        let r = scene.report(&recording);
        let groups = r.asked_by("plugin_block");
        groups.iter().any(|g| g.rooted() && g.number("live_bytes").is_multiple_of(OTHER))
    });
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    for g in r.asked_by("plugin_block") {
        assert!(g.rooted() && g.functions()[1] == "main", "{}", show(&g));
    }
}

/// Builds two plugins of the same length, with allocations of different sizes.
fn plugins() -> [(PathBuf, u64); 2] {
    let flags = ["-O1", "-shared", "-fPIC"];
    let with = |more: &[&str]| program_with("plugin.c", &[&flags, more].concat());
    [(with(&["-DSIZE=333"]), SMALL), (with(&["-DSIZE=444"]), OTHER)]
}

/// Asserts that every block of a plugin has its file, function and line.
#[track_caller]
fn assert_named(r: &common::Report, file: &Path, size: u64, count: u64) {
    let name = file.to_str().expect("UTF-8");
    let all = r.asked_by("plugin_block");
    let of_it = all.iter().filter(|g| g.number("live_bytes") == size * g.number("live_count"));
    let mut found = 0;
    for g in of_it {
        let f = g.asker().expect("a frame");
        assert!(f.module() == name && f.file().ends_with("plugin.c"), "not {name}: {}", show(g));
        found += g.number("live_count");
    }
    assert_eq!(found, count, "{name}: {}", r.askers());
}

#[test]
fn a_library_where_the_linkers_cache_was() {
    let scene = Scene::new("first-library");
    let [(library, size), _] = plugins();
    let mut command = Command::new(Scene::binary());
    command.args(["run", "-o", "r.prof", "--"]).current_dir(&scene.dir);
    command.arg(program_with("loader.c", &["-O1", "-ldl"]));
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask(&format!("load {}", library.display()));
    target.ask("call");
    target.quit();
    assert_named(&scene.finished(&scene.path("r.prof")), &library, size, 1);
}

#[test]
fn plugins_that_replace_each_other_have_their_own_names() {
    let scene = Scene::new("plugins");
    let all = plugins();
    let mut target = loader();
    let recording = scene.attach(&target);
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..4 {
        for (library, _) in &all {
            places.insert(address(&target.ask(&format!("load {}", library.display()))));
            target.ask("call");
            target.ask("unload");
        }
    }
    assert_eq!(places.len(), 1, "they come to the same place");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    for (library, size) in &all {
        assert_named(&r, library, *size, 4);
    }
}

#[test]
fn a_relative_library_of_a_program_that_ends_at_once() {
    let scene = Scene::new("relative-library");
    let [(library, size), _] = plugins();
    std::os::unix::fs::symlink(&library, scene.path("x")).expect("a link");
    let mut command = Command::new(program_with("loader.c", &["-O1", "-ldl"]));
    command.current_dir(&scene.dir);
    let mut target = Target::spawn(command);
    target.expect("ready");
    let recording = scene.attach(&target);
    // All commands at once, so that the collector mostly finds the process gone.
    target.send("load ./x\ncall\nquit");
    target.expect("bye");
    target.wait();
    let r = scene.finished(&recording);
    let groups = r.asked_by("plugin_block");
    assert_eq!(groups.len(), 1, "{}", r.askers());
    let f = groups[0].asker().expect("a frame");
    assert!(f.file().ends_with("plugin.c"), "{}", show(&groups[0]));
    // The linker's path from where the program was, or the kernel's if the collector was fast enough to see that.
    let is_it = |path: &Path| f.module() == path.to_str().expect("UTF-8");
    assert!(is_it(&scene.path("x")) || is_it(&library), "{}", show(&groups[0]));
    assert_eq!(groups[0].number("live_bytes"), size);
}

#[test]
fn a_second_libc_that_is_unloaded_meanwhile_takes_nothing_away() {
    let scene = Scene::new("second-libc");
    let mut target = Target::start(&program_with("copies.c", &["-O1", "-pthread", "-ldl"]), &[]);
    for i in 0..4 {
        let file = scene.path(&format!("{i}.prof"));
        scene.attach_with(&target, &["-o", file.to_str().expect("UTF-8")]);
        scene.detach(&target);
    }
    target.send("end");
    target.expect("bye");
    assert_eq!(target.wait(), 0);
}
