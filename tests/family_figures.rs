//! Families whose recordings have figures of blocks that are not in them: commands on the folder take them as one recording.

use common::build::program;
use common::{Report, Scene, Target, until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Records two processes of a program together.
fn recorded(scene: &Scene, options: &[&str]) -> ([Target; 2], PathBuf) {
    // A name of its own, which no other test's processes have.
    let name = format!("figs-{}-{}", std::process::id(), options[0].trim_start_matches('-'));
    let name = &name[..name.len().min(15)];
    std::fs::copy(program("folds.c"), scene.path(name)).expect("copied");
    let mut targets = [(); 2].map(|()| Target::start(&scene.path(name), &[]));
    targets.iter_mut().for_each(|t| _ = t.ask("waits"));
    let out = scene.prof(&[&["attach", "--name", name], options].concat()).ok("attach");
    (targets, scene.path(out.stdout.trim()))
}

/// Checks that the figures of a folder are the sums of those of its processes, and that commands on recordings take it.
fn assert_sums(scene: &Scene, folder: &Path, targets: &[Target; 2], note: &str) -> Report {
    let all = scene.report(folder);
    let parts =
        targets.each_ref().map(|t| scene.report_with(folder, &["--pid", &t.pid.to_string()]));
    let sum = |figure: &str| parts.iter().map(|r| r.number(figure)).sum::<u64>();
    for figure in [
        "allocations",
        "frees",
        "reallocations",
        "allocated_bytes",
        "live_bytes",
        "live_count",
        "temporary",
    ] {
        let figure = format!("/totals/{figure}");
        assert_eq!(all.number(&figure), sum(&figure), "{figure}");
        assert!(sum(&figure) > 0 || figure.ends_with("temporary"), "{figure}");
    }
    let (peak, each) = (all.total("peak_bytes"), parts.each_ref().map(|r| r.total("peak_bytes")));
    assert!(each[0].max(each[1]) <= peak && peak <= each[0] + each[1], "{peak} of {each:?}");
    // Stacks of the same code are the same stack.
    assert_eq!(all.number("/totals/groups"), parts[0].number("/totals/groups"));
    let text = scene.prof(&["report", &folder.to_string_lossy()]).ok("report").stdout;
    assert!(text.contains(note), "{text}");
    let folder = folder.to_str().expect("UTF-8");
    let flat = |args: &[&str]| scene.prof(args).ok("a command on the folder").stdout;
    let diff = flat(&["diff", folder, folder]);
    assert!(diff.contains("+0 B live in +0 blocks"), "{diff}");
    flat(&["leaks", folder]);
    flat(&["info", folder]);
    for format in ["folded", "flamegraph", "html", "pprof"] {
        let file = scene.path(format);
        flat(&["export", format, folder, "--force", "-o", file.to_str().expect("UTF-8")]);
        assert!(std::fs::metadata(&file).is_ok_and(|m| m.len() > 0), "{format}");
    }
    all
}

fn detach(scene: &Scene, folder: &Path) {
    scene.prof(&["detach", &folder.to_string_lossy()]).ok("detach");
}

#[test]
fn figures_alone_and_culled_blocks_are_added_up() {
    let scene = Scene::new("figures");
    for (options, note) in [
        (["--aggregate", "--every", "1s"], "an upper bound"),
        (["--cull", "10s", "--no-log"], "upper bounds"),
    ] {
        let (mut targets, folder) = recorded(&scene, &options);
        targets.iter_mut().for_each(|t| _ = t.ask("batch"));
        // They grow while they are read.
        std::thread::sleep(Duration::from_millis(1500));
        scene.report(&folder);
        targets[1].ask("batch");
        detach(&scene, &folder);
        let all = assert_sums(&scene, &folder, &targets, note);
        all.marked("folds.c", "short");
        each_process(&scene, &folder, &targets);
    }
}

/// Checks `--by-process` of the commands that have it.
fn each_process(scene: &Scene, folder: &Path, targets: &[Target; 2]) {
    let folder = folder.to_str().expect("UTF-8");
    for command in ["info", "check", "leaks", "fragmentation", "allocator", "maps"] {
        let limit: &[&str] = if command == "check" { &["--max-peak", "1TiB"] } else { &[] };
        let args = [&[command, folder, "--by-process"], limit].concat();
        let text = scene.prof(&args);
        if text.stderr.contains("asks for single blocks") {
            assert!(["fragmentation", "allocator"].contains(&command), "{text:#?}");
            continue;
        }
        let text = text.ok(command).stdout;
        assert_eq!(text.matches("##### ").count(), 2, "{command}: {text}");
        targets.iter().for_each(|t| assert!(text.contains(&format!("pid {} #####", t.pid))));
        let json = scene.prof(&[&args[..], &["--format", "json"]].concat()).ok(command).stdout;
        let all = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
        let all: Vec<Value> = all.map(|v| v.expect("JSON")).collect();
        assert_eq!(all.len(), 2, "{command}: {json}");
    }
    let out = scene.path("heap.{pid}.folded");
    let out = out.to_str().expect("UTF-8");
    let export = |name: &str| {
        scene.prof(&["export", "folded", folder, "--by-process", "--cost", "allocated", "-o", name])
    };
    export(out).ok("export");
    for t in targets {
        let path = out.replace("{pid}", &t.pid.to_string());
        let text = std::fs::read_to_string(&path).expect("a file for each process");
        assert!(text.contains("short_lived"), "{text}");
        std::fs::remove_file(path).expect("removed");
    }
    let without = export("heap.folded");
    assert!(without.code == 2 && without.stderr.contains("{pid}"), "{without:#?}");
}

#[test]
fn folded_recordings_are_joined() {
    let scene = Scene::new("folded-family");
    let bounds = ["--max-disk", "4MiB", "--on-limit", "drop-oldest", "--compress", "none"];
    let (mut targets, folder) = recorded(&scene, &bounds);
    let has_folded = |pid: i32| {
        let pid = pid.to_string();
        let out = scene.prof(&["report", &folder.to_string_lossy(), "--pid", &pid]).ok("report");
        out.stdout.contains("left the recording")
    };
    // Only one of them meets its bound.
    until("the oldest part is dropped", || {
        targets[0].ask("batch");
        has_folded(targets[0].pid)
    });
    targets[1].ask("batch");
    assert!(!has_folded(targets[1].pid));
    // They grow while they are read, and one may be folded meanwhile.
    scene.report(&folder);
    detach(&scene, &folder);
    let all = assert_sums(&scene, &folder, &targets, "upper bounds");
    all.marked("folds.c", "long");
    // A recording that can't be read any more is no part of the sums, and that is said.
    let name = format!(".{}.prof", targets[1].pid);
    let mut files = std::fs::read_dir(&folder).expect("a folder").flatten().map(|f| f.path());
    let lost = files.find(|p| p.to_string_lossy().ends_with(&name)).expect("its recording");
    std::fs::write(&lost, "").expect("emptied");
    let name = lost.file_name().expect("a name").to_string_lossy();
    for more in [None, Some("--by-process")] {
        let shown = folder.to_string_lossy();
        let args: Vec<&str> = ["report", &shown].into_iter().chain(more).collect();
        let out = scene.prof(&args).ok("report");
        assert!(out.stderr.contains("1 recording is gone or can't be read"), "{out:#?}");
        assert!(out.stderr.contains(&*name), "{out:#?}");
    }
}
