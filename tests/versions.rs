//! A recording that another build of prof has begun: this build ends it, pauses it and shows its state by the part of
//! the control page that never changes, or names the build that can.

use common::build::program;
use common::snapshot::Snapshot;
use common::{Scene, Target, until, writers};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Offsets in the control page that all builds share (`inject/trace/src/shared/stable.rs`).
const LAYOUT: u64 = 8;
const NEEDS: u64 = 256 + 4;
const COLLECTOR_PID: u64 = 256 + 728;

/// The control page of a recorded process.
struct Page {
    mem: File,
    at: u64,
}

impl Page {
    fn of(target: &Target) -> Self {
        let maps = target.proc("maps");
        let line = maps.lines().find(|l| l.contains("/memfd:prof-ring")).expect("a ring");
        let at = u64::from_str_radix(line.split('-').next().unwrap(), 16).expect("an address");
        let path = format!("/proc/{}/mem", target.pid);
        let mem = File::options().read(true).write(true).open(path).expect("its memory");
        Self { mem, at }
    }

    fn get(&self, offset: u64) -> u32 {
        let mut b = [0; 4];
        self.mem.read_exact_at(&mut b, self.at + offset).expect("the page");
        u32::from_ne_bytes(b)
    }

    fn set(&self, offset: u64, value: u32) {
        self.mem.write_all_at(&value.to_ne_bytes(), self.at + offset).expect("the page");
    }
}

#[test]
fn another_builds_recording_is_shown_paused_and_ended() {
    let scene = Scene::new("another-build");
    let mut target = Target::start(&program("toggle.c"), &[]);
    target.ask("alloc 100");
    target.ask("free 100");
    let before = Snapshot::of(&target);
    let pid = target.pid.to_string();
    let recording = scene.attach(&target);
    target.ask("alloc 10");
    Page::of(&target).set(LAYOUT, 4711);

    let status = scene.prof(&["status", &pid]).ok("status").stdout;
    assert!(status.contains(": recording"), "{status}");
    assert!(status.contains("(layout 4711)") && status.contains("/prof"), "{status}");
    assert!(status.contains(recording.file_name().unwrap().to_str().unwrap()), "{status}");
    assert!(status.contains("malloc") && status.contains("prof pause"), "{status}");
    let json = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["prof"]["layout"], 4711);
    assert!(json["events"].as_u64().unwrap() >= 10, "{json:#}");
    assert!(
        scene.prof(&["status"]).ok("status of all").stdout.contains(&format!("process {pid} "))
    );

    scene.prof(&["pause", &pid]).ok("pause");
    target.ask("alloc 50");
    let status = scene.prof(&["status", &pid]).ok("status").stdout;
    assert!(status.contains(": paused"), "{status}");
    scene.prof(&["resume", &pid]).ok("resume");
    target.ask("alloc 1");

    let again = scene.prof(&["attach", &pid]);
    assert_eq!(again.code, 3, "{again:?}");
    assert!(again.stderr.contains("already being recorded by prof"), "{}", again.stderr);

    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    target.quit();
    let r = scene.finished(&recording);
    r.marked("toggle.c", "toggled_block").assert_live(11, 11 * 128);
}

#[test]
fn another_builds_recording_is_ended_after_its_collector_has_died() {
    let scene = Scene::new("another-orphan");
    let mut target = Target::start(&program("toggle.c"), &[]);
    target.ask("alloc 100");
    let before = Snapshot::of(&target);
    let recording = scene.attach(&target);
    target.ask("alloc 10");
    let page = Page::of(&target);
    page.set(LAYOUT, 4711);
    let collector = nix::unistd::Pid::from_raw(page.get(COLLECTOR_PID) as i32);
    nix::sys::signal::kill(collector, nix::sys::signal::Signal::SIGKILL).expect("the collector");
    until("the collector is gone", || writers(&recording).is_empty());
    // The next attach ends the recording, too; here the user does.
    let out = scene.prof(&["detach", &target.pid.to_string()]);
    assert_eq!(out.code, 1, "{out:?}");
    assert!(out.stderr.contains("still in memory can't be saved"), "{}", out.stderr);
    assert!(out.stderr.contains("(layout 4711)"), "names who could have: {}", out.stderr);
    before.assert_same(&Snapshot::of(&target));
    scene.attach_with(&target, &["-o", "next.prof"]);
    scene.detach(&target);
    target.quit();
}

#[test]
fn a_build_that_must_do_it_itself_is_named() {
    let scene = Scene::new("named-build");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    scene.attach(&target);
    let page = Page::of(&target);
    let (layout, needs) = (page.get(LAYOUT), page.get(NEEDS));
    let refused = |what: &str, name: &str| {
        let out = scene.prof(&[what, &pid]);
        assert_eq!(out.code, 3, "{what}: {out:?}");
        let exe = Scene::binary().file_name().unwrap().to_str().unwrap();
        assert!(out.stderr.contains(name), "{what}: {}", out.stderr);
        assert!(out.stderr.contains(&format!("/{exe}")), "{what} names it: {}", out.stderr);
        assert!(out.stderr.contains(&format!("prof detach {pid}")), "{what}: {}", out.stderr);
    };
    // A build that is newer than this one can handle.
    page.set(LAYOUT, 4711);
    page.set(NEEDS, 1000);
    let during = Snapshot::of(&target);
    for what in ["detach", "pause", "attach"] {
        refused(what, "(layout 4711)");
    }
    // A build from before that part existed: its collector shows the place of the recording.
    page.set(LAYOUT, 13);
    for what in ["detach", "pause", "attach"] {
        refused(what, "(layout 13)");
    }
    during.assert_same(&Snapshot::of(&target));
    page.set(LAYOUT, layout);
    page.set(NEEDS, needs);
    scene.detach(&target);
    target.quit();
}
