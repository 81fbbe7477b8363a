//! Debuggers in a process whose dynamic linker has loaded the hook (`--by dlopen`).

use common::build::{program, program_with};
use common::library::{BY_DLOPEN, none_left};
use common::{Scene, Target, until};
use std::path::PathBuf;
use std::process::Command;

/// Returns what gdb prints for these commands.
fn gdb(scene: &Scene, target: &Target, commands: &[&str]) -> String {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p", &target.pid.to_string()]);
    commands.iter().for_each(|c| _ = gdb.args(["-ex", c]));
    scene.run(gdb).ok("gdb").stdout
}

/// Tools that ask the dynamic linker, or read the maps, know the hook by its name.
#[test]
fn a_debugger_lists_it() {
    if !common::installed("gdb") {
        return common::skip("dlopen-gdb", "there is no gdb");
    }
    let scene = Scene::new("dlopen-gdb");
    let mut target = Target::start(&program("toggle.c"), &[]);
    scene.attach_with(&target, &BY_DLOPEN);
    let out = gdb(&scene, &target, &["info sharedlibrary"]);
    assert!(out.contains("/libprof_hook.so"), "{out}");
    target.ask("alloc 10");
    scene.detach(&target);
    target.quit();
}

/// A debugger's backtrace leads from a hooked function, and through it, to its callers: they return to prof's bridge.
#[test]
fn a_debugger_gets_through_a_hooked_function() {
    if !common::installed("gdb") {
        return common::skip("dlopen-gdb-through", "there is no gdb");
    }
    let program = program_with("seen.c", &["-O1"]);
    let name = program.file_name().unwrap().to_str().unwrap();
    let named = format!("--alloc-fn={name}:sleeping_alloc(1)");
    for by in ["map", "dlopen"] {
        let scene = Scene::new("dlopen-gdb-through");
        let mut target = Target::start(&program, &[]);
        let recording = scene.attach_with(&target, &[&named, "--by", by]);
        target.send("sleep");
        target.expect("sleeping");
        let out = gdb(&scene, &target, &["bt"]);
        let at = |name: &str| out.find(name).unwrap_or_else(|| panic!("no {name}: {out}"));
        assert!(at("sleeping_alloc") < at("asks_for_it"), "{out}");
        assert!(at("asks_for_it") < at("main ("), "{out}");
        target.send("go");
        target.expect("done");
        scene.detach(&target);
        target.quit();
        scene.finished(&recording).marked("seen.c", "sleeping_alloc").assert_live(1, 72);
    }
}

/// A debugger's backtrace leads from a function of libc through the hook, which has called it, if the library's file is there.
#[test]
fn a_debugger_gets_through_the_hook() {
    if !common::installed("gdb") {
        return common::skip("dlopen-gdb-hook", "there is no gdb");
    }
    let scene = Scene::new("dlopen-gdb-hook");
    let mut target = Target::start(&program_with("seen.c", &["-O1"]), &[]);
    scene.attach_with(&target, &["--by", "dlopen", "--keep-library"]);
    target.send("inform");
    target.expect("informing");
    let mut out = String::new();
    until("the thread waits in malloc_info", || {
        out = gdb(&scene, &target, &["bt"]);
        out.contains("malloc_info (")
    });
    let at = |name: &str| out.find(name).unwrap_or_else(|| panic!("no {name}: {out}"));
    assert!(at("malloc_info") < at("/libprof_hook.so"), "{out}");
    assert!(at("/libprof_hook.so") < at("in asks_for_info"), "{out}");
    assert!(at("in asks_for_info") < at("main ("), "{out}");
    target.send("go");
    target.expect("done");
    scene.detach(&target);
    target.quit();
}

/// Returns the file of the hook's library in this process.
fn library_of(target: &Target) -> PathBuf {
    let maps = target.proc("maps");
    let line = maps.lines().find(|l| l.contains("/libprof_hook.so")).expect("the library");
    let path = &line[line.find('/').expect("a path")..];
    path.strip_suffix(" (deleted)").unwrap_or(path).into()
}

/// On request the file of the library stays, so that a debugger finds its way from the hook's own code, too. It is removed
/// when prof is taken out, and when the process has ended.
#[test]
fn the_file_stays_on_request() {
    let scene = Scene::new("dlopen-kept");
    let out = scene.prof(&["attach", "1", "--by", "map", "--keep-library"]);
    assert!(out.code == 2 && out.stderr.contains("--by dlopen"), "{out:?}");
    let mut target = Target::start(&program("toggle.c"), &[]);
    scene.attach_with(&target, &BY_DLOPEN);
    assert!(!library_of(&target).exists());
    scene.detach(&target);
    let keep = [&BY_DLOPEN[..], &["--keep-library"]].concat();
    for ends in [false, true] {
        scene.attach_with(&target, &keep);
        let file = library_of(&target);
        assert!(file.exists(), "{file:?}");
        target.ask("alloc 10");
        if ends {
            target.quit();
            until("the file is gone", || !file.parent().expect("a folder").exists());
            break;
        }
        scene.detach(&target);
        assert!(!file.parent().expect("a folder").exists(), "{file:?}");
    }
    none_left();
}

/// A thread may be anywhere in the hook when a debugger comes.
#[test]
fn a_debugger_finds_its_way_out_of_the_hook() {
    if !common::installed("gdb") {
        return common::skip("dlopen-gdb-in", "there is no gdb");
    }
    let scene = Scene::new("dlopen-gdb-in");
    let mut target = Target::start(&program_with("seen.c", &["-O1"]), &[]);
    scene.attach_with(&target, &["--by", "dlopen", "--keep-library"]);
    target.send("spin");
    target.expect("spinning");
    let mut inside = 0;
    for _ in 0..200 {
        let out = gdb(&scene, &target, &["bt"]);
        assert!(out.contains("spins") && out.contains("main ("), "{out}");
        inside += usize::from(out.contains("/libprof_hook.so"));
        if inside == 3 {
            break;
        }
    }
    assert_eq!(inside, 3);
    target.send("go");
    target.expect("done");
    scene.detach(&target);
    target.quit();
}
