//! `prof kernel` on kernel allocations that a program causes on purpose.

use common::build::program;
use common::{Report, Scene, Target, installed, skip, until, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Number of full pages in each of the program's pipes.
const PAGES: u64 = 64;

/// The ways by which the kernel tells of its allocations.
const BACKENDS: [&str; 2] = ["perf", "bpf"];

/// Returns whether the kernel can be recorded here; the test is skipped otherwise.
fn allowed(test: &str, backend: &str) -> bool {
    if !nix::unistd::geteuid().is_root() {
        skip(test, "recording the kernel needs root");
        return false;
    }
    let scene = Scene::new("kernel-allowed");
    let args = ["kernel", "100ms", "1", "--quiet", "--percpu", "--backend", backend];
    let out = scene.prof(&args);
    if out.code == 3 {
        skip(test, &out.stderr);
    } else {
        assert_eq!(out.code, 0, "{out:#?}");
    }
    out.code == 0
}

/// Returns the ways that can be used here.
fn backends(test: &str) -> Vec<&'static str> {
    BACKENDS.into_iter().filter(|backend| allowed(test, backend)).collect()
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
    backends("what_a_program_makes_the_kernel_allocate").into_iter().for_each(is_exact);
}

fn is_exact(backend: &str) {
    let scene = Scene::new("kernel-exact");
    let mut target = Target::start(&program("kernel.c"), &[]);
    let pid = target.pid.to_string();
    let args =
        ["1s", "--pid", &pid, "-o", "k.prof", "-T", "6", "--older", "0", "--backend", backend];
    let mut prof = Running::start(&scene, &args);
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
    backends("a_full_ring_is_told").into_iter().for_each(loss_and_death_are_harmless);
}

/// Returns the numbers of the BPF programs that a process holds.
fn programs(pid: u32) -> Vec<u32> {
    let fds = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let told: Vec<String> = fds.filter_map(|fd| fs::read_to_string(fd.path()).ok()).collect();
    let lines = told.iter().flat_map(|text| text.lines());
    let ids = lines.filter_map(|l| l.strip_prefix("prog_id:")?.trim().parse().ok());
    ids.collect()
}

/// Returns whether the kernel has a BPF program of this number.
fn is_loaded(id: u32) -> bool {
    // What the kernel is asked for: a descriptor of the program.
    const OPEN: libc::c_long = 13;
    let attr = [id, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads an attribute of this length.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, OPEN, attr.as_ptr(), size_of_val(&attr)) };
    if fd >= 0 {
        // SAFETY: the descriptor is this function's own.
        unsafe { libc::close(fd as i32) };
    }
    fd >= 0
}

fn loss_and_death_are_harmless(backend: &str) {
    let scene = Scene::new("kernel-full");
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let before = mounts();
    let mut target = Target::start(&program("kernel.c"), &[]);
    let full = ["60s", "--ring-size", "4KiB", "-o", "full.prof", "--quiet", "--backend", backend];
    let mut prof = Running::start(&scene, &full);
    target.ask("eventfds 5000");
    assert_eq!(prof.end(Signal::SIGTERM), 0, "{}", prof.messages());
    assert!(
        prof.messages().contains("were lost, as a ring of 4.0 KiB was full"),
        "{}",
        prof.messages()
    );
    assert!(scene.report(&scene.path("full.prof")).number("/recording/lost_events") > 0);

    let killed = ["60s", "-o", "killed.prof", "--quiet", "--backend", backend];
    let mut prof = Running::start(&scene, &killed);
    let loaded = programs(prof.child.id());
    assert_eq!(!loaded.is_empty(), backend == "bpf", "{loaded:?}");
    assert!(loaded.iter().all(|id| is_loaded(*id)), "{loaded:?}");
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
    until("no program is left", || !loaded.iter().any(|id| is_loaded(*id)));
    let instances = Path::new("/sys/kernel/tracing/instances");
    assert_eq!(fs::read_dir(instances).map_or(0, Iterator::count), 0, "an instance is left");
    let report = scene.report(&scene.path("killed.prof"));
    assert!(!report.bool("/recording/complete") && report.total("allocations") > 0);
    target.quit();
}

#[test]
fn options_select_what_is_recorded() {
    backends("options_select").into_iter().for_each(options_select);
    if allowed("options_select", "perf") {
        a_command_goes_by_perf();
    }
}

/// A command's children, each of which has counters in per-CPU memory.
fn a_command_goes_by_perf() {
    let scene = Scene::new("kernel-command");
    let percpu =
        ["kernel", "60s", "--percpu", "-o", "p.prof", "-c", "/bin/true; /bin/true; exit 7"];
    let out = scene.prof(&percpu);
    assert_eq!(out.code, 7, "the command's exit code: {out:#?}");
    let why = "by perf events, and not by BPF programs: ";
    assert!(out.stderr.contains(why), "{out:#?}");
    let bpf = ["kernel", "60s", "--backend", "bpf", "-o", "b.prof", "-c", "/bin/true"];
    let out = scene.prof(&bpf);
    assert!(out.code == 3 && out.stderr.contains("--backend bpf can't be used: "), "{out:#?}");
    let report = scene.finished(&scene.path("p.prof"));
    assert!(of(&report, &["pcpu_alloc"]).2 >= 2, "{}", report.askers());
    assert_eq!(of(&report, &["kmem_cache_alloc"]).2, 0, "{}", report.askers());
}

fn options_select(backend: &str) {
    let scene = Scene::new("kernel-options");
    let mut target = Target::start(&program("kernel.c"), &[]);
    let pid = target.pid.to_string();
    let filp = object_size("filp").to_string();
    let sizes = [
        "60s",
        "--pid",
        &pid,
        "--slab",
        "-z",
        &filp,
        "-Z",
        &filp,
        "-o",
        "z.prof",
        "--backend",
        backend,
    ];
    let mut prof = Running::start(&scene, &sizes);
    target.ask("eventfds 400");
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    let report = scene.report(&scene.path("z.prof"));
    assert_eq!(of(&report, &["filp", "do_eventfd"]).0, 400, "{}", report.askers());
    assert_eq!(asked_by(&report, "do_eventfd").0, 0, "{}", report.askers());
    assert_eq!(of(&report, &["anon_pipe_write"]).0, 0);

    let rate = ["60s", "--pid", &pid, "--slab", "-s", "10", "-o", "s.prof", "--backend", backend];
    let mut prof = Running::start(&scene, &rate);
    target.ask("eventfds 4000");
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    let report = scene.report(&scene.path("s.prof"));
    // Each tracepoint and processor counts to 10 by itself, and each descriptor takes several objects of three caches.
    let (_, _, all) = of(&report, &["kmem_cache_alloc", "do_eventfd"]);
    assert!((8_000..=16_000).contains(&all), "{all} of 12,000\n{}", report.askers());

    let combined = ["500ms", "--pid", &pid, "--combined-only", "--slab", "--backend", backend];
    let mut prof = Running::start(&scene, &combined);
    target.ask("eventfds 300");
    until("a summary", || prof.printed().contains("in 300 allocations from stack"));
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    assert!(!prof.messages().contains("recorded to"), "{}", prof.messages());

    let each = ["300ms", "--pid", &pid, "-a", "--older", "0", "-o", "a.prof", "--backend", backend];
    let mut prof = Running::start(&scene, &each);
    target.ask("eventfds 2");
    until("each block is shown", || prof.printed().contains(&format!("size = {filp}\n")));
    assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
    assert!(prof.printed().contains("\taddr = ffff"), "{}", prof.printed());
    target.quit();
}

#[test]
fn a_cgroup_is_told_from_the_rest() {
    if !allowed("a_cgroup_is_told_from_the_rest", "perf") {
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
fn what_interrupts_free_is_seen() {
    for backend in backends("what_interrupts_free_is_seen") {
        let scene = Scene::new("kernel-nested");
        let mut target = Target::start(&program("kernel.c"), &[]);
        let mut other = Target::start(&program("kernel.c"), &[]);
        let pid = target.pid.to_string();
        let args = ["60s", "--pid", &pid, "--slab", "-o", "n.prof", "-q", "--backend", backend];
        let mut prof = Running::start(&scene, &args);
        target.send("churn 40000");
        other.ask("churn 40000");
        target.line();
        target.ask("eventfds 10");
        // The kernel frees most of it a grace period later.
        let file = scene.path("n.prof");
        let pipes = ["create_pipe_files"];
        // The kernel misses some of the frees of a burst that an interrupt makes (docs/src/limits.md).
        let missed = 2_000;
        until("nearly all is freed", || of(&scene.report(&file), &pipes).0 <= missed);
        assert_eq!(prof.end(Signal::SIGINT), 0, "{}", prof.messages());
        target.quit();
        other.quit();
        let report = scene.finished(&file);
        assert!(report.number("/recording/lost_events") <= missed, "{}", prof.messages());
        assert!(!prof.messages().contains("looked up wrongly"), "{}", prof.messages());
        // Two open files for each pipe, and an inode with one allocation or more.
        let (count, bytes, all) = of(&report, &["filp", "create_pipe_files"]);
        assert!(count <= missed && all == 80_000, "{count} of {all}: {}", report.askers());
        assert_eq!(bytes == 0, count == 0, "{bytes} bytes");
        assert_eq!(of(&report, &["filp", "do_eventfd"]).0, 10, "{}", report.askers());
        let (count, _, all) = of(&report, &pipes);
        assert!(count <= missed && all >= 200_000, "{count} of {all}: {}", report.askers());
    }
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

#[test]
fn perf_events_do_where_programs_are_refused() {
    let test = "perf_events_do_where_programs_are_refused";
    if !allowed(test, "bpf") || !installed("setpriv") || !installed("unshare") {
        return skip(test, "no programs, no setpriv, or no unshare");
    }
    let scene = Scene::new("kernel-without-bpf");
    let run = |rest: &str| {
        // With tracefs mounted, the right to mount it is not needed; both mounts end with the namespaces.
        let script = format!(
            "mount -t tracefs none /sys/kernel/tracing; {rest} kernel 200ms 1 -q --combined-only",
        );
        let mut c = Command::new("unshare");
        c.args(["-m", "sh", "-c", &script]);
        scene.run(c)
    };
    let prof = Scene::binary().display().to_string();
    let without = "exec setpriv --bounding-set=-sys_admin,-bpf --inh-caps=-sys_admin,-bpf";
    for (rest, why) in [
        (format!("{without} {prof}"), "the kernel refuses BPF maps"),
        (
            format!("exec unshare -pf --mount-proc {prof}"),
            "in a container with numbers of processes",
        ),
    ] {
        let out = run(&rest);
        let line = "by perf events, and not by BPF programs: ";
        assert!(out.code == 0 && out.stderr.contains(line), "{rest}: {out:#?}");
        assert!(out.stderr.contains(why), "{rest}: {out:#?}");
        assert!(out.stderr.contains("recording the kernel's allocations"), "{out:#?}");
    }
}
