//! Children forked from a recorded process: by a handler that has interrupted the hook, and children that outlive the
//! recording with prof's jumps in them.

use common::build::program;
use common::{Scene, Target};
use std::os::unix::fs::FileExt;
use std::process::Command;

/// Has handlers of a program fork while its threads allocate; all children must live.
fn forked_by_handlers(name: &str, mut target: Target) {
    let scene = Scene::new(name);
    for (i, how) in ["fork", "alt", "raw", "own"].into_iter().enumerate() {
        let recording = scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        let answer = target.ask(&format!("go 40 {how}"));
        let numbers: Vec<u64> = answer.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        assert!(numbers[0] >= 20, "{how}: {answer}");
        assert_eq!(numbers[1], 0, "{how}: {answer}");
        scene.detach(&target);
        if how == "fork" {
            // The children's calls are not in their parent's recording.
            scene.report(&recording).assert_sound();
        }
    }
    target.quit();
}

#[test]
fn children_that_a_handler_forks_out_of_the_hook_live() {
    forked_by_handlers("handler-fork", Target::start(&program("handler_fork.c"), &[]));
}

#[test]
fn children_that_a_handler_forks_out_of_the_hook_live_under_a_filter() {
    if !nix::unistd::geteuid().is_root() {
        return common::skip("filters", "reading a filter takes CAP_SYS_ADMIN");
    }
    let mut command = Command::new(program("filters.c"));
    // It kills for calls of the hook that it is not asked about.
    command.arg("look").arg(program("handler_fork.c"));
    let mut target = Target::spawn(command);
    target.expect("ready");
    forked_by_handlers("filter-fork", target);
}

/// Returns the anonymous mappings of a process that have no name.
fn nameless(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let short = |l: &str| l.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    maps.lines().filter(|l| l.split_whitespace().count() == 5).map(short).collect()
}

/// Returns the bytes of libc's code in a process.
fn text(pid: i32) -> Vec<(u64, Vec<u8>)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let mem = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let code = maps.lines().filter(|l| l.contains("r-xp") && l.contains("libc"));
    let range = |l: &str| {
        let (start, end) = l.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    code.filter_map(range)
        .map(|(start, end)| {
            let mut bytes = vec![0; (end - start) as usize];
            mem.read_exact_at(&mut bytes, start).expect("code");
            (start, bytes)
        })
        .collect()
}

#[test]
fn children_that_were_forked_before_are_rid_of_prof_if_asked_for() {
    let scene = Scene::new("children");
    let mut target = Target::start(&program("prefork.c"), &[]);
    let fork = |target: &mut Target| -> i32 {
        target.ask("fork")["done ".len()..].trim().parse().expect("a pid")
    };
    let before = fork(&mut target);
    let (code, mappings) = (text(before), nameless(before));
    assert!(!code.is_empty());
    scene.attach(&target);
    let children = [fork(&mut target), fork(&mut target), fork(&mut target)];
    assert!(children.iter().all(|c| text(*c) != code && nameless(*c) != mappings));
    let out = scene.prof(&["detach", &target.pid.to_string(), "--children"]).ok("detach");
    assert!(out.stderr.contains("3 children forked while it was recorded"), "{out:?}");
    assert!(!out.stderr.contains("left in the process"), "{out:?}");
    for c in children {
        assert!(text(c) == code, "{c}");
        assert_eq!(nameless(c), mappings, "{c}");
    }
    assert!(text(target.pid) == code);
    children.into_iter().for_each(works);
    target.quit();
}

/// A child has nothing where its parent has the ring, so that it may get that place for memory of its own.
#[test]
fn memory_of_a_childs_own_in_the_place_of_the_ring_stays() {
    let scene = Scene::new("own-memory");
    let mut target = Target::start(&program("prefork.c"), &[]);
    scene.attach(&target);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid)).expect("maps");
    let ring = maps.lines().find(|l| l.contains("prof-ring")).expect("a ring");
    let ring = u64::from_str_radix(ring.split('-').next().expect("a start"), 16).expect("hex");
    // At its beginning, and within.
    let children = [ring, ring + (1 << 20)].map(|at| -> i32 {
        let answer = target.ask(&format!("fork {at:x}"));
        let child = answer["done ".len()..].trim().parse().expect("a pid");
        let own = format!("{at:x}-");
        common::until("a child has mapped it", || {
            nameless(child).iter().any(|m| m.starts_with(&own))
        });
        child
    });
    let patched = children.map(text);
    let out = scene.prof(&["detach", &target.pid.to_string(), "--children"]).ok("detach");
    assert!(out.stderr.contains("2 children forked while it was recorded"), "{out:?}");
    assert!(!out.stderr.contains("left in the process"), "{out:?}");
    assert!(children.iter().zip(patched).all(|(c, patched)| text(*c) != patched));
    children.into_iter().for_each(works);
    target.quit();
}

/// Checks that a child allocates on request, and confirms it.
fn works(child: i32) {
    let name = || std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    let pid = nix::unistd::Pid::from_raw(child);
    nix::sys::signal::kill(pid, nix::sys::signal::SIGUSR2).expect("the child lives");
    common::until("a child works", || name().trim() == "works");
}

/// Returns the mask of the signals that a process catches.
fn caught(pid: i32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    status.lines().find(|l| l.starts_with("SigCgt")).expect("SigCgt").to_owned()
}

/// This works whatever the state of the parent: still recorded, not recorded any more, or ended.
#[test]
fn a_child_is_rid_of_prof_by_itself() {
    let scene = Scene::new("child");
    let mut target = Target::start(&program("prefork.c"), &["stay"]);
    let fork = |target: &mut Target| -> i32 {
        target.ask("fork")["done ".len()..].trim().parse().expect("a pid")
    };
    let before = fork(&mut target);
    let was = |c: i32| (text(c), nameless(c), caught(c));
    let clean = was(before);
    scene.attach(&target);
    let all: Vec<i32> = (0..6).map(|_| fork(&mut target)).collect();
    assert!(all.iter().all(|c| was(*c).0 != clean.0 && was(*c).2 != clean.2));
    let detach = |c: i32| {
        let out = scene.prof(&["detach", &c.to_string()]).ok("detach a child");
        assert!(out.stderr.contains("was forked while its parent was recorded"), "{out:?}");
        assert!(was(c) == clean, "{c}: {out:?}");
        works(c);
    };
    detach(all[0]);
    let note = scene.prof(&["detach", &target.pid.to_string()]).ok("detach").stderr;
    assert!(note.contains("5 children forked while it was recorded keep"), "{note}");
    detach(all[1]);
    // An attach to a child removes its parent's patches first, and records it.
    let (c, file) = (all[2].to_string(), scene.path("child.prof"));
    scene.prof(&["attach", &c, "-o", file.to_str().expect("UTF-8")]).ok("attach to a child");
    works(all[2]);
    scene.prof(&["detach", &c]).ok("detach");
    assert!(was(all[2]) == clean);
    assert!(scene.finished(&file).number("/totals/allocations") >= 9999);
    target.kill();
    detach(all[3]);
    for c in [before].into_iter().chain(all) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(c), nix::sys::signal::SIGKILL);
    }
}
