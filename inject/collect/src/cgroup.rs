//! Reads the figures of a process's memory cgroup: they decide when the kernel kills.

use prof_os::cgroup::{Cgroups, figures, number, read};
use prof_trace::records::cgroup_stat as stat;
use std::path::Path;

/// Returns the figures of the cgroup that a process is in, given its `/proc/PID/cgroup`, as pairs of number and value.
/// They are empty if there is none, or it can't be read.
pub(crate) fn memory_stats(cgroup: &Path) -> Vec<u64> {
    let group = Cgroups::of_file(cgroup).with_controller("memory");
    group.map(|g| figures_in(&g.folder(), g.is_v2())).unwrap_or_default()
}

/// Returns the figures in the files of a cgroup's folder.
fn figures_in(dir: &Path, v2: bool) -> Vec<u64> {
    let told = figures(&dir.join("memory.stat"));
    let t = |name: &str| told.get(name).copied();
    let processes = || read(&dir.join("cgroup.procs")).map(|t| t.lines().count() as u64);
    let n = |name: &str| number(&dir.join(name));
    let all = match v2 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        let of = |v2| figures_in(&dir, v2);
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
