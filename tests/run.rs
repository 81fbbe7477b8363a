//! `prof run`: a command recorded from its first allocation on, constructors of libraries included, with its stdio,
//! signals and exit code passed through.

use common::build::{compile, has_compiler, program};
use common::{Report, Scene, Target, installed, skip, until};
use nix::libc;
use nix::sys::signal::Signal;
use std::process::Command;

fn run(scene: &Scene, file: &str, options: &[&str], command: &[&str]) -> Command {
    let mut c = Command::new(Scene::binary());
    c.current_dir(&scene.dir).arg("run").args(["-o", file]).args(common::way(&["run"]));
    c.args(options).arg("--").args(command);
    c
}

#[test]
fn the_exit_code_and_output_are_the_commands() {
    let scene = Scene::new("run");
    let out =
        scene.run(run(&scene, "a.prof", &[], &["sh", "-c", "echo out; echo err >&2; exit 7"]));
    assert_eq!((out.code, out.stdout.as_str()), (7, "out\n"), "{out:?}");
    assert!(out.stderr.contains("err\n"), "{out:?}");
    let killed = scene.run(run(&scene, "b.prof", &[], &["sh", "-c", "kill -TERM $$"]));
    assert_eq!(killed.code, 128 + 15, "{killed:?}");
    let none = scene.run(run(&scene, "c.prof", &[], &["/nonexistent/command"]));
    assert!(matches!(none.code, 2 | 3 | 126 | 127), "{none:?}");
    assert!(none.stderr.contains("/nonexistent/command"), "{none:?}");
}

#[test]
fn a_signal_that_is_ignored_stays_so_and_no_other() {
    let scene = Scene::new("ignored");
    let (prof, dir) = (Scene::binary().display().to_string(), scene.dir.display().to_string());
    // Read it by the shell itself, as not every machine has a `cat` that can be recorded.
    let cat = "while read -r line; do echo \"$line\"; done </proc/self/status";
    for (trap, ignored) in [("trap '' PIPE", true), ("trap - PIPE", false)] {
        let mut c = Command::new("sh");
        let script = format!("{trap}; cd '{dir}'; exec '{prof}' run -o $1.prof -- sh -c \"$2\"");
        c.args(["-c", &script, "sh", if ignored { "yes" } else { "no" }, cat]);
        let out = scene.run(c);
        assert_eq!(out.code, 0, "{out:?}");
        let mask = out.stdout.lines().find_map(|l| l.strip_prefix("SigIgn:")).expect("SigIgn");
        let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask");
        assert_eq!(mask >> 12 & 1 == 1, ignored, "{mask:x}");
    }
}

#[test]
fn a_wrapper_that_calls_exec_is_the_program_that_is_recorded() {
    let scene = Scene::new("wrapper");
    // Not every machine has a `sleep` that can be recorded.
    let figures = format!("exec {}", program("figures.c").display());
    scene.run(run(&scene, "r.prof", &[], &["sh", "-c", &figures])).ok("prof run");
    let r = scene.finished(&scene.path("r.prof"));
    // Older kernels tell the exit code only until the parent has waited for the process.
    let how = r.at("/recording/end_reason");
    assert!(how == "exited" || how == "ended", "{:#}", r.brief());
    let files = std::fs::read_dir(&scene.dir).expect("files").flatten();
    let shell = files.map(|f| f.path()).find(|p| p.to_string_lossy().contains("r.1-"));
    let shell = scene.finished(&shell.expect("the wrapper's recording"));
    assert_eq!(shell.at("/recording/end_reason"), "exec", "{:#}", shell.brief());
    let only = ["--no-follow-exec"];
    scene.run(run(&scene, "o.prof", &only, &["sh", "-c", "exec sleep 0.7"])).ok("prof run");
    let r = scene.finished(&scene.path("o.prof"));
    assert_eq!(r.at("/recording/end_reason"), "exec", "{:#}", r.brief());
}

#[test]
fn everything_is_recorded_from_the_first_allocation_on() {
    let scene = Scene::new("first");
    let counts = program("counts.c");
    let mut target = Target::spawn(run(&scene, "r.prof", &[], &[counts.to_str().unwrap()]));
    target.expect("ready");
    let answer = target.ask("go");
    target.ask("old");
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    r.assert_sound();
    assert_eq!(r.number("/recording/unknown_frees"), 0, "every block is known: {:#}", r.brief());
    r.marked("counts.c", "plain").assert_live(500, 50_000);
    // 1,027 of the "go", and six that main made before it was ready.
    assert!(answer.contains(" allocations=1027 "), "{answer}");
    let main: u64 = r.asked_by("main").iter().map(|g| g.number("allocations")).sum();
    assert_eq!(main, 6, "{}", r.askers());
}

#[test]
fn constructors_of_libraries_are_included() {
    let scene = Scene::new("constructors");
    let late = common::build::program_with("late.c", &["-O1", "-shared", "-fPIC"]);
    let mut c = run(&scene, "r.prof", &[], &[program("toggle.c").to_str().unwrap()]);
    c.env("LD_PRELOAD", &late);
    // prof itself loads the library too, which does it no harm.
    let mut target = Target::spawn(c);
    target.expect("ready");
    target.ask("alloc 3");
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    r.marked("late.c", "late_constructor").assert_live(1, 1008);
    r.marked("toggle.c", "toggled_block").assert_live(3, 3 * 128);
}

/// Alpine's linker file is musl's whole library under a name of its own, and stripped.
#[test]
fn a_program_of_stripped_musl_is_recorded() {
    if !has_compiler("musl-gcc") || !installed("strip") {
        return skip("a_program_of_stripped_musl_is_recorded", "no musl-gcc or no strip");
    }
    let scene = Scene::new("stripped-musl");
    let folder = std::fs::read_dir("/lib").expect("/lib").flatten();
    let linker = folder.map(|f| f.file_name()).find(|f| {
        let name = f.to_string_lossy();
        name.starts_with("ld-musl-") && name.ends_with(".so.1")
    });
    let linker = linker.expect("musl's dynamic linker");
    let stripped = scene.path(linker.to_str().expect("a name"));
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(std::path::Path::new("/lib").join(&linker));
    common::run(strip).ok("strip");
    let link = format!("-Wl,-dynamic-linker,{}", stripped.display());
    let toggle = compile("musl-gcc", "toggle.c", &["-O1", &link]).expect("compiles");
    let mut target = Target::spawn(run(&scene, "r.prof", &[], &[toggle.to_str().expect("a path")]));
    target.expect("ready");
    target.ask("alloc 7");
    target.quit();
    let r = scene.finished(&scene.path("r.prof"));
    r.marked("toggle.c", "toggled_block").assert_live(7, 7 * 128);
}

/// The first blocks are in the recording, with each libc and linker: the program makes no system call before them.
#[test]
fn the_first_blocks_are_recorded_whatever_the_libc() {
    let first = |compiler: &str, flags: &[&str], name: &str| {
        if !has_compiler(compiler) {
            return skip("the_first_blocks_are_recorded_whatever_the_libc", name);
        }
        if let Some(why) = common::build::unlinkable(flags) {
            return skip("the_first_blocks_are_recorded_whatever_the_libc", why);
        }
        if flags.contains(&"-static") && common::is_refused_by_dlopen(name, "it is static") {
            return;
        }
        let program = compile(compiler, "first.c", flags).unwrap_or_else(|e| panic!("{e}"));
        let scene = Scene::new("first");
        let out = scene.run(run(&scene, "r.prof", &[], &[program.to_str().expect("a path")]));
        assert_eq!(out.code, 7, "{name}: {out:?}");
        let r = scene.finished(&scene.path("r.prof"));
        let live: u64 = r.asked_by("first_block").iter().map(|g| g.number("live_count")).sum();
        assert_eq!(live, 23, "{name}: {}", r.askers());
    };
    first("cc", &["-O1"], "glibc");
    first("cc", &["-O1", "-static"], "static glibc");
    first("musl-gcc", &["-O1"], "musl-gcc");
    first("musl-gcc", &["-O1", "-static"], "static musl-gcc");
}

#[test]
fn signals_reach_the_command_and_report_prints_at_the_end() {
    let scene = Scene::new("signals");
    let toggle = program("toggle.c");
    let mut target =
        Target::spawn(run(&scene, "r.prof", &["--report"], &[toggle.to_str().unwrap()]));
    target.expect("ready");
    target.ask("alloc 25");
    target.signal(Signal::SIGTERM);
    let mut text = String::new();
    while let Some(line) = target.line_within(common::DEADLINE / 3) {
        text += &line;
        text += "\n";
    }
    assert_eq!(target.wait(), 128 + 15, "{text}");
    let r: Report = scene.finished(&scene.path("r.prof"));
    r.marked("toggle.c", "toggled_block").assert_live(25, 25 * 128);
    let line = common::build::line_of("toggle.c", "toggled_block");
    assert!(text.contains(&format!("toggle.c:{line}")), "no report at exit:\n{text}");
}

/// A signal that ends prof would leave the command alone.
#[test]
fn signals_that_few_programs_use_reach_the_command() {
    let scene = Scene::new("signals-rare");
    let traps = "for s in 14 18 26 27 29 40; do trap \"echo got $s\" $s; done; trap 'echo bye; exit 5' 15; \
                 echo ready; while :; do sleep 0.05; done";
    let numbers = match cfg!(target_arch = "mips64") {
        // signal(7), "Signal numbering for standard signals"
        true => traps.replace("14 18 26 27 29 40", "14 25 28 29 22 40"),
        false => traps.to_owned(),
    };
    let mut target = Target::spawn(run(&scene, "r.prof", &[], &["sh", "-c", &numbers]));
    target.expect("ready");
    let named = [libc::SIGALRM, libc::SIGCONT, libc::SIGVTALRM, libc::SIGPROF, libc::SIGIO];
    for signal in named.into_iter().chain([40]) {
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::kill(target.pid, signal) }, 0);
        assert_eq!(target.line(), format!("got {signal}"));
    }
    target.signal(Signal::SIGTERM);
    assert_eq!(target.line(), "bye");
    assert_eq!(target.wait(), 5);
}

#[test]
fn a_signal_before_the_command_runs_is_passed_on_to_it() {
    let scene = Scene::new("early");
    let figures = program("figures.c");
    let mut prof = Target::spawn(run(&scene, "r.prof", &[], &[figures.to_str().expect("UTF-8")]));
    let is_its = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|l| l == format!("PPid:\t{}", prof.pid))
    };
    let mut child = None;
    until("the command is being started", || {
        child = common::numbers_in("/proc".as_ref()).into_iter().find(is_its);
        child.is_some()
    });
    prof.signal(Signal::SIGQUIT);
    let code = prof.wait();
    let child = nix::unistd::Pid::from_raw(child.expect("a child"));
    let left = nix::sys::signal::kill(child, Signal::SIGKILL).is_ok();
    assert_eq!((code, left), (128 + 3, false), "the exit code, and whether the command is left");
    scene.finished(&scene.path("r.prof"));
}
