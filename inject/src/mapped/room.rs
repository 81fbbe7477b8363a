//! The room for threads in the shared memory.

use prof_os::status::Status;
use prof_trace::shared::MORE_SLOTS;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns how many thread slots to add to the `first` ones: twice the number of threads that the kernel lets the
/// process have, at most [`MORE_SLOTS`], or none if `first` suffices. Returns 0 also where the whole ring would
/// count, although few pages are used: against a limit of address space or file size, or if the process locks its
/// memory.
pub(crate) fn more_threads(pid: i32, first: usize) -> usize {
    let locks = Status::of(pid).is_ok_and(|s| s.number("VmLck").is_some_and(|kb| kb > 0));
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let ours = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let free = is_unlimited(&limits, "Max address space")
        && is_unlimited(&ours, "Max address space")
        && is_unlimited(&limits, "Max file size")
        && is_unlimited(&ours, "Max file size");
    if locks || !free {
        return 0;
    }
    let kernel = ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"];
    let kernel = kernel.iter().filter_map(|f| number(Path::new(f)));
    let most = kernel.chain(of_cgroups(pid)).min().unwrap_or(usize::MAX);
    // With at most half of the slots in use, few threads need to look beyond the slot that they try first.
    let wanted = most.saturating_mul(2);
    if wanted <= first { 0 } else { wanted.min(MORE_SLOTS) }
}

/// Returns whether the text of `/proc/PID/limits` has no soft limit of this name.
fn is_unlimited(limits: &str, name: &str) -> bool {
    let value = limits.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next());
    value == Some("unlimited")
}

fn number(file: &Path) -> Option<usize> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the limits of the process's control groups, of either version.
fn of_cgroups(pid: i32) -> impl Iterator<Item = usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let groups: Vec<PathBuf> = text.lines().filter_map(group).collect();
    groups.into_iter().flat_map(|g| {
        let ours = g.ancestors().take_while(|d| d.starts_with("/sys/fs/cgroup"));
        ours.filter_map(|d| number(&d.join("pids.max"))).collect::<Vec<_>>()
    })
}

/// Returns the folder, for a line of `/proc/PID/cgroup`, that may limit the number of threads.
fn group(line: &str) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let root = match controllers {
        "" => "/sys/fs/cgroup",
        c if c.split(',').any(|c| c == "pids") => "/sys/fs/cgroup/pids",
        _ => return None,
    };
    Some(Path::new(root).join(path.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\n\
                    Max file size             unlimited            unlimited            bytes\n\
                    Max address space         1073741824           unlimited            bytes\n";
        assert!(is_unlimited(text, "Max file size"));
        assert!(!is_unlimited(text, "Max address space") && !is_unlimited("", "Max file size"));
        assert_eq!(group("0::/a/b"), Some("/sys/fs/cgroup/a/b".into()));
        assert_eq!(group("4:cpu,pids:/c"), Some("/sys/fs/cgroup/pids/c".into()));
        assert_eq!(group("5:memory:/c"), None);
        assert_eq!(group("nonsense"), None);
    }
}
