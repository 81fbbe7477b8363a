//! `--on-limit aggregate`: at its bound a recording of all blocks goes over to figures by stack alone.

use common::build::program;
use common::disk::{small_disk, unmount};
use common::{Scene, Target, until, writers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What the program says: allocations, frees, reallocations, allocated bytes, live bytes and blocks, peak, long-lived blocks.
struct Said([u64; 8]);

impl Said {
    fn of(line: &str) -> Self {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        Self(numbers.try_into().expect("eight numbers"))
    }
}

/// Begins to record a program whose calls of `pthread_create` that allocate come first.
fn begin(scene: &Scene, target: &mut Target, file: &str, bounds: &[&str]) -> PathBuf {
    target.ask("waits");
    let over = ["--on-limit", "aggregate", "--every", "100ms"];
    let fast = ["--compress", "none", "--ring-size", "16MiB"];
    scene.attach_with(target, &[&["-o", file], &over[..], &fast, bounds].concat())
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len())
}

fn new_file(recording: &Path) -> PathBuf {
    recording.with_file_name(".r.prof.fold")
}

/// Waits until the collector has written what there is.
fn settle(recording: &Path) {
    let state = || (length(recording), length(&new_file(recording)));
    until("the collector has caught up", || {
        let before = state();
        std::thread::sleep(Duration::from_millis(30));
        before == state()
    });
}

/// Waits until all that the program has done so far is in the file. A collector that gets no processor looks like one that has
/// caught up; but it writes a mark only behind a look at the ring, and the second one behind a look that began later.
fn all_written(scene: &Scene, target: &Target, recording: &Path) {
    for _ in 0..2 {
        scene.prof(&["mark", &target.pid.to_string()]).ok("mark");
    }
    settle(recording);
}

fn status(scene: &Scene, target: &Target) -> Value {
    let out = scene.prof(&["status", &target.pid.to_string(), "--format", "json"]).ok("status");
    serde_json::from_str(&out.stdout).expect("JSON")
}

fn went_over(scene: &Scene, target: &Target) -> bool {
    status(scene, target)["figures_since"].is_u64()
}

/// Has the program allocate until the recording has gone over, within its bound of so many bytes.
fn go_over(scene: &Scene, target: &mut Target, file: &Path, most: u64) {
    for _ in 0..300 {
        target.ask("batch");
        assert!(length(file) + length(&new_file(file)) <= most, "the files are too long");
        std::thread::sleep(Duration::from_millis(20));
        if went_over(scene, target) {
            return;
        }
    }
    panic!("it has not gone over: {:#}", status(scene, target));
}

/// Detaches, and checks that all figures are those of the program, and that nothing is left beside the recording.
#[track_caller]
fn assert_exact(scene: &Scene, target: &Target, file: &Path, first: &Said, last: &Said) {
    scene.detach(target);
    assert!(!new_file(file).exists(), "the new file is left");
    let r = scene.report(file);
    assert_eq!(r.number("/recording/lost_events"), 0, "{:#}", r.brief());
    let of = |i: usize| last.0[i] - first.0[i];
    assert_eq!(r.total("reallocations"), of(2), "{:#}", r.brief());
    // Making a thread allocates, and ending one frees.
    assert!((of(0)..of(0) + 400).contains(&r.total("allocations")), "{:#}", r.brief());
    assert!((of(1)..of(1) + 400).contains(&r.total("frees")), "{:#}", r.brief());
    // Each block of 64 bytes is reallocated once, and gone at once.
    let short = r.marked("folds.c", "short");
    assert_eq!((short.number("allocations"), short.number("live_bytes")), (of(2), 0));
    assert_eq!(short.number("peak_bytes"), 64);
    assert_eq!(r.marked("folds.c", "again").number("reallocations"), of(2));
    let long = r.marked("folds.c", "long");
    assert_eq!(long.number("allocations"), last.0[7] - first.0[7]);
    assert_eq!(long.number("live_bytes"), of(4), "{}", long.numbers());
}

#[test]
fn figures_stay_exact_over_the_change() {
    const MOST: u64 = 4 << 20;
    let scene = Scene::new("over");
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin(&scene, &mut target, "r.prof", &["--max-disk", "4MiB"]);
    let pid = target.pid.to_string();
    let first = Said::of(&target.ask("counts"));
    let text = scene.prof(&["status", &pid]).ok("status").stdout;
    assert!(text.contains("figures by stack are made of the events"), "{text}");
    target.ask("high");
    // Before the change there are single blocks.
    target.ask("batch");
    settle(&file);
    scene.prof(&["export", "csv", "r.prof", "-o", "r.csv"]).ok("csv");
    go_over(&scene, &mut target, &file, MOST);
    let text = scene.prof(&["status", &pid]).ok("status").stdout;
    assert!(text.contains("by stack alone since"), "{text}");
    assert_eq!(status(&scene, &target)["on_limit"], "aggregate");
    let text = scene.prof(&["report", "r.prof", "--top", "1"]).ok("report").stdout;
    assert!(text.contains("--on-limit aggregate") && text.contains("still recording"), "{text}");
    // What needs single blocks says so.
    let trace = scene.prof(&["trace", &pid]);
    assert!(trace.code == 3 && trace.stderr.contains("without --on-limit"), "{trace:?}");
    let csv = scene.prof(&["export", "csv", "r.prof"]);
    assert!(csv.code != 0 && csv.stderr.contains("figures by stack"), "{csv:?}");
    let mark = scene.prof(&["mark", &pid, "deployed"]).ok("mark").stderr;
    assert!(mark.contains("--base"), "{mark}");
    let after = length(&file);
    let mut last = Said(first.0);
    for _ in 0..20 {
        // The ring gets full where the collector has little of a processor.
        for _ in 0..5 {
            last = Said::of(&target.ask("batch"));
            assert!(length(&file) <= MOST, "{} bytes", length(&file));
        }
        until("the figures are written", || {
            scene.report(&file).total("reallocations") == last.0[2] - first.0[2]
        });
    }
    assert!(length(&file) < after + (256 << 10), "{} bytes after {after}", length(&file));
    assert_exact(&scene, &target, &file, &first, &last);
    let r = scene.finished(&file);
    assert!(r.total("peak_bytes") >= 1 << 20, "the peak was before the change: {:#}", r.brief());
    assert!(r.number("/recording/figures_since_ns") > 0, "{:#}", r.brief());
    for args in [
        &["report", "r.prof", "--histogram"][..],
        &["report", "r.prof", "--group-by", "function"],
        &["report", "r.prof", "--peak"],
        &["leaks", "r.prof", "--all"],
        &["export", "html", "r.prof"],
        &["diff", "r.prof", "r.prof"],
        &["info", "r.prof"],
        &["export", "folded", "r.prof"],
        &["export", "massif", "r.prof"],
    ] {
        let out = scene.prof(args).ok(&args.join(" ")).stdout;
        assert!(!out.is_empty(), "{args:?}");
    }
    target.quit();
}

/// `prof leaks --live` follows the recording over to its figures, if these answer the question.
#[test]
fn looks_at_what_is_live_go_on_over_the_change() {
    let scene = Scene::new("over-live");
    let mut target = Target::start(&program("folds.c"), &[]);
    let pid = target.pid.to_string();
    let file = begin(&scene, &mut target, "r.prof", &["--max-disk", "4MiB"]);
    let follow = |name: &str, args: &[&str]| {
        let out = |end: &str| {
            std::fs::File::create(scene.path(&format!("{name}.{end}"))).expect("a file")
        };
        let mut c = std::process::Command::new(Scene::binary());
        c.args(args).stdout(out("out")).stderr(out("err"));
        c.spawn().expect("prof")
    };
    let text = |file: &str| std::fs::read_to_string(scene.path(file)).expect("text");
    let mut looks = follow("looks", &["leaks", &pid, "--live", "100ms", "--format", "json"]);
    let mut blocks = follow("blocks", &["leaks", &pid, "--live", "100ms", "--older", "1ms"]);
    let mut trace = follow("trace", &["trace", &pid]);
    target.ask("batch");
    until("all follow", || {
        target.ask("batch");
        settle(&file);
        ["looks.out", "blocks.out", "trace.out"].iter().all(|f| text(f).contains("long_lived"))
    });
    go_over(&scene, &mut target, &file, 4 << 20);
    // The last look, of a line.
    let last = || -> Value {
        let all = text("looks.out");
        let line = all.lines().rfind(|line| line.ends_with('}')).unwrap_or("{}");
        serde_json::from_str(line).expect("JSON")
    };
    until("it is told", || text("looks.err").contains("gone over to figures"));
    let said = Said::of(&target.ask("batch"));
    until("it has the figures", || last()["count"].as_u64() >= Some(said.0[5] - 10));
    let frames = last()["top"].to_string();
    assert!(frames.contains("long_lived"), "{frames}");
    // Which blocks are old, figures don't tell, nor what happens.
    for (child, err) in [(&mut blocks, "blocks.err"), (&mut trace, "trace.err")] {
        let code = child.wait().expect("an end").code();
        assert!(code == Some(1) && text(err).contains("figures by stack alone"), "{}", text(err));
    }
    kill(Pid::from_raw(looks.id() as i32), Signal::SIGINT).expect("SIGINT");
    assert!(looks.wait().expect("an end").success(), "{}", text("looks.err"));
    scene.detach(&target);
    target.quit();
}

/// A collector that gets no processor finds more in the ring than the recording may have.
#[test]
fn a_ring_that_holds_more_than_the_bound_does_not_end_the_recording() {
    const MOST: u64 = 4 << 20;
    let scene = Scene::new("over-more");
    for how in ["aggregate", "drop-oldest"] {
        let mut target = Target::start(&program("folds.c"), &[]);
        target.ask("waits");
        let bounds = ["--max-disk", "4MiB", "--ring-size", "64MiB", "--on-limit", how];
        let file = scene.attach_with(&target, &[&["-o", "r.prof"][..], &bounds].concat());
        let first = Said::of(&target.ask("counts"));
        target.ask("batch");
        let collector = writers(&file);
        let send = |signal| {
            collector.iter().for_each(|pid| kill(Pid::from_raw(*pid), signal).expect("a signal"));
        };
        let mut last = Said(first.0);
        // At the second time the rest is read by a detach.
        for round in 0..2 {
            send(Signal::SIGSTOP);
            (0..60).for_each(|_| last = Said::of(&target.ask("batch")));
            send(Signal::SIGCONT);
            if round == 0 && how == "aggregate" {
                until("it has gone over", || went_over(&scene, &target));
            }
        }
        assert_exact(&scene, &target, &file, &first, &last);
        assert!(length(&file) <= MOST, "{} bytes", length(&file));
        target.quit();
        std::fs::remove_file(&file).expect("the recording");
    }
}

#[test]
fn a_collector_that_is_killed_meanwhile_leaves_a_whole_recording() {
    let scene = Scene::new("over-killed");
    let mut caught = 0;
    for _ in 0..8 {
        let mut target = Target::start(&program("folds.c"), &[]);
        let file = begin(&scene, &mut target, "r.prof", &["--max-disk", "24MiB"]);
        let first = Said::of(&target.ask("counts"));
        let (new, collector) = (new_file(&file), writers(&file));
        let is_caught = AtomicBool::new(false);
        let mut last = Said(first.0);
        std::thread::scope(|s| {
            s.spawn(|| {
                let begun = std::time::Instant::now();
                while begun.elapsed() < Duration::from_secs(60) {
                    if new.exists() {
                        collector.iter().for_each(|p| _ = kill(Pid::from_raw(*p), Signal::SIGKILL));
                        break;
                    }
                }
                is_caught.store(true, Relaxed);
            });
            while !is_caught.load(Relaxed) {
                last = Said::of(&target.ask("batch"));
            }
        });
        until("the collector has ended", || {
            collector.iter().all(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_err())
        });
        let text = scene.prof(&["report", "r.prof", "--top", "1"]).ok("report").stdout;
        caught += usize::from(!text.contains("--on-limit aggregate"));
        let _ = scene.prof(&["detach", &target.pid.to_string()]);
        assert!(!new.exists(), "the new file is left");
        let r = scene.report(&file);
        let lost = r.number("/recording/lost_events");
        let all = last.0[0] - first.0[0];
        let has = r.total("allocations");
        // The ring may have got full before the collector's end was noticed.
        assert!(has <= all + 400 && (lost > 0 || has >= all), "{has} of {all}: {:#}", r.brief());
        assert!(has > 10_000, "{:#}", r.brief());
        target.quit();
        std::fs::remove_file(&file).expect("the recording");
        if caught >= 2 {
            return;
        }
    }
    panic!("no collector was caught in the midst of it");
}

/// Returns the free bytes of the small disk.
fn free_on(scene: &Scene) -> u64 {
    let s = nix::sys::statvfs::statvfs(&scene.path("disk")).expect("the disk");
    s.blocks_available() as u64 * s.fragment_size() as u64
}

#[test]
fn a_disk_that_is_full_for_a_while_puts_it_off() {
    let scene = Scene::new("over-full");
    if !small_disk(&scene, "a_disk_that_is_full_for_a_while_puts_it_off", 14) {
        return;
    }
    let mut target = Target::start(&program("folds.c"), &[]);
    let file = begin(&scene, &mut target, "disk/r.prof", &["--keep-free", "2MiB"]);
    let first = Said::of(&target.ask("counts"));
    until("it is long enough", || {
        target.ask("batch");
        settle(&file);
        length(&file) > 1 << 20
    });
    // Events that are written later would meet the bound, as the disk is made nearly full now.
    all_written(&scene, &target, &file);
    let others = scene.path("disk/others");
    let most = free_on(&scene) - (2 << 20) - (150 << 10);
    std::fs::write(&others, vec![1; most as usize]).expect("written");
    let failed = || status(&scene, &target)["folds"].clone();
    until("it has failed", || failed()["failed"].as_u64() > Some(0));
    assert!(failed()["over"] == true && failed()["error"].to_string().contains("for both files"));
    let info = scene.prof(&["info", "disk/r.prof"]).ok("info").stdout;
    assert!(info.contains("no figures by stack could be made of the events"), "{info}");
    std::fs::remove_file(&others).expect("removed");
    go_over(&scene, &mut target, &file, 14 << 20);
    let last = Said::of(&target.ask("batch"));
    settle(&file);
    assert_exact(&scene, &target, &file, &first, &last);
    target.quit();
    unmount(&scene);
}

#[test]
fn a_disk_without_any_room_afterwards_ends_the_recording() {
    let scene = Scene::new("over-none");
    if !small_disk(&scene, "a_disk_without_any_room_afterwards_ends_the_recording", 14) {
        return;
    }
    let mut target = Target::start(&program("folds.c"), &[]);
    let bounds = ["--max-disk", "4MiB", "--keep-free", "0"];
    let file = begin(&scene, &mut target, "disk/r.prof", &bounds);
    go_over(&scene, &mut target, &file, 4 << 20);
    let mut others = std::fs::File::create(scene.path("disk/others")).expect("a file");
    while std::io::Write::write_all(&mut others, &[1; 4096]).is_ok() {}
    until("the recording has ended", || {
        target.ask("batch");
        writers(&file).is_empty()
    });
    let r = scene.report(&file);
    assert!(r.total("allocations") > 10_000, "{:#}", r.brief());
    let _ = scene.prof(&["detach", &target.pid.to_string()]);
    target.quit();
    unmount(&scene);
}

#[test]
fn what_does_not_go_with_it_is_refused() {
    let scene = Scene::new("over-refused");
    let target = Target::start(&program("folds.c"), &[]);
    let pid = target.pid.to_string();
    for (other, word) in [
        (&["--aggregate"][..], "figures already"),
        (&["--cull", "1s"], "figures already"),
        (&["--sample=512KiB"], "estimates"),
        (&["--max-cpu", "2%"], "estimates"),
        (&["--census"], "--on-limit"),
    ] {
        let over = ["attach", &pid, "-o", "r.prof", "--on-limit", "aggregate"];
        let out = scene.prof(&[&over[..], other].concat());
        assert!(out.code == 2 && out.stderr.contains(word), "{other:?}: {out:?}");
    }
    assert!(!scene.path("r.prof").exists());
}

#[test]
fn a_killed_collector_of_an_attach_that_stays_is_named() {
    let scene = Scene::new("over-foreground");
    let mut target = Target::start(&program("folds.c"), &[]);
    let pid = target.pid.to_string();
    let mut command = std::process::Command::new(Scene::binary());
    command.args(["attach", &pid, "--foreground", "--look", "0s", "-o", "r.prof"]);
    let attach = command
        .current_dir(scene.path("."))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("prof");
    let file = scene.path("r.prof");
    until("it records", || {
        target.ask("batch");
        length(&file) > 200 << 10
    });
    settle(&file);
    // The attach itself reads the recording.
    let collector = writers(&file).into_iter().find(|p| *p != attach.id() as i32);
    kill(Pid::from_raw(collector.expect("a collector")), Signal::SIGKILL).expect("kill");
    let out = attach.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("was killed (SIGKILL"), "{text}");
    assert!(!text.contains("disk"), "{text}");
    let _ = scene.prof(&["detach", &pid]);
    target.quit();
}
