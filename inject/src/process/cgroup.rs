//! The cgroups that count a process's memory: their limits, and what they have left.
//!
//! The kernel charges a page to the cgroup of whoever touches it first. prof touches those pages of the ring that are
//! used from the first event on, so they are charged to prof's cgroup. The target touches the hook, the stubs, the
//! thread states and the tables as they grow, so they are charged to the target's. If prof runs in the target's
//! cgroup, as in a container, everything counts there.

use prof_os::process::folder;
use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup of the target, or one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Path, as `/proc/PID/cgroup` shows it.
    pub group: String,
    /// File with the lowest limit, and the bytes that it allows; `None`: unlimited.
    pub limit: Option<(&'static str, u64)>,
    /// Bytes charged to it, without inactive pages of files, which can be read again.
    pub used: u64,
    /// Whether the other process ([`levels`]) is in it, too, or in a cgroup below it.
    pub shared: bool,
}

impl Level {
    /// Returns the number of bytes that may still be charged to it.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.map_or(u64::MAX, |(_, limit)| limit.saturating_sub(self.used))
    }
}

/// Returns the cgroups that count a process's memory, from its own to the topmost visible one; empty if none is
/// visible. `other` is the process that makes the ring.
#[must_use]
pub fn levels(pid: i32, other: i32) -> Vec<Level> {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo".into());
    // A first thread that has ended before the others is in no cgroup any more: `folder` finds one that lives.
    let of = |pid: i32| read(folder(pid) + "/cgroup");
    levels_in(&mounts, &of(pid), &of(other))
}

/// Computes the levels from the texts of `/proc/self/mountinfo` and of both processes' `cgroup` files.
fn levels_in(mounts: &str, own: &str, other: &str) -> Vec<Level> {
    for controller in ["memory", V2] {
        let Some((group, mount, below)) = place_in(mounts, own, controller) else { continue };
        let (v2, other) = (controller == V2, group_in(other, controller));
        let mut all = Vec::new();
        let mut at = PathBuf::from(group);
        let mut dir = mount.join(below);
        loop {
            let shared = other.is_some_and(|o| Path::new(o).starts_with(&at));
            all.extend(read_level(&dir, at.display().to_string(), v2, shared));
            if dir == mount || !at.pop() || !dir.pop() {
                break;
            }
        }
        if !all.is_empty() {
            return all;
        }
    }
    Vec::new()
}

/// Name that stands for version 2's hierarchy, which has all controllers.
pub(crate) const V2: &str = "";

/// Returns a process's cgroup in the hierarchy of a controller, that hierarchy's mount point, and the path of the cgroup
/// below that.
pub(crate) fn place_in<'a>(
    mounts: &'a str,
    own: &'a str,
    controller: &str,
) -> Option<(&'a str, &'a Path, &'a str)> {
    let group = group_in(own, controller)?;
    let (root, mount) = mount_in(mounts, controller)?;
    Some((group, mount, inside(group, root)?))
}

/// Returns a process's cgroup in the hierarchy of a controller (cgroups(7)).
fn group_in<'a>(text: &'a str, controller: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = if controller == V2 {
            number == "0" && controllers.is_empty()
        } else {
            controllers.split(',').any(|c| c == controller)
        };
        // A cgroup outside of prof's own cgroup namespace can't be read.
        (is_it && !path.starts_with("/..")).then_some(path)
    })
}

/// Returns the part of that hierarchy that is mounted, and the mount point (proc_pid_mountinfo(5)).
fn mount_in<'a>(mounts: &'a str, controller: &str) -> Option<(&'a str, &'a Path)> {
    mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut back = back.split(' ');
        let (kind, options) = (back.next()?, back.nth(1)?);
        let is_it = if controller == V2 {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|o| o == controller)
        };
        let mut front = front.split(' ').skip(3);
        is_it.then_some((front.next()?, Path::new(front.next()?)))
    })
}

fn inside<'a>(group: &'a str, root: &str) -> Option<&'a str> {
    let rest = group.strip_prefix(root.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/'))
}

/// Reads the figures of one cgroup. Returns `None` where the memory controller is not enabled, as in the root cgroup.
fn read_level(dir: &Path, group: String, v2: bool, shared: bool) -> Option<Level> {
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let (usage, cache, limits): (_, _, &[_]) = if v2 {
        ("memory.current", "inactive_file", &["memory.max", "memory.high"])
    } else {
        ("memory.usage_in_bytes", "total_inactive_file", &["memory.limit_in_bytes"])
    };
    let charged = number(usage)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|l| l.strip_prefix(cache)?.trim().parse::<u64>().ok());
    // Version 1 shows "no limit" as the largest number of whole pages.
    let limit = |name: &&'static str| Some((*name, number(name).filter(|n| *n < 1 << 62)?));
    Some(Level {
        group,
        limit: limits.iter().filter_map(limit).min_by_key(|l| l.1),
        used: charged.saturating_sub(cache.unwrap_or(0)),
        shared,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "25 30 0:22 / MOUNT rw,relatime shared:9 - cgroup cgroup rw,cpu,memory\n";
    const V2: &str = "30 23 0:26 /a MOUNT rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    /// Makes a folder with the files of a hierarchy, given as path, name and text.
    fn tree(name: &str, files: &[(&str, &str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("prof-cgroup-{name}-{}", std::process::id()));
        for (dir, file, text) in files {
            fs::create_dir_all(root.join(dir)).expect("folder");
            fs::write(root.join(dir).join(file), text).expect("file");
        }
        root
    }

    fn mounted(mounts: &str, root: &Path) -> String {
        mounts.replace("MOUNT", root.to_str().expect("UTF-8"))
    }

    #[test]
    fn limits_of_both_versions_are_read() {
        let one = tree(
            "one",
            &[
                ("pod/c", "memory.usage_in_bytes", "9000000\n"),
                ("pod/c", "memory.limit_in_bytes", "9223372036854771712\n"),
                ("pod/c", "memory.stat", "inactive_file 5\ntotal_inactive_file 1000000\n"),
                ("pod", "memory.usage_in_bytes", "10000000\n"),
                ("pod", "memory.limit_in_bytes", "50000000\n"),
            ],
        );
        let own = "5:cpu,memory:/pod/c\n0::/elsewhere\n";
        let all = levels_in(&mounted(V1, &one), own, "5:cpu,memory:/pod/d\n");
        let level =
            |group: &str, limit, used, shared| Level { group: group.into(), limit, used, shared };
        let limit = Some(("memory.limit_in_bytes", 50_000_000));
        assert_eq!(
            all,
            [level("/pod/c", None, 8_000_000, false), level("/pod", limit, 10_000_000, true)]
        );
        let two = tree(
            "two",
            &[
                ("b", "memory.current", "7000\n"),
                ("b", "memory.max", "max\n"),
                ("b", "memory.high", "9000\n"),
                ("", "memory.current", "8000\n"),
                ("", "memory.max", "20000\n"),
            ],
        );
        let all = levels_in(&mounted(V2, &two), "0::/a/b\n", "0::/a/b/d\n");
        assert_eq!(
            all,
            [
                level("/a/b", Some(("memory.high", 9000)), 7000, true),
                level("/a", Some(("memory.max", 20000)), 8000, true)
            ]
        );
        assert_eq!(all[0].left(), 2000);
        // A cgroup of another namespace, one of a part that is not mounted, and none.
        for own in ["0::/../x\n", "0::/ab\n", ""] {
            assert_eq!(levels_in(&mounted(V2, &two), own, own), [], "{own}");
        }
        fs::remove_dir_all(one).expect("remove");
        fs::remove_dir_all(two).expect("remove");
    }
}
