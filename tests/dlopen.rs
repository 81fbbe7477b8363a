//! The hook as a library that the target's own dynamic linker loads (`--by dlopen`).

use common::build::{program, program_with};
use common::library::{
    BY_DLOPEN, busy, maps_of_hook, no_mounts, none_left, over_folders, recorded_while_busy,
};
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use std::path::Path;
use std::process::Command;

/// Returns the number of executable mappings of no file. The kernel may have some of its own, and a stack.
fn code_without_file(target: &Target) -> usize {
    let is_code = |l: &&str| l.split(' ').nth(1).is_some_and(|access| access.contains('x'));
    target.proc("maps").lines().filter(is_code).filter(|l| !l.contains('/')).count()
}

/// Returns a command that records another one, with the hook by dlopen.
fn run(scene: &Scene, file: &str, by: &str, command: &Path) -> Command {
    let mut c = scene.command(&["run", "--by", by, "-o", file, "--"]);
    c.arg(command);
    c
}

/// The hook is in the process before any code of the program's, and of its libraries', has run.
#[test]
fn a_command_is_recorded_from_its_first_allocation_on() {
    let scene = Scene::new("dlopen-run");
    let late = program_with("late.c", &["-O1", "-shared", "-fPIC"]);
    let mut figures = Vec::new();
    for by in ["map", "dlopen"] {
        let mut c = run(&scene, by, by, &program("toggle.c"));
        c.env("LD_PRELOAD", &late);
        let mut target = Target::spawn(c);
        target.expect("ready");
        target.ask("alloc 3");
        let out = scene.prof(&["status"]).ok("status");
        assert!(out.stdout.contains("toggle"), "{out:?}");
        let pid = child_of(target.pid);
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        assert_eq!(maps.contains("/libprof_hook.so"), by == "dlopen", "{maps}");
        target.quit();
        let r = scene.finished(&scene.path(by));
        r.marked("late.c", "late_constructor").assert_live(1, 1008);
        r.marked("toggle.c", "toggled_block").assert_live(3, 3 * 128);
        assert_eq!(r.number("/recording/lost_events"), 0);
        figures.push(["allocations", "frees", "live_bytes"].map(|f| r.total(f)));
    }
    assert_eq!(figures[0], figures[1]);
    none_left();
}

/// Returns the child of a process that has one.
fn child_of(pid: i32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("children");
    let first = |pid: &&str| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        !comm.starts_with("prof")
    };
    children.split_whitespace().find(first).expect("a child").parse().expect("a pid")
}

/// What a wrapper executes has a linker of its own, and a shell's child has the library of its parent.
#[test]
fn a_command_that_calls_exec_is_followed() {
    let scene = Scene::new("dlopen-exec");
    let mut c = scene.command(&["run", "--by", "dlopen", "-o", "r.prof", "--"]);
    let shell = format!("(exit 3); [ $? = 3 ] && exec {}", program("toggle.c").display());
    c.args(["sh", "-c", &shell]);
    let mut target = Target::spawn(c);
    target.expect("ready");
    target.ask("alloc 3");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child_of(target.pid)));
    assert!(maps.expect("maps").contains("/libprof_hook.so"));
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    r.marked("toggle.c", "toggled_block").assert_live(3, 3 * 128);
    none_left();
}

/// The linker calls audit libraries for what prof has it load, too, and tells of its work if it is asked to.
#[test]
fn a_command_whose_linker_is_watched_is_recorded() {
    let scene = Scene::new("dlopen-watched");
    let audit = program_with("audited.c", &["-O1", "-shared", "-fPIC"]);
    let debug = scene.path("debug");
    let values: [(&str, &Path); 3] =
        [("LD_AUDIT", &audit), ("LD_DEBUG", Path::new("all")), ("LD_BIND_NOW", Path::new("1"))];
    for (variable, value) in values {
        let inner = scene.path("inner.sh");
        let program = program("toggle.c");
        let script = format!("{variable}={} exec {}", value.display(), program.display());
        std::fs::write(&inner, script).expect("a script");
        let mut c = scene.command(&["run", "--by", "dlopen", "-o", variable, "--", "sh"]);
        c.arg(&inner).env("LD_DEBUG_OUTPUT", &debug);
        let mut target = Target::spawn(c);
        target.expect("ready");
        target.ask("alloc 3");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child_of(target.pid)));
        assert!(maps.expect("maps").contains("/libprof_hook.so"), "{variable}");
        target.quit();
        let r = scene.finished(&scene.path(variable));
        r.marked("toggle.c", "toggled_block").assert_live(3, 3 * 128);
    }
    none_left();
}

/// A program without a dynamic linker is refused, or recorded as by `map`.
#[test]
fn a_static_command_is_recorded_by_map() {
    let scene = Scene::new("dlopen-run-static");
    let program = program_with("toggle.c", &["-O1", "-static"]);
    let out = scene.run(run(&scene, "refused.prof", "dlopen", &program));
    assert!(out.code == 3 && out.stderr.contains("it has no dynamic linker"), "{out:?}");
    assert!(!scene.path("refused.prof").exists());
    let mut target = Target::spawn(run(&scene, "r.prof", "auto", &program));
    target.expect("ready");
    target.ask("alloc 3");
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    r.marked("toggle.c", "toggled_block").assert_live(3, 3 * 128);
}

#[test]
fn the_figures_are_those_of_a_mapped_hook() {
    let scene = Scene::new("dlopen-figures");
    let mut target = Target::start(&program("toggle.c"), &[]);
    target.ask("alloc 1"); // the heap
    let (before, code) = (Snapshot::of(&target), code_without_file(&target));
    let mut figures = Vec::new();
    for way in ["map", "dlopen"] {
        let recording = scene.attach_with(&target, &["--by", way, "-o", way, "--free-stacks"]);
        let mapped = maps_of_hook(&target);
        assert_eq!(mapped > 0, way == "dlopen", "{mapped}");
        let maps = target.proc("maps");
        let mut files = maps.lines().filter(|l| l.contains("/libprof_hook.so"));
        assert!(files.all(|l| l.ends_with(" (deleted)")), "the file is still there: {maps}");
        assert_eq!(code_without_file(&target) == code, way == "dlopen", "{maps}");
        target.ask("alloc 100");
        target.ask("free 90");
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
        let r = scene.finished(&recording);
        assert_eq!(r.number("/recording/lost_events"), 0);
        let group = &r.asked_by("toggled_block")[0];
        figures.push(["allocations", "live_count", "live_bytes"].map(|f| group.number(f)));
        target.ask("free 10");
    }
    // The oldest of those that were freed is from before the attach.
    assert_eq!(figures[0], [100, 11, 1408]);
    assert_eq!(figures[0], figures[1]);
    target.quit();
}

/// On ARM, C code without debug information has no tables that stacks could be unwound by.
#[test]
fn a_stripped_program_is_recorded() {
    let scene = Scene::new("dlopen-stripped");
    let mut target = Target::start(&program_with("toggle.c", &["-O1", "-s"]), &[]);
    target.ask("alloc 1"); // the heap
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &BY_DLOPEN);
    assert!(maps_of_hook(&target) > 0);
    target.ask("alloc 100");
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    let r = scene.finished(&recording);
    assert_eq!((r.total("allocations"), r.number("/recording/lost_events")), (100, 0));
}

/// The target is busy in the allocator, in stdio, in the dynamic linker, in a signal handler and in fork.
#[test]
fn beside_threads_that_are_busy() {
    let scene = Scene::new("dlopen-busy");
    let (mut target, linked) = busy(Command::new(program("busy.c")));
    recorded_while_busy(&scene, &mut target, &linked, 10);
    target.quit();
}

#[test]
fn exceptions_pass_through_named_functions() {
    let scene = Scene::new("dlopen-named");
    let program = program_with("thrown.cpp", &["-O2"]);
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let mut target = Target::start(&program, &[]);
    let commands = ["go", "cancel", "registers"];
    let answers = commands.map(|c| target.ask(c));
    let before = Snapshot::of(&target);
    let pool = format!("--alloc-fn={name}:pool_new(1)");
    let wait = format!("--alloc-fn={name}:pool_wait(1)");
    let recording = scene.attach_with(&target, &[&pool, &wait, "--by", "dlopen"]);
    for (command, answer) in commands.iter().zip(&answers) {
        assert_eq!(target.ask(command), *answer);
    }
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    // A call that was left by an exception is no allocation, and does not hide later ones.
    let r = scene.finished(&recording);
    let calls: u64 = r.asked_by("catches").iter().map(|g| g.number("allocations")).sum();
    assert_eq!((calls, r.number("/recording/lost_events")), (100, 0), "{}", r.askers());
    target.quit();
}

/// Waits until the kernel shows no other thread than the first: one that was joined may be there for a moment.
fn alone(target: &Target) {
    let count =
        || std::fs::read_dir(format!("/proc/{}/task", target.pid)).map_or(0, Iterator::count);
    until("the threads have ended", || count() == 1);
}

/// The unwinder in the process finds the hook's call frame information, so it gets through a hooked function to its callers:
/// for a backtrace, and when a thread ends there. It does not find that of a hook that is mapped.
#[test]
fn the_processs_own_unwinder_gets_through_the_hook() {
    let library = program_with(
        "walks.c",
        &["-O1", "-fexceptions", "-funwind-tables", "-DLIBRARY", "-shared", "-fPIC"],
    );
    let program = program_with("walks.c", &["-O1", "-fexceptions", "-funwind-tables"]);
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", &library);
    let mut target = Target::spawn(command);
    target.expect("ready");
    let commands = ["walk", "leave"];
    assert_eq!(commands.map(|c| target.ask(c)), ["done 1", "done 1"]);
    alone(&target);
    let before = Snapshot::of(&target);
    for options in [&[][..], &["--verify-stacks"], &["--sample-rate=3"], &["--paused"]] {
        let scene = Scene::new("dlopen-walks");
        let recording = scene.attach_with(&target, &[&BY_DLOPEN, options].concat());
        target.ask("alloc 10");
        assert_eq!(commands.map(|c| target.ask(c)), ["done 1", "done 1"], "{options:?}");
        target.ask("alloc 10");
        scene.detach(&target);
        let r = scene.finished(&recording);
        if options.len() != 1 || options[0] == "--verify-stacks" {
            // The call that its thread left has no result.
            let live =
                r.asked_by("walked_block").iter().map(|g| g.number("live_count")).sum::<u64>();
            assert_eq!(live, 21, "{options:?}: {}", r.askers());
            assert_eq!(r.number("/recording/lost_events"), 0);
        }
    }
    alone(&target);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}

/// Whatever a signal handler has interrupted, also in the hook, its backtrace ends.
#[test]
fn a_backtrace_by_a_signal_handler_ends() {
    let library = program_with(
        "walks.c",
        &["-O1", "-fexceptions", "-funwind-tables", "-DLIBRARY", "-shared", "-fPIC"],
    );
    let mut command =
        Command::new(program_with("walks.c", &["-O1", "-fexceptions", "-funwind-tables"]));
    command.env("LD_PRELOAD", &library);
    let mut target = Target::spawn(command);
    target.expect("ready");
    assert_eq!(target.ask("interrupt"), "done 1");
    let scene = Scene::new("dlopen-interrupted");
    let recording = scene.attach_with(&target, &BY_DLOPEN);
    assert_eq!(target.ask("interrupt"), "done 1");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    let calls: u64 = r.asked_by("walked_block").iter().map(|g| g.number("allocations")).sum();
    assert_eq!(calls + r.number("/recording/lost_events"), 100_000);
}

/// An operator new of the program's own that throws, and that no nothrow form is known to call, can be named.
#[test]
fn an_operator_new_of_the_programs_own_throws() {
    let program = program_with("own_new.cpp", &["-O1"]);
    let name = program.file_name().unwrap().to_str().unwrap();
    // The mangled name has the type of a size.
    let size = if cfg!(target_pointer_width = "64") { 'm' } else { 'j' };
    let new = format!("--alloc-fn={name}:_Znw{size}(1)");
    let delete = format!("--free-fn={name}:_ZdlPv{size}(1)");
    for by in ["map", "dlopen"] {
        let mut target = Target::start(&program, &[]);
        let before = Snapshot::of(&target);
        let scene = Scene::new("dlopen-own-new");
        let recording = scene.attach_with(&target, &[&new, &delete, "--by", by]);
        for command in ["fail", "go", "fail"] {
            target.ask(command);
        }
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
        target.quit();
        let r = scene.finished(&recording);
        r.marked("own_new.cpp", "own_new").assert_live(3, 3 * 56);
    }
}

/// Returns the mappings of a process, except for the heap.
fn mappings(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let others = maps.lines().filter(|l| !l.ends_with("[heap]"));
    others.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// A child has the library, too, and prof is taken out of it by its own dynamic linker: with its parent, or alone.
#[test]
fn children_are_rid_of_it() {
    let scene = Scene::new("dlopen-children");
    let mut target = Target::start(&program("prefork.c"), &[]);
    let fork = |target: &mut Target| -> i32 {
        target.ask("fork")["done ".len()..].trim().parse().expect("a pid")
    };
    let clean = mappings(fork(&mut target));
    scene.attach_with(&target, &BY_DLOPEN);
    let children = [fork(&mut target), fork(&mut target), fork(&mut target), fork(&mut target)];
    let has_hook = |c: i32| mappings(c).iter().any(|l| l.contains("/libprof_hook.so"));
    assert!(children.iter().all(|c| has_hook(*c)));
    scene.prof(&["detach", &children[0].to_string()]).ok("detach of a child");
    assert!(!has_hook(children[0]) && has_hook(children[1]) && has_hook(target.pid));
    // An attach takes the parent's patches out before it puts in its own.
    let (own, file) = (children[3].to_string(), scene.path("child.prof"));
    let output = ["-o", file.to_str().expect("UTF-8")];
    scene.prof(&[&["attach", &own][..], &BY_DLOPEN, &output].concat()).ok("attach to a child");
    works(children[3]);
    scene.prof(&["detach", &own]).ok("detach of a child");
    assert!(scene.finished(&file).number("/totals/allocations") >= 9999);
    let out = scene.prof(&["detach", &target.pid.to_string(), "--children"]).ok("detach");
    assert!(out.stderr.contains("2 children forked while it was recorded"), "{out:?}");
    for c in children {
        assert_eq!(mappings(c), clean, "{c}: {out:?}");
        works(c);
    }
    target.quit();
}

/// Checks that a child allocates on request, and confirms it.
fn works(child: i32) {
    let name = || std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    let pid = nix::unistd::Pid::from_raw(child);
    nix::sys::signal::kill(pid, nix::sys::signal::SIGUSR2).expect("the child lives");
    until("a child works", || name().trim() == "works");
}

/// Processes whose dynamic linker can't do it are told so, and nothing is left in them.
#[test]
fn what_can_not_load_it_is_refused() {
    let scene = Scene::new("dlopen-refused");
    let refused = |program: &Path, why: &str| {
        let mut target = Target::start(program, &[]);
        let before = Snapshot::of(&target);
        let pid = target.pid.to_string();
        let out = scene.prof(&["attach", &pid, "--by", "dlopen"]);
        assert!(out.code != 0 && out.stderr.contains(why), "{out:?}");
        assert!(out.stderr.contains("--by map"), "{out:?}");
        before.assert_same(&Snapshot::of(&target));
        target.quit();
    };
    refused(&program_with("toggle.c", &["-O1", "-static"]), "it has no dynamic linker");
}

/// A namespace of dlmopen has a libc of its own, whose dlopen is not the program's.
#[test]
fn a_copy_of_libc_is_not_taken_for_the_programs() {
    let scene = Scene::new("dlopen-space");
    let library = program_with("plugin.c", &["-O1", "-shared", "-fPIC"]);
    let mut target = Target::start(&program_with("loader.c", &["-O1", "-ldl"]), &[]);
    target.ask(&format!("space {}", library.display()));
    // The copy makes a heap of its own.
    target.ask("call");
    let before = Snapshot::of(&target);
    let recording = scene.attach_with(&target, &BY_DLOPEN);
    target.ask("call");
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    scene.finished(&recording).marked("plugin.c", "plugin_block").assert_live(1, 333);
}

/// glibc leaves a part of a library mapped of which the kernel refuses the code, so prof asks for none. Where no folder will
/// do, the library is a memfd, whose descriptor nobody sees.
#[test]
fn folders_whose_files_are_no_code_are_passed_over() {
    if let Some(why) = no_mounts() {
        return common::skip("dlopen-noexec", why);
    }
    let scene = Scene::new("dlopen-noexec");
    for (n, options, place) in [
        (0, ["noexec", "ro", "exec", "noexec"], " /dev/shm/prof-hook-"),
        (1, ["noexec", "ro", "ro", "noexec"], " /memfd:/prof-hook-"),
    ] {
        let mut target = Target::spawn(over_folders(options, &program("toggle.c")));
        target.expect("ready");
        target.ask("alloc 10");
        let before = Snapshot::of(&target);
        let pid = target.pid.to_string();
        let file = format!("{n}.prof");
        let keep = ["attach", &pid, "--by", "dlopen", "--keep-library", "-o", &file];
        if n == 1 {
            let out = scene.prof(&keep);
            assert!(out.code == 3 && out.stderr.contains("it is mounted with noexec"), "{out:?}");
            before.assert_same(&Snapshot::of(&target));
        }
        // The linker must not take the second library for the first.
        for again in 0..2 {
            let file = format!("{n}-{again}.prof");
            let recording = scene.attach_with(&target, &["--by", "dlopen", "-o", &file]);
            let maps = target.proc("maps");
            assert!(maps.contains(place), "{maps}");
            assert!(!target.has_memfd("/prof-hook-"));
            target.ask("alloc 10");
            scene.detach(&target);
            before.assert_same(&Snapshot::of(&target));
            let r = scene.finished(&recording);
            r.marked("toggle.c", "toggled_block").assert_live(10, 10 * 128);
        }
        target.quit();
    }
}

/// Nothing is left of a library whose code the kernel refuses to map, which prof does not know beforehand here.
#[test]
fn what_the_linker_leaves_is_unmapped() {
    if !nix::unistd::geteuid().is_root() || !common::installed("setpriv") {
        return common::skip("dlopen-left", "taking a capability away takes root and setpriv");
    }
    let scene = Scene::new("dlopen-left");
    let mut target = Target::start(&program("filters.c"), &["file"]);
    target.ask("go");
    let before = Snapshot::of(&target);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(Scene::binary());
    command.args(["attach", &target.pid.to_string(), "--by", "dlopen", "--filter-allows"]);
    let out = scene.run(command);
    assert!(out.code == 3 && out.stderr.contains("failed to map segment"), "{out:?}");
    before.assert_same(&Snapshot::of(&target));
    target.ask("go");
    target.quit();
}

/// prof's code is mapped executable and stays so, and the stubs are pages of a file (PR_SET_MDWE, Linux 6.3).
#[test]
fn memory_that_can_t_become_executable_is_no_obstacle() {
    for way in ["map", "dlopen", "auto"] {
        let scene = Scene::new("dlopen-mdwe");
        let mut command = Command::new(program("locked.c"));
        command.arg("mdwe");
        let mut target = Target::spawn(command);
        if target.expect("ready").contains("unsupported") {
            return common::skip("dlopen-mdwe", "PR_SET_MDWE needs Linux 6.3");
        }
        target.ask("go");
        let before = Snapshot::of(&target);
        let recording = scene.attach_with(&target, &["--by", way]);
        assert_eq!(maps_of_hook(&target) > 0, way == "dlopen");
        target.ask("go");
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
        target.quit();
        let r = scene.finished(&recording);
        r.marked("locked.c", "locked_block").assert_live(5, 640);
    }
}

/// A thread that is always inside the dynamic linker makes a refusal, not a hang.
#[test]
fn a_thread_in_the_dynamic_linker_is_not_waited_for_too_long() {
    let scene = Scene::new("dlopen-inside");
    let mut target = Target::start(&program("lists.c"), &[]);
    target.send("walk");
    target.expect("walking");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid, "--by", "dlopen", "--timeout", "1s"]);
    assert!(out.code != 0 && out.stderr.contains("in the dynamic linker"), "{out:?}");
    until("the process is as before", || before.differences(&Snapshot::of(&target)).is_empty());
    target.send("on");
    target.expect("done");
    scene.attach_with(&target, &BY_DLOPEN);
    // The library has to stay while the thread is there, without effect; the next detach takes it out.
    target.send("walk");
    target.expect("walking");
    let out = scene.prof(&["detach", &pid, "--timeout", "1s"]);
    assert!(out.code != 0 && out.stderr.contains("without effect"), "{out:?}");
    target.send("on");
    target.expect("done");
    scene.prof(&["detach", &pid]).ok("the second detach");
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}
