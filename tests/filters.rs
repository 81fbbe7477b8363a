//! Targets under seccomp filters: prof attaches where it knows that none of its calls can kill them, and otherwise
//! refuses before it touches anything.

use common::build::{program, program_with};
use common::snapshot::Snapshot;
use common::{Output, Scene, Target, installed, skip};
use std::process::Command;

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns a command without the capability that is needed to read and suspend filters.
fn uncapable(command: &[&str]) -> Command {
    let mut c = Command::new("setpriv");
    c.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).args(command);
    c
}

/// Runs prof without that capability.
fn uncapable_prof(scene: &Scene, args: &[&str]) -> Output {
    let binary = Scene::binary().to_str().unwrap();
    scene.run(uncapable(&[&[binary], args].concat()))
}

#[test]
fn filters_that_let_prof_pass() {
    if !is_root() {
        return skip("filters", "reading a filter takes CAP_SYS_ADMIN");
    }
    for kind in ["allow", "default", "mask"] {
        let scene = Scene::new(kind);
        let mut target = Target::start(&program("filters.c"), &[kind]);
        target.ask("go");
        let before = Snapshot::of(&target);
        let recording = scene.attach(&target);
        target.ask("go");
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
        target.quit();
        let r = scene.finished(&recording);
        let all: u64 = r.asked_by("filtered_block").iter().map(|g| g.number("allocations")).sum();
        assert_eq!(all, 10, "{}", r.askers());
    }
}

#[test]
fn filters_that_kill_for_what_prof_does() {
    if !is_root() {
        return skip("filters", "reading a filter takes CAP_SYS_ADMIN");
    }
    for (kind, call) in [
        ("memfd", "memfd_create"),
        ("mmap", "mmap of executable memory"),
        ("return", "rt_sigreturn"),
    ] {
        let scene = Scene::new(kind);
        let mut target = Target::start(&program("filters.c"), &[kind]);
        target.ask("go");
        let before = Snapshot::of(&target);
        let pid = target.pid.to_string();
        // By dlopen, other calls are needed.
        let out = scene.prof(&["attach", &pid, "-o", "refused.prof", "--by", "map"]);
        assert_eq!(out.code, 3, "{out:?}");
        assert!(
            out.stderr.contains(&format!("kills it, or sends it SIGSYS, for {call}")),
            "{out:?}"
        );
        assert!(!scene.path("refused.prof").exists());
        before.assert_same(&Snapshot::of(&target));
        if kind != "return" {
            // The user takes the risk, and later profs know of it.
            let recording = scene.attach_with(&target, &["--filter-allows", "--by", "map"]);
            target.ask("go");
            scene.detach(&target);
            before.assert_same(&Snapshot::of(&target));
            scene.finished(&recording);
        }
        target.ask("go");
        target.quit();
    }
}

/// A file's code may be mapped where other memory can't become executable.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_filter_against_code_without_a_file_lets_the_dynamic_linker_pass() {
    if !is_root() {
        return skip("filters", "reading a filter takes CAP_SYS_ADMIN");
    }
    let scene = Scene::new("filter-code");
    let mut target = Target::start(&program("filters.c"), &["code"]);
    target.ask("go");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid, "--by", "map"]);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains("for mmap of executable memory without a file"), "{out:?}");
    assert!(out.stderr.contains("`--by dlopen`"), "{out:?}");
    before.assert_same(&Snapshot::of(&target));
    let recording = scene.attach_with(&target, &["--by", "dlopen"]);
    target.ask("go");
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    let r = scene.finished(&recording);
    let all: u64 = r.asked_by("filtered_block").iter().map(|g| g.number("allocations")).sum();
    assert_eq!(all, 10, "{}", r.askers());
}

/// Without a word of the user's, the way is the one that the process permits.
#[test]
#[cfg(target_arch = "x86_64")]
fn where_code_can_t_be_mapped_the_dynamic_linker_loads_it() {
    if !is_root() || !installed("setpriv") {
        return skip("filters", "reading a filter takes CAP_SYS_ADMIN, and taking it away setpriv");
    }
    // The kernel itself refuses the call to a prof that can't suspend the filter, as it does by SELinux's policy.
    for (kind, why) in [
        ("allow", ""),
        ("code", "for mmap of executable memory without a file"),
        ("execmem", "the kernel refuses it executable memory without a file (EACCES"),
    ] {
        let scene = Scene::new(&format!("filter-auto-{kind}"));
        let mut target = Target::start(&program("filters.c"), &[kind]);
        target.ask("go");
        let before = Snapshot::of(&target);
        let pid = target.pid.to_string();
        let attach = |options: &[&str]| {
            let args = [&["attach", &pid, "-o", "a.prof"], options].concat();
            match kind {
                "execmem" => uncapable_prof(&scene, &[&args[..], &["--filter-allows"]].concat()),
                _ => scene.prof(&args),
            }
        };
        if !why.is_empty() {
            let out = attach(&["--by", "map"]);
            assert!(out.code == 3 && out.stderr.contains(why), "{out:?}");
            assert!(out.stderr.contains("`--by dlopen`"), "{out:?}");
            before.assert_same(&Snapshot::of(&target));
        }
        let out = attach(&["--by", "auto"]).ok("attach");
        let by_dlopen = target.proc("maps").contains("/libprof_hook.so");
        assert_eq!(by_dlopen, !why.is_empty(), "{out:?}");
        assert_eq!(out.stderr.contains("by dlopen, as prof can't map it: "), by_dlopen, "{out:?}");
        assert!(out.stderr.contains(why), "{out:?}");
        target.ask("go");
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
        target.quit();
        let r = scene.finished(&scene.path("a.prof"));
        let all: u64 = r.asked_by("filtered_block").iter().map(|g| g.number("allocations")).sum();
        assert_eq!(all, 10, "{}", r.askers());
    }
}

/// A refusal in both ways names both reasons.
#[test]
fn a_process_that_neither_maps_nor_loads_code_is_told_both_reasons() {
    if !is_root() {
        return skip("filters", "reading a filter takes CAP_SYS_ADMIN");
    }
    let scene = Scene::new("filter-neither");
    let (linked, static_) = (program("filters.c"), program_with("filters.c", &["-static"]));
    let has_dlopen = !prof_os::is_wider_than_arm();
    let nowhere = "prof can do that in 32-bit programs under a 32-bit kernel only";
    let dlopen = if has_dlopen { "mmap of a file's code" } else { nowhere };
    let no_linker = if has_dlopen { "it has no dynamic linker" } else { nowhere };
    for (program, kind, why) in [(&linked, "mmap", dlopen), (&static_, "code", no_linker)] {
        let mut target = Target::start(program, &[kind]);
        target.ask("go");
        let before = Snapshot::of(&target);
        let out = scene.prof(&["attach", &target.pid.to_string(), "--by", "auto"]);
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains("for mmap of executable memory without a file"), "{out:?}");
        assert!(out.stderr.contains(why), "{why} is not in {out:?}");
        before.assert_same(&Snapshot::of(&target));
        target.ask("go");
        target.quit();
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_filter_against_what_the_dynamic_linker_does_is_named() {
    if !is_root() || !installed("setpriv") {
        return skip("filters", "reading a filter takes CAP_SYS_ADMIN");
    }
    for (kind, does) in [("open", "refuses openat,"), ("mmap", "for mmap of a file's code,")] {
        let scene = Scene::new(kind);
        let mut target = Target::start(&program("filters.c"), &[kind]);
        target.ask("go");
        let before = Snapshot::of(&target);
        let pid = target.pid.to_string();
        let out = scene.prof(&["attach", &pid, "--by", "dlopen"]);
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains(does), "{out:?}");
        before.assert_same(&Snapshot::of(&target));
        target.ask("go");
        target.quit();
    }
    // The user can vouch for a filter that prof can't read.
    let scene = Scene::new("filter-word");
    let mut target = Target::start(&program("filters.c"), &["code"]);
    target.ask("go");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    let attach = ["attach", &pid, "-o", "a.prof", "--by", "dlopen"];
    let out = uncapable_prof(&scene, &attach);
    assert!(out.code == 3 && out.stderr.contains("--filter-allows"), "{out:?}");
    before.assert_same(&Snapshot::of(&target));
    uncapable_prof(&scene, &[&attach[..], &["--filter-allows"]].concat()).ok("attach");
    target.ask("go");
    uncapable_prof(&scene, &["detach", &pid]).ok("detach");
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    scene.finished(&scene.path("a.prof"));
}

/// A thread whose system call a tracer skips makes, for a filter, a call with the number -1.
#[test]
fn a_filter_that_kills_for_calls_that_do_not_exist_harms_nobody() {
    if !is_root() || !installed("setpriv") || prof_os::is_wider_than_arm() {
        return skip("filter-none", "taking a capability away takes root and setpriv");
    }
    let scene = Scene::new("filter-none");
    let mut target = Target::start(&program("filters.c"), &["none"]);
    target.ask("go");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    for (file, can_read) in [("read.prof", true), ("word.prof", false)] {
        let attach = ["attach", &pid, "-o", file, "--by", "dlopen"];
        if can_read {
            scene.prof(&attach).ok("attach");
        } else {
            uncapable_prof(&scene, &[&attach[..], &["--filter-allows"]].concat()).ok("attach");
        }
        target.ask("go");
        let detach = ["detach", &pid];
        let out = if can_read { scene.prof(&detach) } else { uncapable_prof(&scene, &detach) };
        out.ok("detach");
        before.assert_same(&Snapshot::of(&target));
        scene.finished(&scene.path(file));
    }
    target.ask("go");
    target.quit();
}

#[test]
fn a_filter_that_prof_cannot_read_needs_the_users_word() {
    if !is_root() || !installed("setpriv") {
        return skip("word", "taking a capability away takes root and setpriv");
    }
    for kind in ["allow", "default"] {
        let scene = Scene::new("word");
        let mut target = Target::start(&program("filters.c"), &[kind]);
        target.ask("go");
        let before = Snapshot::of(&target);
        let pid = target.pid.to_string();
        let out = uncapable_prof(&scene, &["attach", &pid, "-o", "a.prof"]);
        assert_eq!(out.code, 3, "{out:?}");
        assert!(out.stderr.contains("CAP_SYS_ADMIN"), "{out:?}");
        assert!(out.stderr.contains("--filter-allows"), "{out:?}");
        before.assert_same(&Snapshot::of(&target));
        uncapable_prof(&scene, &["attach", &pid, "-o", "a.prof", "--filter-allows"]).ok("attach");
        target.ask("go");
        uncapable_prof(&scene, &["detach", &pid]).ok("detach");
        before.assert_same(&Snapshot::of(&target));
        target.quit();
        scene.finished(&scene.path("a.prof"));
    }
}

/// Processes that prof starts inherit prof's own filters, which it can try.
#[test]
fn prof_under_a_filter_runs_programs() {
    if !is_root() || !installed("setpriv") {
        return skip("under", "taking a capability away takes root and setpriv");
    }
    let scene = Scene::new("under");
    let filters = program("filters.c");
    let (filters, prof) = (filters.to_str().unwrap(), Scene::binary().to_str().unwrap());
    let run = |kind, file| {
        let command = [filters, kind, prof, "run", "-o", file, "--", "ls", "/"];
        scene.run(uncapable(&command))
    };
    let out = run("default", "a.prof").ok("prof run");
    assert!(out.stdout.contains("proc"), "{out:?}");
    assert!(scene.finished(&scene.path("a.prof")).total("allocations") > 0);
    let out = run("memfd", "b.prof");
    assert!(out.code != 0 && out.stderr.contains("prof tried the calls"), "{out:?}");
}

/// In a container all processes have the runtime's filter, and the first process is the oldest one visible.
#[test]
fn prof_in_a_container_attaches_beside_it() {
    let in_it = ["unshare", "--pid", "--fork", "--mount-proc"];
    let probe = || {
        let mut c = Command::new("unshare");
        c.args(["--pid", "--fork", "--mount-proc", "true"])
            .output()
            .is_ok_and(|o| o.status.success())
    };
    if !is_root() || !installed("setpriv") || !probe() {
        return skip("container", "a namespace of processes takes root, unshare and setpriv");
    }
    let scene = Scene::new("container");
    let (filters, toggle) = (program("filters.c"), program("toggle.c"));
    let (filters, toggle) = (filters.to_str().unwrap(), toggle.to_str().unwrap());
    let prof = Scene::binary().to_str().unwrap();
    // There prof tries the calls of the dynamic linker, too.
    let linked = if cfg!(target_arch = "x86_64") {
        format!("{prof} attach $pid -o c.prof --by dlopen && {prof} detach $pid; echo linked $?")
    } else {
        "echo linked 0".into()
    };
    let script = format!(
        "mkfifo in; sleep 60 > in & holder=$!; {toggle} < in > out & pid=$!
         n=0; until grep -q ready out || [ $n -gt 200 ]; do sleep 0.05; n=$((n+1)); done
         {prof} attach $pid -o a.prof; echo attached $?; {prof} detach $pid; echo detached $?
         {linked}
         {filters} allow {toggle} < in > out2 & more=$!
         n=0; until grep -q ready out2 || [ $n -gt 200 ]; do sleep 0.05; n=$((n+1)); done
         {prof} attach $more -o b.prof; echo more $?
         kill -0 $pid && kill -0 $more && echo alive; kill $pid $more $holder"
    );
    let command = [&in_it[..], &[filters, "default", "sh", "-c", &script]].concat();
    let out = scene.run(uncapable_after(&command));
    assert!(out.stdout.contains("attached 0") && out.stdout.contains("detached 0"), "{out:?}");
    assert!(out.stdout.contains("linked 0"), "{out:?}");
    // A process with a further filter has not the same.
    assert!(out.stdout.contains("more 3") && out.stdout.contains("alive"), "{out:?}");
}

/// Returns a command that loses the capability after it has made namespaces, which needs it.
fn uncapable_after(command: &[&str]) -> Command {
    let (make, rest) = command.split_at(4);
    let mut c = Command::new(make[0]);
    c.args(&make[1..]).args(["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
    c.args(rest);
    c
}
