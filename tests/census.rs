//! `prof attach --census`: live blocks are all known, those from before the attach as well.

use common::build::{compile, has_compiler, program_with};
use common::heap::{json, number};
use common::{Scene, Target, skip, until};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The program's own counts of its heap.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Blocks that the program has.
    blocks: u64,
    /// Bytes that it can use of them.
    usable: u64,
    /// Bytes in use by `mallinfo2`, with their headers.
    in_use: u64,
    /// Changes that its threads have made at full speed.
    changes: u64,
}

fn count(target: &mut Target) -> Counted {
    target.send("count");
    let line = target.expect("count ");
    target.expect("done");
    let n: Vec<u64> = line.split(' ').skip(1).map(|n| n.parse().expect("a number")).collect();
    let [blocks, usable, in_use, changes] = n[..] else { panic!("{line}") };
    Counted { blocks, usable, in_use, changes }
}

/// Starts the program with its heap. Without caches of threads `mallinfo2` counts as in use what the program has, and no
/// more.
fn start(cached: bool, threads: u64) -> Target {
    let mut command = Command::new(program_with("before.c", &["-O1", "-pthread"]));
    command.arg(threads.to_string());
    if !cached {
        command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    }
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask("begin");
    target
}

/// Returns whether prof has left memory of its own in a process.
fn has_parts(target: &Target) -> bool {
    target.proc("maps").contains("prof-ring")
}

fn path(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

/// Compares a finished recording with what was live at its end: by the program, by `mallinfo2`, and by `prof heap`.
fn check(
    scene: &Scene,
    recording: &Path,
    told: Counted,
    heap: &Value,
    (cached, threads): (bool, u64),
) -> Value {
    let report = json(scene, &["report", path(recording), "--format", "json", "--top", "0"]);
    let (totals, head) = (&report["totals"], &report["recording"]);
    let (lost, arenas) = (&heap["lost"], &heap["arenas"]);
    let about = format!("{told:?} {totals} {lost} {arenas} {head}");
    assert_eq!(head["lost_events"], 0, "{about}");
    assert_eq!((&head["unknown_frees"], &head["implied_frees"]), (&0.into(), &0.into()), "{about}");
    let live = number(&totals["live_count"]);
    // The caches of threads are blocks that nobody has asked for.
    let caches = number(&heap["in_use"]["blocks"]) - live;
    // Beside the program's blocks there are libc's, such as the thread-local variables of each thread.
    let others = live - told.blocks;
    assert!(
        caches <= threads + 1 && (1..=3 * threads).contains(&others),
        "{caches} {others} {about}"
    );
    let sizes = json(scene, &["allocator", path(recording), "--format", "json"]);
    let taken = number(&sizes["overhead"]["live"]["taken_bytes"]);
    assert_eq!(sizes["overhead"]["live"]["unknown_count"], 0, "{sizes}");
    if cached {
        let most = number(&heap["in_use"]["bytes"]);
        assert!(
            most - (threads + 1) * 1000 <= taken && taken <= most,
            "{taken} of {most}: {about}"
        );
    } else {
        // mallinfo2 counts the arenas' own data and the ends of their heaps as in use.
        let arenas = heap["arenas"].as_array().expect("arenas");
        let own: u64 = arenas.iter().map(|a| number(&a["other_bytes"])).sum();
        assert_eq!((taken + own, caches), (told.in_use, 0), "{about}");
    }
    report
}

/// The reason why figures are others by dlopen.
const LINKERS: &str = common::LINKERS_BLOCKS;

/// One recording of a heap that changes at full speed during the attach.
fn record(scene: &Scene, cached: bool, threads: u64) {
    let mut target = start(cached, threads);
    target.ask("churn");
    let busy = count(&mut target);
    // The threads make some ten million events a second: what the collector does not read in time has room.
    let options = ["--census", "--census-stop", "5s", "--ring-size", "256MiB"];
    let recording = scene.attach_with(&target, &options);
    let began = count(&mut target);
    assert!(began.changes > busy.changes, "the threads go on");
    std::thread::sleep(Duration::from_millis(100));
    target.ask("calm");
    target.ask("mix");
    let told = count(&mut target);
    let heap = json(scene, &["heap", &target.pid.to_string(), "--format", "json"]);
    scene.detach(&target);
    let report = check(scene, &recording, told, &heap, (cached, threads));
    let before = &report["totals"]["before_attach"];
    let (found, live) = (number(&before["count"]), number(&before["live_count"]));
    // Of five blocks one was free, one stays.
    let parts = threads + 1;
    assert!(found > 4_000 * parts && live >= 1_000 * parts, "{before}");
    assert!(found - live >= 2_900 * parts, "{before}");
    assert!(number(&before["stop_ns"]) > 0, "{before}");
    let groups = report["groups"].as_array().expect("groups");
    let named = |g: &&Value| g["frames"][0]["function"] == "(before the attach)";
    let group = groups.iter().find(named).expect("their group");
    let figures = [&group["before_attach"], &group["live_count"], &group["allocations"]];
    assert_eq!(figures.map(number), [found, live, 0], "{group}");
    target.quit();
}

#[test]
fn live_totals_are_those_of_the_allocator() {
    if common::is_refused_by_dlopen("census_exact", LINKERS) {
        return;
    }
    let scene = Scene::new("census_exact");
    record(&scene, false, 4);
}

#[test]
fn live_totals_are_those_of_a_heap_with_caches() {
    let scene = Scene::new("census_cached");
    for _ in 0..3 {
        record(&scene, true, 4);
    }
}

/// Most threads wait for a processor inside of the allocator, and have to leave it before the heap is walked.
#[test]
fn threads_that_all_allocate_leave_the_allocator_one_by_one() {
    let scene = Scene::new("census_threads");
    record(&scene, true, 24);
}

/// A quiet process: what is in the census is what the program has, block by block.
#[test]
fn a_quiet_heap_is_known_at_once() {
    if common::is_refused_by_dlopen("census_quiet", LINKERS) {
        return;
    }
    let scene = Scene::new("census_quiet");
    let mut target = start(false, 4);
    let told = count(&mut target);
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid, "--census", "-o", "quiet.prof"]).ok("prof attach");
    assert!(out.stderr.contains("from before the attach, "), "{out:?}");
    let recording = scene.path("quiet.prof");
    // Others see the same while it is recorded.
    let reach = json(&scene, &["reach", &pid, "--format", "json", "--top", "0"]);
    assert!(number(&reach["judged_blocks"]) >= told.blocks, "{reach}");
    let heap = json(&scene, &["heap", &pid, "--format", "json"]);
    scene.detach(&target);
    let report = check(&scene, &recording, told, &heap, (false, 4));
    assert_eq!(report["totals"]["allocations"], 0, "{}", report["totals"]);
    let bytes = number(&report["totals"]["live_bytes"]);
    assert!((told.usable..told.usable + 20_000).contains(&bytes), "{told:?} {bytes}");
    let text = scene.prof(&["report", "quiet.prof"]).ok("prof report").stdout;
    assert!(text.contains("  0 (before the attach)\n"), "without an address: {text}");
    assert!(text.contains("[age: more than "), "{text}");
    for command in
        [&["leaks", "quiet.prof"][..], &["info", "quiet.prof"], &["fragmentation", "quiet.prof"]]
    {
        scene.prof(command).ok("a command on a recording with a census");
    }
    // What becomes of a recording keeps them.
    for (command, to) in [("strip", "strip.prof"), ("pack", "pack.prof")] {
        let mut args = vec![command, "quiet.prof", "-o", to];
        args.extend((command == "strip").then_some("--threshold=1s"));
        scene.prof(&args).ok(command);
        let other = json(&scene, &["report", to, "--format", "json"]);
        assert_eq!(other["totals"], report["totals"], "{command}");
    }
    target.quit();
}

/// Objects from before are told by class in a program without symbols, also those that are deleted later.
#[test]
fn objects_from_before_are_told_by_class() {
    let scene = Scene::new("census_classes");
    let mut target = Target::start(&program_with("holds.cpp", &["-O1", "-pthread", "-s"]), &[]);
    target.ask("begin");
    let recording = scene.attach_with(&target, &["--census"]);
    // The cart is deleted.
    target.ask("more");
    scene.detach(&target);
    let report = ["report", path(&recording), "--top", "0", "--sort", "peak"];
    let data = json(&scene, &[&report[..], &["--format", "json"]].concat());
    let groups = data["groups"].as_array().expect("groups");
    let of = |class: &str| {
        let is_it = |g: &&Value| g["frames"][0]["function"] == format!("class {class}");
        let group = groups.iter().find(is_it).unwrap_or_else(|| panic!("no {class}: {data:#}"));
        assert_eq!(group["frames"][1]["function"], "(before the attach)", "{group}");
        [&group["before_attach"], &group["live_count"], &group["allocations"]].map(number)
    };
    assert_eq!((of("Session"), of("shop::Cart")), ([40, 40, 0], [1, 0, 0]));
    let before = &data["totals"]["before_attach"];
    let is_before = |g: &&Value| g["before_attach"].as_u64() > Some(0);
    let live: u64 = groups.iter().filter(is_before).map(|g| number(&g["live_count"])).sum();
    assert!(live > 1000 && number(&before["live_count"]) == live, "{before}");
    let text = scene.prof(&report).ok("prof report").stdout;
    assert!(text.contains("class Session"), "{text}");
    target.ask("end");
    target.quit();
}

#[test]
fn what_makes_no_sense_is_refused_and_leaves_nothing() {
    if common::is_refused_by_dlopen("census_refused", LINKERS) {
        return;
    }
    let scene = Scene::new("census_refused");
    let mut target = start(true, 4);
    let pid = target.pid.to_string();
    for (options, code, why) in [
        (&["--sample"][..], 2, "leave --census or"),
        (&["--min-size=32"], 2, "leave --census or"),
        (&["--aggregate"], 2, "leave --census or"),
        (&["--cull=1s"], 2, "leave --census or"),
        (&["--paused"], 2, "--paused"),
        (&["--census-stop=1us"], 3, "--census-stop "),
    ] {
        let out = scene.prof(&[&["attach", &pid, "--census"], options].concat());
        assert!(out.code == code && out.stderr.contains(why), "{options:?}: {out:?}");
    }
    assert!(!has_parts(&target), "nothing is left");
    let damaged = Target::start(&program_with("census.c", &["-O1"]), &[]);
    let mut damaged = damaged;
    damaged.ask("damage");
    let out = scene.prof(&["attach", &damaged.pid.to_string(), "--census"]);
    assert!(out.code == 3 && out.stderr.contains("could not be walked"), "{out:?}");
    assert!(!has_parts(&damaged) && damaged.alive(), "nothing is left");
    damaged.kill();
    let left = std::fs::read_dir(scene.path(".")).expect("a folder");
    let left: Vec<_> = left
        .filter_map(|e| e.ok())
        .filter(|e| e.path().extension().is_some_and(|x| x == "prof"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    count(&mut target);
    target.quit();
    if !has_compiler("musl-gcc") {
        return skip("what_makes_no_sense_is_refused_and_leaves_nothing", "no musl-gcc");
    }
    // A program that has not allocated has no heap.
    let Ok(demo) = compile("musl-gcc", "toggle.c", &["-O1", "-static"]) else { return };
    let mut other = Target::start(&demo, &[]);
    let out = scene.prof(&["attach", &other.pid.to_string(), "--census"]);
    assert!(out.code == 3 && out.stderr.contains("no heap of glibc's"), "{out:?}");
    other.quit();
}

#[test]
fn a_prof_that_is_killed_during_the_census_leaves_the_process_well() {
    let scene = Scene::new("census_killed");
    let mut target = start(true, 4);
    target.ask("churn");
    let pid = target.pid.to_string();
    for round in 0..12 {
        let mut attach = Command::new(Scene::binary());
        attach.args(["attach", &pid, "--census", "--no-log", "-o"]);
        attach.arg(scene.path(&format!("{round}.prof")));
        let mut attach = attach.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("prof");
        // From before the stop until after it.
        std::thread::sleep(Duration::from_millis(20 + 15 * round));
        let _ = attach.kill();
        attach.wait().expect("its end");
        let before = count(&mut target).changes;
        until("the threads go on", || count(&mut target).changes > before);
        scene.prof(&["detach", &pid]);
        until("nothing is left", || !has_parts(&target));
    }
    // And it can be recorded as ever.
    target.ask("calm");
    let recording = scene.attach_with(&target, &["--census"]);
    target.ask("mix");
    let told = count(&mut target);
    let heap = json(&scene, &["heap", &pid, "--format", "json"]);
    scene.detach(&target);
    check(&scene, &recording, told, &heap, (true, 4));
    target.quit();
}
