//! Finds the folders of a process's cgroups (cgroups(7)), of both versions.
//!
//! `/proc/PID/cgroup` names a cgroup in each hierarchy, and `/proc/self/mountinfo` (proc_pid_mountinfo(5)) says where
//! hierarchies are mounted. A container may see a part of a hierarchy only, and its processes may be in cgroups that it
//! doesn't see.

use crate::Pid;
use crate::process::folder;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Greatest length of a text that is read.
const MAX_TEXT: u64 = 1 << 20;

/// A controller's name in version 1; every controller of version 2 is in the same hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy<'a> {
    /// The hierarchy of version 1 with this controller.
    V1(&'a str),
    /// The hierarchy of version 2.
    V2,
}

/// A cgroup that can be seen in a mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
    mount: PathBuf,
    below: PathBuf,
    v2: bool,
}

impl Cgroup {
    /// Returns whether it is in a hierarchy of version 2.
    #[must_use]
    pub fn is_v2(&self) -> bool {
        self.v2
    }

    /// Returns its folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.mount.join(&self.below)
    }

    /// Returns the folder of each cgroup from this one to the topmost visible one, with its path as `/proc/PID/cgroup`
    /// shows paths. A limit or a freeze of any of them holds for this one, too.
    pub fn levels(&self) -> impl Iterator<Item = (PathBuf, &Path)> {
        let folders = self.below.ancestors().map(|below| self.mount.join(below));
        folders.zip(self.path.ancestors())
    }
}

/// Reads a file of names and numbers, such as `memory.stat`. Lines of another form are left out; a file that can't be read
/// is empty.
#[must_use]
pub fn figures(file: &Path) -> HashMap<String, u64> {
    let text = read(file).unwrap_or_default();
    let of = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(of).collect()
}

/// The mounts of the hierarchies and the cgroups of a process, as texts of the kernel.
#[derive(Clone, Debug, Default)]
pub struct Cgroups {
    mounts: String,
    own: String,
}

impl Cgroups {
    /// Reads the cgroups of a process. What can't be read is empty.
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        // A first thread that has ended before the others is in no cgroup any more: `folder` finds one that lives.
        Self::of_file(Path::new(&(folder(pid) + "/cgroup")))
    }

    /// Reads the cgroups of this process.
    #[must_use]
    pub fn own() -> Self {
        Self::of_file(Path::new("/proc/self/cgroup"))
    }

    /// Reads the cgroups of a process by the path of its `cgroup` file.
    #[must_use]
    pub fn of_file(file: &Path) -> Self {
        let read = |p: &Path| read(p).unwrap_or_default();
        Self::parse(read(Path::new("/proc/self/mountinfo")), read(file))
    }

    /// Takes the texts of `/proc/self/mountinfo` and of `/proc/PID/cgroup`.
    #[must_use]
    pub fn parse(mounts: String, own: String) -> Self {
        Self { mounts, own }
    }

    /// Returns the process's path in a hierarchy; `None` if it is outside of prof's own cgroup namespace, too, where it
    /// can't be read.
    #[must_use]
    pub fn path(&self, of: Hierarchy) -> Option<&Path> {
        let path = self.own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match of {
                Hierarchy::V1(name) => controllers.split(',').any(|c| c == name),
                Hierarchy::V2 => number == "0" && controllers.is_empty(),
            };
            is_it.then_some(path)
        })?;
        (path.starts_with('/') && !path.starts_with("/..")).then(|| Path::new(path))
    }

    /// Returns the process's cgroup in a hierarchy, if one of the mounts shows it.
    #[must_use]
    pub fn in_hierarchy(&self, of: Hierarchy) -> Option<Cgroup> {
        let path = self.path(of)?;
        self.mounts.lines().find_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let mut back = back.split(' ');
            let (kind, options) = (back.next()?, back.nth(1)?);
            let is_it = match of {
                Hierarchy::V1(name) => {
                    kind == "cgroup" && options.split(',').any(|option| option == name)
                }
                Hierarchy::V2 => kind == "cgroup2",
            };
            let mut front = front.split(' ').skip(3);
            let (root, mount) = (front.next()?, front.next()?);
            let below = path.strip_prefix(unescape(root)).ok().filter(|_| is_it)?;
            Some(Cgroup {
                path: path.into(),
                mount: unescape(mount).into(),
                below: below.into(),
                v2: of == Hierarchy::V2,
            })
        })
    }

    /// Returns the process's cgroup for a controller: of version 1 where that has the controller, else of version 2.
    #[must_use]
    pub fn with_controller(&self, name: &str) -> Option<Cgroup> {
        self.in_hierarchy(Hierarchy::V1(name)).or_else(|| self.in_hierarchy(Hierarchy::V2))
    }
}

/// Returns the lowest limit in the files of this name of a cgroup and those above it, with the file that has it; `None`
/// if none sets a limit ("max").
#[must_use]
pub fn lowest_limit(group: &Cgroup, file: &str) -> Option<(u64, PathBuf)> {
    let limits = group.levels().filter_map(|(dir, _)| {
        let file = dir.join(file);
        Some((number(&file)?, file))
    });
    limits.min_by_key(|l| l.0)
}

/// Returns the number that a file of a cgroup holds; `None` for "max", and if it can't be read.
#[must_use]
pub fn number(file: &Path) -> Option<u64> {
    read(file)?.trim().parse().ok()
}

/// Returns the text of a file of a cgroup, or of `/proc`; `None` if it can't be read.
#[must_use]
pub fn read(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_TEXT).read_to_end(&mut bytes).ok()?;
    // One mount whose name is no UTF-8 must not hide the others.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Decodes the kernel's escapes in a path of `mountinfo`: space, tab, newline and backslash, in octal.
fn unescape(path: &str) -> String {
    let escapes = [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", r"\")];
    escapes.iter().fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
31 20 0:27 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory,pids
32 20 0:28 /other /mnt/part rw - cgroup2 cgroup2 rw
33 20 0:28 / /sys/fs/cgroup/uni\\040fied rw shared:9 - cgroup2 cgroup2 rw,nsdelegate
";

    fn of(own: &str) -> Cgroups {
        Cgroups::parse(MOUNTS.into(), own.into())
    }

    #[test]
    fn the_cgroup_of_either_version_is_found() {
        let found = |own: &str| {
            let group = of(own).with_controller("memory")?;
            Some((group.folder().display().to_string(), group.is_v2()))
        };
        let at = |dir: &str, v2| Some((dir.to_owned(), v2));
        let first = "9:cpu:/x\n4:memory,pids:/docker/ab/c\n0::/y\n";
        assert_eq!(found(first), at("/sys/fs/cgroup/memory/c", false));
        assert_eq!(found("0::/y/z\n"), at("/sys/fs/cgroup/uni fied/y/z", true));
        assert_eq!(found("0::/other/z\n"), at("/mnt/part/z", true), "the first mount that has it");
        assert_eq!(found("0::/\n"), at("/sys/fs/cgroup/uni fied/", true));
        // Version 1 doesn't show the process's cgroup here, version 2 does.
        assert_eq!(found("4:memory:/elsewhere\n0::/y\n"), at("/sys/fs/cgroup/uni fied/y", true));
        for none in ["nonsense\n", "", "0::/../x\n", "4:memory:/docker/abc\n", "0::x\n", "::::"] {
            assert_eq!(found(none), None, "{none}");
        }
        assert_eq!(Cgroups::default().with_controller("memory"), None);
    }

    #[test]
    fn levels_go_up_to_the_topmost_visible_one() {
        let group = of("4:memory:/docker/ab/c/d\n").with_controller("memory").expect("a cgroup");
        let levels: Vec<_> = group.levels().collect();
        let at = |dir: &str, path: &'static str| (PathBuf::from(dir), Path::new(path));
        assert_eq!(
            levels,
            [
                at("/sys/fs/cgroup/memory/c/d", "/docker/ab/c/d"),
                at("/sys/fs/cgroup/memory/c", "/docker/ab/c"),
                at("/sys/fs/cgroup/memory/", "/docker/ab"),
            ]
        );
    }

    #[test]
    fn the_lowest_limit_of_all_levels_counts() {
        let root = std::env::temp_dir().join(format!("prof-os-cgroup-{}", std::process::id()));
        let group =
            Cgroup { path: "/a/b".into(), mount: root.clone(), below: "a/b".into(), v2: true };
        fs::create_dir_all(group.folder()).expect("folder");
        let put = |dir: &str, text| fs::write(root.join(dir).join("pids.max"), text).expect("file");
        put("a/b", "90\n");
        put("a", "70\n");
        put("", "max\n");
        let lowest = lowest_limit(&group, "pids.max");
        fs::remove_dir_all(&root).expect("remove");
        assert_eq!(lowest, Some((70, root.join("a/pids.max"))));
        assert_eq!(lowest_limit(&group, "pids.max"), None);
    }
}
