//! Allocators other than libc's: linked into the executable under several names, the program's own operator new, and
//! functions that the user names.

use common::build::{compile, program, program_with, sources};
use common::{Report, Scene, Target, installed, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Records one "go" of a program.
#[track_caller]
fn recorded(program: &Path, options: &[&str]) -> Report {
    let scene = Scene::new("allocator");
    let mut target = Target::start(program, &[]);
    let recording = scene.attach_with(&target, options);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording)
}

/// Returns the allocators' functions that a report lists as hooked.
fn hooked(r: &Report) -> Vec<&str> {
    let list = r.at("/recording/hooks").as_array().expect("a list");
    let names = list.iter().filter_map(|h| h["function"].as_str());
    names.filter(|n| !prof_inject::hooked::calls::is_call(n)).collect()
}

/// Makes a copy of a static library in which functions have a prefix.
fn renamed(library: &Path, prefix: &str, names: &[&str]) -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{prefix}allocator.a"));
    let mut command = Command::new("objcopy");
    for name in names {
        command.arg("--redefine-sym").arg(format!("{name}={prefix}{name}"));
    }
    let status = command.arg(library).arg(&to).status().expect("objcopy");
    assert!(status.success());
    to
}

#[track_caller]
fn assert_usual(r: &Report) {
    r.marked("linked.c", "linked_plain").assert_live(2, 200);
    r.marked("linked.c", "linked_zeroed").assert_live(3, 360);
    r.marked("linked.c", "linked_aligned").assert_live(2, 400);
    r.marked("linked.c", "linked_resized").assert_live(1, 5000);
}

#[track_caller]
fn assert_own_interface(r: &Report) {
    // Two of five blocks were freed, one was replaced, one is smaller now.
    r.marked("linked.c", "linked_mallocx").assert_live(1, 64);
    r.marked("linked.c", "linked_rallocx").assert_live(1, 3000);
    r.marked("linked.c", "linked_xallocx").assert_live(1, 60);
}

#[test]
fn jemalloc_in_the_executable() {
    if common::is_refused_by_dlopen(
        "jemalloc_in_the_executable",
        "its allocator is a part of the program itself",
    ) {
        return;
    }
    let library = Path::new(LIBRARIES).join("libjemalloc.a");
    if !library.exists() || !installed("objcopy") {
        return skip("jemalloc_in_the_executable", "needs libjemalloc-dev and objcopy");
    }
    let names = [
        "malloc",
        "calloc",
        "realloc",
        "free",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "mallocx",
        "rallocx",
        "xallocx",
        "sdallocx",
        "dallocx",
        "mallctl",
        "nallocx",
        "sallocx",
        "malloc_usable_size",
        "mallctlnametomib",
        "mallctlbymib",
        "malloc_stats_print",
        "malloc_conf",
        "malloc_message",
        "__malloc_hook",
        "__free_hook",
        "__realloc_hook",
        "__memalign_hook",
        "__libc_malloc",
        "__libc_calloc",
        "__libc_realloc",
        "__libc_free",
        "__libc_memalign",
        "__libc_valloc",
        "__posix_memalign",
    ];
    for prefix in ["", "je_", "_rjem_"] {
        let library = match prefix {
            "" => library.clone(),
            _ => renamed(&library, prefix, &names),
        };
        let define = format!("-DPREFIX={prefix}");
        let file = library.to_str().expect("UTF-8").to_owned();
        let program = linked(&["-DX", &define], &file);
        let r = recorded(&program, &[]);
        r.assert_sound();
        assert_usual(&r);
        assert_own_interface(&r);
        let call = format!("{prefix}xallocx");
        assert!(hooked(&r).contains(&call.as_str()), "{prefix:?}: {:?}", hooked(&r));
        if prefix == "je_" {
            only_the_chosen(&program);
        }
    }
}

/// Checks that `--obj` and `--symbols-prefix` leave the other functions out.
fn only_the_chosen(program: &Path) {
    let name = program.file_name().and_then(|n| n.to_str()).expect("UTF-8");
    let r = recorded(program, &["--symbols-prefix", "je_", "--obj", name]);
    assert_usual(&r);
    assert!(hooked(&r).iter().all(|f| f.starts_with("je_")), "{:?}", hooked(&r));
    let r = recorded(program, &["--obj", "libc"]);
    assert!(hooked(&r).contains(&"malloc") && !hooked(&r).contains(&"je_malloc"));
    assert_eq!(r.groups().filter(|g| g.number("live_bytes") == 200).count(), 0);
}

/// Builds linked.c with a static library.
fn linked(flags: &[&str], library: &str) -> PathBuf {
    // A library must follow the source, but the compiler's other arguments precede it.
    let wrap = format!(
        "-Wl,--whole-archive,{library},--no-whole-archive,--no-as-needed,-lstdc++,-lm,--as-needed"
    );
    let mut all: Vec<&str> = vec!["-O1", "-no-pie"];
    all.extend(flags);
    all.push(&wrap);
    program_with("linked.c", &all)
}

#[test]
fn tcmalloc_in_the_executable() {
    if common::is_refused_by_dlopen(
        "tcmalloc_in_the_executable",
        "its allocator is a part of the program itself",
    ) {
        return;
    }
    let library = Path::new(LIBRARIES).join("libtcmalloc_minimal.a");
    if !library.exists() {
        return skip("tcmalloc_in_the_executable", "needs libgoogle-perftools-dev");
    }
    let program = linked(&[], library.to_str().expect("UTF-8"));
    let r = recorded(&program, &[]);
    r.assert_sound();
    assert_usual(&r);
    let names = hooked(&r);
    assert!(names.contains(&"malloc") && names.contains(&"tc_malloc"), "{names:?}");
}

#[test]
fn functions_that_the_user_names() {
    let program = program_with("pool.c", &["-O1", "-rdynamic"]);
    let name = program.file_name().and_then(|n| n.to_str()).expect("UTF-8").to_owned();
    let options = [
        format!("--alloc-fn={name}:pool_get(3)"),
        format!("--realloc-fn={name}:pool_grow(3, 1)"),
        format!("--free-fn={name}:pool_put(6)"),
        format!("--alloc-fn={name}:bump(1)"),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let r = recorded(&program, &options);
    r.assert_sound();
    for f in ["pool_get", "pool_grow", "pool_put", "bump", "malloc"] {
        assert!(hooked(&r).contains(&f), "{f}: {:?}", hooked(&r));
    }
    // The slab that the pool takes from malloc does not count besides the blocks in it.
    let pool: Vec<_> = r.asked_by("from_pool");
    assert_eq!(pool.len(), 1, "{}", r.askers());
    r.marked("pool.c", "from_pool").assert_live(3, 300);
    r.marked("pool.c", "grown").assert_live(1, 300);
    r.marked("pool.c", "bumped").assert_live(3, 72);
    r.marked("pool.c", "pool_usual").assert_live(1, 77);
    // The same from the start of the program, by `prof run`.
    let scene = Scene::new("named-run");
    let mut command = Command::new("sh");
    command.arg("-c").arg("printf 'go\\nquit\\n' | \"$0\" run -o r.prof \"$@\"");
    command.arg(Scene::binary()).args(&options).arg("--").arg(&program);
    scene.run(command).ok("prof run");
    scene.finished(&scene.path("r.prof")).marked("pool.c", "from_pool").assert_live(3, 300);
}

#[test]
fn a_malloc_without_a_free_is_listed_and_can_be_named() {
    if common::is_refused_by_dlopen(
        "a_malloc_without_a_free_is_listed_and_can_be_named",
        "its allocator is a part of the program itself",
    ) {
        return;
    }
    let program = program_with("bump.c", &["-O1", "-rdynamic"]);
    let name = program.file_name().and_then(|n| n.to_str()).expect("UTF-8").to_owned();
    let r = recorded(&program, &[]);
    let not = r.at("/recording/not_hooked").as_array().expect("a list");
    let listed = not.iter().find(|n| n["module"].as_str().is_some_and(|m| m.ends_with(&name)));
    let listed = listed.unwrap_or_else(|| panic!("not listed: {not:?}"));
    assert_eq!(listed["function"], "malloc");
    let reason = listed["reason"].as_str().expect("a reason");
    assert!(reason.contains("free") && reason.contains("--alloc-fn"), "{reason}");
    assert!(r.asked_by("bump_block").is_empty());

    let r = recorded(&program, &[&format!("--alloc-fn={name}:malloc(1)")]);
    r.assert_sound();
    r.marked("bump.c", "bump_block").assert_live(2, 140);
    let not = r.at("/recording/not_hooked").as_array().expect("a list");
    assert!(not.iter().all(|n| n["function"] != "malloc"), "{not:?}");
}

#[test]
fn wrong_names_are_refused_before_anything_is_touched() {
    let scene = Scene::new("names");
    let program = program("pool.c");
    let name = program.file_name().and_then(|n| n.to_str()).expect("UTF-8").to_owned();
    let mut target = Target::start(&program, &[]);
    let before = common::snapshot::Snapshot::of(&target);
    let pid = target.pid.to_string();
    let cases = [
        (3, format!("--alloc-fn={name}:pool_got(1)"), "pool_got"),
        (3, "--alloc-fn=libpool.so:pool_get(1)".into(), "libpool.so"),
        (3, "--obj=libnone".into(), "libnone"),
        (3, "--symbols-prefix=zz_".into(), "zz_malloc"),
        (2, format!("--alloc-fn={name}:pool_get(0)"), "from 1"),
        (2, format!("--alloc-fn={name}:pool_get"), "form"),
        (2, format!("--free-fn={name}:pool_put(1,2)"), "form"),
        (2, "--realloc-fn=pool_grow(1,2)".into(), "form"),
    ];
    for (code, option, word) in cases {
        let out = scene.prof(&["attach", &pid, &option]);
        assert_eq!(out.code, code, "{option}: {out:?}");
        assert!(out.stderr.contains(word) && out.stdout.is_empty(), "{option}: {out:?}");
        before.assert_same(&common::snapshot::Snapshot::of(&target));
    }
    assert_eq!(std::fs::read_dir(&scene.dir).unwrap().count(), 0, "a file was left");
    target.ask("go");
    target.quit();
}

/// Mangled name of `operator new(size_t)`, which depends on the width of size_t.
const OPERATOR_NEW: &str = if cfg!(target_pointer_width = "64") { "_Znwm" } else { "_Znwj" };

#[test]
fn a_program_s_own_operator_new() {
    // Exported, as programs usually do, so that libstdc++'s nothrow form calls it.
    let program = program_with("own_new.cpp", &["-O1"]);
    let scene = Scene::new("own-new");
    let mut target = Target::start(&program, &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    target.ask("fail");
    target.ask("go");
    scene.detach(&target);
    target.ask("go");
    target.ask("fail");
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    let listed = |r: &Report| {
        let all = format!("{}", r.at("/recording"));
        assert!(all.contains(&format!("\"{OPERATOR_NEW}\"")), "neither hooked nor listed: {all}");
    };
    r.marked("own_new.cpp", "own_new").assert_live(6, 6 * 56);
    assert!(hooked(&r).contains(&OPERATOR_NEW), "{:?}", hooked(&r));

    // Bound within the executable, where nothing else calls it: prof must say that it is not hooked.
    let flags = ["-O1", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-fvisibility=hidden"];
    let Ok(program) = compile("c++", "own_new.cpp", &flags) else {
        panic!("{} does not compile with {flags:?}", sources().join("own_new.cpp").display());
    };
    let mut target = Target::start(&program, &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    target.ask("fail");
    scene.detach(&target);
    target.quit();
    listed(&scene.finished(&recording));
}

/// A free that ends in libc's free of the same block: only the number of frees shows it.
#[test]
fn frees_that_end_in_another_library_count_once() {
    let mut preload = vec![program_with("wraps.c", &["-O1", "-shared", "-fPIC"])];
    let debug = Path::new(LIBRARIES).join("libc_malloc_debug.so.0");
    match debug.exists() {
        true => preload.push(debug),
        false => skip("frees under libc_malloc_debug.so.0", "not installed"),
    }
    for library in preload {
        let scene = Scene::new("wrapped");
        let mut command = Command::new(program("counts.c"));
        command.env("LD_PRELOAD", &library);
        let mut target = Target::spawn(command);
        target.expect("ready");
        let recording = scene.attach(&target);
        target.ask("go");
        scene.detach(&target);
        target.quit();
        let r = scene.finished(&recording);
        r.assert_sound();
        assert!(r.total("frees") > 0, "{:#}", r.brief());
        assert_eq!(
            r.number("/recording/unknown_frees"),
            0,
            "{}: {:#}",
            library.display(),
            r.brief()
        );
    }
}

/// Builds a Rust program without debug information, of whose allocator only the functions that Rust calls are linked.
#[track_caller]
fn rust_program(scene: &Scene, interface: &str, library: Option<&Path>) -> PathBuf {
    let program = scene.path(&format!("rust_{interface}"));
    let mut rustc = Command::new("rustc");
    rustc.args(["-O", "-C", "strip=debuginfo", "--edition=2024", "--cfg", interface, "-o"]);
    rustc.arg(&program).arg(sources().join("rust_allocators.rs"));
    if let Some(library) = library {
        rustc.args(["-C", &format!("link-arg={}", library.display())]);
        rustc.args(["-C", "link-arg=-lm", "-C", "link-arg=-ldl"]);
    }
    scene.run(rustc).ok("rustc");
    program
}

#[track_caller]
fn assert_rust(program: &Path, wanted: &[&str]) {
    let r = recorded(program, &[]);
    let names = hooked(&r);
    assert!(wanted.iter().all(|w| names.contains(w)), "{names:?}");
    assert!(!names.iter().any(|n| n.ends_with("_free")), "the linker has kept a free: {names:?}");
    r.assert_sound();
    let bytes = r.total("live_bytes");
    // The program and its standard library keep some small blocks besides these.
    let kept = 250 * 128 + 100_000 + 3000 + 8192;
    assert!((kept..kept + 4096).contains(&bytes), "{bytes} of {kept}");
    assert!(r.total("allocations") >= 503 && r.total("frees") >= 250, "{:#}", r.brief());
}

#[test]
fn rust_programs_of_whose_allocator_the_linker_keeps_no_free() {
    const TEST: &str = "rust_programs_of_whose_allocator_the_linker_keeps_no_free";
    let library = Path::new(LIBRARIES).join("libjemalloc_pic.a");
    if !library.exists() || !installed("objcopy") || !installed("rustc") {
        return skip(TEST, "needs libjemalloc-dev, objcopy and rustc");
    }
    let scene = Scene::new("rust-allocators");
    // tikv-jemallocator's prefix; functions that Rust does not call get names that prof does not look for.
    let called = renamed(&library, "_rjem_", &["mallocx", "rallocx", "sdallocx"]);
    let rest = ["malloc", "calloc", "realloc", "free", "dallocx", "xallocx", "mallctl"];
    let more = ["posix_memalign", "aligned_alloc", "memalign", "valloc", "nallocx", "sallocx"];
    let archive =
        renamed(&called, "dropped_", &[&rest[..], &more[..], &["malloc_usable_size"]].concat());
    let program = rust_program(&scene, "jemalloc", Some(&archive));
    assert_rust(&program, &["_rjem_mallocx", "_rjem_rallocx", "_rjem_sdallocx"]);
    let program = rust_program(&scene, "snmalloc", None);
    assert_rust(&program, &["sn_rust_alloc", "sn_rust_realloc", "sn_rust_dealloc"]);
}
