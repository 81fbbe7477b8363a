//! `prof attach`, `detach` and `report` on programs of known behaviour: every count, size and peak must be exact, each
//! stack must have its function, file and line, and the JSON must keep its contract.

use common::build::program;
use common::{Report, Scene, Target};
use serde_json::Value;
use std::collections::HashMap;

/// Records commands of a program; returns its last answer, and the report.
#[track_caller]
fn recorded(scene: &Scene, source: &str, commands: &[&str]) -> (String, Report) {
    let mut target = Target::start(&program(source), &[]);
    let recording = scene.attach(&target);
    let mut answer = String::new();
    for c in commands {
        answer = target.ask(c);
    }
    assert_eq!(scene.detach(&target), recording, "detach names another recording");
    target.quit();
    (answer, scene.finished(&recording))
}

/// Parses the `name=number` pairs of a line.
fn pairs(line: &str) -> HashMap<&str, u64> {
    line.split(' ')
        .filter_map(|w| w.split_once('='))
        .map(|(k, v)| (k, v.parse().unwrap()))
        .collect()
}

#[test]
fn every_count_and_size_is_exact() {
    let scene = Scene::new("counts");
    let (answer, r) = recorded(&scene, "counts.c", &["go"]);
    let own = pairs(&answer);
    r.assert_sound();
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
    assert_eq!(r.number("/recording/unknown_frees"), 0);
    assert_eq!(r.number("/recording/truncated_stacks"), 0);
    // realloc(p, 0) frees a block that was just allocated; the 14 reallocations go on with theirs.
    assert_eq!(r.total("temporary"), 1, "{:#}", r.brief());
}

#[test]
fn every_stack_has_its_function_file_and_line() {
    let scene = Scene::new("stacks");
    let (_, r) = recorded(&scene, "counts.c", &["go"]);
    // marker, function, live blocks, live bytes, bytes ever allocated here
    let expected = [
        ("plain", "plain", 500, 50_000, 100_000),
        ("zeroed", "zeroed", 7, 2_100, 2_100),
        ("chain_step", "chain", 1, 40_960, 81_900),
        ("realloc_of_null", "realloc_of_null", 1, 77, 77),
        ("realloc_shrinks", "realloc_shrinks", 1, 50, 50),
        ("posix_aligned", "posix_aligned", 3, 600, 600),
        ("c11_aligned", "c11_aligned", 2, 512, 512),
        ("old_aligned", "old_aligned", 1, 48, 48),
        ("page_aligned", "page_aligned", 1, 111, 111),
        ("whole_pages", "whole_pages", 1, 4_096, 4_096),
        ("array_step", "array", 1, 240, 240),
        ("nothing", "nothing", 4, 0, 0),
        ("refused", "refused", 1, 50, 50),
        ("chain_start", "chain", 0, 0, 10),
        ("realloc_to_zero", "realloc_to_zero", 0, 0, 60),
        ("array_start", "array", 0, 0, 120),
        ("highest_a", "highest", 0, 0, 1 << 20),
        ("highest_b", "highest", 0, 0, 2 << 20),
    ];
    for (marker, function, count, bytes, ever) in expected {
        let group = r.marked("counts.c", marker);
        group.assert_live(count, bytes);
        assert_eq!(group.number("allocated_bytes"), ever, "@{marker}: {}", group.numbers());
        let functions = group.functions();
        let at = functions.iter().position(|f| *f == function);
        let at = at.unwrap_or_else(|| panic!("@{marker}: no {function} in {functions:?}"));
        assert_eq!(functions.get(at + 1), Some(&"main"), "@{marker}: {functions:?}");
        assert_eq!(functions.last(), Some(&common::START), "@{marker}: {functions:?}");
    }
    let plain = r.marked("counts.c", "plain");
    let peak = (plain.number("peak_count"), plain.number("peak_bytes"));
    assert_eq!(peak, (1000, 100_000), "{}", plain.numbers());
    assert_eq!(plain.number("allocations"), 1000);
}

#[test]
fn blocks_from_before_the_attach_are_told_apart() {
    let scene = Scene::new("before");
    let (_, r) = recorded(&scene, "counts.c", &["old"]);
    r.assert_sound();
    assert_eq!(r.number("/recording/unknown_frees"), 5);
    assert_eq!((r.total("allocations"), r.total("live_count")), (0, 0), "{:#}", r.brief());

    let (_, r) = recorded(&scene, "counts.c", &["grow"]);
    r.marked("counts.c", "grow_old").assert_live(1, 3333);
    assert_eq!(r.total("reallocations"), 1);
    assert_eq!((r.total("live_count"), r.total("live_bytes")), (1, 3333), "{:#}", r.brief());
}

#[test]
fn temporary_allocations_are_those_freed_by_the_next_event() {
    let scene = Scene::new("temporary");
    let (_, r) = recorded(&scene, "temporary.c", &["go"]);
    r.assert_sound();
    assert_eq!(r.total("temporary"), 321);
    assert_eq!(r.total("allocations"), 342);
    let of = |marker| {
        let g = r.marked("temporary.c", marker);
        (g.number("allocations"), g.number("temporary"), g.number("peak_count"))
    };
    assert_eq!(of("short_lived"), (321, 321, 1));
    assert_eq!(of("overlapping_a"), (10, 0, 1));
    assert_eq!(of("overlapping_b"), (10, 0, 1));
    assert_eq!(of("kept_block"), (1, 0, 1));
}

#[test]
fn the_json_has_every_field_of_the_contract() {
    let scene = Scene::new("contract");
    let mut target = Target::start(&program("counts.c"), &["an argument", "ü"]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    let r = scene.finished(&recording);

    assert_eq!(r.number("/version"), 1);
    assert_eq!(r.number("/target/pid"), target.pid as u64);
    let exe = std::fs::read_link(format!("/proc/{}/exe", target.pid)).unwrap();
    assert_eq!(r.at("/target/exe").as_str(), exe.to_str());
    let cmdline: Vec<_> = r.at("/target/cmdline").as_array().unwrap().iter().collect();
    assert_eq!(cmdline.len(), 3);
    assert_eq!((cmdline[1].as_str(), cmdline[2].as_str()), (Some("an argument"), Some("ü")));
    let little_mips = cfg!(all(target_arch = "mips64", target_endian = "little"));
    let arch = if little_mips { "mips64el" } else { std::env::consts::ARCH };
    assert_eq!(r.at("/target/arch").as_str(), Some(arch));

    let path = r.at("/recording/path").as_str().expect("a path");
    let same = scene.path(path).canonicalize().unwrap() == recording.canonicalize().unwrap();
    assert!(same, "{path} is not {}", recording.display());
    let parts = r.at("/recording/parts").as_array().unwrap();
    assert_eq!(parts.len(), 1, "{parts:?}");
    let (start, end) = (parts[0]["start_ns"].as_u64(), parts[0]["end_ns"].as_u64());
    assert!(start.is_some() && start < end, "{parts:?}");
    let duration = r.number("/recording/duration_ns");
    assert!(duration > 0 && duration < 120_000_000_000, "{duration}");
    let events = r.number("/recording/events");
    let sum = r.total("allocations") + r.total("frees") + r.total("reallocations");
    assert_eq!(events, sum, "an event is an allocation, a free or a reallocation");
    assert!(r.total("peak_at_ns") <= duration);

    let hooks = r.at("/recording/hooks").as_array().unwrap();
    let mut calls = HashMap::new();
    for h in hooks {
        let name = h["function"].as_str().expect("a function");
        // The dynamic linker has functions of its own that map libraries.
        let module = h["module"].as_str().expect("a module");
        assert!(module.contains("libc") || module.contains("/ld"), "{h}");
        assert!(h["method"] == "inline", "{h}");
        calls.insert(name, h["calls"].as_u64().expect("calls"));
    }
    for name in ["malloc", "calloc", "realloc", "free", "posix_memalign"] {
        assert!(calls.get(name).is_some_and(|n| *n > 0), "no calls of {name}: {calls:?}");
    }
    // aligned_alloc and memalign are one function in some releases of glibc
    let aligned = ["aligned_alloc", "memalign"].map(|n| calls.get(n).copied().unwrap_or(0));
    assert!(aligned.iter().sum::<u64>() >= 3, "{calls:?}");
    assert!(calls["malloc"] >= 1010, "{calls:?}");
    for h in r.at("/recording/not_hooked").as_array().unwrap() {
        for field in ["function", "module", "reason"] {
            assert!(h[field].as_str().is_some_and(|s| !s.is_empty()), "{h}");
        }
    }
    for g in r.groups() {
        for name in ["live_count", "live_bytes", "peak_count", "peak_bytes"] {
            g.number(name);
        }
        for name in ["allocations", "allocated_bytes", "temporary"] {
            g.number(name);
        }
        let age = &g.0["oldest_live_age_ns"];
        let alive = g.number("live_count") > 0;
        assert!(if alive { age.is_u64() } else { age.is_u64() || age.is_null() }, "{age}");
        assert!(age.as_u64().unwrap_or(0) <= duration, "{age}");
        for f in g.frames() {
            f.address();
            assert!(f.0["inlined"].is_boolean(), "{}", f.0);
            for name in ["function", "file", "module", "offset"] {
                let v = f.0.get(name).unwrap_or_else(|| panic!("no {name}: {}", f.0));
                assert!(v.is_string() || v.is_null(), "{name}: {v}");
            }
            let line = f.0.get("line");
            assert!(line.is_some_and(|v| v.is_u64() || v.is_null()), "{}", f.0);
            let offset = f.0["offset"].as_str();
            assert!(offset.is_none_or(|o| o.starts_with("0x")), "{}", f.0);
        }
    }
}

/// Returns whether a text contains a number, with or without separators of thousands.
fn mentions(text: &str, number: u64) -> bool {
    let plain = text.replace([',', '_', '\''], "");
    let digits = number.to_string();
    plain.match_indices(&digits).any(|(at, _)| {
        let before = plain[..at].chars().next_back();
        let after = plain[at + digits.len()..].chars().next();
        !before.is_some_and(|c| c.is_ascii_digit()) && !after.is_some_and(|c| c.is_ascii_digit())
    })
}

#[test]
fn the_text_says_what_the_json_says() {
    let scene = Scene::new("text");
    let mut target = Target::start(&program("counts.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    scene.detach(&target);
    let r = scene.finished(&recording);
    let path = recording.to_str().unwrap();
    let text =
        scene.prof(&["report", path, "--top", "1000", "--sort", "count"]).ok("report").stdout;
    assert!(!text.contains('\x1b'), "colour without a terminal:\n{text}");
    for name in ["allocations", "frees", "live_count"] {
        assert!(mentions(&text, r.total(name)), "{name} is not in:\n{text}");
    }
    assert!(mentions(&text, target.pid as u64), "no pid in:\n{text}");
    for word in ["VSS", "RSS"] {
        assert!(text.contains(word), "no {word} in:\n{text}");
    }
    let blocks: Vec<_> = text.lines().filter(|l| l.starts_with("=== backtrace #")).collect();
    let groups = scene.report_with(&recording, &["--sort", "count"]);
    assert_eq!(blocks.len(), groups.groups().count(), "{text}");
    for (block, group) in blocks.iter().zip(groups.groups()) {
        let count = format!("{}/{}", group.number("live_count"), group.number("peak_count"));
        let plain = block.replace(',', "");
        assert!(plain.contains(&format!("[count/peak: {count}]")), "{count} is not in {block}");
        assert!(block.contains("[size/peak: ") && block.contains("[age: "), "{block}");
    }
    assert!(blocks[0].contains("48.8 KiB/97.7 KiB"), "50,000 of 100,000 bytes: {}", blocks[0]);
    let line = common::build::line_of("counts.c", "plain");
    assert!(text.contains(&format!("counts.c:{line}")), "{text}");
    let short = scene.prof(&["report", path, "--top", "3"]).ok("report").stdout;
    assert_eq!(short.matches("=== backtrace #").count(), 3, "{short}");
}

#[test]
fn every_sort_key_sorts_by_its_field() {
    let scene = Scene::new("sort");
    let mut target = Target::start(&program("counts.c"), &[]);
    let recording = scene.attach(&target);
    target.ask("go");
    target.ask("old");
    scene.detach(&target);
    scene.finished(&recording);
    for (key, field) in [
        ("size", "live_bytes"),
        ("count", "live_count"),
        ("peak-size", "peak_bytes"),
        ("peak-count", "peak_count"),
        ("allocated", "allocated_bytes"),
        ("allocations", "allocations"),
        ("age", "oldest_live_age_ns"),
        ("temporary", "temporary"),
    ] {
        let r = scene.report_with(&recording, &["--sort", key]);
        let values: Vec<u64> = r.groups().map(|g| g.0[field].as_u64().unwrap_or(0)).collect();
        assert!(values.len() > 10, "--sort {key}: {values:?}");
        assert!(values.is_sorted_by(|a, b| a >= b), "--sort {key}: {values:?}");
        assert!(values[0] > values[values.len() - 1], "--sort {key}: {values:?}");
    }
    let bad = scene.prof(&["report", recording.to_str().unwrap(), "--sort", "beauty"]);
    assert_eq!(bad.code, 2, "{bad:?}");
    assert!(bad.stderr.contains("peak-size"), "names the keys there are: {}", bad.stderr);
}

#[test]
fn the_default_names_are_as_documented() {
    let scene = Scene::new("names");
    let mut target = Target::start(&program("toggle.c"), &[]);
    let recording = scene.attach(&target);
    let name = recording.file_name().unwrap().to_str().unwrap().to_owned();
    let middle = format!(".{}.", target.pid);
    let ok = name.starts_with("prof.toggle") && name.contains(&middle) && name.ends_with(".prof");
    assert!(ok, "{name} is not prof.COMM.PID.TIMESTAMP.prof");
    assert_eq!(recording.parent(), Some(scene.dir.as_path()), "not in the current folder");
    target.ask("alloc 11");
    // By PID while it is recorded; without any name the newest file of the folder.
    let args = ["report", &target.pid.to_string(), "--format", "json"].map(str::to_owned);
    let by_pid = Report::parse(&scene.prof(&args).ok("report PID").stdout);
    let by_default =
        Report::parse(&scene.prof(&["report", "--format", "json"]).ok("report").stdout);
    for r in [&by_pid, &by_default] {
        assert_eq!(r.number("/target/pid"), target.pid as u64);
        assert_eq!(r.at("/recording/complete"), &Value::Bool(false));
    }
    scene.detach(&target);
    assert_eq!(scene.finished(&recording).total("live_count"), 11);
}

#[test]
fn recordings_within_a_second_have_different_names() {
    let scene = Scene::new("second");
    let target = Target::start(&program("toggle.c"), &[]);
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..4 {
        names.insert(scene.attach(&target));
        scene.detach(&target);
    }
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn the_attach_says_what_was_hooked_and_how_long_it_took() {
    let scene = Scene::new("says");
    let target = Target::start(&program("toggle.c"), &[]);
    let wanted = scene.path("deep.name.prof");
    let pid = target.pid.to_string();
    let out = scene.prof(&["attach", &pid, "-o", wanted.to_str().unwrap()]).ok("attach");
    assert_eq!(out.stdout.trim_end(), wanted.to_str().unwrap());
    for word in ["malloc", "free", "libc", "the process was stopped for ", "s at most"] {
        assert!(out.stderr.contains(word), "no {word:?} in: {}", out.stderr);
    }
    scene.detach(&target);
}

#[test]
fn help_and_usage_errors_have_their_exit_codes() {
    let scene = Scene::new("usage");
    let help = scene.prof(&["--help"]).ok("--help").stdout;
    for command in ["attach", "detach", "pause", "resume", "status", "run", "report"] {
        assert!(help.contains(command), "{command} is not in:\n{help}");
        let own = scene.prof(&[command, "--help"]).ok(command).stdout;
        assert!(own.contains("Usage"), "{own}");
    }
    for wrong in [&["atach", "1"][..], &["attach"], &["attach", "one"], &["report", "--top", "x"]] {
        let out = scene.prof(wrong);
        assert_eq!(out.code, 2, "{wrong:?}: {out:?}");
        assert!(out.stdout.is_empty() && !out.stderr.is_empty(), "{wrong:?}: {out:?}");
    }
}
