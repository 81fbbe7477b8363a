//! Families whose recordings have figures of blocks that are not in them: commands on the folder take them as one recording.

use common::build::program;
use common::disk::{small_disk, unmount};
use common::family::Family;
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
        let growing = scene.report(&folder);
        // Events that are held back do not make it younger.
        let status = scene.prof(&["status", &folder.to_string_lossy()]).ok("status").stdout;
        assert!(status.contains("attached for") && !status.contains("for 0 ns"), "{status}");
        assert_eq!(growing.at("/recording/complete"), false, "{:#}", growing.brief());
        assert_eq!(growing.number("/recording/joined/growing"), 2);
        targets[1].ask("batch");
        detach(&scene, &folder);
        let all = assert_sums(&scene, &folder, &targets, note);
        all.marked("folds.c", "short");
        assert_eq!(all.at("/recording/complete"), true, "{:#}", all.brief());
        assert_eq!(all.at("/recording/joined/peaks_at_most"), true, "{:#}", all.brief());
        table_of_processes(&scene, &folder, &targets);
        each_process(&scene, &folder, &targets);
    }
}

/// Checks `prof report --by-process`: its lines, their order, and what is said below them. A copy of a recording is not
/// counted.
fn table_of_processes(scene: &Scene, folder: &Path, targets: &[Target; 2]) {
    let name = folder.to_str().expect("UTF-8");
    let before = scene.report(folder).total("allocations");
    let suffix = format!(".{}.prof", targets[0].pid);
    let mut files = std::fs::read_dir(folder).expect("a folder").flatten().map(|f| f.path());
    let one = files.find(|p| p.to_string_lossy().ends_with(&suffix)).expect("its recording");
    // Its name comes first.
    let copy = folder.join("a copy.prof");
    std::fs::copy(one, &copy).expect("copied");
    assert_eq!(scene.report(folder).total("allocations"), before);
    let table = |more: &[&str]| {
        let out = scene.prof(&[&["report", name, "--by-process"], more].concat()).ok("by process");
        assert!(out.stderr.contains("a copy.prof is left out"), "{out:#?}");
        out.stdout
    };
    let all = table(&["--sort", "allocations"]);
    let at = targets.each_ref().map(|t| all.find(&format!("\n{}", t.pid)).expect("a line"));
    assert!(at[1] < at[0], "the second has allocated more: {all}");
    let pids = targets.each_ref().map(|t| t.pid.to_string());
    let note = all.lines().find(|l| l.starts_with("note ")).expect("a note");
    assert!(pids.iter().any(|pid| note.contains(pid)), "{all}");
    let one = table(&["--sort", "allocations", "--top", "1", "--reverse"]);
    assert!(one.contains(&pids[0]) && one.contains("and 1 process more"), "{one}");
    assert!(!one.lines().nth(1).expect("a line").contains(&pids[1]), "{one}");
    let refused = scene.prof(&["report", name, "--by-process", "--sort", "age"]);
    assert!(refused.code == 2 && refused.stderr.contains("sorted by size"), "{refused:#?}");
    std::fs::remove_file(copy).expect("removed");
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
    let report = scene.report(&folder);
    assert_eq!(report.at("/recording/complete"), false, "{:#}", report.brief());
    assert_eq!(report.number("/recording/joined/lost"), 1);
    let shown = folder.to_string_lossy();
    let check =
        |more: &[&str]| scene.prof(&[&["check", &shown, "--max-peak", "1TiB"], more].concat());
    let warned = check(&[]).ok("check").stdout;
    assert!(warned.contains("warning   the recording is not complete"), "{warned}");
    let strict = check(&["--strict"]);
    assert!(strict.code == 1 && strict.stdout.contains("FAILED    the recording"), "{strict:#?}");
}

#[test]
fn a_full_disk_puts_the_joined_recording_into_the_cache() {
    let scene = Scene::new("joined-full");
    if !small_disk(&scene, "a_full_disk_puts_the_joined_recording_into_the_cache", 8) {
        return;
    }
    let mut family = Family::start("joined-full-family");
    let (child, folder) = (family.fork(), scene.path("disk/all").display().to_string());
    let root = family.target.pid.to_string();
    let attach = ["attach", "--tree", &root, "-o", &folder, "--keep-free", "0"];
    scene.prof(&attach).ok("attach");
    let counts = family.batch();
    scene.prof(&["detach", &folder]).ok("detach");
    let fill = "cat /dev/zero > disk/rest; test -s disk/rest";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", fill]);
    scene.run(command).ok("the disk is full");
    let report = |cache: &str| {
        let mut report = scene.command(&["report", &folder, "--format", "json"]);
        report.env("XDG_CACHE_HOME", scene.path(cache));
        scene.run(report)
    };
    let none = report("disk/cache");
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.stderr.contains("XDG_CACHE_HOME"), "{none:?}");
    let out = report("cache").ok("report");
    let json: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let made: u64 = [child, family.target.pid].iter().map(|pid| counts[pid][0]).sum();
    assert!(json["totals"]["allocations"].as_u64() >= Some(made), "{json:#}");
    assert!(scene.path("cache/prof/joined").is_dir());
    unmount(&scene);
    family.target.quit();
}
