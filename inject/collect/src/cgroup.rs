//! Reads the figures of a process's memory cgroup: they decide when the kernel kills.

use prof_trace::records::cgroup_stat as stat;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Greatest length of a text that is read.
const MOST: u64 = 1 << 20;

/// A memory cgroup, by its folder and the version of its interface.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    second: bool,
}

/// Returns the figures of the cgroup that a process is in, given its `/proc/PID/cgroup`, as pairs of number and value.
/// They are empty if there is none, or it can't be read.
pub(crate) fn figures(cgroup: &Path) -> Vec<u64> {
    let text = |p: &Path| read(p).unwrap_or_default();
    let mounts = text(Path::new("/proc/self/mountinfo"));
    let Some(group) = group(&text(cgroup), &mounts) else { return Vec::new() };
    group.figures()
}

fn read(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Finds the memory cgroup in the texts of `/proc/PID/cgroup` and of `/proc/self/mountinfo`.
fn group(cgroups: &str, mounts: &str) -> Option<Group> {
    let of = |first: bool| {
        cgroups.lines().find_map(|l| {
            let (_, rest) = l.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let is = match first {
                true => controllers.split(',').any(|c| c == "memory"),
                false => controllers.is_empty(),
            };
            is.then_some(path)
        })
    };
    // With both versions mounted, memory is controlled by the first if that has it.
    let (path, second) = of(true).map(|p| (p, false)).or_else(|| of(false).map(|p| (p, true)))?;
    mounts.lines().find_map(|l| {
        let (left, right) = l.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let is = match second {
            true => kind == "cgroup2",
            false => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
        };
        is.then_some(())?;
        let mut left = left.split(' ').skip(3);
        let (root, mount) = (left.next()?, left.next()?);
        // In a container the mount may show only a part of the hierarchy.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path));
        let below = below.strip_prefix("/").unwrap_or(below);
        Some(Group { dir: Path::new(mount).join(below), second })
    })
}

impl Group {
    fn number(&self, name: &str) -> Option<u64> {
        read(&self.dir.join(name))?.trim().parse().ok()
    }

    fn figures(&self) -> Vec<u64> {
        let text = read(&self.dir.join("memory.stat")).unwrap_or_default();
        let of = |l: &'_ str| {
            let (name, value) = l.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse::<u64>().ok()?))
        };
        let told: HashMap<String, u64> = text.lines().filter_map(of).collect();
        let t = |name: &str| told.get(name).copied();
        let processes = || read(&self.dir.join("cgroup.procs")).map(|t| t.lines().count() as u64);
        let n = |name: &str| self.number(name);
        let all = match self.second {
            true => [
                (stat::CURRENT, n("memory.current")),
                (stat::MAX, n("memory.max")),
                (stat::ANON, t("anon")),
                (stat::FILE, t("file")),
                (stat::SHMEM, t("shmem")),
                (stat::KERNEL, t("kernel")),
                (stat::SLAB, t("slab")),
                (stat::SOCK, t("sock")),
                (stat::KERNEL_STACK, t("kernel_stack")),
                (stat::PAGETABLES, t("pagetables")),
                (stat::SWAP, n("memory.swap.current")),
                (stat::FILE_MAPPED, t("file_mapped")),
                (stat::PROCESSES, processes()),
            ],
            false => [
                (stat::CURRENT, n("memory.usage_in_bytes")),
                // Without a limit the kernel gives the largest number of pages.
                (stat::MAX, n("memory.limit_in_bytes").filter(|n| *n < 1 << 62)),
                (stat::ANON, t("total_rss")),
                (stat::FILE, t("total_cache")),
                (stat::SHMEM, t("total_shmem")),
                (stat::KERNEL, n("memory.kmem.usage_in_bytes")),
                (stat::SLAB, None),
                (stat::SOCK, n("memory.kmem.tcp.usage_in_bytes")),
                (stat::KERNEL_STACK, None),
                (stat::PAGETABLES, None),
                (stat::SWAP, t("total_swap")),
                (stat::FILE_MAPPED, t("total_mapped_file")),
                (stat::PROCESSES, processes()),
            ],
        };
        all.into_iter().filter_map(|(k, v)| Some([k, v?])).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
31 20 0:27 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn the_cgroup_of_either_version_is_found() {
        let found = |text| group(text, MOUNTS);
        let dir = |d: &str, second| Some(Group { dir: d.into(), second });
        let first = "9:cpu:/x\n4:memory:/docker/ab/c\n0::/y\n";
        assert_eq!(found(first), dir("/sys/fs/cgroup/memory/c", false));
        assert_eq!(found("0::/y/z\n"), dir("/sys/fs/cgroup/unified/y/z", true));
        assert_eq!(found("0::/\n"), dir("/sys/fs/cgroup/unified", true));
        assert_eq!(found("nonsense\n"), None);
        assert_eq!(group("0::/y\n", ""), None);
    }

    #[test]
    fn figures_of_both_versions_have_one_meaning() {
        let dir = std::env::temp_dir().join(format!("prof-cgroup-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let put = |name: &str, text: &str| fs::write(dir.join(name), text).expect("written");
        put("memory.stat", "anon 10\nfile 20\nshmem 5\nslab x\ntotal_rss 11\ntotal_cache 21\n");
        put("memory.current", "100\n");
        put("memory.max", "max\n");
        put("memory.usage_in_bytes", "101\n");
        put("memory.limit_in_bytes", "9223372036854771712\n");
        put("cgroup.procs", "1\n2\n");
        let of = |second| Group { dir: dir.clone(), second }.figures();
        let (second, first) = (of(true), of(false));
        fs::remove_dir_all(&dir).expect("removed");
        let s = [
            stat::CURRENT,
            100,
            stat::ANON,
            10,
            stat::FILE,
            20,
            stat::SHMEM,
            5,
            stat::PROCESSES,
            2,
        ];
        assert_eq!(second, s);
        assert_eq!(first, [stat::CURRENT, 101, stat::ANON, 11, stat::FILE, 21, stat::PROCESSES, 2]);
    }
}
