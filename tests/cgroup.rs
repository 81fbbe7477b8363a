//! prof reports the memory that it adds to the target's cgroup, and refuses where that does not fit.

use common::build::program;
use common::snapshot::Snapshot;
use common::{Scene, Target, run, until, writers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup of this test's own that counts memory, removed at the end.
struct Group {
    dir: PathBuf,
    limit: &'static str,
    used: &'static str,
}

impl Group {
    /// Makes a cgroup; `None` where that is not allowed, as in most containers. prof-inject's own tests check the
    /// computation with files of their own.
    fn new(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        for line in mounts.lines() {
            let (front, back) = line.split_once(" - ")?;
            let mount = Path::new(front.split(' ').nth(4)?);
            let (kind, options) = (back.split(' ').next()?, back.split(' ').next_back()?);
            let v1 = kind == "cgroup" && options.split(',').any(|o| o == "memory");
            let v2 = kind == "cgroup2";
            let of = |l: &str| {
                let (controllers, path) = l.split_once(':')?.1.split_once(':')?;
                let it = if v1 {
                    controllers.split(',').any(|c| c == "memory")
                } else {
                    controllers.is_empty()
                };
                it.then(|| path.trim_start_matches('/').to_owned())
            };
            let Some(path) = own.lines().find_map(of).filter(|_| v1 || v2) else { continue };
            let dir = mount.join(path).join(format!("prof-test-{name}-{}", std::process::id()));
            if fs::create_dir(&dir).is_err() {
                continue;
            }
            let (limit, used) = if v1 {
                ("memory.limit_in_bytes", "memory.usage_in_bytes")
            } else {
                ("memory.max", "memory.current")
            };
            let group = Self { dir, limit, used };
            if group.dir.join(limit).exists() {
                return Some(group);
            }
        }
        eprintln!("no cgroup that counts memory may be made here");
        None
    }

    fn add(&self, pid: i32) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).expect("moved");
    }

    /// Sets the limit such that this many more bytes can be charged.
    fn leave(&self, bytes: u64) {
        let used: u64 =
            fs::read_to_string(self.dir.join(self.used)).unwrap().trim().parse().unwrap();
        fs::write(self.dir.join(self.limit), (used + bytes).to_string()).expect("limited");
    }

    fn name(&self) -> &str {
        self.dir.file_name().unwrap().to_str().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has ended stays in the cgroup for a moment.
        for _ in 0..500 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn what_is_added_to_the_targets_cgroup_is_said() {
    let Some(group) = Group::new("said") else { return };
    let scene = Scene::new("cgroup-said");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    group.add(target.pid);
    group.leave(1 << 20);
    let before = Snapshot::of(&target);
    let out = scene.prof(&["attach", &pid]);
    assert_eq!(out.code, 3, "{out:?}");
    for word in ["too little memory", group.name(), group.limit, "nothing was changed"] {
        assert!(out.stderr.contains(word), "no {word}: {out:?}");
    }
    before.assert_same(&Snapshot::of(&target));

    group.leave(16 << 20);
    let out = scene.prof(&["attach", &pid]).ok("attach");
    let line = out.stderr.lines().find(|l| l.contains("memory: at most ")).expect("a line");
    assert!(line.contains(group.name()) && line.contains("16.0 MiB left"), "{line}");
    assert!(line.contains("to prof's own"), "{line}");
    target.ask("alloc 100");
    let status = scene.prof(&["status", &pid]).ok("status").stdout;
    let line = status.lines().find(|l| l.trim_start().starts_with("memory")).expect("a line");
    assert!(line.contains(group.name()) && line.contains(group.limit), "{line}");
    let json = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let added = json["memory"]["added_bytes"].as_u64().expect("a number");
    assert!((100 << 10..8 << 20).contains(&added), "{json:#}");
    assert!(json["memory"]["ring_bytes"].as_u64().expect("a number") > 64 << 20, "{json:#}");
    scene.detach(&target);
    target.quit();
}

#[test]
fn beside_prof_in_one_cgroup_the_ring_is_as_large_as_there_is_room() {
    let Some(group) = Group::new("beside") else { return };
    let scene = Scene::new("cgroup-beside");
    let mut target = Target::start(&program("toggle.c"), &[]);
    group.add(target.pid);
    group.leave(80 << 20);
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {} attach {} --timeout 20s -o beside.prof",
        group.dir.display(),
        Scene::binary().display(),
        target.pid
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(&scene.dir);
    let out = run(command).ok("attach");
    assert!(out.stderr.contains("the ring has 32.0 MiB, not 64.0 MiB"), "{out:?}");
    assert!(out.stderr.contains("including prof's ring and collector"), "{out:?}");
    target.ask("alloc 100");
    scene.detach(&target);
    let recording = scene.path("beside.prof");
    assert_eq!(scene.finished(&recording).total("allocations"), 100);
    target.quit();
}

/// The ring's address space is several times as large as the memory that it takes.
#[test]
fn status_tells_the_memory_that_is_taken() {
    let scene = Scene::new("cgroup-taken");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", "--ring-size", "16MiB", "-o", "t.prof", &pid]).ok("attach");
    let most = out.stderr.split("memory: at most ").nth(1).expect("a line");
    let most: f64 = most.split(' ').next().expect("a word").parse().expect("a number");
    target.ask("alloc 100");
    let status = || -> serde_json::Value {
        let json = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
        serde_json::from_str(&json).expect("JSON")
    };
    let of = |v: &serde_json::Value, name: &str| v["memory"][name].as_f64().expect("a number");
    let mib = |n: f64| n * f64::from(1 << 20);
    let before = status();
    let (ring, added) = (of(&before, "ring_bytes"), of(&before, "added_bytes"));
    assert!(added <= mib(most), "{before:#}");
    assert!((mib(16.0)..mib(32.0)).contains(&ring), "{before:#}");
    // The ring stays charged to the cgroup of a collector that was killed.
    let collector = before["collector_pid"].as_i64().expect("a pid") as i32;
    kill(Pid::from_raw(collector), Signal::SIGKILL).expect("the collector");
    until("the collector is gone", || writers(&scene.path("t.prof")).is_empty());
    let after = status();
    assert!(after["collector_pid"].is_null(), "{after:#}");
    assert!((mib(16.0)..mib(32.0)).contains(&of(&after, "ring_bytes")), "{after:#}");
    let (was, is) = (added > ring, of(&after, "added_bytes") > of(&after, "ring_bytes"));
    assert_eq!(was, is, "whether the ring counts: {before:#} {after:#}");
    scene.detach(&target);
    target.quit();
}

/// The file of such a process in `/proc` names the topmost cgroup, which has no limit.
#[test]
fn the_cgroup_of_a_process_whose_first_thread_has_ended_is_that_of_the_others() {
    let Some(group) = Group::new("leader") else { return };
    let scene = Scene::new("cgroup-leader");
    let mut target = Target::start(&program("leader.c"), &[]);
    group.add(target.pid);
    target.ask("leave");
    group.leave(1 << 20);
    let out = scene.prof(&["attach", &target.pid.to_string()]);
    assert_eq!(out.code, 3, "{out:?}");
    assert!(out.stderr.contains(group.name()), "{out:?}");
    target.kill();
}

/// The kernel tells of new processes, and not of those that are moved.
#[test]
fn a_process_that_is_moved_into_a_followed_cgroup_is_recorded() {
    let Some(group) = Group::new("moved") else { return };
    let scene = Scene::new("cgroup-moved");
    let [mut first, mut late] = [(); 2].map(|()| Target::start(&program("toggle.c"), &[]));
    group.add(first.pid);
    let dir = group.dir.display().to_string();
    scene.prof(&["attach", "--cgroup", &dir, "--follow", "-o", "all"]).ok("attach");
    group.add(late.pid);
    let is_recorded = |line: &str| {
        line.starts_with(&format!("process {} ", late.pid)) && line.contains("): recording")
    };
    until("the process that was moved is recorded", || {
        scene.prof(&["status", "all"]).ok("status").stdout.lines().any(is_recorded)
    });
    late.ask("alloc 100");
    scene.prof(&["detach", "all"]).ok("detach");
    first.quit();
    late.quit();
}

#[test]
fn children_from_the_fork_on_take_room_in_the_cgroup_and_an_attach_says_when_there_is_none() {
    let Some(group) = Group::new("heirs") else { return };
    let scene = Scene::new("cgroup-heirs");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    group.add(target.pid);
    let said = "are not recorded from it on";
    for (folder, left, is_said) in [("small", 100 << 20, true), ("large", 400 << 20, false)] {
        group.leave(left);
        let out = scene.prof(&["attach", "--children", &pid, "-o", folder]).ok("attach");
        assert_eq!(out.stderr.contains(said), is_said, "{out:?}");
        scene.prof(&["detach", folder]).ok("detach");
    }
    target.quit();
}
