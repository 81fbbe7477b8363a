//! `--on-limit drop-oldest`: a recording that stays below its bound, whatever ends meanwhile.

use common::build::program;
use common::disk::{small_disk, unmount};
use common::{Scene, Target, numbers_in, until, writers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    begin_with(scene, target, "r.prof", &["--max-disk", "4MiB"])
}

/// Begins to record a program to a file within bounds.
fn begin_with(scene: &Scene, target: &mut Target, file: &str, bounds: &[&str]) -> PathBuf {
    target.ask("waits");
    let drop = ["--on-limit", "drop-oldest", "--compress", "none", "--ring-size", "16MiB"];
    scene.attach_with(target, &[&["-o", file], &drop[..], bounds].concat())
}

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| std::os::unix::fs::MetadataExt::ino(&m))
}

/// Returns what `prof status` says of folds that have failed.
fn failed_folds(scene: &Scene, target: &Target) -> (u64, String) {
    let out = scene.prof(&["status", &target.pid.to_string(), "--format", "json"]).ok("status");
    let status: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let folds = &status["folds"];
    (folds["failed"].as_u64().unwrap_or(0), folds["error"].as_str().unwrap_or("").to_owned())
}

/// Kills the process that folds a recording, if there is one.
fn kill_fold(recording: &Path) {
    for pid in numbers_in(Path::new("/proc")) {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = words.split(|b| *b == 0).collect();
        if words.get(1) == Some(&&b"fold"[..])
            && words.contains(&recording.as_os_str().as_encoded_bytes())
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Detaches, and checks that the totals are those of the program, and that nothing is left beside the recording.
#[track_caller]
fn assert_exact(scene: &Scene, target: &Target, file: &Path, first: &Said, last: &Said) {
    scene.detach(target);
    assert!(!new_file(file).exists(), "the file of the fold is left");
    let r = scene.report(file);
    let [a, f, r_, _] = between(first, last);
    assert_eq!(r.total("reallocations"), r_, "{:#}", r.brief());
    assert!((a..a + 200).contains(&r.total("allocations")), "{:#}", r.brief());
    assert!((f..f + 200).contains(&r.total("frees")), "{:#}", r.brief());
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len())
}

fn new_file(recording: &Path) -> PathBuf {
    recording.with_file_name(".r.prof.fold")
}

/// Waits until the collector has written what there is, and no fold is in progress: a program that allocates without a
/// pause could meet the bound first, where processors are few.
fn calm(recording: &Path) {
    let new = new_file(recording);
    let state = || (inode(recording), length(recording), new.exists());
    until("the collector has caught up", || {
        let before = state();
        std::thread::sleep(Duration::from_millis(20));
        !before.2 && before == state()
    });
}

/// Waits until the collector has written what there is, whatever stands beside the recording.
fn settle(recording: &Path) {
    until("the collector has caught up", || {
        let before = length(recording);
        std::thread::sleep(Duration::from_millis(30));
        before == length(recording)
    });
}

/// Has the program allocate, and waits until no fold is in progress.
fn batch(target: &mut Target, recording: &Path) -> Said {
    let said = Said::of(&target.ask("batch"));
    let new = new_file(recording);
    assert!(length(recording) + length(&new) <= MOST, "both files are longer than the bound");
    calm(recording);
    said
}

/// Has the program allocate until a recording that can't be folded has ended. A fold needs time to fail, and the bound must
/// not be met before.
fn batches_until_it_ends(target: &mut Target, recording: &Path, wait: fn(&Path)) {
    for _ in 0..300 {
        target.ask("batch");
        wait(recording);
        if writers(recording).is_empty() {
            break;
        }
    }
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
            calm(&file);
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
    batches_until_it_ends(&mut target, &file, settle);
    // It can't be folded, so it ends at its bound.
    until("the recording has ended", || writers(&file).is_empty());
    let report = scene.prof(&["info", "r.prof"]).ok("info").stdout;
    assert!(report.contains(".r.prof.fold"), "{report}");
    let _ = scene.prof(&["detach", &target.pid.to_string()]);
    assert_eq!(std::fs::read_to_string(&new).expect("the file"), "a diary");
    target.quit();
}

#[test]
fn a_fold_whose_process_is_killed_is_tried_again() {
    let scene = Scene::new("folds-tried");
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin(&scene, &mut target);
    let first = Said::of(&target.ask("counts"));
    let mut failed = (0, String::new());
    // A fold that ends before it can be killed drops the oldest part.
    for _ in 0..300 {
        target.ask("batch");
        while new_file(&file).exists() {
            kill_fold(&file);
        }
        calm(&file);
        failed = failed_folds(&scene, &target);
        if failed.0 > 0 {
            break;
        }
    }
    assert!(failed.0 > 0 && failed.1.contains("was killed"), "{failed:?}");
    let text = scene.prof(&["status", &target.pid.to_string()]).ok("status").stdout;
    assert!(text.contains("could not be dropped"), "{text}");
    let note = scene.prof(&["info", "r.prof"]).ok("info").stdout;
    assert!(note.contains("could not be dropped") && note.contains("was killed"), "{note}");
    let before = inode(&file);
    until("it is tried again", || inode(&file) != before && !new_file(&file).exists());
    let last = batch(&mut target, &file);
    let note = scene.prof(&["info", "r.prof"]).ok("info").stdout;
    assert!(note.contains("could not be dropped"), "a fold keeps it: {note}");
    assert_exact(&scene, &target, &file, &first, &last);
    target.quit();
}

#[test]
fn a_fold_without_memory_leaves_the_recording_whole() {
    let scene = Scene::new("folds-memory");
    let mut target = Target::start(&program("folds.c"), &[]);
    let few = ["--max-disk", "4MiB", "--fold-memory", "1MiB"];
    let file = begin_with(&scene, &mut target, "r.prof", &few);
    batches_until_it_ends(&mut target, &file, calm);
    until("the recording has ended", || writers(&file).is_empty());
    let info = scene.prof(&["info", "r.prof"]).ok("info").stdout;
    assert!(info.contains("ended early") && info.contains("--fold-memory lets it take"), "{info}");
    assert!(!new_file(&file).exists());
    let r = scene.report(&file);
    assert!(r.total("allocations") > 1000, "{:#}", r.brief());
    target.quit();
}

/// Size of the disks in megabytes.
const DISK: u32 = 14;

/// Returns the free bytes of the small disk.
fn free_on(scene: &Scene) -> u64 {
    let s = nix::sys::statvfs::statvfs(&scene.path("disk")).expect("the disk");
    s.blocks_available() as u64 * s.fragment_size() as u64
}

#[test]
fn room_on_the_file_system_is_a_bound_too() {
    folds_for_room("folds-free", "2MiB", 2 << 20);
}

#[test]
fn a_file_system_that_may_get_full_is_a_bound_too() {
    folds_for_room("folds-no-reserve", "0", 1);
}

/// Records on a small disk, and asserts that folds keep at least so much of it free.
fn folds_for_room(name: &str, keep: &str, at_least: u64) {
    let scene = Scene::new(name);
    if !small_disk(&scene, name, DISK) {
        return;
    }
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin_with(&scene, &mut target, "disk/r.prof", &["--keep-free", keep]);
    let first = Said::of(&target.ask("counts"));
    let (mut files, mut last, mut least) = (vec![inode(&file)], None, u64::MAX);
    for _ in 0..80 {
        last = Some(Said::of(&target.ask("batch")));
        least = least.min(free_on(&scene));
        calm(&file);
        files.push(inode(&file));
    }
    files.dedup();
    assert!(files.len() > 2, "{} files", files.len());
    assert!(least >= at_least, "{least} bytes were left");
    assert_exact(&scene, &target, &file, &first, &last.expect("a batch"));
    target.quit();
    unmount(&scene);
}

#[test]
fn a_disk_that_others_fill_during_a_fold_leaves_the_recording_whole() {
    let scene = Scene::new("folds-full");
    if !small_disk(&scene, "a_disk_that_others_fill_during_a_fold", DISK) {
        return;
    }
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin_with(&scene, &mut target, "disk/r.prof", &["--keep-free", "2MiB"]);
    let first = Said::of(&target.ask("counts"));
    until("it is long enough", || {
        target.ask("batch");
        calm(&file);
        length(&file) > 1 << 20
    });
    // The rest is too little for a fold, and enough to go on.
    let others = scene.path("disk/others");
    let most = free_on(&scene) - (2 << 20) - (150 << 10);
    std::fs::write(&others, vec![1; most as usize]).expect("written");
    let mut failed = (0, String::new());
    until("the fold has failed", || {
        failed = failed_folds(&scene, &target);
        failed.0 > 0
    });
    assert!(failed.1.contains("for both files"), "{failed:?}");
    let before = inode(&file);
    assert!(!writers(&file).is_empty(), "it goes on");
    std::fs::remove_file(&others).expect("removed");
    // The file system has room again: the next fold is due some batches later.
    until("it is tried again", || {
        target.ask("batch");
        calm(&file);
        inode(&file) != before
    });
    let last = Said::of(&target.ask("batch"));
    calm(&file);
    assert_exact(&scene, &target, &file, &first, &last);
    target.quit();
    unmount(&scene);
}

#[test]
fn a_disk_without_any_room_ends_the_recording() {
    let scene = Scene::new("folds-none");
    if !small_disk(&scene, "a_disk_without_any_room_ends_the_recording", 3) {
        return;
    }
    let mut target = Target::start(&program("folds.c"), &[]);
    let bounds = ["--max-disk", "6MiB", "--keep-free", "0"];
    let file = begin_with(&scene, &mut target, "disk/r.prof", &bounds);
    target.ask("batch");
    target.ask("batch");
    calm(&file);
    // Neither file has room, whether a fold is due or not.
    let mut others = std::fs::File::create(scene.path("disk/others")).expect("a file");
    while std::io::Write::write_all(&mut others, &[1; 4096]).is_ok() {}
    until("the recording has ended", || {
        target.ask("batch");
        writers(&file).is_empty()
    });
    let info = scene.prof(&["info", "disk/r.prof"]).ok("info").stdout;
    // The file of a fold may have taken the room for the reason.
    assert!(info.contains("No space left") || info.contains("not complete"), "{info}");
    assert!(!new_file(&file).exists(), "the file of the fold is left");
    let r = scene.report(&file);
    assert!(r.total("allocations") > 1000, "{:#}", r.brief());
    let _ = scene.prof(&["detach", &target.pid.to_string()]);
    target.quit();
    unmount(&scene);
}

#[test]
fn what_nothing_holds_is_found_across_folds() {
    let scene = Scene::new("folds-lost");
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin(&scene, &mut target);
    let pid = target.pid.to_string();
    target.ask("lose");
    for args in [
        &["reach", &pid, "--top", "0", "--format", "json"][..],
        &["leaks", &pid, "--prove", "--top", "0", "--format", "json"],
        &["holds", &pid, "--format", "json"],
    ] {
        // A fold begins and ends while it looks. After a second one it would have to begin anew.
        let command: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let out = std::thread::scope(|s| {
            let look = s.spawn(|| scene.prof(&command));
            let before = inode(&file);
            while inode(&file) == before {
                batch(&mut target, &file);
            }
            look.join().expect("it ends")
        });
        assert!(out.code == 0, "{args:?}: {out:?}");
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        let text = report.to_string();
        assert!(args[0] == "holds" || text.contains("lost"), "{args:?}: {text}");
        if args[0] == "reach" {
            let all = report["top"].as_array().expect("stacks");
            let of = |name: &str| -> u64 {
                let has = |s: &&Value| s["frames"].to_string().contains(&format!("\"{name}\""));
                all.iter().filter(has).filter_map(|s| s["direct"]["blocks"].as_u64()).sum()
            };
            // One may still stand in a register or on the stack.
            assert!((39..=40).contains(&of("lost")), "{text}");
            assert_eq!(of("long_lived"), 0, "{text}");
        }
    }
    scene.detach(&target);
    target.quit();
}
