//! The cgroups that count a process's memory: their limits, and what they have left.
//!
//! The kernel charges a page to the cgroup of whoever touches it first. prof touches those pages of the ring that are
//! used from the first event on, so they are charged to prof's cgroup. The target touches the hook, the stubs, the
//! thread states and the tables as they grow, so they are charged to the target's. If prof runs in the target's
//! cgroup, as in a container, everything counts there.

use prof_os::Pid;
use prof_os::cgroup::{Cgroups, Hierarchy, figures, number};
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
pub fn levels(pid: Pid, other: Pid) -> Vec<Level> {
    levels_of(&Cgroups::of(pid), &Cgroups::of(other))
}

fn levels_of(own: &Cgroups, other: &Cgroups) -> Vec<Level> {
    // With both versions mounted, the memory controller may be enabled in either.
    let hierarchies = [Hierarchy::V1("memory"), Hierarchy::V2];
    let levels = |hierarchy| {
        let (group, other) = (own.in_hierarchy(hierarchy)?, other.path(hierarchy));
        let level = |(dir, path): (PathBuf, &Path)| {
            let shared = other.is_some_and(|o| o.starts_with(path));
            read_level(&dir, path.display().to_string(), group.is_v2(), shared)
        };
        let all: Vec<Level> = group.levels().filter_map(level).collect();
        (!all.is_empty()).then_some(all)
    };
    hierarchies.into_iter().find_map(levels).unwrap_or_default()
}

/// Reads the figures of one cgroup. Returns `None` where the memory controller is not enabled, as in the root cgroup.
fn read_level(dir: &Path, group: String, v2: bool, shared: bool) -> Option<Level> {
    let number = |name: &str| number(&dir.join(name));
    let (usage, cache, limits): (_, _, &[_]) = if v2 {
        ("memory.current", "inactive_file", &["memory.max", "memory.high"])
    } else {
        ("memory.usage_in_bytes", "total_inactive_file", &["memory.limit_in_bytes"])
    };
    let charged = number(usage)?;
    let cache = figures(&dir.join("memory.stat")).get(cache).copied();
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
    use std::fs;

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

    /// Computes the levels from texts, with `root` as the mount point.
    fn levels_in(mounts: &str, root: &Path, own: &str, other: &str) -> Vec<Level> {
        let mounts = mounts.replace("MOUNT", root.to_str().expect("UTF-8"));
        let of = |text: &str| Cgroups::parse(mounts.clone(), text.into());
        levels_of(&of(own), &of(other))
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
        let all = levels_in(V1, &one, own, "5:cpu,memory:/pod/d\n");
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
        let all = levels_in(V2, &two, "0::/a/b\n", "0::/a/b/d\n");
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
            assert_eq!(levels_in(V2, &two, own, own), [], "{own}");
        }
        fs::remove_dir_all(one).expect("remove");
        fs::remove_dir_all(two).expect("remove");
    }
}
