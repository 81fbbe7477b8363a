//! Children that are recorded from their fork on, in memory that the hook has made for them.

use common::build::program;
use common::killer::kill_collector;
use common::report::Report;
use common::{Scene, Target};
use serde_json::Value;
use std::path::{Path, PathBuf};

const COUNT: u64 = 5000;
const KEPT: u64 = 40;
const SIZE: u64 = 200;

/// Returns whether the memory that a process has mapped may be opened here, without which there are no heirs.
fn may_open_rings(test: &str) -> bool {
    let files = std::fs::read_dir("/proc/self/map_files").into_iter().flatten().flatten();
    let may = files.take(1).any(|file| file.path().metadata().is_ok());
    if !may {
        common::skip(test, "it takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE");
    }
    // A library that the linker has loaded is not recorded in children from the fork on.
    may && !common::is_by_dlopen()
}

/// A program whose children are recorded, and the folder of their recordings.
fn family(scene: &Scene) -> (Target, PathBuf) {
    let target = Target::start(&program("heirs.c"), &[]);
    scene.prof(&["attach", "--children", &target.pid.to_string(), "-o", "all"]).ok("attach");
    (target, scene.path("all"))
}

/// Has the program fork, and returns the processes.
fn forks(target: &mut Target, how: &str) -> Vec<i32> {
    let answer = target.ask(how);
    answer.split_whitespace().filter_map(|w| w.parse().ok()).collect()
}

/// Returns the lines of the family's journal.
fn journal(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("family.jsonl")).expect("a journal");
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
}

/// Returns what the journal says of the beginning of a process's recording.
fn begun(folder: &Path, pid: i32) -> Value {
    let mut found = None;
    common::until("the child is recorded", || {
        let is_begin =
            |l: &Value| ["attached", "failed", "missed"].iter().any(|e| l["event"] == *e);
        found = journal(folder).into_iter().filter(is_begin).find(|l| l["pid"] == pid);
        found.is_some()
    });
    found.expect("a line")
}

/// Returns the parts of prof that a process has mapped.
fn parts(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_part = |l: &&str| {
        let is_heir =
            l.contains("/dev/zero") && (l.contains(" 07070000 ") || l.contains(" 07060000 "));
        // The ring's reserve for threads to come is a mapping of its own, without access.
        is_heir || (l.contains("prof-ring") && !l.contains(" ---"))
    };
    maps.lines().filter(is_part).map(str::to_owned).collect()
}

/// Compares what is known of a child with what it has done since its fork.
fn assert_all_is_known(scene: &Scene, folder: &Path, pid: i32) {
    let begun = begun(folder, pid);
    assert_eq!(
        (&begun["event"], &begun["from_fork"]),
        (&"attached".into(), &true.into()),
        "{begun}"
    );
    let report = scene.report_with(folder, &["--pid", &pid.to_string()]);
    report.assert_sound();
    report.marked("heirs.c", "heir").assert_live(KEPT, KEPT * SIZE);
    let done = ["allocations", "frees"].map(|f| report.total(f));
    assert_eq!(done, [COUNT, COUNT - KEPT], "{:#}", report.brief());
}

#[test]
fn children_are_recorded_from_their_first_allocation() {
    if !may_open_rings("heirs") {
        return;
    }
    let scene = Scene::new("heirs");
    let (mut target, folder) = family(&scene);
    let own = parts(target.pid);
    assert_eq!(own.len(), 1, "{own:#?}");
    let child = forks(&mut target, &format!("fork {COUNT} {KEPT}"));
    let both = forks(&mut target, &format!("grand {COUNT} {KEPT}"));
    let all: Vec<i32> = child.into_iter().chain(both).collect();
    assert_eq!(all.len(), 3);
    all.iter().for_each(|pid| _ = begun(&folder, *pid));
    for pid in &all {
        assert_eq!(parts(*pid).len(), 1, "{:#?}", parts(*pid));
    }
    assert_eq!(parts(target.pid), own, "nothing of its children's is left in it");
    target.ask("check");
    let out = scene.prof(&["detach", "all"]).ok("detach");
    assert_eq!(out.stderr.matches("the process is as it was before").count(), 4, "{out:#?}");
    for pid in &all {
        assert_eq!(parts(*pid), Vec::<String>::new());
        assert_all_is_known(&scene, &folder, *pid);
    }
    target.ask("check");
    target.kill();
}

#[test]
fn what_children_have_recorded_that_end_before_their_collector_is_there_is_saved() {
    if !may_open_rings("heirs-brief") {
        return;
    }
    let scene = Scene::new("heirs-brief");
    let (mut target, folder) = family(&scene);
    let is = |l: &Value, event: &str| l["event"] == event;
    let mut saved = 0;
    // The supervisor may not get to see any of the first ones on a busy machine.
    for _ in 0..10 {
        for pid in forks(&mut target, &format!("brief 12 {COUNT} {KEPT}")) {
            let begun = begun(&folder, pid);
            assert!(is(&begun, "attached") || is(&begun, "missed"), "{begun}");
            if is(&begun, "missed") {
                continue;
            }
            saved += u32::from(begun["after_its_end"] == true);
            common::until("its end is noted", || {
                journal(&folder).iter().any(|l| l["pid"] == pid && is(l, "exited"))
            });
            let mut lines = journal(&folder);
            lines.retain(|l| l["pid"] == pid);
            assert!(is(&lines[0], "attached") && lines.len() == 2, "{lines:?}");
            assert_eq!(lines[1]["code"], 3, "{lines:?}");
            assert_all_is_known(&scene, &folder, pid);
        }
        if saved > 0 {
            break;
        }
    }
    assert!(saved > 0, "{:?}", journal(&folder));
    scene.prof(&["detach", "all"]).ok("detach");
    target.kill();
}

#[test]
fn a_program_that_a_child_runs_while_its_recording_begins_is_counted() {
    if !may_open_rings("heirs-execs") {
        return;
    }
    let scene = Scene::new("heirs-execs");
    let (mut target, folder) = family(&scene);
    let all = forks(&mut target, "execs 20");
    assert_eq!(all.len(), 20);
    scene.prof(&["detach", "all"]).ok("detach");
    let lines = journal(&folder);
    for pid in &all {
        let events: Vec<_> =
            lines.iter().filter(|l| l["pid"] == *pid).map(|l| l["event"].as_str()).collect();
        let is = |event: &str| events.contains(&Some(event));
        assert!(is("missed") || is("exec"), "{pid}: {events:?}");
    }
    target.kill();
}

#[test]
fn threads_that_fork_at_a_time_leave_nothing_in_each_others_children() {
    if !may_open_rings("heirs-threads") {
        return;
    }
    let scene = Scene::new("heirs-threads");
    let (mut target, folder) = family(&scene);
    let all = forks(&mut target, &format!("threads 8 {COUNT} {KEPT}"));
    assert_eq!(all.len(), 8);
    let from_fork = all.iter().filter(|pid| begun(&folder, **pid)["from_fork"] == true).count();
    assert!(from_fork > 0, "one thread at a time makes memory for its child");
    for pid in &all {
        assert_eq!(parts(*pid).len(), 1, "{:#?}", parts(*pid));
    }
    scene.prof(&["detach", "all"]).ok("detach");
    for pid in all {
        assert_eq!(parts(pid), Vec::<String>::new());
        match begun(&folder, pid)["from_fork"] == true {
            true => assert_all_is_known(&scene, &folder, pid),
            false => scene.report_with(&folder, &["--pid", &pid.to_string()]).assert_sound(),
        }
    }
    target.kill();
}

#[test]
fn a_child_that_nobody_takes_is_rid_of_prof_by_a_detach() {
    if !may_open_rings("heirs-alone") {
        return;
    }
    let scene = Scene::new("heirs-alone");
    let (mut target, folder) = family(&scene);
    let supervisor =
        journal(&folder).into_iter().filter_map(|l| l["supervisor"][0].as_i64()).next_back();
    let supervisor = nix::unistd::Pid::from_raw(supervisor.expect("a supervisor") as i32);
    nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL).expect("killed");
    // Far more than it has room for.
    let [pid] = forks(&mut target, "fork 3000000 40")[..] else { panic!("a child") };
    common::until("it has done its work", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") S ")
    });
    assert_eq!(parts(pid).len(), 1);
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let mut ring = smaps.lines().skip_while(|l| !l.contains(" 07070000 "));
    let rss = ring.find(|l| l.starts_with("Rss:")).expect("its memory");
    let kib: u64 = rss.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("KiB");
    assert!(kib < 16 << 10, "nobody empties it, and it has {kib} KiB");
    scene.prof(&["detach", &pid.to_string()]).ok("detach");
    assert_eq!(parts(pid), Vec::<String>::new());
    // It can be attached to as any process.
    scene.prof(&["attach", &pid.to_string(), "-o", "alone.prof"]).ok("attach");
    scene.prof(&["detach", &pid.to_string()]).ok("detach");
    let [pid] = forks(&mut target, "fork 3000 40")[..] else { panic!("a child") };
    scene.prof(&["attach", &pid.to_string(), "-o", "taken.prof"]).ok("attach");
    scene.prof(&["detach", &pid.to_string()]).ok("detach");
    assert_eq!(parts(pid), Vec::<String>::new());
    target.kill();
}

#[test]
fn the_recording_of_a_child_goes_on_when_its_collector_is_killed() {
    if !may_open_rings("heirs-killed") {
        return;
    }
    let scene = Scene::new("heirs-killed");
    let (mut target, folder) = family(&scene);
    let [pid] = forks(&mut target, &format!("fork {COUNT} {KEPT}"))[..] else { panic!("a child") };
    let line = begun(&folder, pid);
    let recording = folder.join(line["recording"].as_str().expect("a recording"));
    kill_collector(&recording);
    common::until("another collector goes on", || {
        let status = scene.prof(&["status", &pid.to_string(), "--format", "json"]);
        status.code == 0 && status.stdout.contains("\"recording\"")
    });
    scene.prof(&["detach", "all"]).ok("detach");
    let report = scene.report_with(&folder, &["--pid", &pid.to_string()]);
    report.marked("heirs.c", "heir").assert_live(KEPT, KEPT * SIZE);
    target.kill();
}

#[test]
fn a_child_has_the_blocks_of_its_parents_that_were_live_at_its_fork() {
    if !may_open_rings("heirs-inherited") {
        return;
    }
    let scene = Scene::new("heirs-inherited");
    let (mut target, folder) = family(&scene);
    target.ask("hold 1000");
    let [child, grandchild] = forks(&mut target, "drop 100")[..] else { panic!("two children") };
    target.ask("hold 500");
    let daemon = format!("daemon {COUNT} {KEPT}");
    let [daemon] = forks(&mut target, &daemon)[..] else { panic!("a daemon") };
    [child, grandchild, daemon].iter().for_each(|pid| _ = begun(&folder, *pid));
    scene.prof(&["detach", "all"]).ok("detach");
    let held = |pid: i32, options: &[&str]| {
        let pid = pid.to_string();
        scene.report_with(&folder, &[&["--pid", &pid], options].concat())
    };
    let sum = |report: &Report| {
        let groups = report.asked_by("held_block");
        ["live_count", "live_bytes"].map(|n| groups.iter().map(|g| g.number(n)).sum::<u64>())
    };
    assert_eq!(sum(&held(target.pid, &[])), [1520, 152_000]);
    assert_eq!(held(child, &[]).total("live_count"), 0);
    assert_all_is_known(&scene, &folder, daemon);
    for (pid, left) in [(child, 900), (grandchild, 800), (daemon, 1520)] {
        let report = held(pid, &["--inherited"]);
        report.assert_sound();
        assert_eq!(sum(&report), [left, left * 100], "{}", report.askers());
        assert_eq!(report.at("/target/pid"), pid);
    }
    let refused = |args: &[&str], why: &str| {
        let out = scene.prof(args);
        assert!(out.code == 2 && out.stderr.contains(why), "{out:#?}");
    };
    let (root, child) = (target.pid.to_string(), child.to_string());
    refused(&["report", "all", "--pid", &root, "--inherited"], "not recorded from its fork on");
    refused(&["report", "all", "--inherited"], "--pid");
    refused(&["maps", "all", "--pid", &child, "--inherited"], "about blocks");
    target.kill();
}

#[test]
fn children_that_a_handler_forks_out_of_the_hook_live() {
    if !may_open_rings("heirs-handler") {
        return;
    }
    let scene = Scene::new("heirs-handler");
    for (i, how) in ["fork", "alt", "raw", "own"].into_iter().enumerate() {
        let mut target = Target::start(&program("handler_fork.c"), &[]);
        let folder = format!("all{i}");
        scene.prof(&["attach", "--children", &target.pid.to_string(), "-o", &folder]).ok("attach");
        let answer = target.ask(&format!("go 40 {how}"));
        let numbers: Vec<u64> = answer.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        assert!(numbers[0] >= 20 && numbers[1] == 0, "{how}: {answer}");
        scene.prof(&["detach", &folder]).ok("detach");
        assert_eq!(parts(target.pid), Vec::<String>::new());
        target.quit();
    }
}

#[test]
fn a_detach_leaves_nothing_in_children_that_are_forked_meanwhile() {
    if !may_open_rings("heirs-detached") {
        return;
    }
    let scene = Scene::new("heirs-detached");
    for round in 0..3 {
        let mut target = Target::start(&program("heirs.c"), &[]);
        let folder = format!("all{round}");
        scene.prof(&["attach", "--children", &target.pid.to_string(), "-o", &folder]).ok("attach");
        // It forks until it is told to stop, and its children live.
        target.send("many");
        std::thread::sleep(std::time::Duration::from_millis(100));
        scene.prof(&["detach", &folder]).ok("detach");
        let children = forks(&mut target, "enough");
        assert!(children.len() > 1, "{children:?}");
        let left = |pid: &i32| !parts(*pid).is_empty();
        let left: Vec<_> = children.iter().filter(|pid| left(pid)).collect();
        assert!(left.is_empty(), "{left:?} of {children:?}");
        let folder = scene.path(&folder);
        let lines = journal(&folder).into_iter().filter(|l| l["from_fork"] == true);
        let begun: Vec<i64> = lines.filter_map(|l| l["pid"].as_i64()).collect();
        assert!(!begun.is_empty(), "{:?}", journal(&folder));
        let mut whole = 0;
        for pid in begun {
            let report = scene.report_with(&folder, &["--pid", &pid.to_string()]);
            // The last children may not have got to their work when prof was taken out of them.
            let [allocations, frees] = ["allocations", "frees"].map(|f| report.total(f));
            let most = allocations.saturating_sub(10);
            assert!(
                allocations <= 100 && (frees..frees + 2).contains(&most),
                "{:#}",
                report.brief()
            );
            whole += u32::from((allocations, frees) == (100, 90));
        }
        assert!(whole > 0, "{:?}", journal(&folder));
        target.kill();
    }
}

#[test]
fn a_child_that_limits_its_address_space_has_it_for_itself() {
    if !may_open_rings("heirs-limited") {
        return;
    }
    let scene = Scene::new("heirs-limited");
    let (mut target, folder) = family(&scene);
    let [at_once, is_fine] = forks(&mut target, "limit 0")[..] else { panic!("a child") };
    assert_eq!(is_fine, 1, "it gets memory");
    assert_eq!(parts(at_once), Vec::<String>::new());
    let [later, is_fine] = forks(&mut target, "limit 2000")[..] else { panic!("a child") };
    assert_eq!(is_fine, 1, "it gets memory");
    let line = begun(&folder, later);
    assert_eq!(line["from_fork"], true, "{line}");
    let recording = folder.join(line["recording"].as_str().expect("a recording"));
    // The recording ends there.
    let report = scene.finished(&recording);
    report.marked("heirs.c", "heir").assert_live(10, 10 * SIZE);
    scene.prof(&["detach", "all"]).ok("detach");
    target.kill();
}
