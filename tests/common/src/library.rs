//! The hook's library in a target (`--by dlopen`).

use crate::snapshot::Snapshot;
use crate::{DEADLINE, Scene, Target, until};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Options by which the target's dynamic linker loads the hook.
pub const BY_DLOPEN: [&str; 2] = ["--by", "dlopen"];

/// Folders of the target's into which prof puts the library.
pub const FOLDERS: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];

/// Returns the number of mappings of the library.
pub fn maps_of_hook(target: &Target) -> usize {
    target.proc("maps").lines().filter(|l| l.contains("/libprof_hook.so")).count()
}

/// Returns why [`over_folders`] can't mount anything here.
pub fn no_mounts() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() || !crate::installed("unshare") {
        return Some("mounting takes root and unshare");
    }
    let all = FOLDERS.iter().all(|d| Path::new(d).is_dir());
    (!all).then_some("a folder that it would mount something on is missing")
}

/// Returns a command that runs a program in a mount namespace in which an empty file system is mounted over each of
/// [`FOLDERS`], with these options.
pub fn over_folders(options: [&str; 4], program: &Path) -> Command {
    let mounts =
        FOLDERS.iter().zip(options).map(|(d, o)| format!("mount -t tmpfs -o {o} none {d} && "));
    let script = mounts.chain(["exec \"$0\" \"$@\"".into()]).collect::<String>();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(program);
    command
}

/// Waits until no file of the hook's library is left: other tests have such files for a moment. Those from before this process
/// are of other runs, which may have been killed.
pub fn none_left() {
    let modified = |m: std::fs::Metadata| m.modified().expect("a time");
    let start = modified(std::fs::metadata("/proc/self").expect("this process"));
    let is_ours = |e: &std::fs::DirEntry| {
        e.file_name().to_string_lossy().starts_with("prof-hook-")
            && e.metadata().is_ok_and(|m| modified(m) >= start)
    };
    until("the library's folders are gone", || {
        !std::fs::read_dir("/tmp").expect("/tmp").flatten().any(|e| is_ours(&e))
    });
}

/// Starts `busy.c`, with threads in the allocator, stdio, the dynamic linker, a signal handler and fork. Returns also the modules
/// that its linker lists.
pub fn busy(command: Command) -> (Target, String) {
    let mut target = Target::spawn(command);
    target.expect("ready");
    // The arenas, and what the linker keeps.
    target.ask("go");
    target.ask("progress");
    target.ask("park");
    let linked = target.ask("linked");
    target.ask("go");
    (target, linked)
}

/// Records [`busy`] by dlopen a number of times. Each time it is as before.
#[track_caller]
pub fn recorded_while_busy(scene: &Scene, target: &mut Target, linked: &str, times: usize) {
    for k in 0..times {
        let name = format!("{k}.prof");
        let options = [&BY_DLOPEN[..], &["-o", &name, "--timeout", "60s"]].concat();
        let recording = scene.attach_with(target, &options);
        assert!(maps_of_hook(target) > 0);
        target.ask("alloc 10");
        target.ask("progress");
        scene.detach(target);
        target.ask("progress");
        target.ask("park");
        assert_eq!(target.ask("linked"), linked);
        let after = Snapshot::of(target);
        assert!(after.foreign().is_empty() && maps_of_hook(target) == 0, "{:?}", after.foreign());
        let r = scene.finished(&recording);
        assert_eq!(r.asked_by("busy_block")[0].number("allocations"), 10);
        target.ask("free 10");
        target.ask("go");
    }
    none_left();
}

/// Detaches from [`busy`] after prof was killed at a system call: that succeeds, or finds nothing to do, and the target works as
/// before.
#[track_caller]
pub fn clean_up(scene: &Scene, target: &mut Target, linked: &str, place: usize) {
    target.ask("progress");
    let out = scene.prof(&["detach", &target.pid.to_string(), "--timeout", "60s"]);
    let nothing = out.stderr.contains("is not being recorded");
    assert!(out.code == 0 || nothing, "after a kill at call {place}: {out:?}");
    target.ask("progress");
    target.ask("park");
    let begun = Instant::now();
    loop {
        let after = Snapshot::of(target);
        if after.foreign().is_empty() && maps_of_hook(target) == 0 {
            break;
        }
        let left = after.foreign();
        assert!(begun.elapsed() < DEADLINE / 6, "at call {place}: {left:?} after {out:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(target.ask("linked"), linked, "after a kill at call {place}");
    none_left();
    target.ask("go");
}
