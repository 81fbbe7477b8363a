//! `prof dump`: reports of a running recording.

use common::build::program;
use common::{Scene, Target};
use serde_json::Value;
use std::fs;

#[test]
fn a_report_is_written_and_the_recording_goes_on() {
    let scene = Scene::new("dump");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let pid = target.pid.to_string();
    let refused = scene.prof(&["dump", &pid]);
    assert_eq!(refused.code, 3, "{refused:?}");
    let recording = scene.attach(&target);
    target.ask("alloc 40");
    // The collector writes what it has each second at the latest.
    common::until("the events", || {
        let r = scene.prof(&["report", &pid, "--format", "json"]);
        serde_json::from_str::<Value>(&r.stdout)
            .is_ok_and(|r| r["totals"]["live_count"].as_u64() >= Some(40))
    });
    let dump = |options: &[&str]| {
        let out = scene.prof(&[&["dump", &pid], options].concat()).ok("prof dump");
        let path = scene.path(out.stdout.trim());
        (path.clone(), fs::read_to_string(path).expect("the report"))
    };
    let (_, text) = dump(&[]);
    assert!(text.contains("toggled_block") && text.contains("still recording"), "{text}");
    let numbered = ["--report-file", "r.{pid}.{n}.json", "--format", "json"];
    let (first, json) = dump(&numbered);
    let report: Value = serde_json::from_str(&json).expect("JSON");
    assert!(report["totals"]["live_count"].as_u64() >= Some(40), "{json}");
    assert_eq!(first, scene.path(&format!("r.{pid}.1.json")));
    assert_eq!(dump(&numbered).0, scene.path(&format!("r.{pid}.2.json")));
    let (_, folded) = dump(&["--format", "folded", "--function", "toggled_block"]);
    assert!(
        folded.contains(";toggled_block [")
            && folded.ends_with(" 5120\n")
            && folded.lines().count() == 1,
        "{folded}"
    );
    let (_, svg) = dump(&["--format", "flamegraph", "--report-file", "{comm}.svg"]);
    assert!(svg.contains("<svg"), "{svg}");
    let again =
        scene.prof(&["dump", &pid, "--format", "flamegraph", "--report-file", "{comm}.svg"]);
    assert!(again.code == 2 && again.stderr.contains("{n}"), "{again:?}");
    // The recording is not ended by a report.
    target.ask("alloc 5");
    scene.detach(&target);
    target.quit();
    scene.finished(&recording).marked("toggle.c", "toggled_block").assert_live(45, 45 * 128);
}
