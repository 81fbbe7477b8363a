//! Children that are forked from a recorded process: those of a handler that has interrupted the hook, and
//! those that outlive the recording with prof's jumps in them.

mod common;

use common::build::program;
use common::{Scene, Target};
use std::os::unix::fs::FileExt;

#[test]
fn children_that_a_handler_forks_out_of_the_hook_live() {
    let scene = Scene::new("handler-fork");
    let mut target = Target::start(&program("handler_fork.c"), &[]);
    for (i, how) in ["fork", "alt", "raw"].into_iter().enumerate() {
        let recording = scene.attach_with(&target, &["-o", &format!("{i}.prof")]);
        let answer = target.ask(&format!("go 40 {how}"));
        let numbers: Vec<u64> = answer.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        assert!(numbers[0] >= 20, "{how}: {answer}");
        assert_eq!(numbers[1], 0, "{how}: {answer}");
        scene.detach(&target);
        if how == "fork" {
            // What the children did is not in their parent's recording.
            scene.report(&recording).assert_sound();
        }
    }
    target.quit();
}

/// The mappings of a process that are of no file and have no name.
fn nameless(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let short = |l: &str| l.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    maps.lines().filter(|l| l.split_whitespace().count() == 5).map(short).collect()
}

/// The bytes of libc's code in a process.
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
    // They go on: each allocates when it is asked to, and says so.
    for c in children {
        let work = || std::fs::read_to_string(format!("/proc/{c}/comm")).unwrap_or_default();
        let pid = nix::unistd::Pid::from_raw(c);
        nix::sys::signal::kill(pid, nix::sys::signal::SIGUSR2).expect("the child lives");
        common::until("a child works", || work().trim() == "works");
    }
    target.quit();
}
