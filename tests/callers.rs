//! Every way to call an allocator is recorded with the exact line of the call: the PLT, `-fno-plt`, function pointers,
//! dlsym, libc's own calls, late libraries, operator new, other allocators.

use common::build::{compile, program, program_with};
use common::{Report, Scene, Target, skip};
use std::path::{Path, PathBuf};

#[track_caller]
fn callers(scene: &Scene, flags: &[&str]) -> Report {
    let late = program_with("late.c", &["-O1", "-shared", "-fPIC"]);
    let mut target = Target::start(&program_with("callers.c", flags), &[late.to_str().unwrap()]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording)
}

#[track_caller]
fn check_callers(r: &Report) {
    r.assert_sound();
    for (marker, bytes) in [
        ("by_call", 1001),
        ("by_pointer", 1002),
        ("by_dlsym_before", 1003),
        ("by_dlsym_after", 1004),
    ] {
        r.marked("callers.c", marker).assert_live(1, bytes);
    }
    // libc's own calls: the allocating frame is libc's, its caller the program's
    for (function, bytes) in [("by_strdup", 1005), ("by_asprintf", 1007)] {
        let line = common::build::line_of("callers.c", function);
        let through = |f: &common::report::Frame<'_>| f.function() == function && f.line() == line;
        let live: u64 = r
            .groups()
            .filter(|g| g.frames().iter().any(through))
            .map(|g| g.number("live_bytes"))
            .sum();
        assert_eq!(live, bytes, "{function}:\n{}", r.askers());
    }
    let line = common::build::line_of("callers.c", "by_getline");
    let by_getline: Vec<_> = r
        .groups()
        .filter(|g| g.frames().iter().any(|f| f.function() == "by_getline" && f.line() == line))
        .collect();
    let alive: u64 = by_getline.iter().map(|g| g.number("live_count")).sum();
    let bytes: u64 = by_getline.iter().map(|g| g.number("live_bytes")).sum();
    assert!(alive == 1 && bytes >= 1501, "getline: {alive} blocks, {bytes} bytes");
    let late = r.marked("late.c", "late_allocate");
    late.assert_live(1, 1007);
    let functions = late.functions();
    assert!(functions.contains(&"by_late_library"), "{functions:?}");
    let constructor = r.marked("late.c", "late_constructor");
    constructor.assert_live(1, 1008);
    let functions = constructor.functions();
    assert!(functions.contains(&"by_late_library"), "down through ld.so: {functions:?}");
    assert_eq!(functions.last(), Some(&common::START), "{functions:?}");
}

/// Flags that protect code where the processor can: functions begin with a mark for targets of indirect calls, and sign
/// their return addresses. On ARM they select ARM code instead of Thumb; on MIPS, calls through a large table.
const PROTECTED: &str = if cfg!(target_arch = "aarch64") {
    "-mbranch-protection=standard"
} else if cfg!(target_arch = "arm") {
    "-marm"
} else if cfg!(target_arch = "mips64") {
    "-mxgot"
} else {
    "-fcf-protection=full"
};

#[test]
fn through_the_plt_and_pointers_and_libc() {
    let scene = Scene::new("callers");
    check_callers(&callers(&scene, &["-O1"]));
}

#[test]
fn without_a_plt() {
    let scene = Scene::new("no-plt");
    check_callers(&callers(&scene, &["-O2", "-fno-plt", "-fomit-frame-pointer", "-Wl,-z,now"]));
}

#[test]
fn from_an_executable_at_a_fixed_address_with_lazy_binding() {
    let scene = Scene::new("no-pie");
    check_callers(&callers(&scene, &["-O0", "-no-pie", PROTECTED, "-Wl,-z,lazy"]));
}

#[test]
fn operator_new_and_exceptions() {
    let scene = Scene::new("new");
    let mut target = Target::start(&program("new_delete.cpp"), &[]);
    let recording = scene.attach(&target);
    assert_eq!(target.ask("go"), "done caught=3 refused=1 sum=20906");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    for (marker, count, bytes) in [
        ("one", 1, 2001),
        ("several", 1, 2002),
        ("quiet", 1, 2003),
        ("quiet_several", 1, 2004),
        ("wide", 1, 192),
    ] {
        r.marked("new_delete.cpp", marker).assert_live(count, bytes);
    }
    // While an exception is in flight, each of its four destructors allocates once, for 3 throws.
    let line = common::build::line_of("new_delete.cpp", "in_flight");
    let passing =
        |f: common::report::Frame<'_>| f.line() == line && f.file().ends_with("_delete.cpp");
    let found: Vec<_> = r.groups().filter(|g| g.asker().is_some_and(passing)).collect();
    let (count, bytes) = found
        .iter()
        .fold((0, 0), |(c, b), g| (c + g.number("live_count"), b + g.number("live_bytes")));
    assert_eq!((count, bytes), (12, 12 * 2005), "{}", r.askers());
    for g in &found {
        let functions = g.functions();
        assert!(functions.contains(&"thrower") && functions.contains(&"catches"), "{functions:?}");
        assert_eq!(functions.last(), Some(&common::START), "{functions:?}");
    }
    // Everything else of this kind was freed.
    assert_eq!(
        r.total("live_bytes"),
        2001 + 2002 + 2003 + 2004 + 192 + 12 * 2005,
        "{}",
        r.askers()
    );
    assert_eq!(r.total("live_count"), 17);
}

/// Returns the library of another allocator, if it is installed where Debian has it.
fn library(name: &str) -> Option<PathBuf> {
    [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ]
    .iter()
    .map(|d| Path::new(d).join(name))
    .find(|p| p.exists())
}

#[track_caller]
fn under_allocator(name: &str) {
    let Some(library) = library(name) else {
        return skip(&format!("recording under {name}"), "not installed");
    };
    let scene = Scene::new("allocator");
    let mut command = std::process::Command::new(program("counts.c"));
    command.env("LD_PRELOAD", &library);
    let mut target = Target::spawn(command);
    target.expect("ready");
    let recording = scene.attach(&target);
    let answer = target.ask("go");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!(r.number("/recording/lost_events"), 0);
    // Functions that every allocator has behave as with glibc.
    for (marker, count, bytes) in [
        ("plain", 500, 50_000),
        ("zeroed", 7, 2_100),
        ("chain_step", 1, 40_960),
        ("posix_aligned", 3, 600),
        ("c11_aligned", 2, 512),
        ("old_aligned", 1, 48),
        ("refused", 1, 50),
        ("highest_b", 0, 0),
    ] {
        r.marked("counts.c", marker).assert_live(count, bytes);
    }
    let hooks = r.at("/recording/hooks").as_array().unwrap();
    let stem = name.split('.').next().unwrap();
    let malloc = hooks.iter().find(|h| {
        h["function"] == "malloc" && h["module"].as_str().is_some_and(|m| m.contains(stem))
    });
    assert!(malloc.is_some(), "malloc of {name} is not hooked: {hooks:?}; {answer}");
}

#[test]
fn under_jemalloc() {
    under_allocator("libjemalloc.so.2");
}

#[test]
fn under_tcmalloc() {
    under_allocator("libtcmalloc_minimal.so.4");
}

#[test]
fn under_mimalloc() {
    under_allocator("libmimalloc.so.2");
}

/// Records a program whose allocator is found in another way: in the program itself, or in musl's only library.
#[track_caller]
fn recorded(name: &str, compiler: &str, flags: &[&str]) {
    if !common::build::has_compiler(compiler) {
        return skip(name, &format!("no {compiler}"));
    }
    if let Some(why) = common::build::unlinkable(flags) {
        return skip(name, why);
    }
    if common::is_refused_by_dlopen(
        name,
        "it is static, or musl's heap grows for the library (dlopen_musl)",
    ) {
        return;
    }
    let program = compile(compiler, "toggle.c", flags).unwrap_or_else(|e| panic!("{e}"));
    let scene = Scene::new(name);
    let mut target = Target::start(&program, &[]);
    let before = common::snapshot::Snapshot::of(&target);
    let unused = scene.attach(&target);
    scene.detach(&target);
    before.assert_same(&common::snapshot::Snapshot::of(&target));
    std::fs::remove_file(unused).expect("removed");
    let recording = scene.attach(&target);
    target.ask("alloc 100");
    scene.detach(&target);
    target.ask("free 100");
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    r.marked("toggle.c", "toggled_block").assert_live(100, 12_800);
}

#[test]
fn musl_programs_are_recorded() {
    recorded("musl", "musl-gcc", &["-O1"]);
}

#[test]
fn static_programs_are_recorded() {
    recorded("static", "cc", &["-O1", "-static"]);
}

#[test]
fn static_pie_programs_are_recorded() {
    recorded("static-pie", "cc", &["-O1", "-static-pie"]);
}
