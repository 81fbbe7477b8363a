//! Finds the processes that belong to a family.

use prof_os::stat::Stat;
use prof_os::status::Status;
use prof_os::{Pid, process};
use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;

/// Length to which the kernel cuts the name of a process.
const COMM: usize = 15;
/// Least number of characters of a container's id that may stand for all of it.
const LEAST_ID: usize = 4;

/// Property that the processes of a family have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// A process and its descendants.
    Tree(Pid),
    /// Their name, or the name or path of their program, is this.
    Name(String),
    /// The processes in a cgroup and in those below it.
    Cgroup(Cgroup),
    /// The processes in the container whose id begins with this text.
    Container(String),
}

/// A cgroup, as processes name theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cgroup {
    /// The controller in whose tree it is (version 1), a name (`name=systemd`), or nothing for the tree of version 2; `None`: any
    /// tree.
    controller: Option<String>,
    /// Its path in the tree.
    path: String,
}

impl Cgroup {
    /// Returns whether a line of `/proc/PID/cgroup` names this cgroup, or one below it.
    fn has(&self, line: &str) -> bool {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        let is_wanted = |wanted: &String| {
            controllers == wanted || controllers.split(',').any(|one| one == wanted)
        };
        self.controller.as_ref().is_none_or(is_wanted) && is_below(path, &self.path)
    }
}

impl Display for Cgroup {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.controller {
            Some(controller) if !controller.is_empty() => write!(f, "{controller}:{}", self.path),
            _ => f.write_str(&self.path),
        }
    }
}

/// A process as it was when it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Process ID.
    pub pid: Pid,
    /// Start time, in clock ticks since boot.
    pub start: u64,
    /// Process ID of its parent; [`Pid::NONE`]: unknown.
    pub parent: Pid,
    /// Name of the process.
    pub comm: String,
}

impl Seen {
    /// Looks at a process, of which the first thread may have ended alone; `None` if all have, or it is a thread of the kernel.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let lives = |s: &Stat| !s.has_ended() || process::living_thread(pid).is_some();
        let stat = Stat::of(pid).filter(|s| !s.is_kernel_thread() && lives(s))?;
        let (start, parent) = (stat.start()?, stat.parent().unwrap_or(Pid::NONE));
        Some(Self { pid, start, parent, comm: process::comm(pid) })
    }

    /// Returns whether the process still runs.
    pub(crate) fn runs(&self) -> bool {
        process::has_thread(self.pid, self.start)
    }

    /// Returns whether the process still runs, and is not about to end with its memory released already.
    pub(crate) fn is_there(&self) -> bool {
        self.runs() && !process::is_gone(self.pid)
    }
}

impl Which {
    /// Returns the name of the family's folder.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tree(pid) => process::comm(*pid),
            Self::Name(name) => name.rsplit('/').next().unwrap_or_default().to_owned(),
            Self::Cgroup(Cgroup { path, .. }) => {
                let last = path.rsplit('/').find(|p| !p.is_empty());
                last.unwrap_or("cgroup").to_owned()
            }
            Self::Container(id) => id.chars().take(12).collect(),
        }
    }

    /// Returns the family in words.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Tree(pid) => format!("process {pid} and its descendants"),
            Self::Name(name) => format!("processes named {name}"),
            Self::Cgroup(path) => format!("processes in the cgroup {path}"),
            Self::Container(id) => format!("processes in the container {id}"),
        }
    }

    /// Returns a sentence for the case that the family has no process.
    pub(crate) fn none(&self) -> String {
        match self {
            Self::Tree(pid) => format!("there is no process {pid}"),
            which => format!("there are no {}", which.words()),
        }
    }

    /// Returns the processes that belong to the family now, parents before their children, without prof's own.
    ///
    /// # Errors
    /// A message, if it is not clear which processes are meant.
    pub(crate) fn find(&self) -> Result<Vec<Seen>, String> {
        let mut all: Vec<Seen> = match self {
            Self::Tree(pid) => tree(*pid),
            Self::Name(_) | Self::Cgroup(_) => {
                let all = process::all().into_iter().filter(|pid| self.has(*pid));
                all.filter_map(Seen::of).collect()
            }
            Self::Container(id) => in_container(id)?,
        };
        all.retain(|s| !is_ours(s.pid) && !is_copy(s.pid));
        all.sort_by_key(|s| (s.start, s.pid));
        Ok(all)
    }

    /// Returns whether a process belongs to the family, as far as it alone can tell.
    pub(crate) fn has(&self, pid: Pid) -> bool {
        match self {
            Self::Tree(root) => pid == *root,
            Self::Name(name) => is_named(name, &process::comm(pid), &process::exe(pid)),
            Self::Cgroup(cgroup) => cgroup_lines(pid).lines().any(|line| cgroup.has(line)),
            Self::Container(id) => cgroups(pid).iter().any(|c| container_in(c, id).is_some()),
        }
    }
}

fn everyone() -> impl Iterator<Item = Seen> {
    process::all().into_iter().filter_map(Seen::of)
}

/// Returns whether a process is this one, or one of prof's that serves recordings.
pub(crate) fn is_ours(pid: Pid) -> bool {
    if pid == Pid::this() {
        return true;
    }
    let same = |a: &Path, b: &Path| {
        use std::os::unix::fs::MetadataExt;
        let id = |p: &Path| fs::metadata(p).map(|m| (m.dev(), m.ino()));
        matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
    };
    same(Path::new(&format!("/proc/{pid}/exe")), Path::new("/proc/self/exe"))
        && !process::cmdline(pid).iter().any(|a| a == "demo-target")
}

/// Returns whether a process is a copy of another's memory that prof has made (`--snapshot fork`): prof traces it, and its
/// parent gets no signal at its end.
pub(crate) fn is_copy(pid: Pid) -> bool {
    Stat::of(pid).is_some_and(|s| s.exit_signal() == Some(0))
        && Status::of(pid).ok().and_then(|s| s.pid("TracerPid")).is_some_and(is_ours)
}

/// Returns a process and all of its descendants.
fn tree(root: Pid) -> Vec<Seen> {
    let mut by_parent: HashMap<Pid, Vec<Seen>> = HashMap::new();
    everyone().for_each(|s| by_parent.entry(s.parent).or_default().push(s));
    let mut found: Vec<Seen> = Seen::of(root).into_iter().collect();
    let mut known: BTreeSet<Pid> = BTreeSet::from([root]);
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|s| s.pid) {
        next += 1;
        for child in by_parent.remove(&parent).into_iter().flatten() {
            if known.insert(child.pid) {
                found.push(child);
            }
        }
    }
    found
}

/// Returns the descendants of these processes that are not prof's own, parents before their children.
pub(crate) fn descendants(roots: impl Iterator<Item = Pid>) -> Vec<Seen> {
    let mut all: Vec<Seen> = everyone().collect();
    all.sort_by_key(|s| (s.start, s.pid));
    let (mut known, mut found): (BTreeSet<Pid>, Vec<Seen>) = (roots.collect(), Vec::new());
    loop {
        let before = found.len();
        for seen in &all {
            if known.contains(&seen.parent)
                && !known.contains(&seen.pid)
                && !is_ours(seen.pid)
                && !is_copy(seen.pid)
            {
                known.insert(seen.pid);
                found.push(seen.clone());
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Returns whether a process has this name, or runs a program of this name or path.
fn is_named(name: &str, comm: &str, exe: &Path) -> bool {
    let exe = exe.to_string_lossy();
    let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe);
    if name.contains('/') {
        return exe == name;
    }
    let cut: String = name.chars().take(COMM).collect();
    comm == cut || exe.rsplit('/').next() == Some(name)
}

/// Returns the paths of a process's cgroups.
fn cgroups(pid: Pid) -> Vec<String> {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(ToOwned::to_owned);
    cgroup_lines(pid).lines().filter_map(path).collect()
}

fn cgroup_lines(pid: Pid) -> String {
    fs::read_to_string(process::folder(pid) + "/cgroup").unwrap_or_default()
}

/// Returns the cgroup at a path: in `/sys/fs/cgroup`, or from there.
pub(crate) fn cgroup(path: &Path) -> Cgroup {
    let is_one_tree = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    cgroup_in(&path.to_string_lossy(), is_one_tree)
}

/// Returns the cgroup at a path, where there is one tree (version 2), or one for each controller.
fn cgroup_in(text: &str, is_one_tree: bool) -> Cgroup {
    let below = match text.strip_prefix("/sys/fs/cgroup") {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_matches('/'),
        _ => return Cgroup { controller: None, path: format!("/{}", text.trim_matches('/')) },
    };
    if is_one_tree || below.is_empty() {
        return Cgroup { controller: None, path: format!("/{below}") };
    }
    let (tree, path) = below.split_once('/').unwrap_or((below, ""));
    let controller = match tree {
        "systemd" => "name=systemd",
        "unified" => "",
        controller => controller,
    };
    Cgroup { controller: Some(controller.to_owned()), path: format!("/{path}") }
}

fn is_below(path: &str, wanted: &str) -> bool {
    let rest = path.strip_prefix(wanted.trim_end_matches('/'));
    rest.is_some_and(|r| r.is_empty() || r.starts_with('/'))
}

/// Returns the id of the container that a cgroup's path names, if it is the wanted one or begins so: the whole of a
/// component, or what stands between the runtime's name and its kind, as in `docker-ID.scope` and `lxc.payload.ID`.
fn container_in(path: &str, id: &str) -> Option<String> {
    path.split('/').find_map(|component| {
        let core = component.strip_suffix(".scope").unwrap_or(component);
        let parts = [core, core.rsplit('-').next()?, core.rsplit('.').next()?];
        let is_id = |p: &&str| p.len() >= 12 && p.chars().all(|c| c.is_ascii_hexdigit());
        let begins = |p: &&str| id.len() >= LEAST_ID && is_id(p) && p.starts_with(id);
        let named = parts.into_iter().find(|p| *p == id);
        named.or_else(|| parts.into_iter().find(begins)).map(ToOwned::to_owned)
    })
}

fn in_container(id: &str) -> Result<Vec<Seen>, String> {
    let (mut names, mut all) = (BTreeSet::new(), Vec::new());
    for seen in everyone() {
        if let Some(name) = cgroups(seen.pid).iter().find_map(|c| container_in(c, id)) {
            names.insert(name);
            all.push(seen);
        }
    }
    if names.len() > 1 {
        let names: Vec<_> = names.into_iter().collect();
        return Err(format!("{id} is the beginning of several ids: {}", names.join(", ")));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_processes_and_programs() {
        let exe = Path::new("/usr/sbin/nginx");
        assert!(is_named("nginx", "nginx", exe) && is_named("nginx", "worker", exe));
        assert!(is_named("/usr/sbin/nginx", "x", exe) && !is_named("/sbin/nginx", "nginx", exe));
        assert!(!is_named("ngin", "nginx", exe));
        let long = "a-name-that-is-longer-than-fifteen";
        assert!(is_named(long, &long[..15], Path::new("")));
        assert!(is_named("x", "y", Path::new("/opt/x (deleted)")));
    }

    #[test]
    fn containers_are_found_by_their_cgroups() {
        let id = "3f4e8a9b7c6d5e4f3f4e8a9b7c6d5e4f";
        for path in [
            format!("/docker/{id}"),
            format!("/system.slice/docker-{id}.scope"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope/init"),
            format!("/machine.slice/libpod-{id}.scope/container"),
        ] {
            for wanted in [id, &id[..12], &id[..LEAST_ID]] {
                assert_eq!(container_in(&path, wanted).as_deref(), Some(id), "{path} {wanted}");
            }
            assert_eq!(container_in(&path, &id[1..]), None);
            assert_eq!(container_in(&path, &id[..3]), None);
        }
        let lxc = container_in("/lxc.payload.web/system.slice", "web");
        assert_eq!(lxc.as_deref(), Some("web"));
        assert_eq!(container_in("/user.slice/user-0.slice", "user"), None);
    }

    #[test]
    fn cgroups_hold_what_is_below_them() {
        let one_tree = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let path = if one_tree { "/sys/fs/cgroup/a/b/" } else { "/sys/fs/cgroup/memory/a/b/" };
        assert_eq!(cgroup(Path::new(path)).path, "/a/b");
        let any = |path: &str| Cgroup { controller: None, path: path.into() };
        assert_eq!(cgroup(Path::new("a/b")), any("/a/b"));
        assert_eq!(cgroup_in("/sys/fs/cgroup/a/b/", true), any("/a/b"));
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/"] {
            assert_eq!((cgroup_in(root, true), cgroup_in(root, false)), (any("/"), any("/")));
        }
        let batch = |tree: &str| cgroup_in(&format!("/sys/fs/cgroup/{tree}/batch"), false);
        assert!(
            batch("cpuset").has("8:cpuset:/batch/one") && !batch("cpuset").has("3:freezer:/batch")
        );
        assert!(
            batch("cpu").has("4:cpu,cpuacct:/batch")
                && batch("cpu,cpuacct").has("4:cpu,cpuacct:/batch")
        );
        assert!(
            batch("systemd").has("1:name=systemd:/batch") && !batch("systemd").has("0::/batch")
        );
        assert!(
            batch("unified").has("0::/batch") && !batch("unified").has("1:name=systemd:/batch")
        );
        assert!(cgroup_in("/sys/fs/cgroup/memory", false).has("9:memory:/x"));
        assert_eq!(batch("cpuset").to_string(), "cpuset:/batch");
        assert!(is_below("/a/b", "/a/b") && is_below("/a/b/c", "/a/b"));
        assert!(!is_below("/a/bc", "/a/b") && !is_below("/a", "/a/b"));
        assert!(is_below("/a", "/"));
    }

    #[test]
    fn a_tree_has_the_children_of_its_root_and_not_prof_itself() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let me = Pid::this();
        let all = Which::Tree(me).find().expect("found");
        let pids: Vec<Pid> = all.iter().map(|s| s.pid).collect();
        assert!(!pids.contains(&me), "{pids:?}");
        let seen = Seen::of(Pid::from_u32(child.id())).expect("it lives");
        assert_eq!((seen.parent, seen.runs()), (me, true));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(!seen.runs());
    }
}
