//! Stacks are complete up to the start of the thread: at any depth up to 1,024 frames, with and without frame pointers,
//! through signal handlers, on small stacks, after longjmp and on fibers.

use common::build::{program, program_with};
use common::{Report, Scene, Target};
use std::process::Command;

/// Checks that depths are exact for one build of the recursive program.
#[track_caller]
fn depths(name: &str, flags: &[&str]) {
    let scene = Scene::new(name);
    let mut target = Target::start(&program_with("deep.c", flags), &[]);
    let recording = scene.attach(&target);
    let depths = [0, 1, 10, 40, 200, 900];
    // Up and down, so that the memoized stack is sometimes longer and sometimes shorter.
    for depth in depths.iter().chain(depths.iter().rev()) {
        target.ask(&format!("go {depth}"));
    }
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    assert_eq!(r.number("/recording/truncated_stacks"), 0);
    for depth in depths {
        let size = 10_000 + depth;
        let of_size = |g: &common::report::Group<'_>| g.number("live_bytes") == 2 * size;
        let found: Vec<_> = r.groups().filter(of_size).collect();
        assert_eq!(found.len(), 1, "stacks of depth {depth}:\n{}", r.askers());
        found[0].assert_live(2, 2 * size);
        let f = found[0].functions();
        let count = |name: &str| f.iter().filter(|x| **x == name).count() as u64;
        assert_eq!((count("bottom"), count("main")), (1, 1), "depth {depth}: {f:?}");
        assert_eq!(count("descend"), depth + 1, "depth {depth}");
        assert_eq!(f.last(), Some(&common::START), "depth {depth}: {f:?}");
        let line = common::build::line_of("deep.c", "descend");
        let frames = found[0].frames();
        let right = frames.iter().filter(|f| f.function() == "descend" && f.line() == line).count();
        assert_eq!(right as u64, depth, "each descends from line {line}");
    }
}

#[test]
fn depths_without_frame_pointers() {
    depths("omit", &["-O2", "-fomit-frame-pointer"]);
}

#[test]
fn depths_with_frame_pointers() {
    depths("keep", &["-O2", "-fno-omit-frame-pointer"]);
}

#[test]
fn depths_without_optimisation() {
    depths("o0", &["-O0"]);
}

#[test]
fn beyond_1024_frames_stacks_are_cut_and_marked() {
    let scene = Scene::new("cut");
    let mut target = Target::start(&program("deep.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("go 1500");
    target.ask("go 5000");
    target.ask("go 3");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!(r.total("live_bytes"), 10_003 + 11_500 + 15_000);
    assert!(r.number("/recording/truncated_stacks") >= 1, "{:#}", r.brief());
    let deep: Vec<_> = r.groups().filter(|g| g.number("live_bytes") > 10_003).collect();
    assert!(!deep.is_empty());
    for g in deep {
        let f = g.functions();
        assert_eq!(f.iter().filter(|x| **x == "bottom").count(), 1);
        let frames = g.frames().iter().filter(|f| !f.inlined()).count();
        assert!((1000..=1030).contains(&frames), "{frames} frames");
    }
}

#[test]
fn handlers_on_alternate_stacks_are_unwound_through() {
    let scene = Scene::new("alarm");
    let mut target = Target::start(&program("alarm.c"), &[]);
    let recording = scene.attach(&target);
    let answer = target.ask("go 500");
    scene.detach(&target);
    target.quit();
    let handled: u64 = answer.rsplit('=').next().unwrap().parse().unwrap();
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0);
    let groups = r.asked_by("handler_block");
    let sum = |name: &str| groups.iter().map(|g| g.number(name)).sum::<u64>();
    let live = (sum("live_count"), sum("live_bytes"));
    assert_eq!(live, (handled, handled * 3001), "a block for each call of the handler");
    let (mut interrupted, mut cut) = (0, 0);
    for g in &groups {
        let f = g.functions();
        assert!(f.contains(&"on_alarm"), "{f:?}");
        // ARM's libc has no unwind tables for an interrupted function, nor does a call tell its frame.
        if cfg!(target_arch = "arm") && g.frames().last().unwrap().module().contains("/libc.so") {
            cut += g.number("live_count");
            continue;
        }
        assert_eq!(f.last(), Some(&common::START), "{f:?}");
        assert!(f.contains(&"main"), "{f:?}");
        interrupted += u64::from(f.contains(&"interrupted_work")) * g.number("live_count");
    }
    assert!(interrupted * 2 > handled, "only {interrupted} of {handled} in the computing function");
    assert!(cut * 10 < handled, "{cut} of {handled} are cut");
    assert!(cut == 0 || r.number("/recording/truncated_stacks") > 0, "{cut} are not counted");
}

#[test]
fn the_vdso_is_unwound_through() {
    let scene = Scene::new("vdso");
    let mut target = Target::start(&program("vdso.c"), &[]);
    let recording = scene.attach(&target);
    let answer = target.ask("go 200");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0);
    let over = answer.split(['=', ' ']).nth(2).and_then(|n| n.parse().ok());
    assert!(over >= Some(200_u64), "no 200 signals over the vDSO in a minute: {answer}");
    let groups = r.asked_by("page_block");
    let live: u64 = groups.iter().map(|g| g.number("live_count")).sum();
    assert_eq!(Some(live), over, "{answer}: {}", r.askers());
    for g in groups {
        let f = g.functions();
        assert!(g.frames().iter().any(|f| f.module() == "[vdso]"), "{f:?}");
        let asks = f.iter().position(|f| *f == "ask_for_time");
        assert!(
            asks.is_some() && asks.map(|n| n + 1) == f.iter().position(|f| *f == "main"),
            "{f:?}"
        );
        assert_eq!(f.last(), Some(&common::START), "{f:?}");
    }
}

#[test]
fn the_end_of_a_long_function() {
    let scene = Scene::new("long");
    let mut target = Target::start(&program("long.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    let group = r.marked("long.c", "long_block");
    group.assert_live(10, 10 * 4001);
    let f = group.functions();
    let at = f.iter().position(|f| *f == "long_function");
    assert_eq!(at.and_then(|n| f.get(n + 1)), Some(&"main"), "{f:?}");
    assert!(group.rooted(), "{f:?}");
}

#[test]
fn threads_with_little_stack_left() {
    let scene = Scene::new("small");
    let mut target = Target::start(&program("small_stack.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    target.ask("go");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.marked("small_stack.c", "cramped_block").assert_live(100, 100 * 6001);
    let group = r.marked("small_stack.c", "cramped_block");
    let f = group.functions();
    assert!(f.contains(&"squeeze") && f.contains(&"work") && group.rooted(), "{f:?}");
}

#[test]
fn longjmp_and_fibers_leave_no_false_frames() {
    let scene = Scene::new("jumps");
    let mut target = Target::start(&program("jumps.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    let of_size = |size: u64| -> Vec<_> {
        r.asked_by("jump_block").into_iter().filter(|g| g.number("live_bytes") == size).collect()
    };
    let count = |f: &[&str], name: &str| f.iter().filter(|x| **x == name).count();
    for (size, name, depth) in [(8001, "sink_and_jump", 21), (8002, "sink_and_return", 11)] {
        let found = of_size(100 * size);
        assert_eq!(found.len(), 1, "{}", r.askers());
        let f = found[0].functions();
        assert_eq!(count(&f, name), depth, "{f:?}");
        assert_eq!(count(&f, "main"), 1, "{f:?}");
        assert_eq!(f.last(), Some(&common::START), "{f:?}");
        assert_eq!(count(&f, "fiber_main"), 0, "{f:?}");
    }
    let fiber = of_size(100 * 8003);
    assert_eq!(fiber.len(), 1, "{}", r.askers());
    let f = fiber[0].functions();
    assert_eq!((count(&f, "fiber_main"), count(&f, "main")), (1, 0), "{f:?}");
}

#[test]
fn inlined_functions_are_shown_and_marked() {
    // At -O2 the helper `took` and others are inlined; the caller of malloc is still found by line.
    let scene = Scene::new("inlined");
    let mut target = Target::start(&program_with("oracle.cpp", &["-O2"]), &[]);
    let recording = scene.attach(&target);
    target.ask("go 500 3");
    scene.detach(&target);
    target.quit();
    let r: Report = scene.finished(&recording);
    let inlined: Vec<_> = r.groups().flat_map(|g| g.frames()).filter(|f| f.inlined()).collect();
    assert!(!inlined.is_empty(), "no inlined frame at -O2");
    assert!(inlined.iter().any(|f| f.file().ends_with("oracle.cpp") && f.line() > 0));
    for g in r.groups() {
        let frames = g.frames();
        let last = frames.last().expect("a frame");
        assert!(!last.inlined(), "an inlined frame stands inside a real one: {}", last.show());
    }
}

/// Checks the stack of a program without symbols.
#[track_caller]
fn stripped(name: &str, flags: &[&str]) {
    let scene = Scene::new(name);
    let program = program_with("deep.c", flags);
    let mut target = Target::spawn(Command::new(program));
    target.expect("ready");
    let recording = scene.attach(&target);
    target.ask("go 50");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    let groups: Vec<_> = r.groups().filter(|g| g.number("live_bytes") == 10_050).collect();
    assert_eq!(groups.len(), 1, "{}", r.askers());
    let own = groups[0].frames().iter().filter(|f| f.module().contains("deep.")).count();
    // bottom, 51 times descend, main, _start
    assert_eq!(own, 54, "{:?}", groups[0].functions());
}

#[test]
fn a_stripped_program_still_has_whole_stacks() {
    stripped("stripped", &["-O2", "-fomit-frame-pointer", "-funwind-tables", "-s"]);
}

/// ARM's compilers leave tables out, and generate Thumb code, unless they are told otherwise.
#[cfg(target_arch = "arm")]
#[test]
fn code_of_the_arm_state_without_tables() {
    stripped("arm-state", &["-O2", "-marm", "-fomit-frame-pointer", "-s"]);
}

#[test]
fn generated_code_is_unwound_through() {
    let scene = Scene::new("generated");
    let program = program_with("generated.c", &["-O2", "-fno-omit-frame-pointer"]);
    let mut target = Target::start(&program, &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/truncated_stacks"), 0, "{}", r.askers());
    let group = r.marked("generated.c", "inner");
    group.assert_live(100, 100 * 5001);
    let f = group.functions();
    let at = |name: &str| f.iter().position(|x| *x == name);
    let (inner, middle) = (at("inner"), at("middle"));
    assert_eq!(middle.zip(inner).map(|(m, i)| m - i), Some(4), "three frames between: {f:?}");
    assert_eq!(at("main"), middle.map(|m| m + 1), "{f:?}");
    assert_eq!(f.last(), Some(&common::START), "{f:?}");
}
