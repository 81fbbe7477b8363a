//! Recordings made from recordings, end to end: stripped, packed, extracted.

use common::build::{line_of, program};
use common::{Report, Scene, Target};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn record(scene: &Scene, program: &Path, options: &[&str], args: &[&str]) {
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", "r.prof"]).args(options).arg("--").arg(program).args(args);
    scene.run(c).ok("prof run");
}

#[track_caller]
fn report(scene: &Scene, file: &str, more: &[&str]) -> Report {
    scene.report_with(Path::new(file), more)
}

/// Returns the totals of a report, and the figures of each stack.
fn figures(r: &Report) -> (String, Vec<String>) {
    let mut groups: Vec<String> = r.groups().map(|g| g.0.to_string()).collect();
    groups.sort();
    (r.at("/totals").to_string(), groups)
}

#[test]
fn a_stripped_recording_has_the_same_totals_in_less() {
    let scene = Scene::new("strip");
    record(&scene, &program("leaks.c"), &[], &["3000"]);
    let args = ["strip", "r.prof", "-o", "s.prof", "--threshold", "100ms"];
    let message = scene.prof(&args).ok("prof strip").stdout;
    assert!(message.contains("left out"), "{message}");
    let (before, after) = (report(&scene, "r.prof", &[]), report(&scene, "s.prof", &[]));
    assert_eq!(figures(&before), figures(&after));
    let notes = after.at("/recording/notes").to_string();
    assert!(
        notes.contains("shorter than 100.0 ms") && after.bool("/recording/complete"),
        "{notes}"
    );
    let size = |f: &str| std::fs::metadata(scene.path(f)).expect("a file").len();
    assert!(size("s.prof") * 4 < size("r.prof") * 3, "{} {}", size("s.prof"), size("r.prof"));
    // Every other command reads it, and long-lived blocks are as they were.
    let long = ["--min-lifetime", "150ms"];
    let of = |f: &str| report(&scene, f, &long).total("allocations");
    assert!(of("s.prof") > 0);
    assert_eq!(of("s.prof"), of("r.prof"));
    for args in [
        &["info", "s.prof"][..],
        &["leaks", "s.prof"],
        &["check", "s.prof", "--max-peak", "1GiB"],
        &["diff", "r.prof", "s.prof"],
        &["export", "html", "s.prof"],
        &["export", "replay", "s.prof"],
        &["pack", "s.prof", "-o", "p.prof"],
        &["strip", "s.prof", "-o", "again.prof"],
    ] {
        scene.prof(args).ok("a command on a stripped recording");
    }
    for file in ["p.prof", "again.prof"] {
        assert_eq!(figures(&report(&scene, file, &[])).0, figures(&before).0, "{file}");
    }
    let there = scene.prof(&args);
    let exists = there.stderr.contains("s.prof exists already");
    assert!(
        there.code == 2
            && exists
            && figures(&report(&scene, "s.prof", &[])).0 == figures(&before).0
    );
    std::fs::write(scene.path("no.prof"), "nothing").expect("written");
    let none = scene.prof(&["strip", "no.prof", "-o", "x.prof"]);
    assert!(none.code == 2 && !scene.path("x.prof").exists(), "{none:#?}");
}

#[test]
fn a_recording_can_be_made_for_a_stream() {
    let scene = Scene::new("stream");
    record(&scene, &program("leaks.c"), &[], &["300"]);
    for args in [&["pack", "r.prof"][..], &["strip", "r.prof", "--threshold", "0s"]] {
        let mut c = Command::new(Scene::binary());
        let piped = std::fs::File::create(scene.path("piped.prof")).expect("a file");
        c.args(args).args(["-o", "/dev/stdout"]).current_dir(&scene.dir).stdout(piped);
        let done = c.output().expect("prof");
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && told.contains("/dev/stdout: "), "{told}");
        let [made, before] = ["piped.prof", "r.prof"].map(|f| figures(&report(&scene, f, &[])));
        assert_eq!(made.0, before.0);
    }
}

#[test]
fn a_packed_recording_needs_nothing_else() {
    let scene = Scene::new("pack");
    // A program whose file is removed afterwards.
    let own = scene.path("gone");
    std::fs::copy(program("figures.c"), &own).expect("copied");
    record(&scene, &own, &["--free-stacks"], &[]);
    let before = report(&scene, "r.prof", &[]);
    for how in ["none", "partial", "full"] {
        let name = format!("{how}.prof");
        scene.prof(&["pack", "r.prof", "-o", &name, "--anonymize", how]).ok("prof pack");
    }
    scene.prof(&["pack", "r.prof", "-o", "files.prof", "--files"]).ok("prof pack");
    std::fs::remove_file(&own).expect("removed");
    assert_eq!(figures(&report(&scene, "none.prof", &[])), figures(&before));
    let lines = |f: &str| {
        let r = report(&scene, f, &[]);
        let large = r.asked_by("large");
        assert_eq!(large.len(), 1, "{f}: {}", r.askers());
        large[0].frames().iter().map(|f| (f.function().to_owned(), f.line())).collect::<Vec<_>>()
    };
    // The recording itself has lost the lines with the program.
    let wanted: Vec<_> = before.asked_by("large")[0]
        .frames()
        .iter()
        .map(|f| (f.function().to_owned(), f.line()))
        .collect();
    assert!(wanted.iter().any(|f| f.0 == "large" && f.1 > 0), "{wanted:?}");
    for file in ["none.prof", "partial.prof", "files.prof"] {
        assert_eq!(lines(file), wanted, "{file}");
    }
    let partial = report(&scene, "partial.prof", &[]);
    assert_eq!(partial.at("/target/exe"), "gone");
    let folder = scene.dir.to_str().expect("UTF-8");
    let full = report(&scene, "full.prof", &[]).0.to_string();
    let text = full.replace("full.prof", "");
    for name in ["large", "figures.c", "libc.so", "gone", folder, "malloc"] {
        assert!(!text.contains(name), "{name} in {text:.2000}");
    }
    assert_eq!(report(&scene, "full.prof", &[]).total("live_bytes"), before.total("live_bytes"));
    let both = scene.prof(&["pack", "r.prof", "-o", "x", "--files", "--anonymize", "full"]);
    assert!(both.code == 2 && both.stderr.contains("give one of them"), "{both:#?}");

    let message = scene.prof(&["extract", "files.prof", "-o", "out"]).ok("prof extract").stdout;
    assert!(message.contains("libc.so") && message.contains("/gone"), "{message}");
    let taken = scene.path("out/files").join(own.strip_prefix("/").expect("a path"));
    let (a, b) = (std::fs::read(taken), std::fs::read(program("figures.c")));
    assert_eq!(a.expect("taken out"), b.expect("the program"));
    assert!(scene.path("out/modules.txt").is_file());
    let none = scene.prof(&["extract", "r.prof", "-o", "other"]).ok("prof extract").stdout;
    assert!(none.contains("--files"), "{none}");
    let again = scene.prof(&["extract", "r.prof", "-o", "out"]);
    assert!(again.code == 1 && again.stderr.contains("out"), "{again:#?}");
}

#[test]
fn sparse_pages_are_found_and_resident_memory_adds_up() {
    let scene = Scene::new("fragmentation");
    let mut target = Target::start(&program("sparse.c"), &[]);
    let recording = scene.attach(&target);
    target.send("go");
    target.expect("done");
    scene.detach(&target);
    scene.finished(&recording);
    let file = recording.to_str().expect("UTF-8");
    let out = scene.prof(&["fragmentation", file, "--format", "json"]).ok("prof fragmentation");
    let f: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let stacks = f["stacks"].as_array().expect("stacks");
    let at = |marker: &str| {
        let line = line_of("sparse.c", marker);
        let here = |s: &&Value| {
            let frames = s["frames"].as_array().expect("frames");
            let own =
                frames.iter().find(|f| f["file"].as_str().is_some_and(|p| p.ends_with("sparse.c")));
            own.is_some_and(|f| f["line"].as_u64() == Some(line))
        };
        stacks.iter().find(here)
    };
    let number =
        |s: &Value, name: &str| s[name].as_u64().unwrap_or_else(|| panic!("{name}: {s:#}"));
    // Every 40th of 4,000 blocks is kept: each lies on a page or two of its own.
    let keeper = at("keeper").expect("the stack that keeps");
    assert_eq!(stacks[0]["id"], keeper["id"], "{f:#}");
    assert_eq!((number(keeper, "live_count"), number(keeper, "live_bytes")), (100, 100_000));
    assert!((98..=200).contains(&number(keeper, "alone")), "{keeper:#}");
    assert!(number(keeper, "sparse_alone") >= 90, "{keeper:#}");
    // SAFETY: `sysconf` takes no pointers.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a size");
    assert!(number(keeper, "unused_alone_bytes") > 61 * page, "{keeper:#}");
    let filler = at("filler").expect("the stack that fills");
    assert!(number(filler, "unused_alone_bytes") < 12 * page, "{filler:#}");
    assert!(at("passing").is_none(), "{f:#}");
    let a = &f["account"];
    let n = |name: &str| number(a, name) as i64;
    let kinds = a["maps"].as_array().expect("mappings").iter();
    let others = kinds.filter(|m| m["kind"] != "heap" && m["kind"] != "anonymous");
    let others: i64 = others.map(|m| number(m, "rss_bytes") as i64).sum();
    let unexplained = a["unexplained_bytes"].as_i64().expect("a number");
    let sum = n("live_bytes") + n("beside_bytes") - n("not_resident_bytes")
        + n("before_bytes")
        + n("slack_bytes")
        + n("other_anonymous_bytes");
    assert_eq!(sum + others + unexplained, n("rss_bytes"), "{a:#}");
    assert_eq!(n("live_bytes"), 100_000 + 200 * 4000, "{a:#}");
    // 300 blocks of 4,000 bytes are older; the allocator keeps most of the freed memory.
    assert!(n("before_bytes") >= 1_100_000 && n("slack_bytes") > 2_000_000, "{a:#}");
    assert!(unexplained.unsigned_abs() < 256 * page, "{a:#}");
    assert!(n("rss_bytes") > 5_000_000 && n("not_resident_bytes") < 100_000, "{a:#}");
    let text = scene.prof(&["fragmentation", file]).ok("prof fragmentation").stdout;
    assert!(text.contains("keeper") && text.contains("kept by the allocator"), "{text}");
    let wrong = scene.prof(&["fragmentation", file, "--sparse", "7"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("25%"), "{wrong:#?}");
}
