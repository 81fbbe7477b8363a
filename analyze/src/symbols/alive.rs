//! Tells whether a recorded process is still there.

use prof_os::Pid;
use prof_os::files::read_at_most;
use prof_os::process::folder;
use prof_trace::records::Target;
use std::path::PathBuf;

/// Returns whether the recorded process is still running.
pub fn is_target(target: &Target) -> bool {
    let proc = PathBuf::from(folder(Pid::from_u32(target.pid)));
    if target.pid == 0 || !proc.exists() {
        return false;
    }
    let exe = std::fs::read_link(proc.join("exe")).ok();
    let exe = exe.as_ref().and_then(|p| p.to_str());
    if exe.is_some_and(|p| p.strip_suffix(" (deleted)").unwrap_or(p) == target.exe) {
        return true;
    }
    let cmdline = read_at_most(&proc.join("cmdline"), 1 << 20).unwrap_or_default();
    let cmdline = cmdline.strip_suffix(b"\0").unwrap_or(&cmdline);
    !cmdline.is_empty()
        && cmdline
            .split(|b| *b == 0)
            .map(String::from_utf8_lossy)
            .eq(target.cmdline.iter().map(String::as_str))
}
