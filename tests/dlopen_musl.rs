//! The hook as a library that musl's dynamic linker loads (`--by dlopen`). It never unloads one, so prof takes the library out
//! of its list.

use common::build::{compile, has_compiler};
use common::killer::killed_at;
use common::library::{BY_DLOPEN, busy, clean_up, maps_of_hook, none_left, recorded_while_busy};
use common::snapshot::Snapshot;
use common::{Scene, Target, installed, skip};
use std::path::PathBuf;
use std::process::Command;

/// Maximum growth of a heap for a few libraries, in bytes: some groups of slots.
const MOST_GROWTH: u64 = 96 << 10;

/// Compiles a program for musl; `None`: that is not possible here, and it was said.
fn for_musl(what: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    if !has_compiler("musl-gcc") {
        skip(what, "no musl-gcc");
        return None;
    }
    Some(compile("musl-gcc", source, flags).unwrap_or_else(|e| panic!("{e}")))
}

/// Returns the mappings of a process that are no part of musl's heap, and the number of bytes of those that may be.
fn mappings(target: &Target) -> (Vec<String>, u64) {
    let maps = target.proc("maps");
    let is_heap = |l: &&str| l.ends_with(" 00:00 0 ") || l.ends_with("[heap]");
    let len = |l: &str| {
        let (start, end) = l.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(end)? - number(start)?)
    };
    let heap = maps.lines().filter(is_heap).map(|l| len(l).expect("a range")).sum();
    (maps.lines().filter(|l| !is_heap(l)).map(str::to_owned).collect(), heap)
}

/// Attaches and detaches a few times. Each time the process is as before, but for some 500 bytes of its heap.
#[test]
fn the_list_is_as_before() {
    let Some(program) = for_musl("dlopen-musl", "modules.c", &["-O1"]) else { return };
    let scene = Scene::new("dlopen-musl");
    let mut target = Target::start(&program, &[]);
    target.ask("alloc 1");
    let linked = target.ask("linked");
    let (before, heap) = mappings(&target);
    for k in 0..3 {
        let name = format!("{k}.prof");
        let recording = scene.attach_with(&target, &[&BY_DLOPEN[..], &["-o", &name]].concat());
        assert!(maps_of_hook(&target) > 0);
        assert_ne!(target.ask("linked"), linked);
        target.ask("alloc 100");
        target.ask("find");
        scene.detach(&target);
        let (after, grown) = mappings(&target);
        assert_eq!((after, target.ask("linked")), (before.clone(), linked.clone()));
        assert!((heap..=heap + MOST_GROWTH).contains(&grown), "{grown} behind {heap}");
        assert!(Snapshot::of(&target).foreign().is_empty());
        target.ask("find");
        let r = scene.finished(&recording);
        r.marked("modules.c", "modules_block").assert_live(100, 100 * 112);
        assert_eq!(r.number("/recording/lost_events"), 0);
    }
    none_left();
    target.quit();
}

/// The hook's library is then not the last one of the list, and its neighbours stay.
#[test]
fn libraries_that_come_later_stay() {
    let what = "dlopen-musl-later";
    let Some(program) = for_musl(what, "modules.c", &["-O1"]) else { return };
    let plugins: Vec<String> = ["-DSIZE=333", "-DSIZE=444", "-DSIZE=555"]
        .iter()
        .filter_map(|size| for_musl(what, "plugin.c", &["-O1", "-shared", "-fPIC", size]))
        .map(|path| format!("load {}", path.display()))
        .collect();
    let scene = Scene::new(what);
    let mut target = Target::start(&program, &[]);
    target.ask("alloc 1");
    scene.attach_with(&target, &[&BY_DLOPEN[..], &["-o", "0"]].concat());
    target.ask(&plugins[0]);
    let with_one = target.ask("linked");
    scene.detach(&target);
    target.ask("find");
    let one = target.ask("linked");
    assert_ne!(one, with_one);
    // The list's end is musl's own again.
    target.ask(&plugins[1]);
    scene.attach_with(&target, &[&BY_DLOPEN[..], &["-o", "1"]].concat());
    scene.detach(&target);
    target.ask(&plugins[2]);
    target.ask("find");
    assert!(
        target.ask("linked").starts_with("done 6 modules"),
        "program, musl, vDSO and three others"
    );
    for plugin in &plugins {
        target.ask(plugin);
    }
    assert!(target.ask("linked").starts_with("done 6 modules"), "none was loaded twice");
    assert_eq!(maps_of_hook(&target), 0);
    target.quit();
}

#[test]
fn a_command_is_recorded_from_its_first_allocation_on() {
    let what = "dlopen-musl-run";
    let Some(program) = for_musl(what, "first.c", &["-O1"]) else { return };
    let scene = Scene::new(what);
    let mut c = scene.command(&["run", "--by", "dlopen", "-o", "r.prof", "--"]);
    c.arg(program);
    assert_eq!(scene.run(c).code, 7);
    let r = scene.finished(&scene.path("r.prof"));
    let live: u64 = r.asked_by("first_block").iter().map(|g| g.number("live_count")).sum();
    assert_eq!(live, 23, "{}", r.askers());
    none_left();
}

/// Alpine's musl has no symbols but those that it exports.
#[test]
fn stripped_musl_is_known_as_well() {
    let what = "dlopen-musl-stripped";
    if !installed("strip") {
        return skip(what, "no strip");
    }
    let scene = Scene::new(what);
    let names = std::fs::read_dir("/lib").expect("/lib").flatten().map(|f| f.file_name());
    let linker = names.into_iter().find(|f| {
        let name = f.to_string_lossy();
        name.starts_with("ld-musl-") && name.ends_with(".so.1")
    });
    let Some(linker) = linker else { return skip(what, "no musl") };
    let stripped = scene.path(linker.to_str().expect("a name"));
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(std::path::Path::new("/lib").join(&linker));
    common::run(strip).ok("strip");
    let link = format!("-Wl,-dynamic-linker,{}", stripped.display());
    let Some(program) = for_musl(what, "modules.c", &["-O1", &link]) else { return };
    let mut target = Target::start(&program, &[]);
    let linked = target.ask("linked");
    scene.attach_with(&target, &BY_DLOPEN);
    target.ask("alloc 10");
    scene.detach(&target);
    assert_eq!((target.ask("linked"), maps_of_hook(&target)), (linked, 0));
    target.quit();
}

/// The other threads begin in code that nothing tells from other code.
#[test]
fn a_program_without_its_first_thread_is_refused() {
    let what = "dlopen-musl-leader";
    let Some(program) = for_musl(what, "leader.c", &["-O1"]) else { return };
    let scene = Scene::new(what);
    let mut target = Target::start(&program, &[]);
    target.ask("leave");
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid, "--by", "dlopen", "--timeout", "1s"]);
    assert!(out.code == 3 && out.stderr.contains("only the first thread"), "{out:?}");
    target.ask("alloc 1");
    target.quit();
}

#[test]
fn beside_threads_that_are_busy() {
    let what = "dlopen-musl-busy";
    let Some(program) = for_musl(what, "busy.c", &["-O1"]) else { return };
    let scene = Scene::new(what);
    let (mut target, linked) = busy(Command::new(program));
    recorded_while_busy(&scene, &mut target, &linked, 5);
    target.quit();
}

/// Kills prof at some system calls of one of its commands, and cleans up after each.
fn kill(scene: &Scene, target: &mut Target, linked: &str, by: &str, is_detach: bool) {
    /// Number of kills.
    const KILLS: usize = 15;
    let pid = target.pid.to_string();
    let attach = ["attach", &pid, "-o", "k.prof", "--ring-size", "1MiB", "--timeout", "60s"];
    let attach = [&attach[..], &["--by", by]].concat();
    let detach = ["detach", &pid, "--timeout", "60s"];
    let run = |at| {
        let _ = std::fs::remove_file(scene.path("k.prof"));
        if is_detach {
            scene.prof(&attach).ok("attach");
        }
        killed_at(scene.command(if is_detach { &detach } else { &attach }), at)
    };
    let (calls, _) = run(None);
    // An attach was not killed.
    scene.prof(&detach);
    let step = (calls / KILLS).max(1);
    let mut killed = 0;
    for place in (1 + std::process::id() as usize % step..=calls).step_by(step) {
        killed += usize::from(run(Some(place)).1);
        clean_up(scene, target, linked, place);
    }
    assert!(killed > KILLS / 3, "{killed}");
    println!("{by}: killed {killed} times");
}

/// Whatever prof has got to when it is killed, the next detach finds it: also a library that is no longer in the list. Threads
/// of musl's use so little of their stacks that a frame of prof's is near the end, with nothing behind it.
#[test]
fn kills_do_no_harm() {
    let what = "dlopen-musl-kills";
    let Some(program) = for_musl(what, "busy.c", &["-O1"]) else { return };
    let scene = Scene::new(what);
    let (mut target, linked) = busy(Command::new(program));
    for (by, is_detach) in [("map", false), ("dlopen", false), ("dlopen", true)] {
        kill(&scene, &mut target, &linked, by, is_detach);
    }
    target.quit();
}
