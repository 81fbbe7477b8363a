//! Recordings of figures by stack alone: their figures are the program's own, and what needs blocks says so.

use common::build::program;
use common::{Scene, Target, until};
use std::collections::HashMap;

#[test]
fn figures_alone_are_exact_and_every_command_on_stacks_takes_them() {
    let scene = Scene::new("aggregate");
    let mut target = Target::start(&program("counts.c"), &[]);
    let recording = scene.path("a.prof");
    let file = recording.to_str().expect("a path");
    scene.attach_with(&target, &["-o", file, "--aggregate", "--every", "100ms"]);
    let pid = target.pid.to_string();
    let status = scene.prof(&["status", &pid]).ok("status").stdout;
    assert!(status.contains("aggregate  figures by stack are written every 100.0 ms"), "{status}");
    assert!(status.contains(", by the figures of "), "{status}");
    let json = scene.prof(&["status", &pid, "--format", "json"]).ok("status").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let age = json["figures_age_ns"].as_u64().expect("an age");
    assert!(age < 3_600_000_000_000, "figures are older than this test: {json}");
    let answer = target.ask("go");
    let own: HashMap<&str, u64> = answer
        .split(' ')
        .filter_map(|w| w.split_once('='))
        .map(|(k, v)| (k, v.parse().expect("a number")))
        .collect();
    until("the figures are written", || {
        scene.report(&recording).total("allocations") == own["allocations"]
    });
    let trace = scene.prof(&["trace", &pid]);
    assert!(trace.code == 3 && trace.stderr.contains("--aggregate"), "{trace:?}");
    let live = scene.prof(&["leaks", &pid, "--live", "1s", "1"]);
    assert!(live.code == 3 && live.stderr.contains("--combined-only"), "{live:?}");
    let args = ["leaks", &pid, "--live", "1s", "1", "--combined-only"];
    let live = scene.prof(&args).ok("leaks --live").stdout;
    assert!(live.contains("50000 bytes in 500 allocations"), "{live}");
    let mark = scene.prof(&["mark", &pid, "deployed"]).ok("mark").stderr;
    assert!(mark.contains("mark #1") && mark.contains("--base"), "{mark}");
    let reach = scene.prof(&["reach", &pid]);
    assert!(reach.code != 0 && reach.stderr.contains("--aggregate"), "{reach:?}");
    scene.detach(&target);
    let report = scene.prof(&["report", file, "--top", "1"]).ok("report").stdout;
    assert!(report.contains("deployed at"), "{report}");
    let r = scene.finished(&recording);
    for (theirs, ours) in [
        ("live_bytes", "live_bytes"),
        ("live_count", "live_count"),
        ("peak", "peak_bytes"),
        ("allocations", "allocations"),
        ("frees", "frees"),
        ("reallocations", "reallocations"),
        ("allocated", "allocated_bytes"),
    ] {
        assert_eq!(r.total(ours), own[theirs], "{ours}; {answer}; {:#}", r.brief());
    }
    assert_eq!(r.total("temporary"), 1, "{:#}", r.brief());
    let plain = r.marked("counts.c", "plain");
    plain.assert_live(500, 50_000);
    let of = |name| plain.number(name);
    let peak = (of("peak_count"), of("peak_bytes"), of("allocated_bytes"));
    assert_eq!(peak, (1000, 100_000, 100_000), "{}", plain.numbers());
    for args in [
        &["report", file, "--histogram"][..],
        &["report", file, "--stats"],
        &["report", file, "--group-by", "function"],
        &["report", file, "--tree"],
        &["report", file, "--peak"],
        &["report", file, "--function", "plain"],
        &["leaks", file, "--all"],
        &["diff", file, file],
        &["info", file],
        &["export", "folded", file],
        &["export", "massif", file],
        &["export", "html", file],
        &["export", "speedscope", file],
        &["export", "firefox", file],
        &["export", "flamegraph", file],
    ] {
        let out = scene.prof(args).ok(&args.join(" ")).stdout;
        assert!(out.contains("plain") || !matches!(args[0], "export" | "leaks"), "{args:?}: {out}");
    }
    for args in [
        &["report", file, "--threads"][..],
        &["report", file, "--min-size", "1"],
        &["export", "csv", file],
        &["export", "heaptrack", file],
        &["strip", file, "--threshold", "1s", "-o", "never.prof"],
    ] {
        let out = scene.prof(args);
        assert!(out.code != 0 && out.stderr.contains("--aggregate"), "{args:?}: {out:?}");
    }
    target.quit();
}

#[test]
fn a_killed_collector_leaves_the_figures_up_to_then() {
    for (options, why) in [
        (
            &["--aggregate", "--every", "100ms"][..],
            "the collector was killed; the figures are those at",
        ),
        (&["--cull", "100ms"], "the collector was killed before it had written figures"),
    ] {
        let scene = Scene::new(&format!("killed{}", options[0]));
        let mut target = Target::start(&program("toggle.c"), &[]);
        let recording = scene.path("a.prof");
        let file = recording.to_str().expect("a path");
        scene.attach_with(&target, &[&["-o", file], options].concat());
        target.ask("alloc 100");
        until("the figures are written", || scene.report(&recording).total("allocations") == 100);
        let collector = nix::unistd::Pid::from_raw(common::writers(&recording)[0]);
        nix::sys::signal::kill(collector, nix::sys::signal::Signal::SIGKILL).expect("signal");
        // What goes on with the figures has died, so that nobody can count these any more.
        target.ask("alloc 50");
        let said = scene.prof(&["detach", &target.pid.to_string()]).stderr;
        assert!(said.contains("and 50 events since then are in none"), "{said}");
        let out = scene.prof(&["report", file, "--top", "1"]).ok("report").stdout;
        assert!(out.contains(why) && out.contains("not complete (stopped: the collector"), "{out}");
        let report = scene.report(&recording);
        assert_eq!(report.total("allocations"), 100);
        assert_eq!(report.at("/recording/complete"), false, "{:#}", report.brief());
        assert_eq!(report.at("/recording/lost_events"), 50, "{:#}", report.brief());
        target.ask("free 100");
        target.quit();
    }
}
