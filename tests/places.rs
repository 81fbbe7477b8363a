//! Environments in which prof must work: static programs, other libcs, containers, hardened processes, libraries that
//! come and go, kernels that lack newer system calls.

use common::build::{compile, has_compiler, line_of, program, program_with, unlinkable};
use common::report::Frame;
use common::snapshot::Snapshot;
use common::{Report, Scene, Target, installed, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Records one "go" of a target that is ready.
#[track_caller]
fn go(scene: &Scene, target: &mut Target) -> Report {
    // Run it once before, so that it has a heap.
    target.ask("go");
    let before = Snapshot::of(target);
    let recording = scene.attach(target);
    target.ask("go");
    scene.detach(target);
    before.assert_same(&Snapshot::of(target));
    target.ask("go");
    target.quit();
    scene.finished(&recording)
}

/// Why the linker of a static program can't be asked.
const NO_LINKER: &str = "a static program has no linker";

#[test]
fn static_programs_of_every_kind() {
    let scene = Scene::new("static");
    let kinds: [(&str, &[&str]); 5] = [
        ("cc", &["-static"]),
        ("cc", &["-static-pie"]),
        ("musl-gcc", &["-static"]),
        ("musl-gcc", &["-static", "-static-pie", "-fPIE"]),
        ("musl-gcc", &[]),
    ];
    for (compiler, flags) in kinds {
        if !has_compiler(compiler) {
            skip("static_programs_of_every_kind", &format!("{compiler} is missing"));
            continue;
        }
        if let Some(why) = unlinkable(flags) {
            skip("static_programs_of_every_kind", why);
            continue;
        }
        let flags: Vec<&str> = flags.iter().copied().chain(["-O1"]).collect();
        let program = compile(compiler, "nosignals.c", &flags).unwrap_or_else(|e| panic!("{e}"));
        let is_static = flags.iter().any(|f| f.starts_with("-static"));
        if is_static && common::is_refused_by_dlopen("static", NO_LINKER) {
            continue;
        }
        let mut target = Target::start(&program, &[]);
        let r = go(&scene, &mut target);
        r.assert_sound();
        r.marked("nosignals.c", "static_block").assert_live(5, 640);
    }
}

#[test]
fn static_rust_programs() {
    if common::is_refused_by_dlopen("static_rust_programs", NO_LINKER) {
        return;
    }
    let scene = Scene::new("static-rust");
    if !installed("rustc") {
        return skip("static_rust_programs", "rustc is missing");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/static_rust.rs");
    for model in ["static", "pie"] {
        let program = scene.path(&format!("static_rust_{model}"));
        let mut rustc = Command::new("rustc");
        rustc.args(["-g", "-O", "-C", "target-feature=+crt-static", "--edition=2024", "-o"]);
        rustc.arg(&program).args(["-C", &format!("relocation-model={model}")]).arg(&source);
        scene.run(rustc).ok("rustc");
        let r = go(&scene, &mut Target::start(&program, &[]));
        let line = line_of("static_rust.rs", "rust_block");
        let here = |f: &Frame<'_>| f.file().ends_with("static_rust.rs") && f.line() == line;
        let found: Vec<_> = r.groups().filter(|g| g.frames().iter().any(here)).collect();
        // The compiler may have duplicated the call.
        let sum = |name| found.iter().map(|g| g.number(name)).sum::<u64>();
        assert_eq!((sum("live_count"), sum("live_bytes")), (5, 640), "{}", r.askers());
    }
}

#[test]
fn a_stripped_static_program_is_refused_with_the_reason() {
    let scene = Scene::new("stripped");
    let program = program_with("nosignals.c", &["-O1", "-static", "-s"]);
    let mut target = Target::start(&program, &[]);
    let before = Snapshot::of(&target);
    let out = scene.prof(&["attach", &target.pid.to_string()]);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("stripped") && out.stderr.contains("static"), "{out:?}");
    before.assert_same(&Snapshot::of(&target));
    target.ask("go");
    target.quit();
}

#[test]
fn a_static_program_without_a_signal_restorer_survives_kills() {
    if common::is_refused_by_dlopen("restorer", NO_LINKER) {
        return;
    }
    if !has_compiler("musl-gcc") {
        return skip("a_static_program_without_a_signal_restorer", "musl-gcc is missing");
    }
    let scene = Scene::new("restorer");
    let program = compile("musl-gcc", "nosignals.c", &["-O1", "-static"]).expect("compiles");
    let mut target = Target::start(&program, &[]);
    let pid = target.pid.to_string();
    for i in 0..12u64 {
        let mut command = Command::new(Scene::binary());
        command
            .args(["attach", &pid, "-o", &format!("k{i}.prof"), "--look", "0s"])
            .current_dir(&scene.dir);
        let null = std::process::Stdio::null;
        let mut child = command.stdout(null()).stderr(null()).spawn().expect("prof");
        std::thread::sleep(std::time::Duration::from_micros(3000 * i + 700));
        let _ = child.kill();
        let _ = child.wait();
        target.ask("go");
    }
    // Remove whatever the last attempt has left.
    let _ = scene.prof(&["detach", &pid]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording);
}

/// Makes a root folder with a program and the libraries that it needs, and nothing else.
fn rootfs(scene: &Scene, program: &Path) -> PathBuf {
    let root = scene.path("rootfs");
    for dir in ["proc", "bin", "old"] {
        fs::create_dir_all(root.join(dir)).expect("folder");
    }
    fs::copy(program, root.join("bin/app")).expect("copy");
    let out = Command::new("ldd").arg(program).output().expect("ldd");
    for word in
        String::from_utf8_lossy(&out.stdout).split_whitespace().filter(|w| w.starts_with('/'))
    {
        let to = root.join(&word[1..]);
        fs::create_dir_all(to.parent().expect("a folder")).expect("folder");
        fs::copy(word, to).expect("copy");
    }
    root
}

/// Returns the PID, in our namespace, of the program in a container.
#[track_caller]
fn inner(target: &Target) -> i32 {
    let children = |pid: i32| {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|w| w.parse().ok()).collect::<Vec<i32>>()
    };
    children(target.pid).into_iter().next().expect("unshare's child")
}

/// The user that a container's program runs as.
#[derive(Clone, Copy, PartialEq)]
enum User {
    /// Uid 4242, which is the same outside.
    Other,
    /// Root of a user namespace.
    Inner,
}

#[test]
fn a_container_is_recorded_from_outside() {
    if !root() || !["unshare", "setpriv", "ldd"].iter().all(|c| installed(c)) {
        return skip("a_container_is_recorded_from_outside", "needs root, unshare and setpriv");
    }
    record_from_outside(User::Other);
}

#[test]
fn a_container_with_users_of_its_own_is_recorded_from_outside() {
    let name = "a_container_with_users_of_its_own_is_recorded_from_outside";
    if !root() || !["unshare", "setpriv", "ldd"].iter().all(|c| installed(c)) {
        return skip(name, "needs root, unshare and setpriv");
    }
    let probe = Command::new("unshare").args(["--user", "--map-root-user", "true"]).status();
    if !probe.is_ok_and(|s| s.success()) {
        return skip(name, "no user namespaces here");
    }
    record_from_outside(User::Inner);
}

/// Returns whether pivot_root is possible; it is not if the root is the one that a kernel was booted with.
fn root_can_be_changed() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut roots = mounts.lines().filter(|l| l.split(' ').nth(1) == Some("/"));
    roots.next_back().is_none_or(|l| !l.starts_with("rootfs ") && !l.starts_with("none / rootfs"))
}

fn record_from_outside(user: User) {
    if !root_can_be_changed() {
        return skip("record_from_outside", "the root is the kernel's first one (rootfs)");
    }
    let scene = Scene::new("container");
    // Compiled here but found only in the container, so that its symbols must come from there.
    let root = rootfs(&scene, &program("toggle.c"));
    let mut target = contained(&root, user);
    target.expect("ready");
    let pid = inner(&target).to_string();
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).expect("namespace");
    assert_eq!(namespace(&pid) != namespace("self"), user == User::Inner);
    let out = scene.prof(&["attach", &pid]).ok("prof attach");
    let recording = scene.path(out.stdout.trim());
    assert!(recording.is_file(), "in the folder that prof was started in");
    target.ask("alloc 6");
    let out = scene.prof(&["status", &pid]).ok("prof status");
    assert!(out.stdout.contains("recording"), "{out:?}");
    scene.prof(&["detach", &pid]).ok("prof detach");
    target.ask("alloc 1");
    target.quit();
    drop(target);
    fs::remove_dir_all(&root).expect("the container goes");
    let r = scene.finished(&recording);
    r.assert_sound();
    let group = r.asked_by("toggled_block");
    assert_eq!(group.len(), 1, "by name, after the container has gone: {}", r.askers());
    group[0].assert_live(6, 768);
}

/// Runs `/bin/app` of a root folder in namespaces of its own, on a read-only root.
fn contained(root: &Path, user: User) -> Target {
    let tools = Scene::new("tools");
    for tool in ["setpriv", "umount"] {
        let path = Path::new("/usr/bin").join(tool);
        copy_missing(&rootfs(&tools, &path), root);
        fs::copy(path, root.join("bin").join(tool)).expect("copy");
    }
    let script = r#"
        mount --bind "$1" "$1" && mount -t proc proc "$1/proc" &&
        mount -o remount,bind,ro "$1" && cd "$1" && pivot_root . old && /bin/umount -l /old && shift &&
        exec "$@" /bin/app"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--net", "--uts", "--ipc", "--kill-child"]);
    command.args((user == User::Inner).then_some(["--user", "--map-root-user"]).iter().flatten());
    command.args(["sh", "-c", script, "sh"]).arg(root);
    if user == User::Other {
        command.args(["/bin/setpriv", "--reuid=4242", "--regid=4242", "--clear-groups"]);
    }
    Target::spawn(command)
}

/// Copies the files of `from` that `to` lacks.
fn copy_missing(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir_all(&target).expect("folder");
            copy_missing(&entry.path(), &target);
        } else if !target.exists() {
            fs::copy(entry.path(), target).expect("copy");
        }
    }
}

#[test]
fn a_container_is_recorded_from_inside() {
    if !root() || !installed("unshare") {
        return skip("a_container_is_recorded_from_inside", "needs root and unshare");
    }
    let scene = Scene::new("inside");
    let program = program("toggle.c");
    // PIDs, mounts, the network and users are all the namespace's own.
    let script = r#"
        mount -t proc proc /proc && mkfifo in && { "$1" < in > out & } && exec 3> in &&
        pid=$! && while ! grep -q ready out; do :; done &&
        "$0" attach $pid > path && echo "alloc 3" >&3 && while ! grep -q done out; do :; done &&
        "$0" detach $pid > path2 && echo quit >&3 && wait $pid && "$0" report --format json "$(cat path)""#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--net"]);
    command.args(["sh", "-c", script]).arg(Scene::binary()).arg(&program);
    let probe = Command::new("unshare").args(["--user", "--map-root-user", "true"]).status();
    if !probe.is_ok_and(|s| s.success()) {
        return skip("a_container_is_recorded_from_inside", "no user namespaces here");
    }
    let out = scene.run(command).ok("prof in a container");
    Report::parse(&out.stdout).marked("toggle.c", "toggled_block").assert_live(3, 384);
}

#[test]
fn libraries_that_come_and_go() {
    let scene = Scene::new("modules");
    let library = program_with("plugin.c", &["-O1", "-shared", "-fPIC"]);
    let other = program_with("plugin.c", &["-O1", "-shared", "-fPIC", "-DSIZE=444"]);
    let path = scene.path("libplugin.so");
    fs::copy(&library, &path).expect("copy");
    let load = format!("load {}", path.display());
    let mut target = Target::start(&program_with("loader.c", &["-O1", "-ldl"]), &[]);
    let recording = scene.attach(&target);
    // Wait until the collector has seen the library and its blocks.
    let seen = |bytes: u64| {
        common::until("the collector has seen the call", || {
            let r = scene.report(&recording);
            let blocks = r.groups().filter(|g| g.frames()[0].module().contains("libplugin"));
            blocks.map(|g| g.number("live_bytes")).sum::<u64>() == bytes
        });
    };
    let first = target.ask(&load);
    target.ask("call");
    seen(333);
    target.ask("unload");
    // The second time it is loaded elsewhere.
    target.ask("shift");
    let second = target.ask(&load);
    assert_ne!(first, second, "loaded at the same place again");
    target.ask("call");
    seen(666);
    // The file is replaced under the running process: another file with the same name, as package managers do it.
    let new = scene.path("new.so");
    fs::copy(&other, &new).expect("copy");
    fs::rename(&new, &path).expect("rename");
    target.ask("call");
    target.ask("unload");
    target.ask(&load);
    target.ask("call");
    seen(3 * 333 + 444);
    target.ask("unload");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    let mut sizes: Vec<u64> =
        r.asked_by("plugin_block").iter().map(|g| g.number("live_bytes")).collect();
    sizes.sort_unstable();
    let sum: u64 = sizes.iter().sum();
    assert_eq!(sum, 3 * 333 + 444, "{sizes:?}\n{}", r.askers());
    assert!(r.asked_by("plugin_block").iter().all(|g| g.rooted()), "{}", r.askers());
}

#[test]
fn a_library_that_was_replaced_before_the_attach() {
    let scene = Scene::new("replaced");
    let path = scene.path("libplugin.so");
    fs::copy(program_with("plugin.c", &["-O1", "-shared", "-fPIC"]), &path).expect("copy");
    let mut target = Target::start(&program_with("loader.c", &["-O1", "-ldl"]), &[]);
    target.ask(&format!("load {}", path.display()));
    fs::remove_file(&path).expect("remove");
    fs::write(&path, "not a library any more").expect("write");
    let recording = scene.attach(&target);
    target.ask("call");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    let group = r.asked_by("plugin_block");
    assert_eq!(group.len(), 1, "by the deleted file's own symbols: {}", r.askers());
    group[0].assert_live(1, 333);
}

#[test]
fn a_namespace_of_the_dynamic_linker() {
    let scene = Scene::new("dlmopen");
    let library = program_with("plugin.c", &["-O1", "-shared", "-fPIC"]);
    let mut target = Target::start(&program_with("loader.c", &["-O1", "-ldl"]), &[]);
    // The namespace has a libc of its own, whose malloc is hooked, too, if it is there at the attach.
    target.ask(&format!("space {}", library.display()));
    let recording = scene.attach(&target);
    target.ask("call");
    target.ask("call");
    scene.detach(&target);
    target.quit();
    let r = scene.finished(&recording);
    r.assert_sound();
    r.marked("plugin.c", "plugin_block").assert_live(2, 666);
}

#[test]
fn memory_that_can_t_become_executable() {
    let scene = Scene::new("mdwe");
    let mut target = Target::spawn({
        let mut c = Command::new(program("locked.c"));
        c.arg("mdwe");
        c
    });
    if target.expect("ready").contains("unsupported") {
        return skip("memory_that_can_t_become_executable", "PR_SET_MDWE needs Linux 6.3");
    }
    let r = go(&scene, &mut target);
    r.marked("locked.c", "locked_block").assert_live(5, 640);
}

#[test]
fn memfds_that_must_not_be_executable() {
    if !root() || !installed("unshare") || !Path::new("/proc/sys/vm/memfd_noexec").exists() {
        return skip("memfds_that_must_not_be_executable", "needs root and vm.memfd_noexec");
    }
    let scene = Scene::new("noexec");
    // The setting belongs to a PID namespace; 2 demands that every memfd is made unexecutable.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--mount", "--fork", "--kill-child", "sh", "-c"]);
    command.arg("mount -t proc proc /proc && echo 2 > /proc/sys/vm/memfd_noexec && exec \"$0\"");
    command.arg(program("locked.c"));
    let mut target = Target::spawn(command);
    target.expect("ready");
    let pid = inner(&target).to_string();
    let out = scene.prof(&["attach", &pid]).ok("prof attach");
    let recording = scene.path(out.stdout.trim());
    target.ask("go");
    scene.prof(&["detach", &pid]).ok("prof detach");
    target.quit();
    scene.finished(&recording).marked("locked.c", "locked_block").assert_live(5, 640);
}

#[test]
fn a_process_that_is_not_dumpable() {
    if !root() || !installed("setpriv") {
        return skip("a_process_that_is_not_dumpable", "needs root and setpriv");
    }
    let scene = Scene::new("undumpable");
    let mut target = Target::start(&program("locked.c"), &["undumpable"]);
    // Root without the capability is refused with the reason; with it, the attach succeeds.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]);
    command.arg(Scene::binary()).args(["attach", &target.pid.to_string()]);
    let before = Snapshot::of(&target);
    let out = scene.run(command);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("CAP_SYS_PTRACE"), "names the knob: {out:?}");
    before.assert_same(&Snapshot::of(&target));
    let r = go(&scene, &mut target);
    r.marked("locked.c", "locked_block").assert_live(5, 640);
}

#[test]
fn without_any_capability_one_s_own_process_is_recorded() {
    if !root() || !installed("setpriv") {
        return skip("without_any_capability", "needs root and setpriv to lose its rights");
    }
    use std::os::unix::fs::PermissionsExt;
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let scene = Scene::new("unprivileged");
    fs::set_permissions(&scene.dir, fs::Permissions::from_mode(0o777)).expect("chmod");
    for (from, to) in [(program("locked.c"), "app"), (PathBuf::from(Scene::binary()), "prof")] {
        // Copy by another process: a child that another test forks now would hold the copy open for writing.
        let copied = Command::new("cp").arg(from).arg(scene.path(to)).status();
        assert!(copied.is_ok_and(|s| s.success()));
    }
    let nobody = |path: PathBuf| {
        let mut c = Command::new("setpriv");
        c.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
        c.args(["--inh-caps=-all", "--no-new-privs"]).arg(path);
        c
    };
    let mut target = Target::spawn(nobody(scene.path("app")));
    target.expect("ready");
    let pid = target.pid.to_string();
    let prof = |args: &[&str]| {
        let mut c = nobody(scene.path("prof"));
        c.args(args);
        scene.run(c)
    };
    let out = prof(&["attach", &pid, "-o", "r.prof"]);
    if yama.trim().parse().unwrap_or(0) > 0 {
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains("ptrace_scope"), "names the knob: {out:?}");
        return;
    }
    out.ok("prof attach");
    target.ask("go");
    // Its file is gone now, and only root may use map_files: its symbols are read from memory.
    prof(&["detach", &pid]).ok("prof detach");
    let meta = fs::metadata(scene.path("r.prof")).expect("recording");
    use std::os::unix::fs::MetadataExt;
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (65534, 0o600));
    target.quit();
    scene.finished(&scene.path("r.prof")).marked("locked.c", "locked_block").assert_live(5, 640);
}

#[test]
fn strict_seccomp_is_refused() {
    let scene = Scene::new("strict");
    let mut target = Target::start(&program("locked.c"), &["strict"]);
    common::until("strict mode is on", || target.status("Seccomp") == "1");
    let before = Snapshot::of(&target);
    let out = scene.prof(&["attach", &target.pid.to_string()]);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("seccomp strict"), "{out:?}");
    before.assert_same(&Snapshot::of(&target));
    assert!(target.alive());
    target.kill();
}

#[test]
fn a_kernel_without_the_newer_system_calls() {
    // prof itself without pidfd_open, close_range and similar calls, as on Linux 5.4 and before.
    let scene = Scene::new("nosys");
    let mut target = Target::start(&program("locked.c"), &[]);
    let locked = program("locked.c");
    let prof = |args: &[&str]| {
        let mut c = Command::new(&locked);
        c.arg("nosys").arg(Scene::binary()).args(args);
        scene.run(c)
    };
    let pid = target.pid.to_string();
    // That this returns at all shows that the collector holds none of our descriptors open.
    prof(&["attach", &pid, "-o", "r.prof"]).ok("prof attach");
    target.ask("go");
    prof(&["detach", &pid]).ok("prof detach");
    target.quit();
    scene.finished(&scene.path("r.prof")).marked("locked.c", "locked_block").assert_live(5, 640);

    // The target under the same filter, which is suspended where the rights allow.
    let mut target = Target::start(&program("locked.c"), &["nosys"]);
    // A process with a filter of its own may not suspend another's.
    let out = prof(&["attach", &target.pid.to_string()]);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("outside of the container"), "{out:?}");
    if root() {
        let r = go(&scene, &mut target);
        r.marked("locked.c", "locked_block").assert_live(5, 640);
    } else {
        let out = scene.prof(&["attach", &target.pid.to_string()]);
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains("CAP_SYS_ADMIN"), "{out:?}");
    }
}
