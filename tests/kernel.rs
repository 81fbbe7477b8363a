//! `prof kernel` on kernel allocations that a program causes on purpose.

mod common;

use common::build::program;
use common::{Report, Scene, Target, installed, skip, until, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Number of full pages in each of the program's pipes.
const PAGES: u64 = 64;

/// Returns whether the kernel can be recorded here; the test is skipped otherwise.
fn allowed(test: &str) -> bool {
    if !nix::unistd::geteuid().is_root() {
        skip(test, "recording the kernel needs root");
        return false;
    }
    let scene = Scene::new("kernel-allowed");
    let out = scene.prof(&["kernel", "100ms", "1", "--quiet", "--percpu"]);
    if out.code == 3 {
        skip(test, &out.stderr);
    } else {
        assert_eq!(out.code, 0, "{out:#?}");
    }
    out.code == 0
}

/// `prof kernel` in the background, ended with the test.
struct Running {
    child: Child,
    stderr: PathBuf,
    stdout: PathBuf,
}

impl Running {
    /// Starts it, and waits until it records.
    fn start(scene: &Scene, args: &[&str]) -> Self {
        let (stdout, stderr) = (scene.path("stdout"), scene.path("stderr"));
        let file = |p: &Path| Stdio::from(File::create(p).expect("a file"));
        let mut c = Command::new(Scene::binary());
        c.arg("kernel").args(args).current_dir(&scene.dir).stdin(Stdio::null());
        let child = c.stdout(file(&stdout)).stderr(file(&stderr)).spawn().expect("prof kernel");
        let running = Self { child, stderr, stdout };
        until("prof kernel records", || running.messages().contains("recording the kernel"));
        running
    }

    fn messages(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Sends a signal, and returns the exit code.
    fn end(&mut self, signal: Signal) -> i32 {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("a signal");
        wait(&mut self.child, common::DEADLINE).expect("prof kernel ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns live blocks, live bytes and all allocations of the groups whose stacks have all these functions.
fn of(report: &Report, functions: &[&str]) -> (u64, u64, u64) {
    let has = |g: &common::report::Group<'_>| {
        functions.iter().all(|f| g.functions().iter().any(|have| have.starts_with(f)))
    };
    let groups = report.groups().filter(has);
    groups.fold((0, 0, 0), |(count, bytes, all), g| {
        let n = |name| g.number(name);
        (count + n("live_count"), bytes + n("live_bytes"), all + n("allocations"))
    })
}

/// Returns the same of the groups that this function asked for.
fn asked_by(report: &Report, function: &str) -> (u64, u64, u64) {
    let groups = report.groups().filter(|g| g.0["asked_by"]["function"] == function);
    groups.fold((0, 0, 0), |(count, bytes, all), g| {
        let n = |name| g.number(name);
        (count + n("live_count"), bytes + n("live_bytes"), all + n("allocations"))
    })
}

/// Returns the bytes of an object of a slab cache, as the kernel says.
fn object_size(cache: &str) -> u64 {
    let slabs = fs::read_to_string("/proc/slabinfo").expect("/proc/slabinfo");
    let line = slabs.lines().find(|l| l.split(' ').next() == Some(cache)).expect("the cache");
    line.split_ascii_whitespace().nth(3).and_then(|n| n.parse().ok()).expect("a size")
}

fn page() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().expect("a size") as u64
}

#[test]
fn what_a_program_makes_the_kernel_allocate_is_there_to_the_byte() {
    if !allowed("what_a_program_makes_the_kernel_allocate") {
        return;
    }
    let scene = Scene::new("kernel-exact");
    let mut target = Target::start(&program("kernel.c"), &[]);
    let pid = target.pid.to_string();
    let mut prof =
        Running::start(&scene, &["1s", "--pid", &pid, "-o", "k.prof", "-T", "6", "--older", "0"]);
    target.ask("eventfds 3000");
    target.ask("pipes 7");
    target.ask("close");
    target.ask("eventfds 10000");
    target.ask("pipes 5");
    until("a summary shows all of it", || prof.printed().contains("in 10000 allocations"));
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    let recording = scene.path("k.prof");
    let report = scene.finished(&recording);
    let show = || report.askers();
    assert_eq!(report.number("/recording/lost_events"), 0);
    // An open file is an object of the cache `filp`, for each event descriptor, and for each end of a pipe.
    let (count, bytes, all) = of(&report, &["filp", "do_eventfd"]);
    assert_eq!((count, bytes, all), (10_000, 10_000 * object_size("filp"), 13_000), "{}", show());
    let (count, _, all) = of(&report, &["filp", "create_pipe_files"]);
    assert_eq!((count, all), (10, 24), "{}", show());
    // The memory of eventfd itself comes from kmalloc, which has no cache of a name.
    let (count, bytes, all) = asked_by(&report, "do_eventfd");
    assert_eq!((count, all, bytes % 10_000), (10_000, 13_000, 0), "{}", show());
    // A pipe holds pages.
    let (count, bytes, all) = of(&report, &["anon_pipe_write"]);
    let (count_old, bytes_old, all_old) = of(&report, &["pipe_write"]);
    let (count, bytes, all) = (count + count_old, bytes + bytes_old, all + all_old);
    assert_eq!((count, bytes), (5 * PAGES, 5 * PAGES * page()), "{}", show());
    assert_eq!(all, 12 * PAGES, "{}", show());
    let text = scene.prof(&["report", "k.prof", "--top", "3"]).ok("report").stdout;
    assert!(!text.contains("\nkmem_cache_alloc") && text.contains("[slab]"), "{text}");
    // memleak's form: the largest last.
    let printed = prof.printed();
    assert!(printed.contains("] Top 6 stacks with outstanding allocations:\n\t"), "{printed}");
    let last = printed.rsplit("\t\t").find(|l| l.contains("bytes in")).unwrap_or_default();
    assert!(last.contains("bytes in 10000 allocations from stack"), "{last}\n{printed}");
    for args in [
        &["leaks", "k.prof"][..],
        &["diff", "k.prof", "k.prof"],
        &["export", "pprof", "k.prof", "-o", "k.pb.gz"],
        &["export", "flamegraph", "k.prof", "-o", "k.svg"],
        &["info", "k.prof"],
    ] {
        let out = scene.prof(args);
        assert!(matches!(out.code, 0 | 1), "{args:?}: {out:#?}");
        assert!(!out.stderr.contains("panicked"), "{out:#?}");
    }
    let svg = fs::read_to_string(scene.path("k.svg")).expect("a flame graph");
    assert!(svg.contains("do_eventfd"), "no name of the kernel in the flame graph");
    target.quit();
}

#[test]
fn a_full_ring_is_told_and_a_killed_prof_leaves_nothing() {
    if !allowed("a_full_ring_is_told") {
        return;
    }
    let scene = Scene::new("kernel-full");
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let before = mounts();
    let mut target = Target::start(&program("kernel.c"), &[]);
    let mut prof =
        Running::start(&scene, &["60s", "--ring-size", "4KiB", "-o", "full.prof", "--quiet"]);
    target.ask("eventfds 5000");
    assert_eq!(prof.end(Signal::SIGTERM), 0, "{}", prof.messages());
    assert!(
        prof.messages().contains("were lost, as a ring of 4.0 KiB was full"),
        "{}",
        prof.messages()
    );
    assert!(scene.report(&scene.path("full.prof")).number("/recording/lost_events") > 0);

    let mut prof = Running::start(&scene, &["60s", "-o", "killed.prof", "--quiet"]);
    target.ask("eventfds 2000");
    let file = scene.path("killed.prof");
    let written = || fs::metadata(&file).map_or(0, |m| m.len());
    // The chunks that describe the machine come first.
    until("allocations are written", || {
        written() > 1000 && scene.report(&file).total("allocations") > 0
    });
    let pid = prof.child.id();
    assert_eq!(prof.end(Signal::SIGKILL), 128 + 9);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "a process is left");
    assert_eq!(mounts(), before, "a mount is left");
    let instances = Path::new("/sys/kernel/tracing/instances");
    assert_eq!(fs::read_dir(instances).map_or(0, Iterator::count), 0, "an instance is left");
    let report = scene.report(&scene.path("killed.prof"));
    assert!(!report.bool("/recording/complete") && report.total("allocations") > 0);
    target.quit();
}

#[test]
fn options_select_what_is_recorded() {
    if !allowed("options_select") {
        return;
    }
    let scene = Scene::new("kernel-options");
    // Every process has counters in per-CPU memory.
    let percpu =
        ["kernel", "60s", "--percpu", "-o", "p.prof", "-c", "/bin/true; /bin/true; exit 7"];
    let out = scene.prof(&percpu);
    assert_eq!(out.code, 7, "the command's exit code: {out:#?}");
    let report = scene.finished(&scene.path("p.prof"));
    assert!(of(&report, &["pcpu_alloc"]).2 >= 2, "{}", report.askers());
    assert_eq!(of(&report, &["kmem_cache_alloc"]).2, 0, "{}", report.askers());

    let mut target = Target::start(&program("kernel.c"), &[]);
    let pid = target.pid.to_string();
    let filp = object_size("filp").to_string();
    let sizes = ["60s", "--pid", &pid, "--slab", "-z", &filp, "-Z", &filp, "-o", "z.prof"];
    let mut prof = Running::start(&scene, &sizes);
    target.ask("eventfds 400");
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    let report = scene.report(&scene.path("z.prof"));
    assert_eq!(of(&report, &["filp", "do_eventfd"]).0, 400, "{}", report.askers());
    assert_eq!(asked_by(&report, "do_eventfd").0, 0, "{}", report.askers());
    assert_eq!(of(&report, &["anon_pipe_write"]).0, 0);

    let rate = ["60s", "--pid", &pid, "--slab", "-s", "10", "-o", "s.prof"];
    let mut prof = Running::start(&scene, &rate);
    target.ask("eventfds 4000");
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    let report = scene.report(&scene.path("s.prof"));
    // Each tracepoint and processor counts to 10 by itself, and each descriptor takes several objects of three caches.
    let (_, _, all) = of(&report, &["kmem_cache_alloc", "do_eventfd"]);
    assert!((8_000..=16_000).contains(&all), "{all} of 12,000\n{}", report.askers());

    let combined = ["500ms", "--pid", &pid, "--combined-only", "--slab"];
    let mut prof = Running::start(&scene, &combined);
    target.ask("eventfds 300");
    until("a summary", || prof.printed().contains("in 300 allocations from stack"));
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    assert!(!prof.messages().contains("recorded to"), "{}", prof.messages());

    let each = ["300ms", "--pid", &pid, "-a", "--older", "0", "-o", "a.prof"];
    let mut prof = Running::start(&scene, &each);
    target.ask("eventfds 2");
    until("each block is shown", || prof.printed().contains(&format!("size = {filp}\n")));
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    assert!(prof.printed().contains("\taddr = ffff"), "{}", prof.printed());
    target.quit();
}

#[test]
fn a_cgroup_is_told_from_the_rest() {
    if !allowed("a_cgroup_is_told_from_the_rest") {
        return;
    }
    let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
    let root = mounts.lines().find(|l| l.split(' ').nth(2) == Some("cgroup2"));
    let Some(root) = root.and_then(|l| l.split(' ').nth(1)) else {
        return skip("a_cgroup_is_told_from_the_rest", "no cgroup2 is mounted");
    };
    let folder = Path::new(root).join(format!("prof-test-kernel-{}", std::process::id()));
    if let Err(e) = fs::create_dir(&folder) {
        return skip("a_cgroup_is_told_from_the_rest", &format!("{}: {e}", folder.display()));
    }
    let scene = Scene::new("kernel-cgroup");
    let (mut inside, mut outside) =
        (Target::start(&program("kernel.c"), &[]), Target::start(&program("kernel.c"), &[]));
    fs::write(folder.join("cgroup.procs"), inside.pid.to_string()).expect("moved");
    let path = folder.to_str().expect("UTF-8").to_owned();
    let mut prof = Running::start(&scene, &["60s", "--cgroup", &path, "-o", "c.prof", "-q"]);
    inside.ask("eventfds 700");
    outside.ask("eventfds 900");
    let code = prof.end(Signal::SIGINT);
    inside.quit();
    outside.quit();
    until("the cgroup is empty", || fs::remove_dir(&folder).is_ok());
    assert_eq!(code, 0, "{}", prof.messages());
    let report = scene.report(&scene.path("c.prof"));
    assert_eq!(of(&report, &["filp", "do_eventfd"]).0, 700, "{}", report.askers());
}

#[test]
fn refusals_say_what_to_do() {
    let scene = Scene::new("kernel-refused");
    let out = scene.prof(&["kernel", "-z", "10", "-Z", "5"]);
    assert_eq!(out.code, 2, "{out:#?}");
    assert!(out.stderr.contains("--min-size (10) is larger than --max-size (5)"), "{out:#?}");
    if !nix::unistd::geteuid().is_root() || !installed("setpriv") {
        return skip("refusals_say_what_to_do", "no root, or no setpriv");
    }
    let mut c = Command::new("setpriv");
    c.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    c.arg(Scene::binary()).args(["kernel", "100ms", "1", "--combined-only"]);
    let out = scene.run(c);
    // The folder of the build may be closed to others.
    if out.code != 126 && out.code != 127 {
        assert_eq!(out.code, 3, "{out:#?}");
        assert!(out.stderr.contains("root"), "{out:#?}");
    }
    let gone = scene.prof(&["kernel", "--pid", "4194303", "100ms", "1"]);
    assert!(gone.code == 3 && gone.stderr.contains("process 4194303 is gone"), "{gone:#?}");
    assert_eq!(fs::read_dir(&scene.dir).expect("a folder").count(), 0, "a file without content");
}
