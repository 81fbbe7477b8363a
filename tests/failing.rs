//! prof under limits: descriptors, threads and memory run out at every step of an attach or a detach. prof must end
//! with an error of its own, and the target must be as it was.

use common::build::{compile, program};
use common::snapshot::Snapshot;
use common::{Output, Scene, Target, run, skip, until, writers};
use nix::libc;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Sets a limit for the process of a command.
fn limit(command: &mut Command, what: u32, value: u64) {
    let set = move || {
        let value = value as libc::rlim_t;
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        // SAFETY: the call only reads the struct.
        match unsafe { libc::setrlimit(what as _, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call and does not allocate.
    unsafe { command.pre_exec(set) };
}

fn warm() -> Target {
    let mut target = Target::start(&program("toggle.c"), &[]);
    target.ask("alloc 100");
    target.ask("free 100");
    target
}

/// A series of attempts in which something fails earlier or later.
struct Series<'a> {
    scene: &'a Scene,
    target: &'a Target,
    before: Snapshot,
    number: usize,
    failures: usize,
    /// The next `prof detach` may have to remove what a failing prof has begun.
    may_leave: bool,
}

impl<'a> Series<'a> {
    fn new(scene: &'a Scene, target: &'a Target) -> Self {
        let before = Snapshot::of(target);
        Self { scene, target, before, number: 0, failures: 0, may_leave: false }
    }

    #[track_caller]
    fn own_error(&self, what: &str, out: &Output) {
        assert!((0..=3).contains(&out.code), "{what}: {out:#?}");
        assert!(!out.stderr.contains("panicked"), "{what}: {out:#?}");
        assert!(out.code == 0 || out.stderr.contains("prof: "), "{what}: no reason: {out:#?}");
    }

    /// Attaches with an obstacle.
    #[track_caller]
    fn attach(&mut self, what: &str, prepare: impl FnOnce(&mut Command)) -> i32 {
        self.number += 1;
        let pid = self.target.pid.to_string();
        let file = format!("{}.prof", self.number);
        let mut c = Command::new(Scene::binary());
        c.args([
            "attach",
            &pid,
            "--ring-size",
            "1MiB",
            "-o",
            &file,
            "--timeout",
            "20s",
            "--look",
            "0s",
        ]);
        prepare(&mut c);
        c.current_dir(&self.scene.dir).stdin(Stdio::null());
        let out = run(c);
        self.own_error(what, &out);
        if out.code == 0 {
            self.scene.prof(&["detach", &pid]).ok(what);
        } else {
            self.failures += 1;
            if self.may_leave {
                let _ = self.scene.prof(&["detach", &pid]);
            }
        }
        let path = self.scene.path(&file);
        until("nobody writes the recording", || writers(&path).is_empty());
        self.same(what);
        out.code
    }

    /// Detaches with an obstacle; then without.
    #[track_caller]
    fn detach(&mut self, what: &str, prepare: impl FnOnce(&mut Command)) {
        self.number += 1;
        let pid = self.target.pid.to_string();
        let file = format!("{}.prof", self.number);
        self.scene.prof(&["attach", &pid, "--ring-size", "1MiB", "-o", &file]).ok(what);
        let mut c = Command::new(Scene::binary());
        c.args(["detach", &pid]);
        prepare(&mut c);
        c.current_dir(&self.scene.dir).stdin(Stdio::null());
        let out = run(c);
        self.own_error(what, &out);
        if out.code != 0 {
            self.failures += 1;
            let again = self.scene.prof(&["detach", &pid]);
            assert!(again.code == 0 || again.stderr.contains("not being recorded"), "{again:#?}");
        }
        self.same(what);
    }

    #[track_caller]
    fn same(&self, what: &str) {
        until("the target waits", || self.target.status("State").starts_with('S'));
        let all = self.before.differences(&Snapshot::of(self.target));
        assert!(all.is_empty(), "{what}: {}", all.join("\n"));
    }
}

#[test]
fn descriptors_that_run_out() {
    let scene = Scene::new("descriptors");
    let mut target = warm();
    let mut series = Series::new(&scene, &target);
    let mut last = 1;
    for n in [4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 21, 24, 27, 30, 34, 38, 48] {
        // With fewer descriptors the dynamic linker can't load prof.
        let what = format!("attach with {n} descriptors");
        last = series.attach(&what, |c| limit(c, libc::RLIMIT_NOFILE, n));
    }
    assert_eq!(last, 0, "48 descriptors are enough");
    assert!(series.failures >= 3, "{} have failed", series.failures);
    for n in [4, 6, 8, 12, 20, 26, 30] {
        let what = format!("detach with {n} descriptors");
        series.detach(&what, |c| limit(c, libc::RLIMIT_NOFILE, n));
    }
    target.ask("alloc 1");
    target.quit();
}

#[test]
fn address_space_that_runs_out() {
    let scene = Scene::new("address-space");
    let mut target = warm();
    let mut series = Series::new(&scene, &target);
    let sizes = [48, 64, 96, 128, 256, 440, 470, 490, 505, 515, 525, 535, 550, 575, 620, 700];
    for mb in sizes {
        let what = format!("attach with {mb} MiB");
        series.attach(&what, |c| limit(c, libc::RLIMIT_AS, mb << 20));
    }
    assert!(series.failures >= 3, "{} have failed", series.failures);
    target.ask("alloc 1");
    target.quit();
}

#[test]
fn allocations_that_fail_one_by_one() {
    let Ok(library) = compile("cc", "failing.c", &["-O1", "-shared", "-fPIC"]) else {
        return skip("allocations_that_fail_one_by_one", "needs a C compiler");
    };
    let scene = Scene::new("allocations");
    let mut target = warm();
    let with = |c: &mut Command, name: &str, n: u64| {
        c.env("LD_PRELOAD", &library).env(name, n.to_string());
    };
    let pid = target.pid.to_string();
    let mut counted = Command::new(Scene::binary());
    counted.args(["attach", &pid, "--ring-size", "1MiB", "-o", "count.prof", "--look", "0s"]);
    counted.env("COUNT", "1");
    counted.env("LD_PRELOAD", &library).current_dir(&scene.dir).stdin(Stdio::null());
    let message = run(counted).ok("an attach that is counted").stderr;
    scene.detach(&target);
    let all = message.lines().find_map(|l| l.strip_prefix("allocations ")?.parse().ok());
    let all: u64 = all.expect("a count");
    let mut series = Series::new(&scene, &target);
    // The first allocations are those of Rust's start-up code.
    for k in 0..20 {
        let n = 40 + (all - 40) * k / 20;
        let what = format!("allocation {n} of {all} fails");
        series.attach(&what, |c| with(c, "FAIL_AT", n));
    }
    assert!(series.failures >= 10, "{} of 20 have failed", series.failures);
    series.may_leave = true;
    for k in 0..8 {
        let n = 40 + (all - 40) * k / 8;
        let what = format!("all allocations from {n} of {all} on fail");
        assert_ne!(series.attach(&what, |c| with(c, "FAIL_FROM", n)), 0, "{what}");
    }
    for n in [50, 200, 1000, 4000] {
        let what = format!("allocation {n} of a detach fails");
        series.detach(&what, |c| with(c, "FAIL_AT", n));
    }
    target.ask("alloc 1");
    target.quit();
}

#[test]
fn threads_that_can_not_be_made() {
    const USER: u32 = 47_110;
    if !nix::unistd::geteuid().is_root() {
        return skip("threads_that_can_not_be_made", "needs root, to become a user");
    }
    let scene = Scene::new("threads");
    // Put the files where that user can reach them.
    let place = |name: &str, from: &Path| {
        let to = scene.path(name);
        std::fs::copy(from, &to).expect("a copy");
        to
    };
    std::fs::set_permissions(&scene.dir, PermissionsExt::from_mode(0o777)).expect("mode");
    let (prof, toggle) = (place("prof", Scene::binary()), place("toggle", &program("toggle.c")));
    let mut command = Command::new(toggle);
    command.uid(USER).gid(USER);
    let mut target = Target::spawn(command);
    target.expect("ready");
    target.ask("alloc 100");
    target.ask("free 100");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    let limited = |args: &[&str], tasks: u64| {
        let mut c = Command::new(&prof);
        c.args(args).uid(USER).gid(USER).current_dir(&scene.dir).stdin(Stdio::null());
        c.env("XDG_RUNTIME_DIR", &scene.dir);
        limit(&mut c, libc::RLIMIT_NPROC, tasks);
        run(c)
    };
    let mut failures = 0;
    for tasks in 2..9 {
        let file = format!("{tasks}.prof");
        let out =
            limited(&["attach", &pid, "--ring-size", "1MiB", "-o", &file, "--look", "0s"], tasks);
        assert!((0..=3).contains(&out.code) && !out.stderr.contains("panicked"), "{out:#?}");
        failures += u32::from(out.code != 0);
        if out.code != 0 && failures == u32::try_from(tasks - 1).unwrap_or(0) {
            let never = limited(&["detach", &pid], 100);
            assert!(never.code == 3 && never.stdout.is_empty(), "{never:#?}");
            assert!(!never.stderr.contains("last recording"), "{never:#?}");
        }
        if out.code == 0 {
            // The detach has no thread, either.
            limited(&["detach", &pid], 2).ok("a detach without threads");
        }
        until("nobody writes it", || writers(&scene.path(&file)).is_empty());
        before.assert_same(&Snapshot::of(&target));
    }
    assert!((1..7).contains(&failures), "{failures} of 7 have failed");
    target.ask("alloc 1");
    target.quit();
}

/// Greater than the address space, so that no thread can have a stack of this size.
#[cfg(target_pointer_width = "64")]
const NO_STACK: &str = "140737488355328";

#[test]
#[cfg(target_pointer_width = "64")]
fn recordings_are_read_without_threads() {
    let scene = Scene::new("no-threads");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("alloc 20000");
    target.ask("free 15000");
    scene.detach(&target);
    target.quit();
    let file = recording.to_str().expect("a path");
    for args in [
        &["report", "--format", "json", file][..],
        &["leaks", file],
        &["export", "json", file],
        &["fragmentation", file],
    ] {
        let read = |stack: Option<&str>| {
            let mut c = Command::new(Scene::binary());
            c.args(args);
            let _ = std::fs::remove_file(format!("{file}.idx"));
            stack.iter().for_each(|s| _ = c.env("RUST_MIN_STACK", s));
            scene.run(c)
        };
        let (alone, usual) = (read(Some(NO_STACK)), read(None));
        assert!(alone.code == 0 && usual.code == 0, "{args:?}: {} {}", alone.stderr, usual.stderr);
        // Blocks that are live at the end come in any order.
        let sorted = |text: &str| {
            let mut lines: Vec<_> =
                text.lines().map(|l| l.trim_end_matches([']', '}', ',']).to_owned()).collect();
            lines.sort();
            lines
        };
        assert!(sorted(&alone.stdout) == sorted(&usual.stdout), "{args:?} differs");
    }
}
