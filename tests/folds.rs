//! `--on-limit drop-oldest`: a recording that stays below its bound, whatever ends meanwhile.

mod common;

use common::build::program;
use common::{Scene, Target, until, writers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};

/// Bound of the recordings.
const MOST: u64 = 4 << 20;

/// What the program says: allocations, frees, reallocations, allocated bytes, live bytes and blocks, peak, long-lived blocks.
struct Said([u64; 8]);

impl Said {
    fn of(line: &str) -> Self {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        Self(numbers.try_into().expect("eight numbers"))
    }
}

/// Begins to record a program below the bound. Its calls of `pthread_create` allocate, too, so they come first.
fn begin(scene: &Scene, target: &mut Target) -> PathBuf {
    target.ask("waits");
    let drop = ["--on-limit", "drop-oldest", "--max-disk", "4MiB", "--compress", "none"];
    scene.attach_with(target, &[&["-o", "r.prof", "--ring-size", "1MiB"], &drop[..]].concat())
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len())
}

fn new_file(recording: &Path) -> PathBuf {
    recording.with_file_name(".r.prof.fold")
}

/// Has the program allocate, and waits until no fold is in progress.
fn batch(target: &mut Target, recording: &Path) -> Said {
    let said = Said::of(&target.ask("batch"));
    let new = new_file(recording);
    assert!(length(recording) + length(&new) <= MOST, "both files are longer than the bound");
    until("the fold has ended", || !new.exists());
    said
}

/// Returns the allocations, frees, reallocations, allocated bytes, live bytes, live blocks and the peak of a recording.
fn totals(scene: &Scene, recording: &Path) -> [u64; 7] {
    let r = scene.report(recording);
    [
        "allocations",
        "frees",
        "reallocations",
        "allocated_bytes",
        "live_bytes",
        "live_count",
        "peak_bytes",
    ]
    .map(|name| r.total(name))
}

/// Returns the difference of what a program says between two moments; of the peak the later value.
fn between(before: &Said, after: &Said) -> [u64; 4] {
    [0, 1, 2, 3].map(|i| after.0[i] - before.0[i])
}

#[test]
fn figures_stay_exact_however_often_the_oldest_part_goes() {
    let scene = Scene::new("folds");
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin(&scene, &mut target);
    let first = Said::of(&target.ask("counts"));
    let inode = |path: &Path| {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("a file"))
    };
    let (mut files, mut last) = (vec![inode(&file)], None);
    target.ask("high");
    for i in 0..60 {
        last = Some(batch(&mut target, &file));
        files.push(inode(&file));
        if i == 30 {
            // What grows is read as it is.
            let text = scene.prof(&["report", "r.prof", "--top", "1"]).ok("report").stdout;
            assert!(text.contains("drop-oldest") && text.contains("still recording"), "{text}");
            let status = scene.prof(&["status", &target.pid.to_string()]).ok("status").stdout;
            assert!(status.contains("their figures stay"), "{status}");
        }
    }
    files.dedup();
    assert!(files.len() > 4, "{} files", files.len());
    let last = last.expect("a batch");
    scene.detach(&target);
    assert!(!new_file(&file).exists() && length(&file) <= MOST);
    let [allocations, frees, reallocations, bytes, live, blocks, peak] = totals(&scene, &file);
    let [a, f, r, b] = between(&first, &last);
    // Making a thread allocates, and ending one frees.
    let by_threads = scene.report(&file);
    assert_eq!(reallocations, r, "{:#}", by_threads.brief());
    assert!((a..a + 200).contains(&allocations) && (f..f + 200).contains(&frees));
    assert!((b..b + 200_000).contains(&bytes), "{bytes} of {b}");
    assert!(live >= last.0[4] - first.0[4] && blocks >= last.0[5] - first.0[5]);
    assert!(peak >= 1 << 20, "the peak was in the oldest part: {peak}");
    let long = by_threads.marked("folds.c", "long");
    assert_eq!(long.number("allocations"), last.0[7]);
    assert_eq!(by_threads.marked("folds.c", "again").number("reallocations"), r);
    target.quit();
}

#[test]
fn a_killed_collector_leaves_a_whole_recording() {
    let scene = Scene::new("folds-killed");
    for after in [0u64, 3, 9] {
        let mut target = Target::start(&program("folds.c"), &[]);
        let file = begin(&scene, &mut target);
        let first = Said::of(&target.ask("counts"));
        let new = new_file(&file);
        let mut last = Said(first.0);
        for i in 0..200 {
            last = Said::of(&target.ask("batch"));
            if i > after && new.exists() {
                break;
            }
            // A program that allocates without a pause could meet the bound first, which ends the recording.
            until("the fold has ended", || !new.exists());
        }
        let mut collector = Vec::new();
        until("somebody writes to the recording", || {
            // For a moment the new file has the name, and the collector has the old one open.
            collector = writers(&file);
            !collector.is_empty()
        });
        collector.iter().for_each(|pid| kill(Pid::from_raw(*pid), Signal::SIGKILL).expect("kill"));
        until("the collector has ended", || {
            collector.iter().all(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_err())
        });
        scene.prof(&["report", "r.prof", "--top", "1"]).ok("report");
        let _ = scene.prof(&["detach", &target.pid.to_string()]);
        assert!(!new.exists(), "the file of the fold is left");
        let r = scene.report(&file);
        let [a, _, r_, _] = between(&first, &last);
        assert_eq!(r.total("reallocations"), r_, "{:#}", r.brief());
        assert!((a..a + 200).contains(&r.total("allocations")), "{:#}", r.brief());
        target.quit();
        std::fs::remove_file(&file).expect("the recording");
    }
}

#[test]
fn what_does_not_go_with_it_is_refused() {
    let scene = Scene::new("folds-refused");
    let target = Target::start(&program("folds.c"), &[]);
    let pid = target.pid.to_string();
    for other in [&["--cull", "1s"][..], &["--aggregate"], &["--census"]] {
        let drop = ["attach", &pid, "-o", "r.prof", "--on-limit", "drop-oldest"];
        let out = scene.prof(&[&drop[..], other].concat());
        assert!(out.code == 2 && out.stderr.contains("drop-oldest"), "{out:?}");
    }
    assert!(!scene.path("r.prof").exists());
}

#[test]
fn a_file_of_another_with_the_new_files_name_stays() {
    let scene = Scene::new("folds-other");
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin(&scene, &mut target);
    let new = new_file(&file);
    std::fs::write(&new, "a diary").expect("written");
    for _ in 0..40 {
        target.ask("batch");
    }
    // It can't be folded, so it ends at its bound.
    until("the recording has ended", || writers(&file).is_empty());
    let report = scene.prof(&["info", "r.prof"]).ok("info").stdout;
    assert!(report.contains(".r.prof.fold"), "{report}");
    let _ = scene.prof(&["detach", &target.pid.to_string()]);
    assert_eq!(std::fs::read_to_string(&new).expect("the file"), "a diary");
    target.quit();
}
