//! A process whose cgroup is frozen is left alone, and the reason is given. It is recorded when it is thawed.

use common::build::program;
use common::killer::killed_when;
use common::snapshot::Snapshot;
use common::{Scene, Target, until};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A cgroup of this test's own that can be frozen. Dropping it thaws and removes it.
struct Freezer {
    dir: PathBuf,
    /// File that freezes, and what to write into it to freeze and to thaw.
    switch: (&'static str, &'static str, &'static str),
    /// File that shows when all processes are frozen, and its line.
    shown: (&'static str, &'static str),
}

impl Freezer {
    /// Makes one in each hierarchy (version 1 and 2) in which that is allowed.
    fn all(name: &str) -> Vec<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let made = mounts.lines().filter_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let (kind, options) = (back.split(' ').next()?, back.split(' ').next_back()?);
            let is_v1 = kind == "cgroup" && options.split(',').any(|o| o == "freezer");
            if !is_v1 && kind != "cgroup2" {
                return None;
            }
            let path = own.lines().find_map(|l| {
                let (controllers, path) = l.split_once(':')?.1.split_once(':')?;
                let wanted = if is_v1 { "freezer" } else { "" };
                controllers.split(',').any(|c| c == wanted).then_some(path)
            })?;
            let mut dir = PathBuf::from(front.split(' ').nth(4)?);
            dir.push(path.trim_start_matches('/'));
            dir.push(format!("prof-test-{name}-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            let (switch, shown) = if is_v1 {
                (("freezer.state", "FROZEN", "THAWED"), ("freezer.state", "FROZEN"))
            } else {
                (("cgroup.freeze", "1", "0"), ("cgroup.events", "frozen 1"))
            };
            let group = Self { dir, switch, shown };
            group.dir.join(switch.0).exists().then_some(group)
        });
        made.collect()
    }

    fn add(&self, pid: i32) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).expect("moved");
    }

    fn begin_to_freeze(&self) {
        fs::write(self.dir.join(self.switch.0), self.switch.1).expect("frozen");
    }

    fn freeze(&self) {
        self.begin_to_freeze();
        until("all are frozen", || {
            let text = fs::read_to_string(self.dir.join(self.shown.0)).unwrap_or_default();
            text.lines().any(|l| l == self.shown.1)
        });
    }

    fn thaw(&self) {
        let _ = fs::write(self.dir.join(self.switch.0), self.switch.2);
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
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
fn a_process_that_is_frozen_in_the_midst_of_an_attach_is_waited_for() {
    for group in Freezer::all("midst") {
        let scene = Scene::new("frozen-midst");
        let mut target = Target::start(&program("toggle.c"), &[]);
        target.ask("alloc 1"); // the heap
        let before = Snapshot::of(&target);
        group.add(target.pid);
        let mut attach = Command::new(Scene::binary());
        attach.args(["attach", &target.pid.to_string(), "-o", "k.prof", "--ring-size", "1MiB"]);
        attach.current_dir(scene.path(""));
        let group = Arc::new(group);
        let mut thaws = None;
        killed_when(attach, |_| {
            if thaws.is_none() && target.has_ring() {
                group.begin_to_freeze();
                let group = Arc::clone(&group);
                thaws = Some(std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(1500));
                    group.thaw();
                }));
            }
            false
        });
        let thaws = thaws.expect("prof was seen while the target had the descriptor");
        thaws.join().expect("thawed");
        target.ask("alloc 3");
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
        target.quit();
        let r = scene.finished(&scene.path("k.prof"));
        assert_eq!(r.total("allocations"), 3, "{:#}", r.brief());
    }
}

#[test]
fn a_frozen_process_is_left_alone_and_recorded_when_it_is_thawed() {
    let all = Freezer::all("frozen");
    if all.is_empty() {
        eprintln!("no cgroup that can be frozen may be made here");
    }
    for group in all {
        let scene = Scene::new("frozen");
        let mut target = Target::start(&program("toggle.c"), &[]);
        let pid = target.pid.to_string();
        target.ask("alloc 1"); // the heap
        let before = Snapshot::of(&target);
        group.add(target.pid);
        let refused = |args: &[&str]| {
            group.freeze();
            let out = scene.prof(args);
            group.thaw();
            assert_eq!(out.code, 3, "{out:?}");
            for word in [&pid, "frozen by its cgroup", group.switch.0, "thaw it first"] {
                assert!(out.stderr.contains(word), "no {word}: {out:?}");
            }
        };
        refused(&["attach", &pid, "-o", "cold.prof"]);
        before.assert_same(&Snapshot::of(&target));
        assert!(!scene.path("cold.prof").exists());

        let recording = scene.attach(&target);
        refused(&["detach", &pid]);
        target.ask("alloc 3");
        scene.detach(&target);
        before.assert_same(&Snapshot::of(&target));
        target.quit();
        let r = scene.finished(&recording);
        assert_eq!(r.total("allocations"), 3, "{:#}", r.brief());
    }
}
