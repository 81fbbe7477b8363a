//! The hook's library in a target (`--by dlopen`).

use crate::{Target, until};
use std::path::Path;
use std::process::Command;

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
