//! `prof mark`, and what is selected by marks.

use common::build::program;
use common::{Scene, Target};
use serde_json::Value;

/// Returns the blocks and bytes that are live in a report with options.
#[track_caller]
fn live(scene: &Scene, of: &str, options: &[&str]) -> (u64, u64) {
    let out = scene.prof(&[&["report", of, "--format", "json"], options].concat()).ok("report");
    let r: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let total = |name: &str| r["totals"][name].as_u64().expect(name);
    (total("live_count"), total("live_bytes"))
}

#[test]
fn marks_select_what_was_allocated_since_and_between() {
    let scene = Scene::new("marks");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let early = scene.prof(&["mark", &pid, "one"]);
    assert!(early.code == 3 && early.stderr.contains("prof attach"), "{early:?}");
    scene.attach(&target);
    target.ask("alloc 3");
    let out = scene.prof(&["mark", &pid, "one"]).ok("the first mark");
    assert!(out.stderr.contains("mark #1") && out.stderr.contains("--since one"), "{out:?}");
    target.ask("alloc 5");
    scene.prof(&["mark", &pid, "two words"]).ok("the second mark");
    target.ask("alloc 7");
    // A mark is set while recording is off, too, and needs no name.
    scene.prof(&["pause", &pid]).ok("pause");
    let out = scene.prof(&["mark", &pid]).ok("the third mark");
    assert!(out.stderr.contains("mark #3") && out.stderr.contains("'#3'"), "{out:?}");
    scene.prof(&["resume", &pid]).ok("resume");
    target.ask("alloc 11");
    for bad in ["a,b", "#4", "", "x\ny"] {
        assert_eq!(scene.prof(&["mark", &pid, bad]).code, 2, "{bad:?}");
    }
    // Of several of a name the last counts.
    scene.prof(&["mark", &pid, "one"]).ok("the fourth mark");
    target.ask("alloc 13");
    let file = scene.detach(&target);
    target.quit();
    let file = file.to_str().expect("a path");
    let blocks = |n: u64| (n, n * 128);
    for (since, n) in [("#1", 36), ("two words", 31), ("#3", 24), ("one", 13), ("#4", 13)] {
        assert_eq!(live(&scene, file, &["--since", since]), blocks(n), "{since}");
    }
    for (pair, n) in [("#1,two words", 5), ("two words,#3", 7), ("#1, one", 23), ("#2,#2", 0)] {
        assert_eq!(live(&scene, file, &["--between", pair]), blocks(n), "{pair}");
    }
    assert_eq!(live(&scene, file, &["--since", "#1", "--between", "#2,#3"]), blocks(7));
    let unknown = scene.prof(&["report", file, "--since", "three"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("#2 two words at"), "{unknown:?}");
    let turned = scene.prof(&["report", file, "--between", "one,#1"]);
    assert!(turned.code == 2 && turned.stderr.contains("before"), "{turned:?}");
    let text = scene.prof(&["report", file]).ok("report").stdout;
    assert!(
        text.contains("#1 one at") && text.contains("#3 at") && text.contains("#4 one at"),
        "{text}"
    );
    // The marks are kept in copies, and select mappings and, in scripts, blocks.
    scene.prof(&["pack", file, "-o", "packed.prof"]).ok("pack");
    assert_eq!(live(&scene, "packed.prof", &["--since", "two words"]), blocks(31));
    scene.prof(&["maps", file, "--since", "one"]).ok("maps");
    assert_eq!(scene.prof(&["maps", file, "--since", "three"]).code, 2);
    let script = r##"println(allocations().only_between("#1, two words").len());"##;
    let out = scene.prof(&["script", "--data", file, "-e", script]).ok("script");
    assert_eq!(out.stdout.trim(), "5");
}

#[test]
fn status_shows_bounds_and_marks_and_a_trace_changes_no_bounds() {
    let scene = Scene::new("status-bounds");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let bounds = ["--max-disk", "1GiB", "--keep-free", "1MiB"];
    scene.prof(&[&["attach", &pid, "-o", "r.prof"], &bounds[..]].concat()).ok("prof attach");
    scene.prof(&["mark", &pid, "first"]).ok("prof mark");
    let text = scene.prof(&["status", &pid]).ok("prof status").stdout;
    assert!(text.contains("at most 1.0 GiB, 1.0 MiB of the file system stay free"), "{text}");
    assert!(text.contains("#1 first at "), "{text}");
    let json = scene.prof(&["status", &pid, "--format", "json"]).ok("prof status").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["max_disk"], &json["on_limit"]), (&(1u64 << 30).into(), &"stop".into()));
    assert_eq!(json["marks"][0]["name"], "first", "{json:#}");
    for option in [["--ring-size", "1MiB"], ["--max-disk", "2GiB"], ["--on-full", "drop"]] {
        let refused = scene.prof(&[&["trace", &pid], &option[..]].concat());
        assert!(refused.code == 2 && refused.stderr.contains(option[0]), "{refused:?}");
    }
    scene.detach(&target);
    target.quit();
}
