//! Families whose supervisor or collectors were killed: the same command goes on in the same folder.

use common::family::Family;
use common::killer::{kill_collector, may_open_mappings};
use common::{skip, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::time::Duration;

fn less(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0] - b[0], a[1] - b[1]]
}

#[test]
fn a_family_goes_on_after_all_of_prof_was_killed() {
    if !may_open_mappings() {
        return skip("family_again", "only root may open another process's memory");
    }
    let mut family = Family::start("family-all-killed");
    let (stays, ends) = (family.fork(), family.fork());
    let root = family.target.pid;
    let out = family.attach();
    assert_eq!(out.code, 0, "{out:#?}");
    let recordings = [root, stays, ends].map(|pid| family.recording(pid));
    let first = family.batch();
    family.calm(&recordings.each_ref());
    family.kill_supervisor();
    recordings.iter().for_each(|path| kill_collector(path));
    let status = family.scene.prof(&["status", "all"]).ok("status").stdout;
    assert_eq!(status.matches("orphaned").count(), 3, "{status}");
    assert!(status.contains("the supervisor was killed"), "{status}");
    let json = family.scene.prof(&["status", "all", "--format", "json"]).ok("status").stdout;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["supervisor"], &json["supervisor_killed"]), (&Value::Null, &true.into()));
    // Nobody watches.
    let unwatched = family.batch();
    family.target.ask(&format!("end {ends}"));
    let late = family.fork();
    let before = family.batch();
    // An attach that was killed before it recorded anything has left its file.
    let empty = family.folder.join("late.99999999.prof");
    std::fs::write(&empty, "").expect("an empty file");
    let out = family.attach();
    assert_eq!(out.code, 0, "{out:#?}");
    assert!(out.stderr.contains("the file is removed") && !empty.exists(), "{out:#?}");
    assert_eq!(out.stderr.matches("its collector had died").count(), 2, "{out:#?}");
    assert!(out.stderr.contains("nobody has attached to new processes for"), "{out:#?}");
    assert!(out.stderr.contains("what came last is lost"), "{out:#?}");
    assert!(out.stderr.contains("3 processes are recorded"), "{out:#?}");
    let gone = family.noted("goes_on", None).pop().expect("it is noted");
    let [from, to] = ["gone_since_unix_ns", "unix_ns"].map(|n| gone[n].as_u64().expect("a time"));
    assert!(from < to && to - from < 60_000_000_000, "{gone}");
    assert_eq!(family.noted("cut_off", Some(ends)).len(), 1);
    for pid in [root, stays] {
        let lines = family.noted("goes_on", Some(pid));
        assert!(lines.len() == 1 && lines[0]["gone_since_unix_ns"].is_u64(), "{lines:?}");
    }
    let late_one = family.recording(late);
    let last = family.batch();
    let status = family.scene.prof(&["status", "all"]).ok("status").stdout;
    assert!(status.contains("the rest of it is lost"), "{status}");
    assert!(!status.contains("the supervisor was killed"), "{status}");
    family.scene.prof(&["detach", "all"]).ok("detach");
    // The children have begun to count at their forks, and were attached to before their first block.
    assert_eq!(family.counted(&recordings[0]), last[&root]);
    assert_eq!(family.counted(&recordings[1]), last[&stays]);
    assert_eq!(family.counted(&recordings[2]), first[&ends], "not {:?}", unwatched[&ends]);
    let counted = family.counted(&late_one);
    let is_from_fork = family.noted("attached", Some(late))[0]["from_fork"] == true;
    let allocations = match is_from_fork {
        // It has recorded into memory from its parent before there was a collector.
        true => {
            assert_eq!(counted, last[&late]);
            last[&late][0]
        }
        false => {
            let [allocations, frees] = less(last[&late], before[&late]);
            // Some of the frees are of blocks from before.
            let [a, f] = counted;
            assert!(a == allocations && f <= frees, "{a} {f}, not {allocations} {frees}");
            allocations
        }
    };
    let all = family.scene.report(&family.folder);
    let sum = [last[&root], last[&stays], first[&ends]].iter().map(|c| c[0]).sum::<u64>();
    assert_eq!(all.total("allocations"), sum + allocations, "{:#}", all.brief());
    let again = family.attach();
    assert_eq!(again.code, 2, "it has ended: {again:#?}");
    family.target.quit();
}

#[test]
fn a_supervisor_alone_is_replaced_and_there_are_never_two() {
    let mut family = Family::start("family-supervisor");
    let child = family.fork();
    let root = family.target.pid;
    let out = family.attach();
    assert_eq!(out.code, 0, "{out:#?}");
    let second = family.attach();
    assert_eq!(second.code, 3, "{second:#?}");
    assert!(second.stderr.contains("attaches to processes that are recorded"), "{second:#?}");
    family.kill_supervisor();
    family.batch();
    let late = family.fork();
    let other = family.scene.prof(&["attach", "--tree", &child.to_string(), "-o", "all"]);
    assert!(other.code == 2 && other.stderr.contains("another folder"), "{other:#?}");
    let out = family.attach();
    assert_eq!(out.code, 0, "{out:#?}");
    assert_eq!(out.stderr.matches("as before").count(), 2, "{out:#?}");
    let new = family.fork();
    let recordings = [root, child, late, new].map(|pid| family.recording(pid));
    let last = family.batch();
    family.scene.prof(&["detach", "all"]).ok("detach");
    assert_eq!(family.noted("follows", None).len(), 2);
    for (path, pid) in recordings.iter().zip([root, child, late, new]) {
        assert_eq!(family.counted(path), last[&pid], "{}", path.display());
    }
    family.target.quit();
}

/// Whoever detaches from a folder wants no more of it, though its supervisor was killed before.
#[test]
fn what_was_detached_from_does_not_go_on() {
    let family = Family::start("family-detached");
    let out = family.attach();
    assert_eq!(out.code, 0, "{out:#?}");
    family.kill_supervisor();
    family.scene.prof(&["detach", "all"]).ok("detach");
    let again = family.attach();
    assert!(again.code == 2 && again.stderr.contains("has ended"), "{again:#?}");
}

/// A collector alone is killed, again and again.
#[test]
fn a_supervisor_replaces_collectors_that_were_killed() {
    if !may_open_mappings() {
        return skip("family_again", "only root may open another process's memory");
    }
    let mut family = Family::start("family-collector");
    let child = family.fork();
    let root = family.target.pid;
    let out = family.attach();
    assert_eq!(out.code, 0, "{out:#?}");
    // The supervisor has attached to this one itself.
    let late = family.fork();
    let recordings = [root, child, late].map(|pid| family.recording(pid));
    family.batch();
    for (i, killed) in [(0, 1), (2, 1), (1, 1), (1, 2), (1, 3)] {
        let pid = [root, child, late][i];
        kill_collector(&recordings[i]);
        family.batch();
        until("it goes on", || family.noted("goes_on", Some(pid)).len() == killed);
        assert_eq!(family.noted("collector_died", Some(pid)).len(), killed);
    }
    // What kills collectors goes on doing so.
    kill_collector(&recordings[1]);
    let mut died = Vec::new();
    until("it is noted", || {
        died = family.noted("collector_died", Some(child));
        died.len() == 4
    });
    assert!(died.iter().filter(|l| l["waits_ns"].is_u64()).count() == 1, "{died:?}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(family.noted("goes_on", Some(child)).len(), 3);
    let last = family.batch();
    family.scene.prof(&["detach", "all"]).ok("detach");
    for (path, pid) in recordings.iter().zip([root, child, late]) {
        assert_eq!(family.counted(path), last[&pid], "{}", path.display());
    }
    family.target.quit();
}

/// A process ends before anybody can replace its collector.
#[test]
fn a_supervisor_finishes_the_recording_of_a_process_that_has_ended_after_its_collector() {
    let mut family = Family::start("family-both");
    let child = family.fork();
    let out = family.attach();
    assert_eq!(out.code, 0, "{out:#?}");
    let recording = family.recording(child);
    let first = family.batch();
    family.calm(&[&recording]);
    let supervisor = Pid::from_raw(family.supervisor());
    kill(supervisor, Signal::SIGSTOP).expect("stopped");
    kill_collector(&recording);
    family.batch();
    family.target.ask(&format!("end {child}"));
    kill(supervisor, Signal::SIGCONT).expect("goes on");
    until("it is noted", || family.noted("cut_off", Some(child)).len() == 1);
    assert_eq!(family.counted(&recording), first[&child]);
    // Nobody has counted what is lost.
    assert!(!family.scene.report(&recording).bool("/recording/complete"));
    let all = family.scene.report(&family.folder);
    assert!(!all.bool("/recording/complete"), "{:#}", all.brief());
    assert_eq!(all.number("/recording/joined/incomplete"), 1);
    assert_eq!(family.noted("collector_died", Some(child)).len(), 0);
    family.scene.prof(&["detach", "all"]).ok("detach");
}

/// A census stands at the begin of a recording, so none with one goes on.
#[test]
fn recordings_that_cannot_go_on_are_finished_and_others_begin() {
    let mut family = Family::start("family-anew");
    let child = family.fork();
    let root = family.target.pid;
    // Without a heap there is no census.
    let before = family.batch();
    let out = family.attach_with(&["--census"]);
    assert_eq!(out.code, 0, "{out:#?}");
    let first = [root, child].map(|pid| family.recording(pid));
    family.batch();
    family.kill_supervisor();
    first.iter().for_each(|path| kill_collector(path));
    // The processes' memory has what nobody collects.
    family.batch();
    let out = family.attach_with(&["--census"]);
    assert_eq!(out.code, 0, "{out:#?}");
    assert_eq!(out.stderr.matches("finished an earlier recording").count(), 2, "{out:#?}");
    let second = [root, child].map(|pid| family.recording(pid));
    assert_ne!(first, second);
    let last = family.batch();
    family.scene.prof(&["detach", "all"]).ok("detach");
    for (i, pid) in [root, child].into_iter().enumerate() {
        let [a, b] = [&first[i], &second[i]].map(|path| family.counted(path)[0]);
        assert_eq!(a + b, last[&pid][0] - before[&pid][0], "{a} and {b}");
        let line = family.noted("attached", Some(pid)).pop().expect("it is noted");
        let name = first[i].file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(line["instead_of"] == name && line["why"].is_string(), "{line}");
    }
    family.target.quit();
}

/// An attach to the processes of a family has the lock of its journal, and may come to more of them.
#[test]
fn a_detach_waits_for_an_attach_that_is_under_way() {
    let mut f = Family::start("under-way");
    f.fork();
    let root = f.target.pid.to_string();
    f.scene.prof(&["attach", "--tree", &root, "-o", "all"]).ok("attach");
    let journal = std::fs::File::options().append(true).open(f.folder.join("family.jsonl"));
    let journal = journal.expect("a journal");
    journal.lock().expect("its lock");
    let over = std::time::Instant::now() + Duration::from_millis(700);
    let attach = std::thread::spawn(move || {
        std::thread::sleep(over.saturating_duration_since(std::time::Instant::now()));
        drop(journal);
    });
    let out = f.scene.prof(&["detach", "all"]).ok("detach");
    assert!(std::time::Instant::now() >= over, "{out:?}");
    attach.join().expect("the other attach");
    f.target.kill();
}
