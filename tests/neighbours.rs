//! The surroundings of prof's memory in the target: guard pages. And prof's memory where all memory is locked, or
//! written to a core file: it is left out.

use common::build::program;
use common::snapshot::Snapshot;
use common::{Scene, Target};
use std::process::Command;

/// A mapping as in smaps.
#[derive(Clone, Debug, PartialEq)]
struct Mapping {
    start: u64,
    end: u64,
    access: String,
    name: String,
    flags: Vec<String>,
}

fn mappings(target: &Target) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in target.proc("smaps").lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let hex = |s: &str| u64::from_str_radix(s, 16).ok();
        let range = fields[0].split_once('-').and_then(|(a, b)| Some((hex(a)?, hex(b)?)));
        if let Some((start, end)) = range {
            all.push(Mapping {
                start,
                end,
                access: fields[1].into(),
                name: fields.get(5).copied().unwrap_or("").into(),
                flags: Vec::new(),
            });
        } else if let Some(m) = all.last_mut().filter(|_| fields[0] == "VmFlags:") {
            m.flags = fields[1..].iter().map(|f| (*f).to_owned()).collect();
        }
    }
    all
}

/// Returns prof's mappings in a target that maps nothing itself.
fn of_prof(before: &[Mapping], after: &[Mapping]) -> Vec<Mapping> {
    let was = |m: &&Mapping| before.iter().any(|b| (b.start, b.end) == (m.start, m.end));
    // By dlopen, the linker's blocks are in the heap. Its library is as any other, also the pages of it that stubs are in:
    // nobody can write to them.
    let is_linkers = |m: &&Mapping| m.name == "[heap]" || m.name.contains("/libprof_hook.so");
    after.iter().filter(|m| !was(m) && !is_linkers(m)).cloned().collect()
}

#[test]
fn guard_pages_are_around_all_that_is_mapped() {
    let scene = Scene::new("guards");
    let mut target = Target::start(&program("neighbours.c"), &[]);
    let before = mappings(&target);
    scene.attach(&target);
    let ours = of_prof(&before, &mappings(&target));
    assert!(ours.iter().any(|m| m.name.contains("prof-ring")), "{ours:#?}");
    let code = ours.iter().filter(|m| m.access.contains('x')).count();
    assert!(code >= 2 || common::is_by_dlopen(), "{ours:#?}");
    let is_guard = |m: &Mapping| m.access.starts_with("---");
    for (k, m) in ours.iter().enumerate().filter(|(_, m)| !is_guard(m)) {
        let below = ours[..k].last().filter(|b| b.end == m.start);
        let above = ours.get(k + 1).filter(|a| a.start == m.end);
        assert!(below.is_some() && above.is_some(), "nothing guards {m:?}: {ours:#?}");
    }
    // They are in no core file, and no child inherits the ring.
    for m in &ours {
        assert!(m.flags.iter().any(|f| f == "dd"), "{m:?}");
        let is_ring = m.name.contains("prof-ring");
        assert_eq!(m.flags.iter().any(|f| f == "dc"), is_ring, "{m:?}");
    }
    scene.detach(&target);
    assert_eq!(of_prof(&before, &mappings(&target)), []);
    target.quit();
}

#[test]
fn what_runs_over_the_end_of_a_block_faults_as_without_prof() {
    let scene = Scene::new("overflow");
    let alone = {
        let mut target = Target::start(&program("neighbours.c"), &[]);
        target.ask("overflow")
    };
    assert_eq!(alone, "done fault");
    let mut target = Target::start(&program("neighbours.c"), &[]);
    scene.attach(&target);
    assert_eq!(target.ask("overflow"), alone);
    assert_eq!(target.wait(), 77);
}

#[test]
fn a_thread_that_maps_at_the_same_moment_hinders_no_attach() {
    let scene = Scene::new("maps");
    let mut target = Target::start(&program("neighbours.c"), &["maps"]);
    for i in 0..15 {
        let file = scene.path(&format!("cycle{i}.prof"));
        scene.attach_with(&target, &["-o", file.to_str().unwrap()]);
        scene.detach(&target);
    }
    assert_ne!(target.ask("count"), "done 0");
    target.quit();
}

#[test]
fn nothing_is_locked_where_all_that_is_mapped_is() {
    let scene = Scene::new("locks");
    let mut target = Target::start(&program("neighbours.c"), &["locks"]);
    target.ask("blocks");
    let (maps, locked) = (mappings(&target), target.status("VmLck"));
    let before = Snapshot::of(&target);
    let recording = scene.attach(&target);
    assert_eq!(target.status("VmLck"), locked);
    for m in of_prof(&maps, &mappings(&target)) {
        assert!(!m.flags.iter().any(|f| f == "lo"), "{m:?}");
    }
    target.ask("blocks");
    scene.detach(&target);
    before.assert_same(&Snapshot::of(&target));
    // The kernel counts what is locked by itself, and the target may have a limit.
    assert_eq!(target.status("VmLck"), locked);
    assert_eq!(scene.finished(&recording).total("allocations"), 10);
    // One page must be left below that limit.
    target.ask("rest");
    let before = Snapshot::of(&target);
    let out = scene.prof(&["attach", &target.pid.to_string()]);
    assert_eq!(out.code, 3, "{out:?}");
    for word in ["mlockall", "1.0 MiB", "--memlock", "nothing was changed"] {
        assert!(out.stderr.contains(word), "no {word}: {out:?}");
    }
    before.assert_same(&Snapshot::of(&target));
    target.quit();
}

/// Inode numbers are those of one device: a file on another one may have that of the ring.
#[test]
fn a_shared_file_with_the_inode_number_of_the_ring_stays_mapped() {
    let scene = Scene::new("same-inode");
    let dir = scene.path("mount");
    std::fs::create_dir(&dir).expect("a folder");
    let mut command = Command::new(program("same_inode.c"));
    command.arg(&dir);
    let mut target = Target::spawn(command);
    if target.line().contains("unsupported") {
        return common::skip("same-inode", "nothing may be mounted here");
    }
    scene.attach(&target);
    let maps = target.proc("maps");
    let ring = maps.lines().find(|l| l.contains("prof-ring")).expect("a ring");
    let inode = ring.split_whitespace().nth(4).expect("an inode number");
    if target.ask(&format!("map {inode}")) != "done 1" {
        return common::skip("same-inode", "this kernel counts the files of all tmpfs together");
    }
    scene.detach(&target);
    assert_eq!(target.ask("check"), "done 1");
    assert!(!target.proc("maps").contains("prof-ring"));
    target.quit();
}
